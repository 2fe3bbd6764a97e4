package profile

import (
	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Annotations is a tensor.Observer that writes down the parts of a step as
// annotations of a memory snapshot: named ranges, backward passes, the second
// runs of checkpoints, and modules. Their times are those of the allocator's
// events. In a backward pass a module lasts from the first to the last of
// successive operations whose forward ran in it.
type Annotations struct {
	List []trace.Annotation // in the order of time

	mem  *alloc.Allocator
	open []part
	made map[uint64][]string // by number of the node: the modules that its operation ran in
}

// part is a range or a module that has not ended.
type part struct {
	name   string // empty: not written
	module bool
	anew   bool // it calls modules anew: those around it are not around what is in it
}

// NewAnnotations makes one for the events of mem.
func NewAnnotations(mem *alloc.Allocator) *Annotations {
	return &Annotations{mem: mem, made: map[uint64][]string{}}
}

// Begin is called by the runtime.
func (a *Annotations) Begin(r tensor.Range) {
	switch r.Kind {
	case tensor.Named:
		a.begin(part{name: r.Name})
		return
	case tensor.BackwardPass, tensor.SecondRun:
		a.begin(part{name: r.Name, anew: true})
		return
	case tensor.OpBackward:
		a.move(a.made[r.Node])
	case tensor.OpForward:
		a.made[r.Node] = a.modules()
	}
	a.begin(part{})
}

// End is called by the runtime. Modules that a panic has left end, too.
func (a *Annotations) End() {
	for a.end().module {
	}
}

// Enter says that a module begins, and Leave that the innermost one ends:
// calls for nn.Hooks.
func (a *Annotations) Enter(module string) { a.begin(part{name: module, module: true}) }

// Leave ends what Enter began.
func (a *Annotations) Leave() { a.end() }

func (a *Annotations) begin(p part) {
	a.open = append(a.open, p)
	a.mark(p.name, true)
}

func (a *Annotations) end() part {
	last := a.open[len(a.open)-1]
	a.open = a.open[:len(a.open)-1]
	a.mark(last.name, false)
	return last
}

func (a *Annotations) mark(name string, begin bool) {
	if name != "" {
		a.List = append(a.List, trace.Annotation{Name: name, Begin: begin, TimeUS: a.mem.TimeUS()})
	}
}

// modules are those that are open, the outer ones first: in a backward pass or
// a second run, its own.
func (a *Annotations) modules() (names []string) {
	for _, p := range a.open {
		switch {
		case p.anew:
			names = nil
		case p.module:
			names = append(names, p.name)
		}
	}
	return names
}

// move ends the modules within the innermost range that are not in a path, and
// begins those that are missing.
func (a *Annotations) move(path []string) {
	first := len(a.open)
	for first > 0 && a.open[first-1].module {
		first--
	}
	same := 0
	for same < len(path) && first+same < len(a.open) && a.open[first+same].name == path[same] {
		same++
	}
	for len(a.open) > first+same {
		a.Leave()
	}
	for _, module := range path[same:] {
		a.Enter(module)
	}
}
