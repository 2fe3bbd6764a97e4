package inspect

import (
	"fmt"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// How a snapshot is explained. The moment that counts is the last
// out-of-memory event or, without one, the peak: what a file shows at its end
// is what was left when it was written, often after the error was caught. At
// that moment what lives is split by purpose and by call site, and compared
// from step to step for what grows; what is reserved beside is split by why it
// is there. Then, in this order:
//
//	LEAK           a call site grows in every step, and holds a good part
//	LIMIT          the device had room, so something else refused it
//	FRAGMENTATION  the bytes were there, in pieces
//	TIGHT          they were there, but hardly more
//	CAPACITY       they were not
//	UNKNOWN        the record is cut, without history, or contradicts itself
//	HEALTHY        nothing failed and nothing grows
//
// What other settings would have done is not guessed: the trace is replayed
// under them.

// Explain says what the record tells of the device's memory.
func (h *History) Explain() *Report { return examine(h).report() }

// evidence is what a report on one device rests on. Live bytes are those of
// blocks, as they were rounded.
type evidence struct {
	h     *History
	oom   int   // event, or −1
	state State // at the moment that counts
	beside

	live, reserved uint64
	peakReserved   uint64   // at any moment
	request, free  uint64   // of the failed request
	leases         []*Lease // that live at the moment
	sites          *sites
	purposes       *purposes
}

func examine(h *History) *evidence {
	e := &evidence{h: h, oom: lastOOM(h), sites: newSites(), purposes: newPurposes(h)}
	moment := h.Peak()
	if e.oom >= 0 {
		moment = e.oom
	}
	e.state = h.At(moment)
	e.leases = h.liveLeases(moment)
	e.beside = besideOf(e.state.Segments)
	for _, s := range e.state.Segments {
		e.reserved += s.Size
		for _, b := range s.Blocks {
			if b.State == trace.Live {
				e.live += b.Size
			}
		}
	}
	for _, b := range e.state.Stray {
		e.live += b.Size
	}
	e.peakReserved = highest(h.reservedChanges())
	if e.oom >= 0 {
		event := h.Event(e.oom)
		e.request, e.free = event.Size, event.Addr
	}
	return e
}

// lastOOM is the event of the last failed request, or −1.
func lastOOM(h *History) int {
	for i := h.Len() - 1; i >= 0; i-- {
		if h.Event(i).Action == trace.OOM {
			return i
		}
	}
	return -1
}

func (e *evidence) worse(than *evidence) bool {
	if (e.oom >= 0) != (than.oom >= 0) {
		return e.oom >= 0
	}
	return e.live > than.live
}

func (e *evidence) report() *Report {
	r := &Report{Kind: KindSnapshot, Framework: "PyTorch", Device: fmt.Sprintf("GPU %d", e.h.device),
		AllocatedBytes: &e.live, ReservedBytes: &e.reserved, PeakReservedBytes: &e.peakReserved, Causes: []Cause{}, Actions: []string{}, Unhelpful: []string{}}
	cached := e.reserved - min(e.reserved, e.live+e.pending)
	r.CachedBytes = &cached
	if e.oom >= 0 {
		r.RequestBytes, r.FreeBytes = &e.request, &e.free
	}
	ends, by := e.h.steps()
	growth := growing(e.h.Leases, ends, func(l *Lease) Site { return e.sites.site(l.Stack) })
	e.causes(r, growth, by)
	e.judge(r, growth)
	e.doubt(r)
	e.whatIf(r)
	if cut := e.h.snapshot.Cut; cut != nil {
		r.Unhelpful = append(r.Unhelpful, "the file is cut, so that what it says of its end is missing: "+cut.Error())
	}
	return r
}

// topSites is how many call sites a report names.
const topSites = 6

// causes lists what holds the memory: by purpose, by call site, what grows,
// and what is reserved beside.
func (e *evidence) causes(r *Report, growth []Growth, by string) {
	add := func(what string, bytes uint64, where string, args ...any) {
		if bytes > 0 {
			r.Causes = append(r.Causes, Cause{What: what, Bytes: bytes, Where: fmt.Sprintf(where, args...)})
		}
	}
	for _, s := range shares(e.leases, func(l *Lease) string { return e.purposes.of(l).String() }) {
		add(s.What, s.Bytes, "%s", counted(s.Count, "block"))
	}
	for _, s := range first(topSites, shares(e.leases, func(l *Lease) string { return e.sites.site(l.Stack).String() })) {
		add("call site", s.Bytes, "%s, %s", s.What, counted(s.Count, "block"))
	}
	for _, g := range first(topSites, growth) {
		add("grows", g.Bytes, "%s: %s and %s more each step, over %d steps (by %s)", g.Site, size.Format(g.PerStepBytes), counted(g.PerStepCount, "block"), g.Steps, by)
	}
	add("pending", e.pending, "freed by the program, in use by queued work on other streams")
	add("rounding", e.rounding, "blocks are larger than what was asked for")
	add("free segments", e.whole, "%s with nothing in them, which empty_cache() would give back", counted(e.wholes, "segment"))
	add("holes", e.holes, "%s between blocks in use", counted(e.pieces, "free piece"))
	if b := e.before; e.hole > 0 {
		by := e.sites.site(b.Stack).String()
		if by == unknownSite {
			by = "a block whose stack was not recorded"
		}
		add("largest hole", e.hole, "pinned by %s", by)
	}
	if e.oom >= 0 {
		return
	}
	for _, s := range first(3, e.leftover()) {
		add("cache left over", s.Bytes, "free at the end, in %s taken for %s", counted(s.Count, "segment"), s.What)
	}
}

// counted gives a number with its noun.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func first[T any](n int, list []T) []T { return list[:min(n, len(list))] }

// leftover is the free memory at the end of the trace, by the call site that
// its segments were taken for: what another phase of the job left.
func (e *evidence) leftover() []Share {
	var free []*Lease
	for _, s := range e.h.At(e.h.Len()).Segments {
		l := &Lease{Stack: s.Stack}
		for _, b := range s.Blocks {
			if b.State == trace.Free {
				l.Size += b.Size
			}
		}
		if l.Size > 0 && s.Stack != nil {
			free = append(free, l)
		}
	}
	return shares(free, func(l *Lease) string { return e.sites.site(l.Stack).String() })
}

// beside is what is reserved and not asked for by live blocks, by why.
type beside struct {
	pending, rounding uint64
	whole, holes      uint64 // bytes in segments with nothing in them, and between blocks
	wholes, pieces    int
	hole              uint64      // the largest hole
	before            trace.Block // the block in use beside it
}

func besideOf(segments []trace.Segment) beside {
	var b beside
	for _, s := range segments {
		if len(s.Blocks) == 1 && s.Blocks[0].State == trace.Free {
			b.whole += s.Size
			b.wholes++
			continue
		}
		for i, k := range s.Blocks {
			switch k.State {
			case trace.Free:
				b.addHole(s.Blocks, i)
			case trace.Pending:
				b.pending += k.Size
			default:
				b.rounding += k.Size - min(k.Size, k.Requested)
			}
		}
	}
	return b
}

func (b *beside) addHole(blocks []trace.Block, i int) {
	b.holes += blocks[i].Size
	b.pieces++
	if blocks[i].Size > b.hole {
		b.hole = blocks[i].Size
		if i == 0 {
			b.before = blocks[1]
		} else {
			b.before = blocks[i-1]
		}
	}
}
