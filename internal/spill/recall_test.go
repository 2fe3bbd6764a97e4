//go:build unix

package spill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/tensor"
)

// machine is the memory of a lender's machine as the lender sees it.
type machine struct {
	has     atomic.Uint64
	changes chan LoanChange
}

const kept = 1 << 30

// lendKeeping lends memory of a machine that has all that is kept, and 1 GiB more. It has
// that again as soon as a loan is called back.
func lendKeeping(t testing.TB, o LendOptions) (*machine, *lending) {
	m := &machine{changes: make(chan LoanChange, 1000)}
	m.has.Store(2 * kept)
	o.Keep, o.Available, o.every, o.part = kept, func() (uint64, error) { return m.has.Load(), nil }, time.Millisecond, 1<<20
	o.Notify = func(c LoanChange) {
		if c.What == LoanRecalled {
			m.has.Store(2 * kept)
		}
		m.changes <- c
	}
	return m, lend(t, o)
}

// lacks lets so much be missing of what is kept, until it is called back.
func (m *machine) lacks(bytes uint64) { m.has.Store(kept - bytes) }

// next waits for what happens next to a loan.
func (m *machine) next(t *testing.T, what LoanEvent) LoanChange {
	t.Helper()
	c := <-m.changes
	if c.What != what || c.Err != nil {
		t.Fatalf("what happened is %+v, want %v", c, what)
	}
	return c
}

// settle waits until the lender has all that was sent.
func (h *held) settle(t *testing.T) {
	t.Helper()
	h.rooms[len(h.rooms)-1].Fetch(h.b.side, h.to)
	mustSync(t, h.b.side)
}

func spareMemory(t testing.TB, bytes uint64) *Place {
	t.Helper()
	p, err := Memory(nil, bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestRecallOfAPart calls back the end of a loan while values lie there: it is fetched,
// the lender has that memory, and the loan goes on with the rest.
func TestRecallOfAPart(t *testing.T) {
	spare := spareMemory(t, 16<<20)
	m, l := lendKeeping(t, LendOptions{Bytes: 16 << 20, Grace: time.Minute})
	told := make(chan string, 10)
	h := holdAt(t, l.address, BorrowOptions{Spare: spare.TakeBytes, Notify: func(s string) { told <- s }})
	m.next(t, LoanBegan)
	h.settle(t)
	m.lacks(2 << 20) // of 6.75 MiB that were written to: 4 MiB are left, and one of three values
	if c := m.next(t, LoanRecalled); c.Bytes != 12<<20 || c.LentNow != 16<<20 {
		t.Errorf("called back is %+v", c)
	}
	if c := m.next(t, LoanShrank); c.Bytes != 12<<20 || c.LentNow != 4<<20 || c.After == 0 {
		t.Errorf("what came back is %+v", c)
	}
	if text := <-told; !strings.Contains(text, "of which 4MiB are left: 4.5MiB were fetched") {
		t.Error(text)
	}
	if s := spare.Stats(); s.Pieces != 2 {
		t.Errorf("%d values are here, want 2", s.Pieces)
	}
	if whole, lost := h.fetch(t); whole != 3 || lost != nil {
		t.Fatalf("%d of 3 values came back: %v", whole, lost)
	}
	if s := spare.Stats(); s.Pieces != 0 {
		t.Errorf("%d pieces of this machine's memory are still out", s.Pieces)
	}
	again, err := h.loan.Take(heldBytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.loan.Take(heldBytes); err == nil || h.loan.failed() {
		t.Errorf("another value goes to what was called back, or none goes anywhere: %v", err)
	}
	h.rooms = []tensor.Room{again}
	from, data := h.b.array(t, heldBytes)
	copy(data, h.pattern)
	again.Send(h.b.side, from)
	if whole, lost := h.fetch(t); whole != 1 || lost != nil {
		t.Errorf("what was sent after the recall came back as another: %v", lost)
	}
}

// TestNewestLoanFirst has two loans. What is missing is taken from the newer one, then
// from both, and a third one is refused for as long as memory is short.
func TestNewestLoanFirst(t *testing.T) {
	spare := spareMemory(t, 64<<20)
	m, l := lendKeeping(t, LendOptions{Bytes: 48 << 20, Grace: time.Minute})
	o := BorrowOptions{Name: "old", Spare: spare.TakeBytes}
	old := holdAt(t, l.address, o)
	m.next(t, LoanBegan)
	o.Name = "new"
	young := holdAt(t, l.address, o)
	m.next(t, LoanBegan)
	old.settle(t)
	young.settle(t)
	for _, has := range []uint64{kept - 1, kept, kept + 1<<20} {
		m.has.Store(has)
		if has < kept {
			m.next(t, LoanRecalled)
			m.next(t, LoanShrank)
			m.has.Store(kept)
		}
		if _, err := Borrow(context.Background(), old.b, l.address, 1<<20, BorrowOptions{}); err == nil || !strings.Contains(err.Error(), "of which 1GiB are kept and") {
			t.Errorf("with %d available a loan is refused with %v", has, err)
		}
	}
	m.lacks(10 << 20) // the new one has 6 MiB left, the old one 6.75 MiB
	for _, name := range []string{"new", "old"} {
		if c := m.next(t, LoanRecalled); !strings.HasPrefix(c.Borrower, name+" ") {
			t.Errorf("the loan of %s is called back, want that of %s", c.Borrower, name)
		}
	}
	var back uint64
	for range 2 {
		c := <-m.changes
		back += c.Bytes
	}
	if back != 6<<20+14<<20 {
		t.Errorf("%d bytes came back", back)
	}
	for _, h := range []*held{young, old} {
		if whole, lost := h.fetch(t); whole != 3 || lost != nil {
			t.Errorf("%d of 3 values came back: %v", whole, lost)
		}
	}
	if !young.loan.failed() || old.loan.failed() {
		t.Error("of the new loan something is left, or of the old one nothing")
	}
}

// TestRecallsMeanwhile calls a loan back bit by bit while values go to it and come back:
// none is lost.
func TestRecallsMeanwhile(t *testing.T) {
	spare := spareMemory(t, 16<<20)
	m, l := lendKeeping(t, LendOptions{Bytes: 16 << 20, Grace: time.Minute})
	b := newBench(t)
	from, data := b.array(t, 1<<20)
	to, back := b.array(t, 1<<20)
	lent := loan(t, b, l.address, 16<<20, BorrowOptions{Spare: spare.TakeBytes})
	rng := rand.New(rand.NewPCG(1, 2))
	type value struct {
		room tensor.Room
		is   []byte
	}
	var values []value
	check := func(v value) {
		v.room.Fetch(b.side, to)
		mustSync(t, b.side)
		if err := v.room.Free(); err != nil || !bytes.Equal(back[:len(v.is)], v.is) {
			t.Fatalf("a value was lost, or is another: %v", err)
		}
	}
	pattern := randomBytes(2 << 20)
	for sent := 0; !lent.failed(); {
		if sent == 12 && len(values) > 0 {
			values[0].room.Fetch(b.side, to) // the lender has all that was sent
			mustSync(t, b.side)
		}
		if sent >= 12 {
			m.lacks(1)
		}
		n := 1 + rng.IntN(1<<20)
		if r, err := lent.Take(uint64(n)); err == nil {
			v := value{r, pattern[rng.IntN(1<<20):][:n]}
			copy(data, v.is)
			r.Send(b.side, from)
			values = append(values, v)
			sent++
			mustSync(t, b.side)
		}
		if len(values) > 0 && rng.IntN(3) > 0 {
			i := rng.IntN(len(values))
			check(values[i])
			values = append(values[:i], values[i+1:]...)
		}
	}
	for _, v := range values {
		check(v)
	}
	shrank := 0
	for range len(m.changes) {
		if c := <-m.changes; c.What == LoanShrank {
			shrank++
		}
	}
	if shrank < 3 {
		t.Errorf("the loan was shortened %d times", shrank)
	}
	if s := spare.Stats(); s.Pieces != 0 {
		t.Errorf("%d pieces of this machine's memory are still out", s.Pieces)
	}
}

// TestRecallIsCut cuts the connection at bytes of everything that follows a recall of a
// part: all values come back as they were, or are lost with the lender's name.
func TestRecallIsCut(t *testing.T) {
	const two = 2 * (heldBytes + 5*frameBytes) // what is fetched
	cuts := []int{frameBytes - 1, frameBytes, frameBytes + 1, 5*frameBytes + 7, two / 2, two - 1, two + 5*frameBytes, two + 11*frameBytes, -1}
	if invariant.Slow {
		cuts = cuts[len(cuts)-3:]
	}
	outcomes := map[string]int{}
	for _, at := range cuts {
		spare := spareMemory(t, 16<<20)
		m, l := lendKeeping(t, LendOptions{Bytes: 16 << 20, Grace: time.Minute})
		between := meddle(t, l.address, &meddler{left: -1})
		b := newBench(t)
		borrowed, err := Borrow(context.Background(), b, between.address, 16<<20, BorrowOptions{Spare: spare.TakeBytes})
		if err != nil {
			t.Fatal(err)
		}
		h := hold(t, b, borrowed)
		h.settle(t)
		m.next(t, LoanBegan)
		between.mu.Lock()
		between.left = at
		between.mu.Unlock()
		m.lacks(2 << 20)
		m.next(t, LoanRecalled)
		<-m.changes // it came back, or the loan ended
		switch whole, lost := h.fetch(t); {
		case whole == 3:
			outcomes["whole"]++
		case lost == nil || !strings.Contains(lost.Error(), "lender "+between.address+": "):
			t.Errorf("cut at %d: %d came back, error %v", at, whole, lost)
		default:
			outcomes["lost"]++
		}
		if err := borrowed.Close(); err != nil {
			t.Error(err)
		}
	}
	if outcomes["whole"] == 0 || outcomes["lost"] == 0 {
		t.Errorf("outcomes %v", outcomes)
	}
}

// TestRecallsWhileOneWaits: a lender that calls back more before its borrower comes to
// the first recall hears of no place twice.
func TestRecallsWhileOneWaits(t *testing.T) {
	here, there := net.Pipe()
	lender := newDebt(here, 16<<20, time.Minute)
	l, err := newLoan(newBench(t), "of a test", lender, 16<<20, BorrowOptions{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	l.order.Lock()
	l.work.Go(func() { l.giveBack(lender) })
	w := &wire{Conn: there, patience: time.Minute}
	call := func(to uint64) { w.write(frame{frameRecall, 0, to}, nil, nil) }
	taken := func() {
		for len(lender.recalls) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	back := make(chan frame, 10)
	go func() {
		defer close(back)
		for f, err := w.read(); err == nil; f, err = w.read() {
			back <- f
		}
	}()
	call(12 << 20)
	taken()
	call(8 << 20)
	l.order.Unlock()
	held := uint64(16 << 20)
	for f := range back {
		if f.kind != frameBack || f.offset >= held {
			t.Errorf("of %d bytes the borrower gives back %+v", held, f)
		}
		if held = f.offset; held == 8<<20 {
			taken()
			call(0)
		}
	}
	if held != 8<<20 {
		t.Errorf("the loan ends with %d bytes", held)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestRecallIsIgnored: a borrower that does not give back what was called back loses its
// loan when its time is over.
func TestRecallIsIgnored(t *testing.T) {
	m, l := lendKeeping(t, LendOptions{Bytes: 4 << 20, Grace: 20 * time.Millisecond})
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(hello{4 << 20, "deaf"}.encode())
	if err := readAnswer(c); err != nil {
		t.Fatal(err)
	}
	m.next(t, LoanBegan)
	w := &wire{Conn: c, patience: time.Minute}
	if err := w.write(frame{framePut, 1, 3 << 20}, []byte{1}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.write(frame{frameGet, 1, 3 << 20}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if f, err := w.read(); err != nil || f.kind != frameData || w.receive(make([]byte, 1)) != nil {
		t.Fatalf("%+v, %v", f, err)
	}
	m.lacks(1)
	m.next(t, LoanRecalled)
	if c := <-m.changes; c.What != LoanEnded || c.Bytes != 4<<20 || c.LentNow != 0 || c.Err == nil || !strings.Contains(c.Err.Error(), "did not give back in 20ms") {
		t.Errorf("%+v", c)
	}
}

// TestRecallsThatAreNone: what a lender must not call back ends the loan.
func TestRecallsThatAreNone(t *testing.T) {
	for _, frames := range [][]frame{{{frameRecall, 0, 16 << 20}}, {{frameRecall, 1, 0}}, {{frameRecall, 0, 1 << 20}, {frameRecall, 0, 1 << 20}}, {{frameRecall, 0, 1}, {frameRecall, 0, 2}}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			readHello(c)
			c.Write(encodeAnswer(""))
			w := &wire{Conn: c, patience: time.Minute}
			for _, f := range frames {
				w.write(f, nil, nil)
			}
		}()
		told := make(chan string, 10)
		l := loan(t, newBench(t), listener.Addr().String(), 16<<20, BorrowOptions{Notify: func(s string) { told <- s }})
		for text := range told {
			if strings.Contains(text, "it called back ") {
				break
			}
		}
		if !l.failed() {
			t.Errorf("after %+v the loan goes on", frames)
		}
		listener.Close()
	}
}

// TestAvailableFails: what could not be measured changes nothing.
func TestAvailableFails(t *testing.T) {
	var looked atomic.Int64
	l := lend(t, LendOptions{Bytes: 16 << 20, Keep: 1, every: time.Millisecond, Available: func() (uint64, error) {
		looked.Add(1)
		return 0, errors.New("nobody knows")
	}})
	h := holdAt(t, l.address, BorrowOptions{})
	for n := looked.Load(); looked.Load() < n+3; {
		time.Sleep(time.Millisecond)
	}
	if whole, lost := h.fetch(t); whole != 3 || lost != nil {
		t.Errorf("%d of 3 values came back: %v", whole, lost)
	}
	if c := l.seen(); len(c) != 1 {
		t.Error(fmt.Sprint(c))
	}
}
