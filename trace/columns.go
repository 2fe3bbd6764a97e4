package trace

// PoolID names a pool of a PyTorch allocator: {0, 0} is the default pool.
type PoolID [2]uint64

// Trace is the events of one device, oldest first, in columns: about 40 bytes
// an event, whatever its stack.
type Trace struct {
	rows []row
}

// row is an event without what many share.
type row struct {
	addr, size uint64
	timeUS     int64
	stack      *Stack
	stream     int
	pool       PoolID
	action     Action
	purpose    Purpose
}

// Len is the number of events.
func (t *Trace) Len() int { return len(t.rows) }

// Append adds an event.
func (t *Trace) Append(e Entry) {
	t.rows = append(t.rows, row{e.Addr, e.Size, e.TimeUS, e.Stack, e.Stream, e.Pool, e.Action, e.Purpose})
}

// Entry gives event i.
func (t *Trace) Entry(i int) Entry {
	r := &t.rows[i]
	return Entry{Event: Event{Action: r.action, Purpose: r.purpose, Stream: r.stream, Addr: r.addr, Size: r.size, TimeUS: r.timeUS}, Stack: r.stack, Pool: r.pool}
}
