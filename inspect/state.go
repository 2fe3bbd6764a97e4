// The state of a device at any event of its trace.
//
// A snapshot tells the segments and blocks at its end and what happened
// before. From this come two lists:
//
//   - spans: ranges of addresses with the time in which there was memory
//     behind them (state_spans.go), found by undoing the segments' events from
//     the end to the start
//   - leases: blocks with the time in which they were live and pending
//     (state_leases.go), found by going through the blocks' events once
//
// Both reach back before the first event: what a ring buffer has overwritten
// shows by being freed in the trace or by being there at its end. The state
// at an event is then what holds at that moment, laid out by address. An index
// (state_index.go) finds it without going through the trace.
//
// Events carry the size that was asked for. The size of the block follows from
// the rules: it is the rounded request, and in a plain segment of the large
// pool also the rest up to the next block if that is 1 MiB or less, because
// such a rest is never split off, and so no free block there is that small
// (state_blocks.go).

package inspect

import (
	"cmp"
	"slices"
	"sort"
	"sync"

	"github.com/headroom-go/headroom/trace"
)

// History is what a snapshot tells of one device, from its first event to its
// last. It does not change and may be used from several goroutines at once.
type History struct {
	// Leases are all blocks: first those that were there before the first
	// event, by address, then the others in the order in which they were
	// allocated.
	Leases []Lease
	// Conf is the settings that were recorded.
	Conf Conf

	snapshot *trace.Snapshot
	device   int
	trace    *trace.Trace
	lease    []int32       // by event: the index of its lease, -1 for none
	stale    map[int]int32 // by event: the lease whose free was not recorded before its address was used again
	spans    []span
	leaseAt  intervals
	spanAt   intervals
	bursts   map[int]*burst
	awaited  map[int]bool // events: completed frees that a retry waited for
	peak     int

	recorded func() (*Result, error) // the replay under the recorded settings, done once
}

// State is the memory of a device at one moment.
type State struct {
	// Event is the number of events before this moment.
	Event int
	// Segments are ordered by address. Blocks tile them.
	Segments []trace.Segment
	// Leases are those of the blocks in Segments that are not free, in their
	// order, by index in History.Leases.
	Leases []int
	// Stray are the blocks that lie in no known segment, or on one another:
	// the record is incomplete or contradicts itself.
	Stray []trace.Block
}

// NewHistory prepares the history of a device. A device that the snapshot does
// not know has an empty one.
func NewHistory(s *trace.Snapshot, device int) *History {
	h := &History{snapshot: s, device: device, trace: &trace.Trace{}, Conf: RecordedConf(s.Settings), stale: map[int]int32{}}
	if device >= 0 && device < len(s.Traces) && s.Traces[device] != nil {
		h.trace = s.Traces[device]
	}
	h.findLeases()
	h.findSpans()
	h.findBorders()
	h.findBursts()
	h.measure()
	h.peak = h.findPeak()
	h.recorded = sync.OnceValues(func() (*Result, error) { return h.replay(Options{}) })
	return h
}

// Device is the number of the device.
func (h *History) Device() int { return h.device }

// Len is the number of events.
func (h *History) Len() int { return h.trace.Len() }

// told says whether the record tells how memory came and went, and does not hold
// marks alone, such as that of the snapshot itself.
func (h *History) told() bool {
	for i := range h.Len() {
		if h.Event(i).Action <= trace.OOM {
			return true
		}
	}
	return false
}

// Event gives event i.
func (h *History) Event(i int) trace.Entry { return h.trace.Entry(i) }

// Lease gives the index of the lease that event i begins or ends, or -1.
func (h *History) Lease(i int) int { return int(h.lease[i]) }

// Peak is the moment at which most bytes are live, the first of equals, as At
// takes it.
func (h *History) Peak() int { return h.peak }

// At gives the state after the first n events: At(0) is the start of the
// trace, At(Len()) its end. It takes time in proportion to what is live then,
// not to the length of the trace. It panics if n is not from 0 to Len().
func (h *History) At(n int) State {
	alive := h.LiveAt(n)
	slices.SortFunc(alive, func(a, b int) int {
		return cmp.Or(cmp.Compare(h.Leases[a].Addr, h.Leases[b].Addr), cmp.Compare(a, b))
	})
	state := State{Event: n, Segments: h.segmentsAt(n), Leases: make([]int, 0, len(alive))}
	for i := range state.Segments {
		alive = h.tile(&state, &state.Segments[i], alive, n)
	}
	for _, k := range alive {
		state.Stray = append(state.Stray, h.Leases[k].block(n))
	}
	return state
}

// LiveAt lists the leases that are live or pending after the first n events,
// by index in Leases.
func (h *History) LiveAt(n int) []int {
	if n < 0 || n > h.Len() {
		panic("inspect: moment outside the trace")
	}
	return h.leaseAt.at(n)
}

// tile fills a segment with the blocks that begin in it, and free ones between
// them, and gives the leases behind it. Those that fit nowhere become stray.
func (h *History) tile(state *State, seg *trace.Segment, alive []int, n int) []int {
	at, end := seg.Addr, seg.Addr+seg.Size
	inside := sort.Search(len(alive), func(i int) bool { return h.Leases[alive[i]].Addr >= end })
	seg.Blocks = make([]trace.Block, 0, 2*inside+1)
	for ; len(alive) > 0 && h.Leases[alive[0]].Addr < end; alive = alive[1:] {
		l := &h.Leases[alive[0]]
		if l.Addr < at {
			state.Stray = append(state.Stray, l.block(n))
			continue
		}
		limit := end
		if len(alive) > 1 {
			limit = min(end, h.Leases[alive[1]].Addr)
		}
		b := l.block(n)
		b.Size = h.blockSize(l, seg, limit-l.Addr)
		if b.Size == 0 {
			state.Stray = append(state.Stray, l.block(n))
			continue
		}
		seg.Blocks = appendFree(seg.Blocks, at, b.Addr)
		seg.Blocks = append(seg.Blocks, b)
		state.Leases = append(state.Leases, alive[0])
		at = b.Addr + b.Size
	}
	seg.Blocks = appendFree(seg.Blocks, at, end)
	return alive
}

func appendFree(blocks []trace.Block, from, to uint64) []trace.Block {
	if from < to {
		blocks = append(blocks, trace.Block{Addr: from, Size: to - from, State: trace.Free})
	}
	return blocks
}

// blockSize is the size of a lease's block with space bytes up to what follows.
func (h *History) blockSize(l *Lease, seg *trace.Segment, space uint64) uint64 {
	size := min(l.Block, space)
	if l.Block == 0 {
		size = min(h.Conf.Round(l.Size), space)
		if rest := space - size; !seg.Small && !seg.Expandable && (rest <= smallMax || size >= h.Conf.MaxSplit) {
			size = space
		}
	}
	return size
}

// findPeak goes through the changes of live bytes once.
func (h *History) findPeak() int {
	var live, most int64
	peak := 0
	for n, change := range h.liveChanges() {
		if live += change; live > most {
			most, peak = live, min(n, h.Len())
		}
	}
	return peak
}
