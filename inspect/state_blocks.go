package inspect

import (
	"sort"

	"github.com/headroom-go/headroom/trace"
)

// Note [Sizes of blocks]
//
// A block of the large pool in a plain segment may hold up to 1 MiB more than
// its rounded request. What follows it in the state tells where it ends,
// unless a free block follows: then the border between the two cannot be seen.
// For blocks allocated in the trace it is known from the replay under the
// recorded settings, which finds the block as PyTorch did. For blocks from
// before the first event a later allocation shows it: blocks of that pool are
// all larger than 1 MiB, so while the block lives only its end can be the
// address of another within 1 MiB behind its rounded request.

// findBorders fills in Block of leases from before the first event, by the
// addresses of later allocations.
func (h *History) findBorders() {
	early := h.roomyEarly()
	if len(early) == 0 {
		return
	}
	for i, e := range h.trace.All() {
		if e.Action != trace.Alloc {
			continue
		}
		at := sort.Search(len(early), func(j int) bool { return early[j].Addr >= e.Addr }) - 1
		if at < 0 || early[at].Done() < i || early[at].Block > 0 {
			continue
		}
		l := early[at]
		size, space := h.Conf.Round(l.Size), e.Addr-l.Addr
		if space >= size && space-size <= smallMax {
			l.Block = space
		}
	}
}

// roomyEarly lists the leases from before the first event, by address, that
// lie in plain segments of a large pool and whose block is not known.
func (h *History) roomyEarly() []*Lease {
	segments := h.segmentsAt(0)
	var out []*Lease
	for k := range h.Leases {
		l := &h.Leases[k]
		if l.Born() >= 0 {
			break
		}
		at := sort.Search(len(segments), func(j int) bool { return segments[j].Addr > l.Addr }) - 1
		if at >= 0 && !segments[at].Small && !segments[at].Expandable && l.Block == 0 {
			out = append(out, l)
		}
	}
	return out
}

// measure fills in Block of the leases that the replay under the recorded
// settings finds where they were.
func (h *History) measure() {
	r := newReplayer(h, h.Conf, 0)
	r.measures = true
	r.run()
}
