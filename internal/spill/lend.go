package spill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
)

// LendOptions say what a machine lends, and how it is told of.
type LendOptions struct {
	Bytes    uint64        // of this machine's memory, taken as borrowers write to it
	Patience time.Duration // for a borrower to send or take a piece that is under way; 0: 10 s
	Grace    time.Duration // for borrowers to fetch what is theirs when memory is called back; 0: 30 s

	// Notify, if not nil, is told of each loan when it begins, and when it has ended
	// and its memory is the machine's again. Calls come one at a time.
	Notify func(LoanChange)
}

// LoanChange is the begin or the end of a loan.
type LoanChange struct {
	Borrower string // its name for itself, and its address
	Bytes    uint64
	Ended    bool
	Err      error         // a loan ended otherwise than by the borrower's leaving
	After    time.Duration // the end came so long after the memory was called back; 0: it was not
	LentNow  uint64        // bytes in all loans
}

// mostLoans bounds loans and those who ask for one, together.
const mostLoans = 64

// Lend lends memory to who comes to listener, until ctx ends. Then it calls all
// memory back, waits until borrowers have fetched what is theirs, for Grace at most,
// and returns nil.
func Lend(ctx context.Context, listener net.Listener, o LendOptions) error {
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Grace == 0 {
		o.Grace = 30 * time.Second
	}
	memory, err := device.OpenHost(device.HostOptions{Capacity: o.Bytes, Workers: 1, Plain: true})
	if err != nil {
		return err
	}
	l := &lender{o: o, memory: memory, guests: map[*guest]bool{}}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	l.accept(ctx, listener)
	l.recall()
	cut := time.AfterFunc(o.Grace, l.cut)
	l.serving.Wait()
	cut.Stop()
	return memory.Close()
}

type lender struct {
	o       LendOptions
	memory  *device.HostDevice
	serving sync.WaitGroup

	mu       sync.Mutex
	guests   map[*guest]bool
	lent     uint64
	recalled time.Time // zero: not

	notifying sync.Mutex
}

// guest is who has come: a borrower, from its loan on.
type guest struct {
	wire
	name   string
	at     device.Ptr
	memory []byte
}

// accept serves who comes until ctx ends.
func (l *lender) accept(ctx context.Context, listener net.Listener) {
	for ctx.Err() == nil {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond) // the system lacks something for now
			}
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetKeepAliveConfig(keepAlive)
		}
		g := &guest{wire: wire{Conn: conn, patience: l.o.Patience}}
		if !l.enter(g) {
			conn.Close()
			continue
		}
		l.serving.Go(func() { l.serve(g) })
	}
}

func (l *lender) enter(g *guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.guests) == mostLoans {
		return false
	}
	l.guests[g] = true
	return true
}

// serve is all that a guest gets. Its memory is new, and given back to the system
// at the end, so that nobody finds another's in it.
func (l *lender) serve(g *guest) {
	err := l.welcome(g)
	if err == nil {
		l.notify(LoanChange{Borrower: g.name, Bytes: uint64(len(g.memory))})
		err = g.serve()
	}
	g.Close()
	if c := l.leave(g); c.Bytes > 0 {
		c.Err = err
		l.notify(c)
	}
}

// leave takes a guest's memory back.
func (l *lender) leave(g *guest) (c LoanChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.guests, g)
	if g.memory == nil {
		return c
	}
	c = LoanChange{Borrower: g.name, Bytes: uint64(len(g.memory)), Ended: true}
	if err := l.memory.Free(g.at); err != nil {
		panic(err) // it was given by Alloc
	}
	g.memory = nil
	l.lent -= c.Bytes
	if !l.recalled.IsZero() {
		c.After = time.Since(l.recalled)
	}
	return c
}

// welcome grants a loan, or says why not.
func (l *lender) welcome(g *guest) error {
	g.SetDeadline(time.Now().Add(g.patience))
	h, err := readHello(g)
	if err == nil {
		g.name = fmt.Sprintf("%s (%v)", h.name, g.RemoteAddr())
		err = l.grant(g, h.size)
	}
	if err != nil {
		g.Write(encodeAnswer(err.Error()))
	}
	g.SetDeadline(time.Time{})
	return err
}

// grant finds memory for a loan, and says so before it can be called back.
func (l *lender) grant(g *guest, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.recalled.IsZero() {
		return errors.New("all memory is called back")
	}
	at, err := l.memory.Alloc(bytes)
	if err != nil {
		return fmt.Errorf("%s more can't be lent: %s are, of %s", size.Format(bytes), size.Format(l.lent), size.Format(l.o.Bytes))
	}
	g.at, g.memory = at, device.Bytes(at, int(bytes))
	l.lent += bytes
	_, err = g.Write(encodeAnswer("")) // which few bytes of a new connection don't wait for
	return err
}

func (l *lender) notify(c LoanChange) {
	l.notifying.Lock()
	defer l.notifying.Unlock()
	l.mu.Lock()
	c.LentNow = l.lent
	l.mu.Unlock()
	if l.o.Notify != nil {
		l.o.Notify(c)
	}
}

// recall tells all that their memory is called back. Those who ask for some from now
// on are refused.
func (l *lender) recall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recalled = time.Now()
	for g := range l.guests {
		if g.memory != nil {
			go g.write(frame{kind: frameRecall}, nil) // where it fails, the loan ends
		}
	}
}

// cut ends all loans.
func (l *lender) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.guests {
		g.Close()
	}
}

// serve does what a borrower asks for until it leaves, which is no error.
func (g *guest) serve() error {
	for {
		g.SetReadDeadline(time.Time{}) // it may say nothing for as long as it likes
		f, err := g.read()
		switch {
		case eof(err):
			return nil
		case err != nil:
			return err
		case !f.within(uint64(len(g.memory))):
			return fmt.Errorf("it asks for %d bytes at %d of %d", f.length, f.offset, len(g.memory))
		}
		piece := g.memory[f.offset : f.offset+uint64(f.length)]
		switch f.kind {
		case framePut:
			err = g.receive(piece)
		case frameGet:
			f.kind = frameData
			err = g.write(f, piece)
		default:
			err = fmt.Errorf("it sends frames of kind %v", f.kind)
		}
		if err != nil {
			return err
		}
	}
}
