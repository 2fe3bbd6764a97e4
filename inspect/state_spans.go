package inspect

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// span is a range of addresses with memory behind it, for a time: a plain
// segment, or pages of an expandable one that were mapped and unmapped
// together.
type span struct {
	addr, size uint64
	from, to   int // events; -1 and the number of events where they lie outside the trace
	stream     int
	pool       trace.PoolID
	small      bool
	expandable bool
	stack      *trace.Stack
}

func (s *span) end() uint64 { return s.addr + s.size }

// spanReader undoes the events of segments from the end to the start.
type spanReader struct {
	h     *History
	spans []span
	plain map[uint64]int // by address: the span that is there at this moment
	pages []int          // expandable spans that are there at this moment, by address
	next  int            // the event of the next request
}

// findSpans fills in spans.
func (h *History) findSpans() {
	r := spanReader{h: h, plain: map[uint64]int{}, next: h.Len()}
	r.takeFinal()
	for i := h.Len() - 1; i >= 0; i-- {
		switch e := h.trace.Entry(i); e.Action {
		case trace.Alloc, trace.OOM:
			r.next = i
		case trace.SegmentAlloc:
			r.undoAlloc(i, &e)
		case trace.SegmentFree:
			r.undoFree(i, &e)
		case trace.SegmentMap:
			r.undoMap(i, &e)
		case trace.SegmentUnmap:
			r.undoUnmap(i, &e)
		}
	}
	h.spans = slices.DeleteFunc(r.spans, func(s span) bool { return s.from >= s.to })
	slices.SortStableFunc(h.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.addr, b.addr))
	})
	h.spanAt = newIntervals(len(h.spans), func(k int) (int, int) { return h.spans[k].from, h.spans[k].to })
}

// takeFinal begins with the segments at the end of the trace.
func (r *spanReader) takeFinal() {
	for i := range r.h.snapshot.Segments {
		s := &r.h.snapshot.Segments[i]
		if s.Device == r.h.device {
			r.add(span{addr: s.Addr, size: s.Size, from: -1, to: r.h.Len(), stream: s.Stream, pool: s.Pool, small: s.Small, expandable: s.Expandable, stack: s.Stack})
		}
	}
	if !slices.IsSortedFunc(r.pages, r.byAddr) {
		slices.SortFunc(r.pages, r.byAddr)
	}
}

func (r *spanReader) byAddr(a, b int) int { return cmp.Compare(r.spans[a].addr, r.spans[b].addr) }

// add adds a span that is there now. One that is empty or passes the end of
// all addresses is left out.
func (r *spanReader) add(s span) int {
	if s.addr+s.size <= s.addr {
		return -1
	}
	k := len(r.spans)
	r.spans = append(r.spans, s)
	if s.expandable {
		r.pages = append(r.pages, k)
	} else {
		r.plain[s.addr] = k
	}
	return k
}

func (r *spanReader) ofEvent(i int, e *trace.Entry) span {
	return span{addr: e.Addr, size: e.Size, from: -1, to: i, stream: e.Stream, pool: e.Pool, small: e.Size <= smallBuffer}
}

// undoAlloc: before event i there was no segment. One that is not known later
// was lost; it is taken to last to the end.
func (r *spanReader) undoAlloc(i int, e *trace.Entry) {
	k, ok := r.plain[e.Addr]
	if !ok {
		if k = r.add(r.ofEvent(r.h.Len(), e)); k < 0 {
			return
		}
	}
	r.begin(k, i, e)
	delete(r.plain, e.Addr)
}

// begin lets a span begin at event i. If it ends in the trace, the request for
// which memory was taken tells its pool.
func (r *spanReader) begin(k, i int, e *trace.Entry) {
	s := &r.spans[k]
	s.from, s.stack = i, e.Stack
	if s.to < r.h.Len() && r.next < r.h.Len() {
		request := r.h.trace.Entry(r.next)
		s.small = r.h.Conf.Round(request.Size) <= smallMax
		if l := r.h.lease[r.next]; l >= 0 && s.pool == (trace.PoolID{}) {
			s.pool = r.h.Leases[l].Pool()
		}
	}
}

// undoFree: before event i there was a segment.
func (r *spanReader) undoFree(i int, e *trace.Entry) {
	if k, ok := r.plain[e.Addr]; ok {
		r.spans[k].from = i // its allocation was not recorded
	}
	r.add(r.ofEvent(i, e))
}

// undoMap: before event i there was nothing behind the range.
func (r *spanReader) undoMap(i int, e *trace.Entry) {
	for _, k := range r.cutOut(e.Addr, e.Size) {
		r.begin(k, i, e)
	}
}

// undoUnmap: before event i there was memory behind the range.
func (r *spanReader) undoUnmap(i int, e *trace.Entry) {
	for _, k := range r.cutOut(e.Addr, e.Size) {
		r.spans[k].from = i
	}
	s := r.ofEvent(i, e)
	s.expandable, s.small = true, e.Size%r.h.Conf.LargeSegment != 0
	at := r.search(s.addr)
	if near := r.neighbour(at, &s); near >= 0 && r.spans[near].stream == s.stream {
		s.small, s.pool = r.spans[near].small, r.spans[near].pool
	}
	if k := r.add(s); k >= 0 {
		r.pages = slices.Insert(r.pages[:len(r.pages)-1], at, k)
	}
}

// search gives the place in pages of the first span at addr or above.
func (r *spanReader) search(addr uint64) int {
	at, _ := slices.BinarySearchFunc(r.pages, addr, func(k int, addr uint64) int { return cmp.Compare(r.spans[k].addr, addr) })
	return at
}

// neighbour gives the span that touches s, which belongs at place at, or -1.
func (r *spanReader) neighbour(at int, s *span) int {
	if at < len(r.pages) && r.spans[r.pages[at]].addr == s.end() {
		return r.pages[at]
	}
	if at > 0 && r.spans[r.pages[at-1]].end() == s.addr {
		return r.pages[at-1]
	}
	return -1
}

// cutOut takes the pages of a range away and gives them as spans of their own.
func (r *spanReader) cutOut(addr, size uint64) []int {
	end := addr + size
	if end <= addr {
		return nil
	}
	first := r.search(addr)
	if first > 0 && r.spans[r.pages[first-1]].end() > addr {
		first--
	}
	last := first
	var out, rest []int
	for ; last < len(r.pages) && r.spans[r.pages[last]].addr < end; last++ {
		k := r.pages[last]
		if s := r.spans[k]; s.addr < addr {
			r.spans[k].size = addr - s.addr
			rest = append(rest, k)
			s.size, s.addr = s.end()-addr, addr
			k = len(r.spans)
			r.spans = append(r.spans, s)
		}
		if s := r.spans[k]; s.end() > end {
			r.spans[k].size = end - s.addr
			s.size, s.addr = s.end()-end, end
			rest = append(rest, len(r.spans))
			r.spans = append(r.spans, s)
		}
		out = append(out, k)
	}
	r.pages = slices.Replace(r.pages, first, last, rest...)
	return out
}

// segmentsAt gives the segments after n events, by address, without blocks.
// Pages that touch are one segment if they belong together.
func (h *History) segmentsAt(n int) []trace.Segment {
	alive := h.spanAt.at(n)
	slices.SortFunc(alive, func(a, b int) int {
		return cmp.Or(cmp.Compare(h.spans[a].addr, h.spans[b].addr), cmp.Compare(a, b))
	})
	var out []trace.Segment
	for _, k := range alive {
		s := &h.spans[k]
		if last := len(out) - 1; last >= 0 && s.continues(&out[last]) {
			out[last].Size += s.size
			continue
		}
		out = append(out, trace.Segment{Device: h.device, Stream: s.stream, Addr: s.addr, Size: s.size, Small: s.small, Expandable: s.expandable, Pool: s.pool, Stack: s.stack})
	}
	return out
}

// continues says whether the span is the next pages of a segment.
func (s *span) continues(seg *trace.Segment) bool {
	return s.expandable && seg.Expandable && seg.Addr+seg.Size == s.addr &&
		s.stream == seg.Stream && s.pool == seg.Pool && s.small == seg.Small
}
