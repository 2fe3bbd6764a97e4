package inspect

import (
	"cmp"
	"maps"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// ledger are what the events say is in use. What no event is about yet may have
// been there before the first.
type ledger struct {
	*checker
	blocks   map[uint64]holding
	change   []int64                 // of the bytes in use, by each event; element 0: before the first
	segments map[uint64]holding      // plain ones
	has      [trace.Unknown + 1]bool // actions that the record has
}

// holding is what the last event about an address says.
type holding struct {
	size  uint64
	event int
	use   use
}

type use uint8

const (
	unseen use = iota
	inUse
	isFreed // by the program, and not completed
	isGone
)

func newLedger(c *checker) *ledger {
	l := &ledger{checker: c, blocks: map[uint64]holding{}, segments: map[uint64]holding{}, change: make([]int64, c.trace.Len()+1)}
	for _, e := range c.trace.All() {
		if e.Action <= trace.Unknown {
			l.has[e.Action] = true
		}
	}
	return l
}

func (l *ledger) readAll() {
	l.checked(RuleEvents, l.trace.Len())
	for i, e := range l.trace.All() {
		switch e.Action {
		case trace.Alloc, trace.FreeRequested, trace.FreeCompleted:
			l.count(i, &e)
		}
		switch e.Action {
		case trace.Alloc:
			l.take(l.blocks, "block", i, &e)
		case trace.FreeRequested:
			l.request(i, &e)
		case trace.FreeCompleted:
			l.complete(i, &e)
		case trace.SegmentAlloc:
			l.take(l.segments, "segment", i, &e)
		case trace.SegmentFree:
			l.give(l.segments, "segment", i, &e)
		}
	}
}

// take enters what is handed out.
func (l *ledger) take(book map[uint64]holding, what string, i int, e *trace.Entry) {
	if h := book[e.Addr]; h.use == inUse || h.use == isFreed {
		l.broken(RuleEvents, e.Addr, i, h.size, e.Size, "a %s of %s is handed out where one of %s is in use since event %d", what, exactly(e.Size), exactly(h.size), h.event)
	}
	book[e.Addr] = holding{e.Size, i, inUse}
}

// count enters what the event of a block changes in the bytes in use.
func (l *ledger) count(i int, e *trace.Entry) {
	h := l.blocks[e.Addr]
	used := h.use == inUse || h.use == isFreed
	ends := e.Action == trace.FreeCompleted || e.Action == trace.FreeRequested && !l.has[trace.FreeCompleted]
	if used && (ends || e.Action == trace.Alloc) {
		l.change[i+1] -= int64(h.size)
	}
	switch {
	case e.Action == trace.Alloc:
		l.change[i+1] += int64(e.Size)
	case h.use == unseen:
		l.change[0] += int64(e.Size)
		if ends {
			l.change[i+1] -= int64(e.Size)
		}
	}
}

// firstUsed is the bytes in use before the first event, as they were asked for.
func (l *ledger) firstUsed() int64 {
	used := l.change[0]
	for _, s := range l.checker.segments {
		for _, b := range s.Blocks {
			if b.State != trace.Free && l.blocks[b.Addr].use == unseen {
				used += int64(b.Requested)
			}
		}
	}
	return used
}

// give enters what is given back. It may be from before the first event.
func (l *ledger) give(book map[uint64]holding, what string, i int, e *trace.Entry) {
	switch h := book[e.Addr]; {
	case h.use == isGone:
		l.broken(RuleEvents, e.Addr, i, 0, e.Size, "a %s of %s is given back that is gone since event %d", what, exactly(e.Size), h.event)
	case h.use != unseen && h.size != e.Size:
		l.broken(RuleEvents, e.Addr, i, h.size, e.Size, "a %s of %s is given back as one of %s", what, exactly(h.size), exactly(e.Size))
	}
	book[e.Addr] = holding{e.Size, i, isGone}
}

// request enters a free by the program, which ends the block's use if the
// record has no completed frees.
func (l *ledger) request(i int, e *trace.Entry) {
	if h := l.blocks[e.Addr]; h.use == isFreed {
		l.broken(RuleEvents, e.Addr, i, h.size, e.Size, "the block is freed twice, first at event %d", h.event)
		return
	}
	l.give(l.blocks, "block", i, e)
	if l.has[trace.FreeCompleted] {
		l.blocks[e.Addr] = holding{e.Size, i, isFreed}
	}
}

// complete enters the end of a block's use.
func (l *ledger) complete(i int, e *trace.Entry) {
	if h := l.blocks[e.Addr]; h.use == inUse && l.has[trace.FreeRequested] {
		l.broken(RuleEvents, e.Addr, i, h.size, e.Size, "the free of the block, handed out at event %d, is completed and was never requested", h.event)
	}
	l.give(l.blocks, "block", i, e)
}

// compareEnd compares what is in use after the last event with the segments.
func (l *ledger) compareEnd() {
	switch {
	case l.trace.Len() == 0:
		return
	case l.cut:
		l.skip(RuleEnd, "the file is cut")
		return
	case len(l.checker.segments) == 0 && !l.has[trace.SegmentAlloc] && !l.has[trace.SegmentMap]:
		l.skip(RuleEnd, "the file holds no segments")
		return
	}
	found := map[uint64]*trace.Block{}
	segments := map[uint64]uint64{}
	for i := range l.checker.segments {
		s := &l.checker.segments[i]
		segments[s.Addr] = s.Size
		for j := range s.Blocks {
			if s.Blocks[j].State != trace.Free {
				found[s.Blocks[j].Addr] = &s.Blocks[j]
			}
		}
	}
	l.checked(RuleEnd, len(l.blocks)+len(l.segments))
	for _, addr := range byEvent(l.blocks) {
		l.compareBlock(addr, l.blocks[addr], found[addr])
	}
	for _, addr := range byEvent(l.segments) {
		h := l.segments[addr]
		if got := segments[addr]; h.use == inUse && got != h.size {
			l.broken(RuleEnd, addr, h.event, h.size, got, "the segment of %s that was taken here has %s at the end", exactly(h.size), exactly(got))
		}
	}
}

// compareBlock compares what the events say of a block with the block at the
// end, nil if there is none in use.
func (l *ledger) compareBlock(addr uint64, h holding, end *trace.Block) {
	switch {
	case h.use == isGone && end != nil:
		l.broken(RuleEnd, addr, h.event, 0, end.Requested, "the block of %s is gone since this event, and the segments hold it", exactly(end.Requested))
	case h.use == isGone:
	case end == nil:
		l.broken(RuleEnd, addr, h.event, h.size, 0, "the block of %s is in use since this event, and the segments do not hold it", exactly(h.size))
	case end.Requested != h.size && (end.Requested != end.Size || h.size > end.Size): // old files give the block's size alone
		l.broken(RuleEnd, addr, h.event, h.size, end.Requested, "%s were asked for, and the segments hold a block for %s", exactly(h.size), exactly(end.Requested))
	case (h.use == isFreed) != (end.State == trace.Pending):
		l.broken(RuleEnd, addr, h.event, h.size, end.Requested, "the segments hold the block as %v, which its last event is not", end.State)
	}
}

// byEvent gives the addresses in the order of their last events.
func byEvent(book map[uint64]holding) []uint64 {
	return slices.SortedFunc(maps.Keys(book), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(book[a].event, book[b].event), cmp.Compare(a, b))
	})
}
