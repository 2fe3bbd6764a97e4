package spill

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// debt is a link to a lender over a connection. The lender owes an answer to each get, in
// time, and this end owes what the lender calls back.
type debt struct {
	wire
	held    uint64      // bytes from the loan's begin on that were not called back; of who reads
	recalls chan uint64 // holds the last recall that nobody has begun with: what is left of the loan

	mu     sync.Mutex
	open   int // gets without their data
	closed bool
}

func newDebt(conn net.Conn, bytes uint64, patience time.Duration) *debt {
	return &debt{wire: wire{Conn: conn, patience: patience}, held: bytes, recalls: make(chan uint64, 1)}
}

func (d *debt) write(f frame, data []byte) error {
	if f.kind == frameGet {
		d.expect(1)
	}
	return d.wire.write(f, data, nil)
}

// read notes recalls, which come between answers.
func (d *debt) read() (frame, error) {
	f, err := d.wire.read()
	for err == nil && f.kind == frameRecall {
		if err = d.letGo(f); err == nil {
			f, err = d.wire.read()
		}
	}
	return f, err
}

func (d *debt) receive(data []byte) error {
	err := d.wire.receive(data)
	d.expect(-1)
	return err
}

// expect enters that so many more answers are to come.
func (d *debt) expect(more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += more
	deadline := time.Time{}
	if d.open > 0 {
		deadline = time.Now().Add(d.patience)
	}
	d.SetReadDeadline(deadline)
}

// letGo notes that the lender wants back what lies from an offset on, which takes the
// place of a recall of less.
func (d *debt) letGo(f frame) error {
	if f.length != 0 || f.offset >= d.held {
		return fmt.Errorf("it called back %d bytes from %d on of %d", f.length, f.offset, d.held)
	}
	d.held = f.offset
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	select {
	case <-d.recalls:
	default:
	}
	d.recalls <- f.offset
	return nil
}

// giveBack says that what lies from an offset on is of no more use.
func (d *debt) giveBack(to uint64) error {
	return d.wire.write(frame{kind: frameBack, offset: to}, nil, nil)
}

// Close ends recalls, too.
func (d *debt) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.recalls)
	}
	return d.wire.Close()
}
