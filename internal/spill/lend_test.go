//go:build unix

package spill

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/tensor"
)

// bench is a host device with a stream beside it.
type bench struct {
	*device.HostDevice
	side device.Stream
}

func newBench(t testing.TB) *bench {
	t.Helper()
	d, err := device.OpenHost(device.HostOptions{Capacity: 256 << 20, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	side, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return &bench{d, side}
}

// array is memory of the device.
func (b *bench) array(t testing.TB, n int) (device.Ptr, []byte) {
	t.Helper()
	p, err := b.Alloc(uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Free(p); err != nil {
			t.Error(err)
		}
	})
	return p, device.Bytes(p, n)
}

// lending is a lender in this process.
type lending struct {
	address string
	end     func() // calls all memory back, and waits for the lender's end
	mu      sync.Mutex
	changes []LoanChange
}

func lend(t testing.TB, o LendOptions) *lending {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &lending{address: listener.Addr().String()}
	also := o.Notify
	o.Notify = func(c LoanChange) {
		l.mu.Lock()
		l.changes = append(l.changes, c)
		l.mu.Unlock()
		if also != nil {
			also(c)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Lend(ctx, listener, o) }()
	l.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.end)
	return l
}

func (l *lending) seen() []LoanChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

func loan(t testing.TB, d device.Device, address string, bytes uint64, o BorrowOptions) *Loan {
	t.Helper()
	l, err := Borrow(context.Background(), d, address, bytes, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

const conformanceBytes = 24 << 20

// stores opens one of each kind, of conformanceBytes.
func stores(t *testing.T, b *bench) map[string]tensor.Store {
	list := map[string]tensor.Store{}
	for name, p := range places(t, conformanceBytes) {
		list[name] = p
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	p, _ := b.array(t, conformanceBytes)
	list["near"] = NewNear(p, conformanceBytes)
	list["lender"] = loan(t, b, lend(t, LendOptions{Bytes: conformanceBytes}).address, conformanceBytes, BorrowOptions{Name: "test"})
	list["lender, staged"] = loan(t, b, lend(t, LendOptions{Bytes: conformanceBytes, part: chunkBytes + 4096}).address, conformanceBytes, BorrowOptions{Name: "test", staged: true})
	list["window"] = windowLoan(t, b, newPond(), conformanceBytes, BorrowOptions{})
	list["window, staged"] = windowLoan(t, b, newPond(), conformanceBytes, BorrowOptions{staged: true})
	small, err := Memory(b, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { small.Close() })
	q, _ := b.array(t, conformanceBytes-1<<20)
	list["tiers"] = Tiers{small, NewNear(q, conformanceBytes-1<<20)}
	return list
}

// TestRooms sends values of all sizes to every kind of place and fetches them, again
// and again, with several out at a time: what comes back is what was sent.
func TestRooms(t *testing.T) {
	b := newBench(t)
	testRooms(t, b, stores(t, b))
}

func testRooms(t *testing.T, b *bench, stores map[string]tensor.Store) {
	sizes := []int{1, 4095, chunkBytes - 1, chunkBytes, chunkBytes + 1, (ringChunks+2)*chunkBytes + 17}
	from, data := b.array(t, (ringChunks+3)*chunkBytes)
	to, back := b.array(t, (ringChunks+3)*chunkBytes)
	pattern := randomBytes((ringChunks+3)*chunkBytes + 100)
	rounds := 3
	if invariant.Slow {
		rounds = 1
	}
	for name, s := range stores {
		t.Run(name, func(t *testing.T) {
			for round := range rounds {
				rooms := make([]tensor.Room, len(sizes))
				for i, n := range sizes {
					var err error
					if rooms[i], err = s.Take(uint64(n)); err != nil {
						t.Fatal(err)
					}
					mustSync(t, b.side)
					copy(data[:n], pattern[i+round:])
					rooms[i].Send(b.side, from)
				}
				for i := len(sizes) - 1; i >= 0; i-- {
					for range 2 - round%2 {
						rooms[i].Fetch(b.side, to)
					}
					mustSync(t, b.side)
					if n := sizes[i]; !bytes.Equal(back[:n], pattern[i+round:][:n]) {
						t.Fatalf("round %d: %d bytes came back as others", round, n)
					}
					if err := rooms[i].Free(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := s.Take(conformanceBytes + 1); err == nil {
				t.Error("there is room for more than the capacity")
			}
		})
	}
}

func mustSync(t testing.TB, s device.Stream) {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestMeasure measures each kind.
func TestMeasure(t *testing.T) {
	b := newBench(t)
	for name, s := range stores(t, b) {
		out, back, err := Measure(b, s, 1<<20)
		if err != nil || !(out > 0 && back > 0) || math.IsInf(out, 1) || math.IsInf(back, 1) {
			t.Errorf("%s: %v bytes/s out, %v back, %v", name, out, back, err)
		}
	}
	if _, _, err := Measure(b, NewNear(0, 10), 1<<20); err == nil {
		t.Error("more than there is was measured")
	}
}

// TestBytes asks each kind for memory that the host computes in.
func TestBytes(t *testing.T) {
	for name, s := range stores(t, newBench(t)) {
		buf, giveBack, err := s.TakeBytes(1000)
		if far := name == "near" || strings.HasPrefix(name, "lender") || strings.HasPrefix(name, "window"); far != (err != nil) || !far && len(buf) != 1000 {
			t.Errorf("%s gives %d bytes, %v", name, len(buf), err)
		}
		if err == nil {
			giveBack()
		}
	}
}

// held is values at a lender.
type held struct {
	b       *bench
	loan    *Loan
	rooms   []tensor.Room
	to      device.Ptr
	back    []byte
	pattern []byte // of the values, each from its number on
}

const heldBytes = 9*chunkBytes/2 + 3

func holdAt(t *testing.T, address string, o BorrowOptions) *held {
	b := newBench(t)
	return hold(t, b, loan(t, b, address, 16<<20, o))
}

// hold sends three values, or as many as the lender takes before it fails.
func hold(t *testing.T, b *bench, l *Loan) *held {
	h := &held{b: b, loan: l, pattern: randomBytes(heldBytes + 10)}
	from, data := h.b.array(t, heldBytes)
	h.to, h.back = h.b.array(t, heldBytes)
	for i := range 3 {
		r, err := h.loan.Take(heldBytes)
		if err != nil && h.loan.failed() {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		copy(data, h.pattern[i:])
		r.Send(h.b.side, from)
		mustSync(t, h.b.side)
		h.rooms = append(h.rooms, r)
	}
	return h
}

// fetch gives what came of fetching all values: how many came back as they were. All
// others must be zeros, and their rooms must say so.
func (h *held) fetch(t *testing.T) (whole int, lost error) {
	t.Helper()
	for i, r := range h.rooms {
		r.Fetch(h.b.side, h.to)
		mustSync(t, h.b.side)
		same := bytes.Equal(h.back, h.pattern[i:][:heldBytes])
		err := r.Free()
		switch {
		case err == nil && !same:
			t.Fatalf("value %d is another, and nobody says so", i)
		case err == nil:
			whole++
		default:
			lost = err
			for at := 0; at < heldBytes; at += chunkBytes {
				if got, sent := piece(h.back, at/chunkBytes), piece(h.pattern[i:][:heldBytes], at/chunkBytes); !bytes.Equal(got, sent) && !zero(got) {
					t.Errorf("value %d was lost, and other bytes than its own and zeros came", i)
				}
			}
		}
	}
	return whole, lost
}

func zero(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// TestRecall calls memory back while values lie there: they are fetched to this
// machine, the lender ends, and nothing is lost.
func TestRecall(t *testing.T) {
	spare, err := Memory(nil, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer spare.Close()
	l := lend(t, LendOptions{Bytes: 16 << 20, Grace: time.Minute})
	told := make(chan string, 10)
	h := holdAt(t, l.address, BorrowOptions{Spare: spare.TakeBytes, Notify: func(s string) { told <- s }})
	unsent, err := h.loan.Take(10)
	if err != nil {
		t.Fatal(err)
	}
	l.end()
	if text := <-told; !strings.Contains(text, "called its memory back") || !strings.Contains(text, "were fetched") {
		t.Error(text)
	}
	c := l.seen()
	if last := c[len(c)-1]; last.What != LoanEnded || last.Err != nil || last.LentNow != 0 || last.After == 0 || last.Bytes != 16<<20 {
		t.Errorf("the lender was told %+v", c)
	}
	if _, err := h.loan.Take(1); err == nil {
		t.Error("values still go to a lender that is gone")
	}
	from, data := h.b.array(t, 10)
	copy(data, "0123456789")
	unsent.Send(h.b.side, from)
	unsent.Fetch(h.b.side, h.to)
	mustSync(t, h.b.side)
	if string(h.back[:10]) != "0123456789" || unsent.Free() != nil {
		t.Error("a value that was sent after the recall is another")
	}
	if whole, lost := h.fetch(t); whole != 3 || lost != nil {
		t.Errorf("%d of 3 values came back: %v", whole, lost)
	}
	if s := spare.Stats(); s.Pieces != 0 {
		t.Errorf("%d pieces of this machine's memory are still out", s.Pieces)
	}
}

// TestRecallWithoutRoom calls memory back when there is none here: that is told, and
// the memory is back all the same.
func TestRecallWithoutRoom(t *testing.T) {
	small, err := Memory(nil, heldBytes+4096)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	for _, spare := range []tensor.HostStore{nil, small.TakeBytes} {
		l := lend(t, LendOptions{Bytes: 16 << 20, Grace: time.Minute})
		h := holdAt(t, l.address, BorrowOptions{Spare: spare})
		l.end()
		if _, lost := h.fetch(t); lost == nil || !strings.Contains(lost.Error(), "called its memory back, and") {
			t.Errorf("lost: %v", lost)
		}
	}
}

// meddler passes bytes between a borrower and a lender, and does something to them.
type meddler struct {
	address string
	mu      sync.Mutex
	left    int                           // bytes until it cuts the connection; < 0: it does not
	change  func(toLender bool, b []byte) // nil: nothing
	stop    bool                          // passes nothing more, and says nothing
}

func meddle(t *testing.T, to string, m *meddler) *meddler {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = listener.Addr().String()
	t.Cleanup(func() { listener.Close() })
	go func() {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			in.Close()
			return
		}
		go m.pass(in, out, true)
		m.pass(out, in, false)
	}()
	return m
}

func (m *meddler) pass(from, to net.Conn, toLender bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		m.mu.Lock()
		if m.left >= 0 {
			n = min(n, m.left)
			m.left -= n
		}
		cut := m.left == 0
		if m.change != nil {
			m.change(toLender, buf[:n])
		}
		stop := m.stop
		m.mu.Unlock()
		if stop {
			n = 0
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil || cut {
			return
		}
	}
}

// TestLenderDies cuts the connection at bytes of every part of the protocol. Each
// time all values come back as they were, or as zeros with an error that names the
// lender.
func TestLenderDies(t *testing.T) {
	// hello, answer; 3 values of 5 frames each way, with the requests between.
	const oneWay = 3 * (heldBytes + 5*frameBytes)
	var cuts []int
	for at := 0; at < 2*oneWay+500; at += oneWay / 3 {
		cuts = append(cuts, at, at+1, at+frameBytes)
	}
	if invariant.Slow {
		cuts = cuts[len(cuts)-4:]
	}
	cuts = append(cuts, 4, helloBytes+4, helloBytes+5, -1)
	outcomes := map[string]int{}
	for _, at := range cuts {
		l := lend(t, LendOptions{Bytes: 16 << 20})
		m := meddle(t, l.address, &meddler{left: at})
		b := newBench(t)
		borrowed, err := Borrow(context.Background(), b, m.address, 16<<20, BorrowOptions{staged: at%2 == 0})
		if err != nil {
			outcomes["refused"]++ // cut within the first words
			continue
		}
		h := hold(t, b, borrowed)
		whole, lost := h.fetch(t)
		switch {
		case lost == nil && whole == 3:
			outcomes["whole"]++
		case whole == 0 && len(h.rooms) == 0:
			outcomes["nothing sent"]++
		case lost == nil || !strings.Contains(lost.Error(), "lender "+m.address+": "):
			t.Errorf("cut at %d: %d came back, error %v", at, whole, lost)
		default:
			outcomes["lost"]++
		}
		if err := borrowed.Close(); err != nil {
			t.Error(err)
		}
	}
	if outcomes["whole"] == 0 || outcomes["lost"] < 3 || outcomes["refused"] == 0 {
		t.Errorf("outcomes %v", outcomes)
	}
}

// TestLenderLies gives back other bytes, and hangs.
func TestLenderLies(t *testing.T) {
	for _, c := range []struct {
		name, want string
		m          *meddler
	}{
		{"other bytes", "other bytes than it was given", &meddler{change: func(toLender bool, b []byte) {
			if !toLender && len(b) > 1000 {
				b[len(b)/2] ^= 1
			}
		}}},
		{"other place", "for", &meddler{change: func(toLender bool, b []byte) {
			if !toLender && len(b) > frameBytes && binary.LittleEndian.Uint32(b) == uint32(frameData) {
				b[8] ^= 1
			}
		}}},
		{"a recall within an answer", "it called back", &meddler{change: func(toLender bool, b []byte) {
			if !toLender && len(b) > frameBytes && binary.LittleEndian.Uint32(b) == uint32(frameData) {
				b[0] = byte(frameRecall)
			}
		}}},
	} {
		c.m.left = -1
		m := meddle(t, lend(t, LendOptions{Bytes: 16 << 20}).address, c.m)
		h := holdAt(t, m.address, BorrowOptions{})
		if _, lost := h.fetch(t); lost == nil || !strings.Contains(lost.Error(), c.want) {
			t.Errorf("%s: lost %v", c.name, lost)
		}
	}
}

// TestLenderHangs says nothing any more: the borrower waits for so long, and no
// longer.
func TestLenderHangs(t *testing.T) {
	m := meddle(t, lend(t, LendOptions{Bytes: 16 << 20}).address, &meddler{left: -1})
	h := holdAt(t, m.address, BorrowOptions{Patience: 200 * time.Millisecond})
	m.mu.Lock()
	m.stop = true
	m.mu.Unlock()
	if whole, lost := h.fetch(t); whole != 0 || lost == nil || !strings.Contains(lost.Error(), "it hangs, or is too slow") {
		t.Errorf("%d came back, lost %v", whole, lost)
	}
}

// TestLoansAreApart: a borrower finds nothing of another's, also in memory that was
// another's before, and can't reach beyond its own.
func TestLoansAreApart(t *testing.T) {
	l := lend(t, LendOptions{Bytes: 16 << 20})
	ask := func(size uint64) (net.Conn, error) {
		c, err := net.Dial("tcp", l.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.Write(hello{size, "raw\x1b[31m"}.encode())
		return c, readAnswer(c)
	}
	first, err := ask(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Conn: first, patience: time.Minute}
	secret := bytes.Repeat([]byte("secret"), 1000)
	if err := w.write(frame{framePut, uint32(len(secret)), 0}, secret, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(16 << 20); err == nil || !strings.Contains(err.Error(), "1MiB are, of 16MiB") {
		t.Errorf("more than there is: %v", err)
	}
	read := func(c net.Conn, f frame) ([]byte, error) {
		w := &wire{Conn: c, patience: time.Minute}
		if err := w.write(f, nil, nil); err != nil {
			return nil, err
		}
		f, err := w.read()
		data := make([]byte, f.length)
		if err == nil {
			err = w.receive(data)
		}
		return data, err
	}
	second, err := ask(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := read(second, frame{frameGet, chunkBytes, 0}); err != nil || bytes.Contains(data, []byte("secret")) {
		t.Errorf("another's memory holds this: %v", err)
	}
	if data, err := read(first, frame{frameGet, uint32(len(secret)), 0}); err != nil || !bytes.Equal(data, secret) {
		t.Errorf("its own memory does not hold what was put there: %v", err)
	}
	for _, f := range []frame{{frameGet, 2, 1<<20 - 1}, {frameGet, 1, 1 << 20}, {frameGet, 0, 0}, {frameGet, chunkBytes + 1, 0},
		{frameGet, 1, 1<<64 - 1}, {frameData, 1, 0}, {frameRecall, 0, 0}, {frameBack, 0, 0}, {frameBack, 1, 1 << 19}, {frameBack, 0, 1 << 20}, {99, 1, 0}} {
		first.Close()
		if first, err = ask(1 << 20); err != nil {
			t.Fatal(err)
		}
		if data, err := read(first, f); err == nil {
			t.Errorf("%+v gives %d bytes", f, len(data))
		}
	}
	for _, c := range l.seen() {
		if strings.Contains(c.Borrower, "\x1b") || !strings.Contains(c.Borrower, "raw?[31m (127.0.0.1:") {
			t.Errorf("the borrower is called %q", c.Borrower)
		}
	}
}

// TestStrangers knock, and say nothing, or other things.
func TestStrangers(t *testing.T) {
	l := lend(t, LendOptions{Bytes: 1 << 20, Patience: 50 * time.Millisecond})
	for _, words := range []string{"", "GET / HTTP/1.1\r\n\r\n and some more words", string(hello{0, ""}.encode()), string(hello{1 << 63, ""}.encode()),
		magic + "\x03\x00\x00\x00aaaaaaaaaaaa", magic + "\x02\x00\x00\x00\xff\xff\xff\xffaaaaaaaa"} {
		c, err := net.Dial("tcp", l.address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, words)
		if err := readAnswer(c); err == nil {
			t.Errorf("%q is granted a loan", words)
		}
		c.Close()
	}
	if c := l.seen(); len(c) != 0 {
		t.Errorf("loans %+v", c)
	}
}

// end is a connection whose other end has said all that it will.
type end struct {
	net.Conn
	in  *bytes.Reader
	out int
}

func (e *end) Read(b []byte) (int, error)       { return e.in.Read(b) }
func (e *end) Write(b []byte) (int, error)      { e.out += len(b); return len(b), nil }
func (e *end) Close() error                     { return nil }
func (e *end) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

// FuzzLender feeds a lender bytes: it takes no more memory than it lends, and gives
// no more than was asked for.
func FuzzLender(f *testing.F) {
	one := func(k frameKind, n uint32, at uint64, data string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(k))
		b = binary.LittleEndian.AppendUint32(b, n)
		return append(binary.LittleEndian.AppendUint64(b, at), data...)
	}
	f.Add(slices.Concat(hello{100, "x"}.encode(), one(framePut, 3, 97, "abc"), one(frameGet, 3, 97, "")))
	f.Add(slices.Concat(hello{1 << 50, "x"}.encode(), one(framePut, 3, 98, "abc")))
	f.Add(slices.Concat(hello{4096, ""}.encode(), one(frameRecall, 0, 0, "")))
	f.Add(slices.Concat(hello{3 << 12, ""}.encode(), one(frameBack, 0, 5000, ""), one(framePut, 1, 8191, "a"), one(framePut, 1, 8192, "a")))
	f.Fuzz(func(t *testing.T, words []byte) {
		const lent = 1 << 16
		l, err := newLender(LendOptions{Bytes: lent, Patience: time.Second, part: lent / 2})
		if err != nil {
			t.Fatal(err)
		}
		e := &end{in: bytes.NewReader(words)}
		g := &guest{wire: wire{Conn: e, patience: time.Second}}
		l.enter(g)
		l.serve(g)
		if most := 4 + mostText + len(words)/frameBytes*(frameBytes+lent); e.out > most || l.lent != 0 || len(l.guests) != 0 {
			t.Errorf("%d bytes for %d, %d are lent", e.out, len(words), l.lent)
		}
		if err := l.memory.Close(); err != nil {
			t.Error(err)
		}
	})
}
