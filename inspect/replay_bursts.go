package inspect

import "github.com/headroom-go/headroom/trace"

// burst is a row of events that give segments back.
type burst struct {
	first, end int  // events [first, end)
	unmaps     bool // pages are among them
	program    bool // the program asked for it (empty_cache), not the allocator for want of memory
	takes      bool // the request that it happened for then got memory
}

// findBursts fills in bursts, the rows of such events by their first event, and
// says why
// they happened. The allocator gives memory back for the request that follows:
// the next event takes a segment or is an out-of-memory error, with the same
// call stack. Where no stacks were recorded, it was for want of memory if the
// request would otherwise have gone beyond all that was ever reserved.
func (h *History) findBursts() {
	h.bursts, h.awaited = map[int]*burst{}, map[int]bool{}
	before := map[*burst]uint64{}
	reserved := h.reservedAtStart()
	peak := reserved
	var open *burst
	for i, e := range h.trace.All() {
		switch e.Action {
		case trace.SegmentAlloc, trace.SegmentMap:
			reserved += e.Size
			peak = max(peak, reserved)
		case trace.SegmentFree, trace.SegmentUnmap:
			if open == nil {
				open = &burst{first: i}
				h.bursts[i], before[open] = open, reserved
			}
			open.end, open.unmaps = i+1, open.unmaps || e.Action == trace.SegmentUnmap
			reserved -= min(e.Size, reserved)
			continue
		case trace.OOM:
			h.findAwaited(i)
		}
		open = nil
	}
	for b, reserved := range before {
		h.explain(b, reserved, peak)
		if !b.program {
			h.findAwaited(b.first)
		}
	}
}

// findAwaited finds the frees that became complete because the allocator waited
// for them in the request that failed or gave memory back at event i: those
// right before it that did not become complete when they were asked for.
func (h *History) findAwaited(i int) {
	stack := h.trace.Entry(i).Stack
	for i--; i >= 0; i-- {
		e := h.trace.Entry(i)
		k := h.lease[i]
		if e.Action != trace.FreeCompleted || k < 0 || e.Stack != stack || stack == nil && h.Leases[k].Freed() == i-1 {
			return
		}
		h.awaited[i] = true
	}
}

func (h *History) reservedAtStart() uint64 {
	var sum uint64
	for _, k := range h.spanAt.at(0) {
		sum += h.spans[k].size
	}
	return sum
}

// explain says why a burst happened, given what was reserved before it and at
// most.
func (h *History) explain(b *burst, reserved, peak uint64) {
	b.program = true
	if b.end == h.Len() {
		return
	}
	next := h.trace.Entry(b.end)
	takes := next.Action == trace.SegmentAlloc || next.Action == trace.SegmentMap
	if !takes && next.Action != trace.OOM {
		return
	}
	short := !takes || reserved+next.Size > peak
	if next.Stack != nil {
		short = h.haveStack(b, next.Stack)
	}
	b.program, b.takes = !short, short && takes
}

// haveStack says whether all events of a burst have the stack.
func (h *History) haveStack(b *burst, s *trace.Stack) bool {
	for i := b.first; i < b.end; i++ {
		if h.trace.Entry(i).Stack != s {
			return false
		}
	}
	return true
}
