package dist

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/headroom-go/headroom/internal/mpi"
)

// mpiListener takes connections at a port.
type mpiListener struct {
	m       *MPI
	address mpiAddress
	came    chan net.Conn
	shut    chan struct{}
	once    sync.Once
	id      int // of the operation that waits for the next one
}

// listen implements network. The port 0 is one that is free.
func (m *MPI) listen(ctx context.Context, address string) (net.Listener, error) {
	a, err := parseMPIAddress(address)
	if err != nil || a.rank != m.rank || a.tag < 0 || a.tag >= firstPort {
		return nil, fmt.Errorf("listen at %q: want %d: and a port below %d (%v)", address, m.rank, firstPort, err)
	}
	const backlog = 1 << 10
	l := &mpiListener{m: m, address: a, came: make(chan net.Conn, backlog), shut: make(chan struct{})}
	ready := make(chan struct{})
	m.call(func() {
		defer close(ready)
		if a.tag == 0 {
			l.address.tag = m.nextPort
			m.nextPort++
		}
		l.next()
	})
	select {
	case <-ready:
	case <-m.ended:
		return nil, m.err
	}
	return l, nil
}

// next waits for another rank's message with the tag of a connection.
func (l *mpiListener) next() {
	hello := make([]byte, 4)
	l.id = l.m.receive(hello, mpi.AnySource, l.address.tag, func(d mpi.Done) {
		select {
		case <-l.shut:
			return
		default:
		}
		if d.Err != nil {
			l.once.Do(func() { close(l.shut) })
			return
		}
		c := l.m.connection(mpiAddress{d.From, int(binary.LittleEndian.Uint32(hello))}, segmentAt(l.address.tag))
		select {
		case l.came <- c:
		default:
			go c.Close()
		}
		l.next()
	})
}

func (l *mpiListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.came:
		return c, nil
	case <-l.shut:
		return nil, net.ErrClosed
	case <-l.m.ended:
		return nil, l.m.err
	}
}

func (l *mpiListener) Addr() net.Addr { return l.address }

func (l *mpiListener) Close() error {
	l.once.Do(func() {
		close(l.shut)
		l.m.call(func() { l.m.library.Cancel(l.id) })
	})
	return nil
}

// dial implements network. It does not wait for the other rank.
func (m *MPI) dial(_ context.Context, address string) (net.Conn, error) {
	a, err := parseMPIAddress(address)
	if err != nil {
		return nil, err
	}
	made := make(chan *mpiConn, 1)
	m.call(func() {
		tag := m.freeTag(a.rank)
		if tag > lastTag {
			close(made)
			return
		}
		c := m.connection(mpiAddress{a.rank, tag}, segmentAt(a.tag))
		m.send(binary.LittleEndian.AppendUint32(nil, uint32(c.peer.tag)), a.rank, a.tag, c.check)
		made <- c
	})
	select {
	case c, ok := <-made:
		if !ok {
			return nil, fmt.Errorf("this process has opened %d connections with rank %d over MPI, which are all that there may be", (lastTag-firstTag)/2, a.rank)
		}
		return c, nil
	case <-m.ended:
		return nil, m.err
	}
}

// freeTag is one for a connection with a rank that neither end has used: those of
// the lower rank are even.
func (m *MPI) freeTag(peer int) int {
	tag := firstTag + 2*m.dialed[peer]
	m.dialed[peer]++
	if m.rank > peer {
		tag++
	}
	return tag
}

// Each connection has two segments in each direction, so that one is filled or read
// while the other is on its way, and no message is longer than one. Those of data
// are long, since every message costs turns at both ends; those of rank 0's
// connections, which go over ports that were agreed on, are short.
const (
	segments     = 2
	shortSegment = 16 << 10
	longSegment  = 512 << 10
)

// segmentAt is the length of segments of connections that were made at a port.
func segmentAt(port int) int {
	if port < firstPort {
		return shortSegment
	}
	return longSegment
}

// mpiConn is one end of a connection. Of its methods one that reads and one that
// writes may run at the same time, and Close at any.
type mpiConn struct {
	mpiEnd
	peer mpiAddress // with the connection's tag

	came    chan []byte // messages, in their order
	free    chan []byte // segments to send from
	reading []byte
	rest    []byte // of reading, what is not read
	readBy  time.Time
	writeBy time.Time
	ended   bool // its end was sent

	// Of the goroutine that calls the library alone.
	spare  [][]byte // segments to receive into
	busy   bool     // a message is awaited
	over   bool     // the last one has come
	broken bool     // an operation failed
}

// connection makes one end, which receives at once.
func (m *MPI) connection(peer mpiAddress, segment int) *mpiConn {
	c := &mpiConn{mpiEnd: mpiEnd{m: m, shut: make(chan struct{})}, peer: peer, came: make(chan []byte, segments), free: make(chan []byte, segments)}
	for range segments {
		c.free <- make([]byte, segment)
		c.receive(make([]byte, segment))
	}
	return c
}

// receive has one more segment for messages.
func (c *mpiConn) receive(into []byte) {
	c.spare = append(c.spare, into[:cap(into)])
	c.next()
}

// next receives the next message, if none is awaited and there is room for one.
// What comes after Close is dropped: an operation that is never matched would
// stay with the library.
func (c *mpiConn) next() {
	if c.busy || c.over || len(c.spare) == 0 {
		return
	}
	into := c.spare[0]
	c.busy, c.spare = true, c.spare[1:]
	c.m.receive(into, c.peer.rank, c.peer.tag, func(d mpi.Done) {
		c.busy, c.over = false, d.Err != nil || d.Bytes == 0
		select {
		case <-c.shut:
			c.spare = append(c.spare, into)
		default:
			if c.check(d); d.Err == nil {
				c.came <- into[:d.Bytes]
			}
		}
		c.next()
	})
}

// check ends the connection where an operation failed. Nothing but the end is sent
// after that: the other end would take it for what was lost.
func (c *mpiConn) check(d mpi.Done) {
	if d.Err != nil {
		c.broken = true
		c.fail(d.Err)
	}
}

// mpiEnd is what a connection and a window have of their end.
type mpiEnd struct {
	m    *MPI
	shut chan struct{}
	once sync.Once
	err  error // why it is shut
}

// fail ends what it is of.
func (e *mpiEnd) fail(err error) {
	e.once.Do(func() {
		e.err = err
		close(e.shut)
	})
}

// await waits for what comes until the end, or a deadline.
func await[T any](e *mpiEnd, from <-chan T, by time.Time) (v T, err error) {
	var late <-chan time.Time
	if !by.IsZero() {
		t := time.NewTimer(time.Until(by))
		defer t.Stop()
		late = t.C
	}
	select {
	case v = <-from:
	case <-e.shut:
		err = e.err
	case <-e.m.ended:
		err = e.m.err
	case <-late:
		err = os.ErrDeadlineExceeded
	}
	return v, err
}

func (c *mpiConn) Read(p []byte) (n int, err error) {
	if len(c.rest) == 0 {
		if c.reading, err = await(&c.mpiEnd, c.came, c.readBy); err != nil {
			return 0, err
		}
		if c.rest = c.reading; len(c.rest) == 0 {
			c.fail(io.EOF)
			return 0, io.EOF
		}
	}
	n = copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		read := c.reading
		c.m.call(func() { c.receive(read) })
	}
	return n, nil
}

// Write returns when the library has what was written.
func (c *mpiConn) Write(p []byte) (n int, err error) {
	for n < len(p) {
		s, err := await(&c.mpiEnd, c.free, c.writeBy)
		if err != nil {
			return n, err
		}
		k := copy(s, p[n:])
		c.m.call(func() {
			if c.ended || c.broken {
				return // nobody receives it
			}
			c.m.send(s[:k], c.peer.rank, c.peer.tag, func(d mpi.Done) {
				if c.check(d); !c.broken {
					c.free <- s
				}
			})
		})
		n += k
	}
	return n, nil
}

// CloseWrite tells the other end that nothing more comes.
func (c *mpiConn) CloseWrite() error {
	c.m.call(func() {
		if !c.ended {
			c.ended = true
			c.m.send(nil, c.peer.rank, c.peer.tag, c.check)
		}
	})
	return nil
}

func (c *mpiConn) Close() error {
	c.fail(net.ErrClosed)
	c.m.call(func() {
		for len(c.came) > 0 {
			c.receive(<-c.came)
		}
		c.next()
	})
	return c.CloseWrite()
}

func (c *mpiConn) LocalAddr() net.Addr  { return mpiAddress{c.m.rank, c.peer.tag} }
func (c *mpiConn) RemoteAddr() net.Addr { return c.peer }

func (c *mpiConn) SetDeadline(t time.Time) error {
	c.readBy, c.writeBy = t, t
	return nil
}

// SetReadDeadline holds for reads that begin later.
func (c *mpiConn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	return nil
}

// SetWriteDeadline holds for writes that begin later.
func (c *mpiConn) SetWriteDeadline(t time.Time) error {
	c.writeBy = t
	return nil
}
