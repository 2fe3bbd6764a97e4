package spill

import (
	"cmp"
	"io"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
)

// Window is memory of other machines into which this one puts bytes, and from which
// it gets them, by itself: that of an MPI job (dist.Window). What overlaps comes about
// in the order of the calls. One goroutine at a time puts and asks for bytes, and
// another one takes them; each call has until a time, by.
type Window interface {
	Put(at uint64, data []byte, by time.Time) error // after which data may change
	Get(at uint64, bytes int, by time.Time) error
	Take(data []byte, by time.Time) error // waits for what was asked for first
}

// BorrowWindow gives a loan of the first bytes of a window, for values of d. The
// loan's memory is never called back. Close it before d and the window.
func BorrowWindow(d device.Device, w Window, bytes uint64, o BorrowOptions) (*Loan, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	return newLoan(d, "of this MPI job", &reach{window: w, patience: o.Patience, asked: make(chan frame, ringChunks), shut: make(chan struct{})}, bytes, o)
}

// reach is a link to a window.
type reach struct {
	window   Window
	patience time.Duration
	asked    chan frame // gets whose data nobody has received
	shut     chan struct{}
	once     sync.Once
}

func (r *reach) write(f frame, data []byte) error {
	by := time.Now().Add(r.patience)
	if f.kind == framePut {
		return r.window.Put(f.offset, data, by)
	}
	f.kind = frameData
	select {
	case r.asked <- f:
		return r.window.Get(f.offset, int(f.length), by)
	case <-r.shut:
		return io.ErrClosedPipe
	}
}

func (r *reach) read() (frame, error) {
	select {
	case f := <-r.asked:
		return f, nil
	case <-r.shut:
		return frame{}, io.ErrClosedPipe
	}
}

func (r *reach) receive(data []byte) error {
	return r.window.Take(data, time.Now().Add(r.patience))
}

// Close lets nobody wait in read.
func (r *reach) Close() error {
	r.once.Do(func() { close(r.shut) })
	return nil
}
