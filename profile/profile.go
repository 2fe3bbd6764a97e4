// Package profile looks inside training steps: the time and the memory of each
// operation and each module, what forward keeps for backward, and the record
// of the memory with the parts of the step marked in it.
//
// While it is recorded, the stream is waited for at every border of a range,
// so that the work of a range is done within it: its time is the device's
// time with what it takes to queue the work. A profiled step is slower than
// others, and computes the same.
package profile

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Profile is what one or more steps took. The self times of the operators, and
// those of the modules, add up to Total.
type Profile struct {
	Total     time.Duration `json:"total_ns"`
	PeakBytes uint64        `json:"peak_bytes"` // asked for in live blocks, at most
	KeptBytes uint64        `json:"kept_bytes"` // kept for backward when it began: the most of all passes
	Operators []Row         `json:"operators"`  // by self time
	Modules   []Row         `json:"modules"`    // by self time
}

// Row is the figures of an operation, a range or a module.
type Row struct {
	Name  string `json:"name"`
	Phase Phase  `json:"phase,omitempty"` // of an operation; empty for modules
	Calls int    `json:"calls"`

	Self      time.Duration `json:"self_ns"`         // without the ranges or modules inside
	Within    time.Duration `json:"total_ns"`        // with them
	Allocated uint64        `json:"allocated_bytes"` // asked for by itself, without what is inside
	Peak      uint64        `json:"peak_bytes"`      // asked for in live blocks, anybody's, while it ran
	Kept      uint64        `json:"kept_bytes"`      // for backward, as tensor.Kept counts it

	Launches uint64 `json:"launches,omitempty"` // these three only where Launched is told
	Flops    uint64 `json:"flops,omitempty"`
	Moved    uint64 `json:"moved_bytes,omitempty"` // read and written by launches
}

// Phase is the part of the step that an operation belongs to.
type Phase string

// The phases. Ranges are parts of a step with a name, and hold the others.
const (
	Forward   Phase = "forward"
	Backward  Phase = "backward"
	Recompute Phase = "recompute" // in the second run of a checkpoint
	Optimizer Phase = "optimizer"
	InRange   Phase = "range"
)

// column is a figure of a row that tables show and are sorted by.
type column struct {
	name  string
	value func(*Row) uint64
}

// columns are those of tables, in their order; the last three stand where
// launches were told.
var columns = []column{
	{"self", func(r *Row) uint64 { return uint64(r.Self) }},
	{"total", func(r *Row) uint64 { return uint64(r.Within) }},
	{"calls", func(r *Row) uint64 { return uint64(r.Calls) }},
	{"allocated", func(r *Row) uint64 { return r.Allocated }},
	{"peak", func(r *Row) uint64 { return r.Peak }},
	{"kept", func(r *Row) uint64 { return r.Kept }},
	{"launches", func(r *Row) uint64 { return r.Launches }},
	{"flops", func(r *Row) uint64 { return r.Flops }},
	{"moved", func(r *Row) uint64 { return r.Moved }},
}

// Columns lists what Sort takes.
func Columns() []string {
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	return append(names, "name")
}

// Sort orders rows by a column, the greatest first, or by name; of equal ones
// the first by name. It panics for what is not in Columns.
func Sort(rows []Row, by string) {
	i := slices.IndexFunc(columns, func(c column) bool { return c.name == by })
	if i < 0 && by != "name" {
		panic("profile: sort by " + by + ": the columns are " + strings.Join(Columns(), ", "))
	}
	slices.SortFunc(rows, func(a, b Row) int {
		order := 0
		if i >= 0 {
			order = cmp.Compare(columns[i].value(&b), columns[i].value(&a))
		}
		return cmp.Or(order, cmp.Compare(a.Name, b.Name), cmp.Compare(a.Phase, b.Phase))
	})
}
