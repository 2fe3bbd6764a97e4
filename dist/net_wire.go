package dist

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
)

// arrival names a connection for data that another rank opens.
type arrival struct {
	group      string
	generation int
	from       int
}

// dataConn is a connection with one rank of one group.
type dataConn struct {
	conn       net.Conn
	generation int // of attempts
	in         *bufio.Reader
	queue      chan *parcel
	once       sync.Once
}

// parcel is a message on its way out.
type parcel struct {
	header []byte
	data   []Buf
	gone   chan error // receives what came of it
}

func newDataConn(conn net.Conn) *dataConn {
	const window = 64 << 10
	return &dataConn{conn: conn, in: bufio.NewReaderSize(conn, window), queue: make(chan *parcel, 8)}
}

// finish ends writing behind what is queued.
func (c *dataConn) finish() { c.once.Do(func() { close(c.queue) }) }

// write sends parcels until finish.
func (c *dataConn) write() {
	for p := range c.queue {
		_, err := c.conn.Write(p.header)
		for _, b := range p.data {
			if err == nil && b.Len > 0 {
				_, err = c.conn.Write(bytesOf(b))
			}
		}
		p.gone <- err
	}
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

// connect makes this rank's connection with another in a group: the lower rank
// opens it.
func (j *netJob) connect(ctx context.Context, group string, generation, rank int) (*dataConn, error) {
	if rank < j.o.Rank {
		return j.await(ctx, arrival{group, generation, rank})
	}
	conn, err := j.network.dial(ctx, j.addresses[rank])
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(note{Kind: "data", Job: j.o.Job, Group: group, Attempt: generation, Rank: j.o.Rank})
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	return j.keep(newDataConn(conn), generation), err
}

// keep enters a connection among those that end with the job, or with an attempt.
func (j *netJob) keep(c *dataConn, generation int) *dataConn {
	now := j.me.now.Load()
	j.mu.Lock()
	defer j.mu.Unlock()
	c.generation = generation
	j.data = append(j.data, c)
	if j.closed || j.fate.error() != nil || generation <= now.number && now.error() != nil {
		c.conn.Close()
	}
	return c
}

// await waits for a connection that another rank opens.
func (j *netJob) await(ctx context.Context, a arrival) (*dataConn, error) {
	now := j.me.now.Load()
	select {
	case c := <-j.arrivals(a):
		return c, nil
	case <-now.over:
		return nil, now.error()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (j *netJob) arrivals(a arrival) chan *dataConn {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.arrived[a] == nil {
		j.arrived[a] = make(chan *dataConn, 1)
	}
	return j.arrived[a]
}

// accept takes connections that other ranks open, until the listener closes.
func (j *netJob) accept() {
	for {
		conn, err := j.listener.Accept()
		if err != nil {
			return
		}
		j.tasks.Go(func() { j.admit(newDataConn(conn)) })
	}
}

// admit lets a connection in that says whose it is.
func (j *netJob) admit(c *dataConn) {
	c.conn.SetReadDeadline(time.Now().Add(j.o.Silence))
	line, err := c.in.ReadSlice('\n')
	var n note
	if err != nil || json.Unmarshal(line, &n) != nil || n.Kind != "data" || n.Job != j.o.Job || n.Rank < 0 || n.Rank >= j.o.Rank || n.Attempt < j.me.now.Load().generation {
		c.conn.Close()
		return
	}
	c.conn.SetReadDeadline(time.Time{})
	select {
	case j.arrivals(arrival{n.Group, n.Attempt, n.Rank}) <- j.keep(c, n.Attempt):
	default: // a second one
		c.conn.Close()
	}
}

// netWire carries messages over one connection for each pair of ranks.
type netWire struct {
	job   *netJob
	name  string // of the group
	ranks []int
	place int
	conns []*dataConn // by place in the group; this rank's is nil
	sent  []*parcel   // since settle
	to    []int       // of each
}

// connect makes the connections of a generation.
func (w *netWire) connect(ctx context.Context, generation int) (err error) {
	w.conns = make([]*dataConn, len(w.ranks))
	for p, rank := range w.ranks {
		if p == w.place {
			continue
		}
		if w.conns[p], err = w.job.connect(ctx, w.name, generation, rank); err != nil {
			return fmt.Errorf("connection with rank %d: %w", rank, err)
		}
		w.job.tasks.Go(w.conns[p].write)
	}
	return nil
}

func (w *netWire) post(to int, h header, data []Buf) {
	p := &parcel{h.encode(), data, make(chan error, 1)}
	w.sent, w.to = append(w.sent, p), append(w.to, to)
	w.conns[to].queue <- p
}

func (w *netWire) settle() (err error) {
	for i, p := range w.sent {
		if failed := <-p.gone; failed != nil && err == nil {
			err = w.broken(w.to[i], "sending", failed)
		}
	}
	w.sent, w.to = w.sent[:0], w.to[:0]
	return err
}

// broken is the error of a connection that broke: what rank 0 has to say on it,
// where it comes in time.
func (w *netWire) broken(place int, what string, cause error) error {
	rank, now := w.ranks[place], w.job.me.now.Load()
	if errors.Is(cause, os.ErrDeadlineExceeded) && now.error() == nil {
		return &Error{Rank: rank, Err: errLate(what, w.job.o.Patience)}
	}
	gone := w.job.gone[rank]
	if !eof(cause) {
		gone = nil
	}
	select {
	case <-now.over:
		return now.error()
	case <-gone:
		return &Error{Rank: rank, Err: fmt.Errorf("it has left the job, while rank %d is in %s", w.job.o.Rank, what)}
	case <-time.After(w.job.o.Silence):
		return &Error{Rank: rank, Err: fmt.Errorf("the connection with it broke in %s of rank %d: %w", what, w.job.o.Rank, cause)}
	}
}

func (w *netWire) next(from int, what string) (header, source, error) {
	s := &netSource{w: w, from: from, what: what, in: w.conns[from].in}
	var raw [headerBytes]byte
	if err := s.bytes(raw[:]); err != nil {
		return header{}, nil, err
	}
	h, err := decodeHeader(raw[:])
	if err != nil {
		err = &Error{Rank: w.ranks[from], Err: err}
	}
	return h, s, err
}

// netSource reads a message as it comes.
type netSource struct {
	w    *netWire
	from int
	what string
	in   *bufio.Reader
	raw  []byte
	half []uint16
}

func (s *netSource) bytes(dst []byte) error {
	if p := s.w.job.o.Patience; p > 0 {
		s.w.conns[s.from].conn.SetReadDeadline(time.Now().Add(p))
	}
	if _, err := io.ReadFull(s.in, dst); err != nil {
		return s.w.broken(s.from, s.what, err)
	}
	return nil
}

// floats and ints take numbers as they lie in memory: little-endian, on all
// machines that there are.
func (s *netSource) floats(t device.DType, dst []float32) error {
	if t == device.Float32 {
		return s.bytes(device.BytesOf(dst))
	}
	if s.raw == nil {
		s.raw, s.half = make([]byte, 2*chunk), make([]uint16, chunk)
	}
	raw, half := s.raw[:2*len(dst)], s.half[:len(dst)]
	if err := s.bytes(raw); err != nil {
		return err
	}
	for i := range half {
		half[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	kernel.Widen(t, dst, half)
	return nil
}

func (s *netSource) ints(dst []int32) error { return s.bytes(device.BytesOf(dst)) }

func (s *netSource) done() {}
