package trace

import "sync"

// Recorder is a Sink that keeps events. It may be used from several
// goroutines at once.
type Recorder struct {
	mu      sync.Mutex
	limit   int
	ring    Trace // in order; once the limit is reached a ring that starts at next
	next    int
	dropped uint64
	stacks  Stacks
}

// NewRecorder gives a recorder that keeps the last limit events, or all of
// them if limit is 0. An event takes 40 bytes, each different stack 8 bytes
// a frame.
func NewRecorder(limit int) *Recorder { return &Recorder{limit: limit} }

// Record keeps e.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	t, row := r.ring.tables(), r.slot()
	row.addr, row.size, row.timeUS, row.action, row.purpose = e.Addr, e.Size, e.TimeUS, e.Action, e.Purpose
	row.stack, row.origin = 0, t.streamID(e.Stream)
	if e.Note != "" {
		row.origin = t.originID(origin{stream: e.Stream, note: e.Note})
	}
	if len(e.PCs) > 0 {
		row.stack = t.stackID(r.stacks.Of(e.PCs))
	}
	r.mu.Unlock()
}

// slot gives the row for the next event.
func (r *Recorder) slot() *row {
	if n := r.ring.Len(); r.limit == 0 || n < r.limit {
		r.ring.add(row{})
		return r.ring.at(n)
	}
	row := r.ring.at(r.next)
	r.dropped++
	if r.next++; r.next == r.limit {
		r.next = 0
	}
	return row
}

// Trace gives a copy of the events kept, oldest first. To be consistent with
// an allocator's segments, take both while nothing is allocated or freed.
func (r *Recorder) Trace() *Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, n := new(Trace), r.ring.Len()
	for i := range n {
		all.Append(r.ring.Entry((r.next + i) % n))
	}
	return all
}

// Dropped gives the number of events that the limit pushed out.
func (r *Recorder) Dropped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Reset forgets all events.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring, r.next, r.dropped, r.stacks = Trace{}, 0, 0, Stacks{}
}
