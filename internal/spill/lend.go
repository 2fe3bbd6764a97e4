package spill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
)

// How a lender keeps memory for its own machine.
//
// A loan's memory is in parts, and a borrower fills it from its begin on. So a loan holds
// memory of the machine up to the highest place that was written to, and gives it back
// from its end: the borrower is told from which place on, fetches what lies there, and
// says so. While less is available than is to be kept, so much is called back from the
// newest loan, and from the one before it where that is not enough. What is on its way
// counts as if it were back, for as long as borrowers have for that.

// LendOptions say what a machine lends, and how it is told of.
type LendOptions struct {
	Bytes    uint64        // of this machine's memory, taken as borrowers write to it
	Patience time.Duration // for a borrower to send or take a piece that is under way; 0: 10 s
	Grace    time.Duration // for borrowers to fetch what is theirs when memory is called back; 0: 30 s

	// While less than Keep bytes are Available to this machine, loans are called back,
	// the newest first; one is granted where as many are left beside it. 0: nothing is
	// kept. What could not be measured changes nothing.
	Keep      uint64
	Available func() (uint64, error)

	// Notify, if not nil, is told of each loan. Calls come one at a time.
	Notify func(LoanChange)

	part  uint64        // bytes of memory that are given back at a time, chunkBytes or more; 0: 64 MiB
	every time.Duration // from one look at what is available to the next; 0: 1 s
}

// LoanChange is what happened to a loan.
type LoanChange struct {
	What     LoanEvent
	Borrower string        // its name for itself, and its address
	Bytes    uint64        // that were lent, called back, or given back
	Err      error         // a loan ended otherwise than by the borrower's leaving
	After    time.Duration // memory came back so long after it was called back; 0: it was not
	LentNow  uint64        // bytes in all loans
}

// LoanEvent is what can happen to a loan.
type LoanEvent uint8

// A loan begins, a part of it or all is called back, a part is the machine's again, and
// all is.
const (
	LoanBegan LoanEvent = iota
	LoanRecalled
	LoanShrank
	LoanEnded
)

// mostLoans bounds loans and those who ask for one, together.
const mostLoans = 64

// Lend lends memory to who comes to listener, until ctx ends. Then it calls all
// memory back, waits until borrowers have fetched what is theirs, for Grace at most,
// and returns nil.
func Lend(ctx context.Context, listener net.Listener, o LendOptions) error {
	l, err := newLender(o)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	l.serving.Go(func() { l.watch(ctx) })
	l.accept(ctx, listener)
	l.end()
	l.serving.Wait()
	return l.memory.Close()
}

func newLender(o LendOptions) (*lender, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.part = cmp.Or(o.part, 64<<20)
	o.every = cmp.Or(o.every, time.Second)
	memory, err := device.OpenHost(device.HostOptions{Capacity: o.Bytes, Workers: 1, Plain: true})
	return &lender{o: o, memory: memory}, err
}

type lender struct {
	o       LendOptions
	memory  *device.HostDevice
	serving sync.WaitGroup

	mu     sync.Mutex
	guests []*guest // the newest last
	lent   uint64
	ending bool // nothing is lent any more

	notifying sync.Mutex
}

// guest is who has come: a borrower, from its loan on. What is of the loan is changed
// under the lender's mu, and but for keep by who serves the guest.
type guest struct {
	wire
	name   string
	parts  []part
	size   uint64        // of all parts
	used   atomic.Uint64 // it has written up to here
	keep   uint64        // what was not called back
	called time.Time     // when it last was
	late   bool          // it did not give that back in time

	telling sync.Mutex
	told    uint64 // what it knows of keep; under telling
}

// part is a piece of memory.
type part struct {
	at    device.Ptr
	bytes []byte
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
	l.guests = append(l.guests, g)
	return true
}

// serve is all that a guest gets. Its memory is new, and given back to the system
// at the end, so that nobody finds another's in it.
func (l *lender) serve(g *guest) {
	err := l.welcome(g)
	if err == nil {
		l.notify(LoanChange{What: LoanBegan, Borrower: g.name, Bytes: g.size})
		err = l.answer(g)
	}
	g.Close()
	l.mu.Lock()
	l.guests = slices.DeleteFunc(l.guests, func(other *guest) bool { return other == g })
	c := l.shorten(g, 0)
	if g.late {
		err = fmt.Errorf("it did not give back in %v what was called back", l.o.Grace)
	}
	l.mu.Unlock()
	if c.Bytes > 0 {
		c.What, c.Err = LoanEnded, err
		l.notify(c)
	}
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
	if err := l.refuse(bytes); err != nil {
		return err
	}
	for g.size < bytes {
		n := min(l.o.part, bytes-g.size)
		at, err := l.memory.Alloc(n)
		if err != nil {
			l.shorten(g, 0)
			return err
		}
		g.parts = append(g.parts, part{at, device.Bytes(at, int(n))})
		g.size += n
		l.lent += n
	}
	g.keep, g.told = bytes, bytes
	_, err := g.Write(encodeAnswer("")) // which few bytes of a new connection don't wait for
	return err
}

// refuse says why so much can't be lent now.
func (l *lender) refuse(bytes uint64) error {
	switch {
	case l.ending:
		return errors.New("all memory is called back")
	case bytes > l.o.Bytes-l.lent:
		return fmt.Errorf("%s more can't be lent: %s are, of %s", size.Format(bytes), size.Format(l.lent), size.Format(l.o.Bytes))
	case l.o.Keep == 0:
		return nil
	}
	promised := uint64(0)
	for _, g := range l.guests {
		promised += g.size - min(g.size, g.used.Load())
	}
	has, err := l.o.Available()
	if err == nil && (has < l.o.Keep || has-l.o.Keep < promised+bytes) {
		return fmt.Errorf("%s more can't be lent now: %s are available, of which %s are kept and %s promised", size.Format(bytes), size.Format(has), size.Format(l.o.Keep), size.Format(promised))
	}
	return nil
}

// shorten takes the parts of a loan from an offset on back.
func (l *lender) shorten(g *guest, to uint64) LoanChange {
	c := LoanChange{What: LoanShrank, Borrower: g.name}
	if g.size > g.keep {
		c.After = time.Since(g.called)
	}
	for n := len(g.parts) - 1; n >= 0 && g.size-uint64(len(g.parts[n].bytes)) >= to; n-- {
		if err := l.memory.Free(g.parts[n].at); err != nil {
			panic(err) // it was given by Alloc
		}
		c.Bytes += uint64(len(g.parts[n].bytes))
		g.size -= uint64(len(g.parts[n].bytes))
		g.parts = g.parts[:n]
	}
	g.keep = min(g.keep, g.size)
	l.lent -= c.Bytes
	return c
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

// watch looks at what is available until ctx ends.
func (l *lender) watch(ctx context.Context) {
	for l.o.Keep > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(l.o.every):
		}
		if has, err := l.o.Available(); err == nil && has < l.o.Keep {
			for _, r := range l.balance(l.o.Keep - has) {
				l.notify(LoanChange{What: LoanRecalled, Borrower: r.from.name, Bytes: r.bytes})
				l.tell(r.from, r.keep)
			}
		}
	}
}

// recall is what is called back from a guest.
type recall struct {
	from        *guest
	bytes, keep uint64
}

// balance decides what is called back where so much is missing, but for what is on its
// way.
func (l *lender) balance(missing uint64) (recalls []recall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guests {
		missing -= min(missing, max(g.holds(), g.keep)-g.keep)
	}
	for _, g := range slices.Backward(l.guests) {
		holds := min(g.holds(), g.keep)
		if missing == 0 || holds == 0 {
			continue
		}
		g.keep, g.called = (holds-min(holds, missing))/l.o.part*l.o.part, time.Now()
		missing -= min(missing, holds-g.keep)
		recalls = append(recalls, recall{g, g.size - g.keep, g.keep})
	}
	return recalls
}

// holds is how much memory of the machine a loan has.
func (g *guest) holds() uint64 { return min(g.used.Load(), g.size) }

// end calls all memory back. Those who ask for some from now on are refused.
func (l *lender) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
	for _, g := range l.guests {
		g.keep, g.called = 0, time.Now()
		l.tell(g, 0)
	}
}

// tell tells a guest what is left to it, and ends its loan where that is not so in time.
func (l *lender) tell(g *guest, keep uint64) {
	go g.tell(keep)
	time.AfterFunc(l.o.Grace, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if g.size > keep || keep == 0 {
			g.late = true
			g.Close()
		}
	})
}

// tell says what was called back, but for what the guest knows. Where it fails, the loan
// ends.
func (g *guest) tell(keep uint64) {
	g.telling.Lock()
	defer g.telling.Unlock()
	if keep < g.told {
		g.told = keep
		g.write(frame{kind: frameRecall, offset: keep}, nil, nil)
	}
}

// answer does what a borrower asks for until it leaves, which is no error.
func (l *lender) answer(g *guest) error {
	for {
		g.SetReadDeadline(time.Time{}) // it may say nothing for as long as it likes
		f, err := g.read()
		switch {
		case eof(err):
			return nil
		case err != nil:
			return err
		case f.kind == frameBack && f.length == 0 && f.offset > 0 && f.offset < g.size:
			l.comeDown(g, f.offset)
			continue
		case !f.within(g.size):
			return fmt.Errorf("it asks for %d bytes at %d of %d", f.length, f.offset, g.size)
		}
		if err := g.move(f, l.o.part); err != nil {
			return err
		}
	}
}

// comeDown takes back what a borrower gives back of a loan that goes on.
func (l *lender) comeDown(g *guest, to uint64) {
	l.mu.Lock()
	c := l.shorten(g, to)
	l.mu.Unlock()
	if c.Bytes > 0 {
		l.notify(c)
	}
}

// move does what a frame says to a piece of the loan, which may lie in two parts.
func (g *guest) move(f frame, whole uint64) error {
	at, from, end := f.offset/whole, f.offset%whole, f.offset%whole+uint64(f.length)
	piece, more := g.parts[at].bytes[from:min(end, whole)], []byte(nil)
	if end > whole {
		more = g.parts[at+1].bytes[:end-whole]
	}
	switch f.kind {
	case framePut:
		g.used.Store(max(g.used.Load(), f.offset+uint64(f.length)))
		if err := g.receive(piece); err != nil {
			return err
		}
		return g.receive(more)
	case frameGet:
		return g.write(frame{frameData, f.length, f.offset}, piece, more)
	}
	return fmt.Errorf("it sends frames of kind %v", f.kind)
}
