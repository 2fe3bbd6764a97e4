package share

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/headroom-go/headroom/device"
)

// Borrower is the borrower's end of a connection. Its methods may be called
// from several goroutines at once.
type Borrower struct {
	c      *net.UnixConn
	dev    device.Device
	sharer device.Sharer

	receiving sync.Mutex // held while a message is read
	broken    error      // what was wrong with the messages; under receiving

	mu       sync.Mutex
	mappings map[*Mapping]bool // those that are not closed
	closed   bool
}

// NewBorrower gives a borrower that maps what it receives into the device,
// which is a device.Sharer. The connection is the borrower's from now on, but
// for SetReadDeadline, which bounds how long Receive may take.
func NewBorrower(c *net.UnixConn, dev device.Device) (*Borrower, error) {
	s, err := sharer(c, dev)
	if err != nil {
		return nil, err
	}
	return &Borrower{c: c, dev: dev, sharer: s, mappings: map[*Mapping]bool{}}, nil
}

// Receive waits for the next block and maps it, into exactly as many granules
// of addresses as it lies on. What the device cannot map is given back to the
// owner, and the next Receive takes the next block. If the message cannot be
// read or understood, all later calls return the same error; blocks received
// before stay as they are. The error is or wraps io.EOF when the owner lends
// no more, and os.ErrDeadlineExceeded after the connection's read deadline,
// when Receive can be called again unless half a message had come.
func (b *Borrower) Receive() (*Mapping, error) {
	b.receiving.Lock()
	defer b.receiving.Unlock()
	if b.broken != nil {
		return nil, b.broken
	}
	in := inbox{c: b.c}
	o, err := in.receive(b.dev.Info().Granularity)
	if err != nil {
		err = fmt.Errorf("receive a block: %w", err)
		if in.begun {
			b.broken = err
		}
		return nil, err
	}
	defer closeFiles(o.files)
	return b.accept(o)
}

// accept maps what is offered.
func (b *Borrower) accept(o *offer) (*Mapping, error) {
	m := &Mapping{borrower: b, id: o.id, offset: o.offset, size: o.size, window: window{dev: b.dev}}
	if err := b.enter(m); err != nil {
		return nil, err
	}
	if err := m.window.open(b.sharer, o); err != nil {
		return nil, fmt.Errorf("map a block of %d bytes: %w", o.size, errors.Join(err, m.Close()))
	}
	return m, nil
}

func (b *Borrower) enter(m *Mapping) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("the borrower is closed")
	}
	b.mappings[m] = true
	return nil
}

// Close closes all mappings that are open, then the connection. If one cannot
// be closed it stays open, and so does the connection, since its end would
// tell the owner that nothing is in use; Close can be called again. Closing
// twice is no error.
func (b *Borrower) Close() error {
	for _, m := range b.open() {
		if err := m.Close(); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mappings) > 0 {
		return errors.New("close of a borrower: a block was received meanwhile")
	}
	if b.closed {
		return nil
	}
	b.closed = true
	return b.c.Close()
}

// open lists the mappings that are not closed.
func (b *Borrower) open() (list []*Mapping) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for m := range b.mappings {
		list = append(list, m)
	}
	return list
}
