package profile

import (
	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Annotations is a tensor.Observer that writes down the parts of a step as
// annotations of a memory snapshot: named ranges, backward passes, and the
// second runs of checkpoints. Their times are those of the allocator's events.
type Annotations struct {
	List []trace.Annotation // in the order of time

	mem  *alloc.Allocator
	open []string // names; empty for ranges that are not written
}

// NewAnnotations makes one for the events of mem.
func NewAnnotations(mem *alloc.Allocator) *Annotations { return &Annotations{mem: mem} }

// Begin is called by the runtime.
func (a *Annotations) Begin(r tensor.Range) {
	name := r.Name
	if r.Kind != tensor.Named && r.Kind != tensor.BackwardPass && r.Kind != tensor.SecondRun {
		name = ""
	}
	a.open = append(a.open, name)
	a.mark(name, true)
}

// End is called by the runtime.
func (a *Annotations) End() {
	last := len(a.open) - 1
	a.mark(a.open[last], false)
	a.open = a.open[:last]
}

func (a *Annotations) mark(name string, begin bool) {
	if name != "" {
		a.List = append(a.List, trace.Annotation{Name: name, Begin: begin, TimeUS: a.mem.TimeUS()})
	}
}
