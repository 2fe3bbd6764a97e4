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
	defer r.mu.Unlock()
	entry := Entry{Event: e, Stack: r.stacks.Of(e.PCs)}
	if r.limit == 0 || r.ring.Len() < r.limit {
		r.ring.Append(entry)
		return
	}
	*r.ring.at(r.next) = r.ring.row(entry)
	r.next = (r.next + 1) % r.limit
	r.dropped++
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
