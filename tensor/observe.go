package tensor

// Range is a part of the work that a runtime queues, told to an Observer.
type Range struct {
	Kind RangeKind
	Name string  // of the operation, such as "linear", or as the program gave it
	Node uint64  // number of the recorded operation, as in Kept; 0 for none
	From *Tensor // of a BackwardPass: where it starts; the observer may read it until Begin returns
}

// RangeKind says what a range is.
type RangeKind uint8

// The kinds of ranges.
const (
	Named        RangeKind = iota // a part that the program named: see Runtime.Range
	OpForward                     // an operation
	OpBackward                    // the backward of an operation
	OpUpdate                      // a change of parameters, or what prepares it
	BackwardPass                  // a call of Backward, with the backward of its operations inside
	SecondRun                     // of a checkpoint's function, inside the backward that asked for it
	Recipe                        // of a result that who saved it has made again, the same
)

// Observer is told of ranges as their work is queued: a profiler, or a bridge
// to one, such as NVTX's or Perfetto's. Ranges nest, and End ends the
// innermost one; a panic ends those that it leaves. The work between the two
// calls need not be done at the second one: who measures time waits for the
// stream. The calls come from the runtime's goroutine, and must not compute.
type Observer interface {
	Begin(r Range)
	End()
}

// Observe tells o of all ranges from now on, and no other observer; nil ends
// it. The observer before gets the End of every range that it saw begin.
func (rt *Runtime) Observe(o Observer) {
	rt.endRanges(0)
	rt.observer = o
}

// Range runs f as a range of that name.
func (rt *Runtime) Range(name string, f func()) {
	defer rt.endRanges(rt.begin(Range{Kind: Named, Name: name}))
	f()
}

// begin tells of a range and returns how many were open before.
func (rt *Runtime) begin(r Range) (open int) {
	open = rt.ranges
	if rt.observer != nil {
		rt.ranges++
		rt.observer.Begin(r)
	}
	return open
}

// endRanges ends the ranges that were begun when so many were open.
func (rt *Runtime) endRanges(open int) {
	for rt.ranges > open {
		rt.ranges--
		rt.observer.End()
	}
}
