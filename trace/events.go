package trace

import "iter"

// PoolID names a pool of a PyTorch allocator: {0, 0} is the default pool.
type PoolID [2]uint64

// Entry is an event as a snapshot holds it: with its stack, and PCs nil.
type Entry struct {
	Event
	Stack    *Stack // where it happened; nil if not recorded
	Pool     PoolID // of a PyTorch allocator
	Compiled string // PyTorch's compile_context: what torch.compile ran; empty if nothing
}

// Trace is the events of one device, oldest first. An event takes 40 bytes
// whatever its stack: what many events share stands in tables. The zero value
// is empty and ready. It may be read from several goroutines at once.
type Trace struct {
	shared *tables
	chunks [][]row // of chunkRows rows, but the last
}

// chunkRows is the number of events that are allocated at once.
const chunkRows = 1 << 12

// row is an event without what many share.
type row struct {
	addr, size uint64
	timeUS     int64
	stack      uint32 // index into tables.stacks
	origin     uint32 // index into tables.origins
	action     Action
	purpose    Purpose
}

// origin is what an event shares with many others besides its stack.
type origin struct {
	stream         int
	pool           PoolID
	compiled, note string
}

// tables holds what the events of one or more traces share. Index 0 is no
// stack, and the default stream and pool.
type tables struct {
	stacks   []*Stack
	stackIDs map[*Stack]uint32
	origins  []origin
	byOrigin map[origin]uint32
	last     uint32 // the origin used last, which is most often the next
}

func newTables() *tables {
	return &tables{
		stacks:   []*Stack{nil},
		stackIDs: map[*Stack]uint32{nil: 0},
		origins:  []origin{{}},
		byOrigin: map[origin]uint32{{}: 0},
	}
}

// stackID gives the index of s.
func (t *tables) stackID(s *Stack) uint32 {
	id, known := t.stackIDs[s]
	if !known {
		id = uint32(len(t.stacks))
		t.stacks = append(t.stacks, s)
		t.stackIDs[s] = id
	}
	return id
}

// originID gives the index of o.
func (t *tables) originID(o origin) uint32 {
	if t.origins[t.last] == o {
		return t.last
	}
	id, known := t.byOrigin[o]
	if !known {
		id = uint32(len(t.origins))
		t.origins = append(t.origins, o)
		t.byOrigin[o] = id
	}
	t.last = id
	return id
}

// streamID gives the index of a stream's events without pool and notes.
func (t *tables) streamID(stream int) uint32 {
	if o := &t.origins[t.last]; o.stream == stream && o.pool == (PoolID{}) && o.compiled == "" && o.note == "" {
		return t.last
	}
	return t.originID(origin{stream: stream})
}

// Len is the number of events.
func (t *Trace) Len() int {
	if len(t.chunks) == 0 {
		return 0
	}
	last := len(t.chunks) - 1
	return last*chunkRows + len(t.chunks[last])
}

// Append adds an event.
func (t *Trace) Append(e Entry) { t.add(t.row(e)) }

// Entry gives event i.
func (t *Trace) Entry(i int) Entry {
	r := t.at(i)
	o := &t.shared.origins[r.origin]
	return Entry{
		Event:    Event{Action: r.action, Purpose: r.purpose, Stream: o.stream, Addr: r.addr, Size: r.size, TimeUS: r.timeUS, Note: o.note},
		Stack:    t.shared.stacks[r.stack],
		Pool:     o.pool,
		Compiled: o.compiled,
	}
}

// All gives all events with their numbers, oldest first.
func (t *Trace) All() iter.Seq2[int, Entry] {
	return func(yield func(int, Entry) bool) {
		for i := range t.Len() {
			if !yield(i, t.Entry(i)) {
				return
			}
		}
	}
}

// row gives e with what it shares replaced by indices.
func (t *Trace) row(e Entry) row {
	shared := t.tables()
	return row{
		addr: e.Addr, size: e.Size, timeUS: e.TimeUS, action: e.Action, purpose: e.Purpose,
		stack:  shared.stackID(e.Stack),
		origin: shared.originID(origin{e.Stream, e.Pool, e.Compiled, e.Note}),
	}
}

func (t *Trace) tables() *tables {
	if t.shared == nil {
		t.shared = newTables()
	}
	return t.shared
}

func (t *Trace) at(i int) *row { return &t.chunks[i/chunkRows][i%chunkRows] }

// truncate forgets all events from the n-th on.
func (t *Trace) truncate(n int) {
	if n >= t.Len() {
		return
	}
	t.chunks = t.chunks[:n/chunkRows+1]
	t.chunks[n/chunkRows] = t.chunks[n/chunkRows][:n%chunkRows]
}

// add appends a row of the same tables. All chunks but the first have their
// size from the start, so that a long trace is never copied.
func (t *Trace) add(r row) {
	n := len(t.chunks)
	if n == 0 || len(t.chunks[n-1]) == chunkRows {
		var chunk []row
		if n > 0 {
			chunk = make([]row, 0, chunkRows)
		}
		t.chunks = append(t.chunks, chunk)
		n++
	}
	t.chunks[n-1] = append(t.chunks[n-1], r)
}
