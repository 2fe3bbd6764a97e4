package trace

import "sync"

// Recorder is a Sink that keeps events. It may be used from several
// goroutines at once.
type Recorder struct {
	mu      sync.Mutex
	limit   int
	entries []Entry // in order; once the limit is reached a ring that starts at next
	next    int
	dropped uint64
	stacks  Stacks
}

// NewRecorder gives a recorder that keeps the last limit events, or all of
// them if limit is 0. An event takes about 80 bytes, each different stack 8
// bytes a frame.
func NewRecorder(limit int) *Recorder { return &Recorder{limit: limit} }

// Record keeps e.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := Entry{Event: e, Stack: r.stacks.Of(e.PCs)}
	entry.PCs = nil
	if r.limit == 0 || len(r.entries) < r.limit {
		r.entries = append(r.entries, entry)
		return
	}
	r.entries[r.next] = entry
	r.next = (r.next + 1) % r.limit
	r.dropped++
}

// Entries gives a copy of the events kept, oldest first. To be consistent with
// an allocator's segments, take both while nothing is allocated or freed.
func (r *Recorder) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Entry, 0, len(r.entries))
	all = append(all, r.entries[r.next:]...)
	return append(all, r.entries[:r.next]...)
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
	r.entries, r.next, r.dropped, r.stacks = nil, 0, 0, Stacks{}
}
