package inspect

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// Lease is one block from its allocation to the end of its use. Moments are
// numbers of events; at the number of events in the trace it has not happened
// yet. A record has millions of leases: one takes 56 bytes.
type Lease struct {
	Addr    uint64
	Size    uint64       // bytes asked for
	Block   uint64       // bytes of the block where the snapshot tells, else 0
	Stack   *trace.Stack // where it was allocated; nil if not recorded
	Purpose trace.Purpose

	origin            *origin
	born, freed, done int32
}

// origin is what many leases share.
type origin struct {
	stream int
	pool   trace.PoolID
}

// Stream is the stream that it was allocated for.
func (l *Lease) Stream() int { return l.origin.stream }

// Pool is PyTorch's pool that it lies in.
func (l *Lease) Pool() trace.PoolID { return l.origin.pool }

// Born is the event of the allocation; -1: before the first.
func (l *Lease) Born() int { return int(l.born) }

// Freed is the event of the program's free; -1: before the first, the block is
// pending at the start.
func (l *Lease) Freed() int { return int(l.freed) }

// Done is the event after which the memory may be used again.
func (l *Lease) Done() int { return int(l.done) }

// stateAt says what the lease is after n events in which it is alive.
func (l *Lease) stateAt(n int) trace.State {
	if l.Freed() < n {
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
	known map[origin]*origin
	near  *origin // the one that was asked for last
	// Recorders may leave kinds of events out.
	requests, completions bool
}

// findLeases fills in Leases, lease and stale.
func (h *History) findLeases() {
	r := leaseReader{h: h, last: map[uint64]int32{}, known: map[origin]*origin{}, near: &origin{}}
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
	h.leaseAt = newIntervals(len(h.Leases), func(k int) (int, int) { return h.Leases[k].Born(), h.Leases[k].Done() })
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
	return k, ok && r.lease(k).Done() == r.h.Len()
}

// addEarly adds a lease from before the first event and gives its number.
func (r *leaseReader) addEarly(l Lease) int32 {
	l.born = -1
	r.early = append(r.early, l)
	k := -1 - int32(len(r.early))
	r.last[l.Addr] = k
	return k
}

// newLease gives a lease that an event is the first of.
func (r *leaseReader) newLease(e *trace.Entry) Lease {
	end := int32(r.h.Len())
	return Lease{Addr: e.Addr, Size: e.Size, Purpose: e.Purpose, origin: r.origin(e.Stream, e.Pool), freed: end, done: end}
}

// origin gives equal origins one pointer.
func (r *leaseReader) origin(stream int, pool trace.PoolID) *origin {
	o := origin{stream, pool}
	if *r.near == o {
		return r.near
	}
	if r.near = r.known[o]; r.near == nil {
		r.near = new(origin{stream, pool})
		r.known[o] = r.near
	}
	return r.near
}

// alloc begins a lease. One that is open at the same address ends here: its
// free was not recorded.
func (r *leaseReader) alloc(i int, e *trace.Entry) int32 {
	if k, ok := r.open(e.Addr); ok {
		old := r.lease(k)
		old.freed, old.done = min(old.freed, int32(i)), int32(i)
		r.h.stale[i] = k
	}
	l := r.newLease(e)
	l.born, l.Stack = int32(i), e.Stack
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
		k = r.addEarly(r.newLease(e))
	}
	l := r.lease(k)
	if l.Freed() < i {
		return -1 // freed twice
	}
	l.freed = int32(i)
	if !r.completions {
		l.done = int32(i)
	}
	return k
}

// complete ends the pending time of a lease.
func (r *leaseReader) complete(i int, e *trace.Entry) int32 {
	k, ok := r.open(e.Addr)
	if !ok {
		l := r.newLease(e)
		if r.requests {
			l.freed = -1
		}
		k = r.addEarly(l)
	}
	l := r.lease(k)
	l.freed, l.done = min(l.freed, int32(i)), int32(i)
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
		if l := r.lease(k); l.Done() == r.h.Len() && l.Size == b.Requested {
			l.Block, l.origin = b.Size, r.origin(l.Stream(), s.Pool)
		}
	case r.h.snapshot.Cut == nil || r.h.Len() == 0:
		end := int32(r.h.Len())
		l := Lease{Addr: b.Addr, Size: b.Requested, Block: b.Size, Stack: b.Stack, Purpose: b.Purpose, origin: r.origin(s.Stream, s.Pool), freed: end, done: end}
		if b.State == trace.Pending {
			l.freed = -1
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
