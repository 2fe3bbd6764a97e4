package share

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
)

// Lender is the owner's end of a connection. Its methods may be called from
// several goroutines at once.
type Lender struct {
	c         *net.UnixConn
	a         *alloc.Allocator
	sharer    device.Sharer
	page      uint64        // granularity of the device
	listening chan struct{} // closed when the connection has ended

	sending sync.Mutex // held while a message is written

	mu    sync.Mutex
	loans map[uint64]*Loan // those that have not ended
	last  uint64           // number of the youngest loan
	err   error            // why no more is lent; nil: more is
}

// Loan is a block that is lent. Its methods may be called from several
// goroutines at once.
type Loan struct {
	id   uint64
	done chan struct{}
	err  error // set before done is closed
}

var errClosed = errors.New("the lender is closed")

// NewLender gives a lender of the allocator's blocks, whose device is a
// device.Sharer. The connection is the lender's from now on, but for
// SetWriteDeadline, which bounds how long Lend may take. Close ends the
// lender's goroutine.
func NewLender(c *net.UnixConn, a *alloc.Allocator) (*Lender, error) {
	s, err := sharer(c, a.Device())
	if err != nil {
		return nil, err
	}
	l := &Lender{
		c: c, a: a, sharer: s, page: a.Device().Info().Granularity,
		listening: make(chan struct{}), loans: map[uint64]*Loan{},
	}
	go l.listen()
	return l, nil
}

// Lend lends a block of the lender's allocator to the process at the other end.
// All work that fills the block must be done. The block must stay as it is,
// neither freed nor moved, until the loan has ended. Lend waits for room in
// the connection, which a borrower makes by Receive. After an error of the
// connection nothing more can be lent.
func (l *Lender) Lend(b *alloc.Block) (*Loan, error) {
	if b.Allocator() != l.a {
		panic("share: Lend of a block of another allocator")
	}
	l.sending.Lock()
	defer l.sending.Unlock()
	loan, err := l.begin()
	if err != nil {
		return nil, fmt.Errorf("lend: %w", err)
	}
	if err := l.offer(loan.id, b); err != nil {
		l.end(loan.id, err)
		return nil, fmt.Errorf("lend block of %d bytes: %w", b.Size(), err)
	}
	return loan, nil
}

// begin enters a loan in the books before the borrower can know of it.
func (l *Lender) begin() (*Loan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.last++
	loan := &Loan{id: l.last, done: make(chan struct{})}
	l.loans[loan.id] = loan
	return loan, nil
}

// offer tells the borrower where the block's memory is.
func (l *Lender) offer(id uint64, b *alloc.Block) error {
	handles, offset := b.Handles()
	if len(handles) == 0 || len(handles) > maxGranules {
		return fmt.Errorf("the block lies on %d handles, at least 1 and at most %d can be shared", len(handles), maxGranules)
	}
	t := table{granularity: l.page}
	defer func() { closeFiles(t.files) }()
	for _, h := range handles {
		if err := t.export(l.sharer, h); err != nil {
			return err
		}
	}
	h := header{id, l.page, offset, b.Size(), uint32(len(t.files)), uint32(len(t.extents))}
	err := send(l.c, appendLend(nil, &h, t.extents), t.files)
	if err != nil {
		l.stop(err)
	}
	return err
}

// stop lends nothing more, for the first reason given, and tells the borrower so.
func (l *Lender) stop(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	_ = l.c.CloseWrite() // fails where the borrower has gone
}

// end ends the loan of that number, and says whether there was one. The error
// is what Wait returns.
func (l *Lender) end(id uint64, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	loan := l.loans[id]
	if loan == nil {
		return false
	}
	delete(l.loans, id)
	loan.err = err
	close(loan.done)
	return true
}

// listen ends loans as the borrower gives blocks back, and all of them when
// the connection has ended.
func (l *Lender) listen() {
	defer close(l.listening)
	err := l.takeReturns()
	if errors.Is(err, ErrProtocol) {
		l.stop(err)
		if _, err = io.Copy(io.Discard, l.c); err == nil {
			err = io.EOF
		}
	}
	l.stop(fmt.Errorf("the connection has ended: %w", err))
	if isGone(err) {
		err = nil
	} else {
		err = fmt.Errorf("the connection was lost, the borrower may still use the block: %w", err)
	}
	for id := range l.last { // fixed since stop
		l.end(id+1, err)
	}
}

// takeReturns reads messages until one cannot be read or understood.
func (l *Lender) takeReturns() error {
	var b [preludeBytes]byte
	for {
		if _, err := io.ReadFull(l.c, b[:]); err != nil {
			return err
		}
		id, err := parsePrelude(b[:], kindReturn)
		if err != nil {
			return err
		}
		if !l.end(id, nil) && !l.known(id) {
			return fmt.Errorf("%w: loan %d is given back, which never was", ErrProtocol, id)
		}
	}
}

// known says whether there ever was a loan of that number.
func (l *Lender) known(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return id <= l.last
}

// Close closes the connection, which tells the borrower that nothing more
// comes. It fails and changes nothing while blocks are lent: wait for them
// first. Closing twice is no error.
func (l *Lender) Close() error {
	l.mu.Lock()
	if n := len(l.loans); n > 0 {
		l.mu.Unlock()
		return fmt.Errorf("close of a lender: %d blocks are lent, wait for their return", n)
	}
	l.err = errClosed
	l.mu.Unlock()
	err := l.c.Close()
	<-l.listening
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Done is closed when the loan has ended.
func (l *Loan) Done() <-chan struct{} { return l.done }

// Wait returns when the loan has ended: nil if the borrower gave the block
// back or is gone, so that the block can be used and freed. Otherwise the
// block must be left alone: ctx has ended before, or the connection was lost
// at this side, and nothing is known of the borrower.
func (l *Loan) Wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	default:
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("loan %d: %w", l.id, ctx.Err())
	}
}
