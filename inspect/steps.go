package inspect

import (
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/headroom-go/headroom/trace"
)

// How steps are found. A job repeats itself: a training step, a batch of an
// evaluation. What lives at the end of one should live at the end of the next,
// so leaks are looked for at the ends. In this order:
//
//  1. annotations: the END of Optimizer.zero_grad or Optimizer.step,
//     whichever comes last in a step, or ProfilerStep
//  2. stacks: the last event of each run of events from an optimizer's step
//  3. periodicity: the call stack that recurs most evenly
//
// A program that annotates its steps is believed also where they are too few
// to compare: what repeats inside one step is no step.

// minSteps is how many ends make a row of steps.
const minSteps = 4

// steps gives the events at which steps end, in order, and how they were found.
func (h *History) steps() (ends []int, how string) {
	if h.fewSteps() {
		return nil, ""
	}
	for _, find := range []func() ([]int, string){h.annotated, h.optimized, h.periodic} {
		if ends, how = find(); len(ends) >= minSteps {
			return ends, how
		}
	}
	return nil, ""
}

// fewSteps says whether annotations of whole steps cover most of the record
// and are fewer than make a row.
func (h *History) fewSteps() bool {
	var steps, inside int
	for _, n := range h.notes() {
		if strings.HasPrefix(n.name, "ProfilerStep") {
			steps++
			inside += h.after(n.to) - h.after(n.from-1)
		}
	}
	return steps > 0 && steps < minSteps && 2*inside > h.Len()
}

// after is the number of events up to a time.
func (h *History) after(timeUS int64) int {
	return sort.Search(h.Len(), func(i int) bool { return h.Event(i).TimeUS > timeUS })
}

// annotated finds steps by annotations.
func (h *History) annotated() ([]int, string) {
	for _, name := range []string{"Optimizer.zero_grad", "Optimizer.step", "ProfilerStep"} {
		if ends, how := h.namedEnds(name); len(ends) >= minSteps {
			return ends, how
		}
	}
	return nil, ""
}

// namedEnds gives the last events of the annotations whose names begin so.
func (h *History) namedEnds(name string) (ends []int, how string) {
	for _, a := range h.snapshot.Annotations {
		if !a.Begin && a.Device == h.device && strings.HasPrefix(a.Name, name) {
			i := h.after(a.TimeUS) - 1
			if i >= 0 && (len(ends) == 0 || i > ends[len(ends)-1]) {
				ends = append(ends, i)
			}
		}
	}
	if len(ends) == 0 {
		return nil, ""
	}
	return ends, "annotations of " + name
}

// optimized finds steps by the stacks of an optimizer's step.
func (h *History) optimized() ([]int, string) {
	is := map[*trace.Stack]bool{}
	var ends []int
	in := false
	for i := range h.Len() {
		e := h.Event(i)
		if e.Stack == nil {
			continue
		}
		step, known := is[e.Stack]
		if !known {
			step = slices.ContainsFunc(e.Stack.Frames(), inOptimizer)
			is[e.Stack] = step
		}
		if in && !step {
			ends = append(ends, i-1)
		}
		in = step
	}
	return ends, "stacks of optimizer steps"
}

func inOptimizer(f trace.Frame) bool {
	return hasFolder(f.File, "optim") && f.Func == "step" || strings.HasSuffix(f.Func, "nn.(*AdamW).Step")
}

// periodic finds steps by the call stack whose allocations recur most evenly,
// over most of the trace; of equally even ones the rarest.
func (h *History) periodic() ([]int, string) {
	at := map[*trace.Stack][]int{}
	for i := range h.Len() {
		if e := h.Event(i); e.Action == trace.Alloc && e.Stack != nil {
			at[e.Stack] = append(at[e.Stack], i)
		}
	}
	var best []int
	for _, events := range at {
		if even(events, h.Len()) && (best == nil || len(events) < len(best) || len(events) == len(best) && events[0] < best[0]) {
			best = events
		}
	}
	if best == nil {
		return nil, ""
	}
	ends := make([]int, 0, len(best))
	for _, i := range best[1:] {
		ends = append(ends, i-1)
	}
	return ends, "periodicity"
}

// even says whether the gaps between events, the first two left out, differ
// by little and cover most of the trace.
func even(events []int, length int) bool {
	if len(events) < minSteps+3 {
		return false
	}
	events = events[2:]
	n := float64(len(events) - 1)
	span := float64(events[len(events)-1] - events[0])
	var squares float64
	for i := 1; i < len(events); i++ {
		d := float64(events[i]-events[i-1]) - span/n
		squares += d * d
	}
	return span > 0.5*float64(length) && math.Sqrt(squares/n) < 0.25*span/n
}
