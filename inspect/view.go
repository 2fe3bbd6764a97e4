package inspect

import "github.com/headroom-go/headroom/trace"

// This file is what those who draw a history need to know of it beside its
// leases and states.

// Span is a range of addresses with memory behind it, for a time: a plain
// segment, or pages of an expandable one that were mapped and unmapped
// together. From and To are events; -1 and the number of events where they lie
// outside the trace.
type Span struct {
	Addr, Size uint64
	From, To   int
	Stream     int
	Pool       trace.PoolID
	Small      bool // holds small blocks only
	Expandable bool
	Stack      *trace.Stack // where it was taken; nil if not recorded
}

// Spans lists all spans in the order in which they begin, those of one moment
// by address.
func (h *History) Spans() []Span {
	out := make([]Span, len(h.spans))
	for i, s := range h.spans {
		out[i] = Span{s.addr, s.size, s.from, s.to, s.stream, s.pool, s.small, s.expandable, s.stack}
	}
	return out
}

// BlockSize is the size of a lease's block in a segment with space bytes up to
// what follows. Where the record does not tell it, a rest of at most RestMax
// bytes belongs to the block in a plain segment of large ones, and so does any
// rest from a size of MaxSplit in the settings on: it is never split off.
func (h *History) BlockSize(l *Lease, seg *trace.Segment, space uint64) uint64 {
	return h.blockSize(l, seg, space)
}

// RestMax is the largest rest that is not split off: see BlockSize.
const RestMax = smallMax

// Steps gives the events at which steps end, in order, and how they were
// found; none where the program shows no steps. Steps that the program named
// are given also where they are too few to tell what grows.
func (h *History) Steps() (ends []int, how string) {
	if ends, how = h.steps(); len(ends) > 0 {
		return ends, how
	}
	return h.namedEnds("ProfilerStep")
}

// Purposes gives the function that says what a lease is for, as Explain takes
// it. It is called from one goroutine at a time.
func (h *History) Purposes() func(*Lease) trace.Purpose { return newPurposes(h).of }

// Sites gives a function that finds the site of a stack, as Explain takes it.
// It is called from one goroutine at a time.
func Sites() func(*trace.Stack) Site { return newSites().site }

// PurposeOrder lists the purposes as they are drawn over one another: what
// stays is at the bottom.
func PurposeOrder() []trace.Purpose { return append([]trace.Purpose(nil), purposeOrder...) }

// Timed says whether the events have times.
func (h *History) Timed() bool { return h.timed() }

// Time is the time of moment n in microseconds since 1970: of the event that
// led to it or, where the events have no times, its number.
func (h *History) Time(n int, timed bool) int64 { return h.time(n, timed) }

// Annotated is a span of time that the program named, in microseconds since
// 1970.
type Annotated struct {
	Name     string
	From, To int64
}

// Annotations gives the spans that the program named, at most so many of the
// longest, in at most so many lanes: those of a lane follow one another, and
// what lies within a span is in a lane below it. What has no end lasts to the
// end of the record.
func (h *History) Annotations(most, lanes int) [][]Annotated {
	var out [][]Annotated
	for _, lane := range lanesOf(h.notes(), h.Time(0, true), h.Time(h.Len(), true), most, lanes) {
		var spans []Annotated
		for _, n := range lane {
			spans = append(spans, Annotated{n.name, n.from, n.to})
		}
		out = append(out, spans)
	}
	return out
}
