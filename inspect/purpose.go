package inspect

import (
	"slices"
	"sort"
	"strings"

	"github.com/headroom-go/headroom/trace"
)

// What a block of PyTorch's was for is told by the stack of its allocation and
// by how long it lived, since the file does not say it:
//
//	optimizer state  allocated in an optimizer, and living on past its step
//	gradient         allocated in backward, and living on past a step's end
//	workspace        allocated in either, and gone before
//	parameter        allocated when a module was built, moved or loaded
//	activation       allocated in a module's forward
//	input            allocated elsewhere in the program
//	other            no stack
//
// phase is what a stack alone tells.
type phase uint8

const (
	unknown phase = iota
	inStep
	inBackward
	inSetup
	inForward
	elsewhere
)

// purposes tells what blocks are for.
type purposes struct {
	phases map[*trace.Stack]phase
	runs   []optimizerRun // of the optimizer
}

// optimizerRun is a row of events from the optimizer, [first, last].
type optimizerRun struct{ first, last int }

func newPurposes(h *History) *purposes {
	p := &purposes{phases: map[*trace.Stack]phase{}}
	in := false
	for i := range h.Len() {
		e := h.Event(i)
		if e.Stack == nil {
			continue
		}
		step := p.phase(e.Stack) == inStep
		switch last := len(p.runs) - 1; {
		case step && in:
			p.runs[last].last = i
		case step:
			p.runs = append(p.runs, optimizerRun{i, i})
		}
		in = step
	}
	return p
}

func (p *purposes) of(l *Lease) trace.Purpose {
	if l.Purpose != trace.Other {
		return l.Purpose
	}
	switch ph := p.phase(l.Stack); {
	case ph == inStep && p.outlives(l):
		return trace.OptimizerState
	case ph == inBackward && p.outlives(l):
		return trace.Gradient
	case ph == inStep || ph == inBackward:
		return trace.Workspace
	case ph == inSetup:
		return trace.Parameter
	case ph == inForward:
		return trace.Activation
	case ph == elsewhere:
		return trace.Input
	}
	return trace.Other
}

// outlives says whether l, born in backward or in the optimizer, is what they
// were run for: a gradient that the optimizer finds, a state that it leaves.
func (p *purposes) outlives(l *Lease) bool {
	i := sort.Search(len(p.runs), func(i int) bool { return p.runs[i].last >= l.Born() })
	switch {
	case i == len(p.runs):
		return false
	case p.runs[i].first <= l.Born():
		return l.Freed() > p.runs[i].last
	}
	return l.Freed() > p.runs[i].first
}

func (p *purposes) phase(stack *trace.Stack) phase {
	if ph, ok := p.phases[stack]; ok {
		return ph
	}
	ph := phaseOf(stack.Frames())
	p.phases[stack] = ph
	return ph
}

func phaseOf(frames []trace.Frame) phase {
	ph := elsewhere
	if len(frames) == 0 {
		return unknown
	}
	for _, f := range frames { // the innermost frame that tells decides, but setup is weaker than the rest
		switch {
		case hasFolder(f.File, "optim"):
			return inStep
		case strings.HasSuffix(f.File, "autograd/graph.py") || strings.HasSuffix(f.File, "autograd/__init__.py") || f.Func == "backward" || inEngine(f):
			return inBackward
		case f.Func == "forward" || f.Func == "_call_impl" || strings.HasPrefix(f.Func, "forward_"):
			return inForward
		case slices.Contains([]string{"_apply", "load_state_dict", "from_pretrained", "__init__", "reset_parameters"}, f.Func):
			ph = inSetup
		}
	}
	return ph
}
