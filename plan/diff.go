package plan

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/tensor"
)

// Difference is what changed from one plan to another.
type Difference struct {
	Old Side `json:"old"`
	New Side `json:"new"`
	// Values that wait in another way, the most alike first. They are compared where
	// both plans are of the same step with micro-batches of one size, and recompute no
	// blocks: there operations have the same numbers. Elsewhere there are none.
	Values []ValueChange `json:"values"`
}

// Side is one of two plans.
type Side struct {
	Step        string `json:"step"`
	Device      string `json:"device"`
	BudgetBytes uint64 `json:"budget_bytes"`
	Chosen      Trial  `json:"chosen"`
}

// ValueChange is how many results of operations of a name wait in another way. The
// ways are kept, held, made again and moved away.
type ValueChange struct {
	Op    string `json:"op"`
	Old   string `json:"old"`
	New   string `json:"new"`
	Count int    `json:"count"`
}

// Diff compares two plans.
func Diff(before, after *Plan) *Difference {
	d := &Difference{Old: before.side(), New: after.side(), Values: []ValueChange{}}
	was, is := before.Chosen.Strategy, after.Chosen.Strategy
	if before.Step == after.Step && was.MicroBatch == is.MicroBatch && was.Recompute == 0 && is.Recompute == 0 {
		d.compare(was.Values, is.Values)
	}
	return d
}

func (p *Plan) side() Side { return Side{p.Step, p.Device, p.BudgetBytes, p.Chosen} }

// compare counts the values that wait in another way.
func (d *Difference) compare(before, after *tensor.Schedule) {
	counts := map[ValueChange]int{}
	for i := range max(waits(before), waits(after)) {
		op, was := wayOf(before, i)
		other, is := wayOf(after, i)
		was, is = unlessHeld(was, is), unlessHeld(is, was)
		if was != is {
			counts[ValueChange{Op: cmp.Or(other, op), Old: was, New: is}]++
		}
	}
	for c, n := range counts {
		c.Count = n
		d.Values = append(d.Values, c)
	}
	slices.SortFunc(d.Values, func(a, b ValueChange) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Old, b.Old), cmp.Compare(a.New, b.New))
	})
}

func waits(s *tensor.Schedule) int {
	if s == nil {
		return 0
	}
	return len(s.Waits)
}

// unlessHeld is way, but for a result that the other plan holds: such a one is made
// again where nothing else is said of it.
func unlessHeld(way, other string) string {
	if way == "kept" && other == "held" {
		return "made again"
	}
	return way
}

// wayOf is the name of operation i, where that is known, and how its result waits.
func wayOf(s *tensor.Schedule, i int) (op, way string) {
	if i >= waits(s) {
		return "", "kept"
	}
	switch w := s.Waits[i]; {
	case w.Held:
		return w.Op, "held"
	case w.Away:
		return w.Op, "moved away"
	case len(w.Reads) > 1:
		return w.Op, "made again"
	default:
		return w.Op, "kept"
	}
}
