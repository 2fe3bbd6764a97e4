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
	row := r.row(&e)
	if r.limit == 0 || r.ring.Len() < r.limit {
		r.ring.add(row)
	} else {
		*r.ring.at(r.next) = row
		r.next = (r.next + 1) % r.limit
		r.dropped++
	}
	r.mu.Unlock()
}

// row gives e as the ring holds it.
func (r *Recorder) row(e *Event) row {
	t := r.ring.tables()
	row := row{addr: e.Addr, size: e.Size, timeUS: e.TimeUS, action: e.Action, purpose: e.Purpose, origin: t.streamID(e.Stream)}
	if e.Note != "" {
		row.origin = t.originID(origin{stream: e.Stream, note: e.Note})
	}
	if len(e.PCs) > 0 {
		row.stack = t.stackID(r.stacks.Of(e.PCs))
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
