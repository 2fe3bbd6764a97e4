package inspect

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// Lease is one block from its allocation to the end of its use. Moments are
// numbers of events; at the number of events in the trace it has not happened
// yet.
type Lease struct {
	Addr    uint64
	Size    uint64 // bytes asked for
	Block   uint64 // bytes of the block where the snapshot tells, else 0
	Stream  int
	Pool    trace.PoolID
	Purpose trace.Purpose
	Stack   *trace.Stack // where it was allocated; nil if not recorded
	Born    int          // event of the allocation; -1: before the first
	Freed   int          // event of the program's free; -1: before the first, the block is pending at the start
	Done    int          // event after which the memory may be used again
}

// stateAt says what the lease is after n events in which it is alive.
func (l *Lease) stateAt(n int) trace.State {
	if l.Freed < n {
		return trace.Pending
	}
	return trace.Live
}

// block gives the lease as a block of a snapshot, its size as it was asked for.
func (l *Lease) block(n int) trace.Block {
	return trace.Block{Addr: l.Addr, Size: l.Size, Requested: l.Size, State: l.stateAt(n), Purpose: l.Purpose, Stack: l.Stack}
}

// leaseReader goes through the events of blocks.
type leaseReader struct {
	h     *History
	last  map[uint64]int32 // by address: the lease that was there last
	early []Lease          // from before the first event, in the order in which they show
	// Recorders may leave kinds of events out.
	requests, completions bool
}

// findLeases fills in Leases, lease and stale.
func (h *History) findLeases() {
	r := leaseReader{h: h, last: map[uint64]int32{}}
	allocs := 0
	for _, e := range h.trace.All() {
		r.requests = r.requests || e.Action == trace.FreeRequested
		r.completions = r.completions || e.Action == trace.FreeCompleted
		if e.Action == trace.Alloc {
			allocs++
		}
	}
	h.Leases = make([]Lease, 0, allocs+allocs/16) // with room for early ones: a second copy would be the largest thing in memory
	h.lease = make([]int32, h.Len())
	for i, e := range h.trace.All() {
		h.lease[i] = -1
		switch e.Action {
		case trace.Alloc:
			h.lease[i] = r.alloc(i, &e)
		case trace.FreeRequested:
			h.lease[i] = r.free(i, &e)
		case trace.FreeCompleted:
			h.lease[i] = r.complete(i, &e)
		}
	}
	r.takeFinal()
	r.putEarlyFirst()
	h.leaseAt = newIntervals(len(h.Leases), h.Len(), func(k int) (int, int) { return h.Leases[k].Born, h.Leases[k].Done })
}

// lease gives a lease by its number: early ones count down from -2.
func (r *leaseReader) lease(k int32) *Lease {
	if k < 0 {
		return &r.early[-2-k]
	}
	return &r.h.Leases[k]
}

// open gives the lease that is live or pending at an address.
func (r *leaseReader) open(addr uint64) (k int32, ok bool) {
	k, ok = r.last[addr]
	return k, ok && r.lease(k).Done == r.h.Len()
}

// addEarly adds a lease from before the first event and gives its number.
func (r *leaseReader) addEarly(l Lease) int32 {
	l.Born = -1
	r.early = append(r.early, l)
	k := -1 - int32(len(r.early))
	r.last[l.Addr] = k
	return k
}

func newLease(e *trace.Entry, events int) Lease {
	return Lease{Addr: e.Addr, Size: e.Size, Stream: e.Stream, Pool: e.Pool, Purpose: e.Purpose, Freed: events, Done: events}
}

// alloc begins a lease. One that is open at the same address ends here: its
// free was not recorded.
func (r *leaseReader) alloc(i int, e *trace.Entry) int32 {
	if k, ok := r.open(e.Addr); ok {
		old := r.lease(k)
		old.Freed, old.Done = min(old.Freed, i), i
		r.h.stale[i] = k
	}
	l := newLease(e, r.h.Len())
	l.Born, l.Stack = i, e.Stack
	k := int32(len(r.h.Leases))
	r.h.Leases = append(r.h.Leases, l)
	r.last[e.Addr] = k
	return k
}

// free ends the live time of a lease, and its pending time if completions are
// not recorded.
func (r *leaseReader) free(i int, e *trace.Entry) int32 {
	k, ok := r.open(e.Addr)
	if !ok {
		k = r.addEarly(newLease(e, r.h.Len()))
	}
	l := r.lease(k)
	if l.Freed < i {
		return -1 // freed twice
	}
	l.Freed = i
	if !r.completions {
		l.Done = i
	}
	return k
}

// complete ends the pending time of a lease.
func (r *leaseReader) complete(i int, e *trace.Entry) int32 {
	k, ok := r.open(e.Addr)
	if !ok {
		l := newLease(e, r.h.Len())
		if r.requests {
			l.Freed = -1
		}
		k = r.addEarly(l)
	}
	l := r.lease(k)
	l.Freed, l.Done = min(l.Freed, i), i
	return k
}

// takeFinal goes through the blocks at the end of the trace. They tell the
// size of blocks that are still there, their private pools, and the blocks
// that no event is about.
func (r *leaseReader) takeFinal() {
	for i := range r.h.snapshot.Segments {
		s := &r.h.snapshot.Segments[i]
		if s.Device != r.h.device {
			continue
		}
		for j := range s.Blocks {
			if b := &s.Blocks[j]; b.State != trace.Free {
				r.finalBlock(s, b)
			}
		}
	}
}

func (r *leaseReader) finalBlock(s *trace.Segment, b *trace.Block) {
	k, known := r.last[b.Addr]
	switch {
	case known:
		if l := r.lease(k); l.Done == r.h.Len() && l.Size == b.Requested {
			l.Block, l.Pool = b.Size, s.Pool
		}
	case r.h.snapshot.Cut == nil || r.h.Len() == 0:
		l := Lease{Addr: b.Addr, Size: b.Requested, Block: b.Size, Stream: s.Stream, Pool: s.Pool, Purpose: b.Purpose, Stack: b.Stack, Freed: r.h.Len(), Done: r.h.Len()}
		if b.State == trace.Pending {
			l.Freed = -1
		}
		r.addEarly(l)
	}
}

// putEarlyFirst moves the early leases, by address, before the others.
func (r *leaseReader) putEarlyFirst() {
	n := len(r.early)
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.early[a].Addr, r.early[b].Addr), cmp.Compare(a, b))
	})
	place := make([]int32, n)
	early := make([]Lease, n)
	for i, k := range order {
		place[k] = int32(i)
		early[i] = r.early[k]
	}
	r.h.Leases = slices.Insert(r.h.Leases, 0, early...)
	move := func(k int32) int32 {
		switch {
		case k >= 0:
			return k + int32(n)
		case k < -1:
			return place[-2-k]
		}
		return -1
	}
	for i, k := range r.h.lease {
		r.h.lease[i] = move(k)
	}
	for i, k := range r.h.stale {
		r.h.stale[i] = move(k)
	}
}
