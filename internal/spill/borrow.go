package spill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/tensor"
)

// How values go to a lender and come back.
//
// A value goes in chunks: from where it lies where the host reads the device's
// memory, else through a ring of pinned buffers. What is queued on the side stream,
// and what goes over the link to the lender, a connection or a window, are one sequence
// of operations in one order, in which every wait is for something before it; so nothing
// can wait in a circle:
//
//	Send    side: wait until the buffer's last data are gone; download    then sum; put
//	Fetch   wait until the buffer's last data are uploaded; get; data; compare    side: wait for that; upload
//
// Sums are made beside what goes over the link, by goroutines of their own.
//
// So a lender is never asked for what can't be taken at once, and when it is slow it
// is the lender, or the network.
//
// When anything goes wrong, the loan is over: operations go through the same steps
// without the link, zeros come back, and rooms that were fetched from say that they lost
// what they held. When a lender over a connection calls memory back, from some place in
// the loan on, what lies there is fetched into memory of this machine, and the loan is
// shorter then; or it ends, where that is all.

// BorrowOptions say how memory is borrowed.
type BorrowOptions struct {
	Name     string        // that the lender shows
	Patience time.Duration // for an answer, and for a chunk to go; 0: 10 s

	// Spare gives memory of this machine for what the lender calls back; nil: such
	// values are lost.
	Spare tensor.HostStore

	// Notify, if not nil, is told of what the lender calls back, and once why nothing is
	// lent any more.
	Notify func(text string)

	staged bool // through buffers also where the host reads the device's memory; of tests
}

// ringChunks is how many chunks can be under way.
const ringChunks = 32

// Loan is memory of another machine: a tensor.Store. One goroutine at a time uses
// it and its rooms.
type Loan struct {
	o       BorrowOptions
	address string
	link    link
	shelf   *shelf[*lentRoom]
	summer  summer
	staging *Place
	work    sync.WaitGroup

	order  sync.Mutex // of operations: held by who queues them
	ring   []slot     // empty: the host reads the device's memory
	next   int        // place in the ring
	puts   uint64
	gets   uint64
	live   map[*lentRoom]bool
	ended  bool // by Close
	queue  chan operation
	summed chan operation // whose data, if they go, have a sum
	asked  chan operation // whose data come next
	came   chan operation // whose data are in their buffers
	gone   count          // puts that were written
	back   count          // gets whose data have come
	mu     sync.Mutex
	err    error // why the loan is over
}

// link is what pieces go over, in the order of the calls. One goroutine writes, one
// reads, and any may close it.
type link interface {
	// write sends a piece, with its data, or asks for one.
	write(f frame, data []byte) error

	// read waits for a piece that was asked for, whose data receive takes.
	read() (frame, error)
	receive(data []byte) error

	Close() error
}

// slot is a buffer of the ring.
type slot struct {
	buf  []byte
	gone device.Event // reached when its data are at the lender, or
	back device.Event // when they have come from there, and
	used device.Event // when they are on the device
}

// operation is a put or a get of a chunk of a room.
type operation struct {
	put   bool
	room  *lentRoom
	chunk int
	buf   []byte
	after device.Event // if not nil, what comes before
}

// Borrow asks the lender at an address, host:port, for so many bytes, for values of
// d. Close it before d.
func Borrow(ctx context.Context, d device.Device, address string, bytes uint64, o BorrowOptions) (*Loan, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	dialer := net.Dialer{Timeout: o.Patience, KeepAliveConfig: keepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("lender %s: %w: see that headroom lend runs there and listens at this address", address, err)
	}
	err = ask(conn, hello{bytes, o.Name[:min(len(o.Name), mostName)]}, o.Patience)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lender %s: %w", address, err), conn.Close())
	}
	lender := newDebt(conn, bytes, o.Patience)
	l, err := newLoan(d, address, lender, bytes, o)
	if err != nil {
		return nil, err
	}
	l.work.Go(func() { l.giveBack(lender) })
	return l, nil
}

// ask asks for a loan.
func ask(conn net.Conn, h hello, patience time.Duration) error {
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(h.encode()); err != nil {
		return err
	}
	if err := readAnswer(conn); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// newLoan gives a loan over a link, which ends with it.
func newLoan(d device.Device, address string, over link, bytes uint64, o BorrowOptions) (*Loan, error) {
	l := &Loan{o: o, address: address, link: over, summer: newSummer(), live: map[*lentRoom]bool{},
		queue: make(chan operation, ringChunks), summed: make(chan operation, 1), asked: make(chan operation, ringChunks), came: make(chan operation, 1)}
	end := uint64(0)
	l.shelf = newShelf(bytes, func(n uint64) (*lentRoom, error) {
		end += n
		return &lentRoom{loan: l, offset: end - n, sums: make([]uint64, (n+chunkBytes-1)/chunkBytes)}, nil
	})
	if d.Info().Kind != device.Host || o.staged {
		if err := l.stage(d); err != nil {
			return nil, errors.Join(err, over.Close())
		}
	}
	l.gone.init()
	l.back.init()
	l.work.Go(l.sum)
	l.work.Go(l.write)
	l.work.Go(l.read)
	l.work.Go(l.compare)
	return l, nil
}

// stage makes the ring.
func (l *Loan) stage(d device.Device) (err error) {
	if l.staging, err = Memory(d, ringChunks*chunkBytes); err != nil {
		return err
	}
	l.ring = make([]slot, ringChunks)
	for i := range l.ring {
		if l.ring[i].buf, _, err = l.staging.TakeBytes(chunkBytes); err != nil {
			return errors.Join(err, l.staging.source.close())
		}
	}
	return nil
}

// Take implements tensor.Store.
func (l *Loan) Take(bytes uint64) (tensor.Room, error) {
	l.order.Lock()
	defer l.order.Unlock()
	if err := l.over(); err != nil {
		return nil, err
	}
	r, whole, err := l.shelf.Take(bytes)
	if err != nil {
		return nil, err
	}
	r.size, r.whole, r.sent = bytes, whole, false
	r.lost.Store(false)
	l.live[r] = true
	return r, nil
}

// TakeBytes implements tensor.Store: there is nothing that the host reads.
func (l *Loan) TakeBytes(uint64) (buf []byte, giveBack func(), err error) {
	return nil, nil, errors.New("memory of another machine is none that this one computes in")
}

// over says why nothing goes to the lender any more.
func (l *Loan) over() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Loan) failed() bool { return l.over() != nil }

// fail ends the loan: err is why, if it is the first.
func (l *Loan) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = fmt.Errorf("lender %s: %w", l.address, err)
	}
	l.mu.Unlock()
	l.link.Close()
	if first && l.o.Notify != nil {
		l.o.Notify(l.err.Error())
	}
}

// sum takes the operations in their order, when each may go on, and keeps the sums of
// what goes to the lender.
func (l *Loan) sum() {
	for o := range l.queue {
		if o.after != nil {
			o.after.Sync()
		}
		if o.put {
			o.room.sums[o.chunk] = l.summer.sum(o.buf)
		}
		l.summed <- o
	}
	close(l.summed)
}

// write does the lender's side of all operations in their order.
func (l *Loan) write() {
	for o := range l.summed {
		f := frame{frameGet, uint32(len(o.buf)), o.room.offset + uint64(o.chunk)*chunkBytes}
		var data []byte
		if o.put {
			f.kind, data = framePut, o.buf
		} else {
			l.asked <- o
		}
		if !l.failed() {
			if err := l.link.write(f, data); err != nil {
				l.fail(fate(err, l.o.Patience))
			}
		}
		if o.put {
			l.gone.add()
		}
	}
	close(l.asked)
}

// read takes what the lender says until the loan is over, and then gives zeros.
func (l *Loan) read() {
	for {
		f, err := l.link.read()
		if err == nil {
			err = l.receive(f)
		}
		if err != nil {
			l.fail(fate(err, l.o.Patience))
			break
		}
	}
	for o := range l.asked {
		o.room.lost.Store(true)
		l.came <- o
	}
	close(l.came)
}

// receive takes the data of a frame.
func (l *Loan) receive(f frame) error {
	if f.kind != frameData {
		return fmt.Errorf("it sent a frame of kind %v", f.kind)
	}
	var o operation
	select {
	case o = <-l.asked:
	default:
		return errors.New("it sent data that nobody asked for")
	}
	err := fmt.Errorf("it sent %d bytes at %d for %d at another place", f.length, f.offset, len(o.buf))
	if f.offset == o.room.offset+uint64(o.chunk)*chunkBytes && int(f.length) == len(o.buf) {
		err = l.link.receive(o.buf)
	}
	if err != nil {
		l.fail(fate(err, l.o.Patience)) // before anybody learns of the loss
		o.room.lost.Store(true)
	}
	l.came <- o
	return err
}

// compare compares what came with the sums. In the place of what is lost it gives
// zeros, which index nothing outside an array.
func (l *Loan) compare() {
	for o := range l.came {
		if !o.room.lost.Load() && l.summer.sum(o.buf) != o.room.sums[o.chunk] {
			l.fail(errors.New("it gave back other bytes than it was given"))
			o.room.lost.Store(true)
		}
		if o.room.lost.Load() {
			clear(o.buf)
		}
		l.back.add()
	}
}

// giveBack does what the lender calls back, as often as it does.
func (l *Loan) giveBack(lender *debt) {
	for to := range lender.recalls {
		l.retreat(lender, to)
	}
}

// retreat fetches what lies at the lender from an offset on, and gives that memory back;
// where it is all, the loan ends. Nobody touches a room meanwhile.
func (l *Loan) retreat(lender *debt, to uint64) {
	l.order.Lock()
	defer l.order.Unlock()
	if l.ended || l.failed() {
		return
	}
	begin := time.Now()
	moved, err := l.moveFrom(to)
	if err != nil {
		l.fail(fmt.Errorf("%w, and %w", errCalledBack, err)) // what was asked for comes as zeros
	}
	(&mark{&l.gone, l.puts}).Sync() // also of values that nobody wants any more
	(&mark{&l.back, l.gets}).Sync()
	text := fmt.Sprintf("%s were fetched in %v", size.Format(moved), time.Since(begin).Round(time.Microsecond))
	switch {
	case err != nil:
	case to == 0:
		l.fail(fmt.Errorf("%w: %s", errCalledBack, text))
	default:
		l.shorten(lender, to, text)
	}
}

var errCalledBack = errors.New("it called its memory back")

// shorten ends the use of what lies from an offset on.
func (l *Loan) shorten(lender *debt, to uint64, text string) {
	l.shelf.Shrink(to, func(r *lentRoom, whole uint64) bool { return r.offset+whole <= to })
	if err := lender.giveBack(to); err != nil {
		l.fail(fate(err, l.o.Patience))
		return
	}
	if l.o.Notify != nil {
		l.o.Notify(fmt.Sprintf("lender %s: it called memory back, of which %s are left: %s", l.address, size.Format(to), text))
	}
}

// moveFrom gives the rooms that lie from an offset on memory here, and asks for what they
// hold.
func (l *Loan) moveFrom(offset uint64) (moved uint64, err error) {
	for r := range l.live {
		if r.here != nil || r.offset+r.whole <= offset {
			continue
		}
		if err := r.move(); err != nil {
			return 0, err
		}
		moved += r.size
	}
	return moved, nil
}

// Close ends the loan. It returns an error if values are still out.
func (l *Loan) Close() error {
	l.order.Lock()
	if l.ended {
		l.order.Unlock()
		return nil
	}
	l.ended = true
	close(l.queue)
	l.order.Unlock()
	l.mu.Lock()
	if l.err == nil {
		l.err = net.ErrClosed
	}
	l.mu.Unlock()
	l.link.Close()
	l.work.Wait()
	if l.staging == nil {
		return l.shelf.leaks()
	}
	return errors.Join(l.shelf.leaks(), l.staging.source.close())
}

// lentRoom is a tensor.Room at a lender or, when that has called it back, here.
type lentRoom struct {
	loan        *Loan
	offset      uint64
	size, whole uint64
	sums        []uint64 // of the chunks that were sent
	sent        bool
	lost        atomic.Bool

	here     []byte // memory of this machine, if it was moved
	giveBack func()
}

// piece is the i-th chunk of a buffer as long as the room.
func piece(buf []byte, i int) []byte {
	return buf[i*chunkBytes : min((i+1)*chunkBytes, len(buf))]
}

// chunks is how many there are.
func (r *lentRoom) chunks() int { return int((r.size + chunkBytes - 1) / chunkBytes) }

// buffer is the part of a slot's that the i-th chunk takes.
func (r *lentRoom) buffer(s *slot, i int) []byte {
	return s.buf[:min(chunkBytes, r.size-uint64(i)*chunkBytes)]
}

// Send implements tensor.Room.
func (r *lentRoom) Send(side device.Stream, from device.Ptr) {
	l := r.loan
	l.order.Lock()
	defer l.order.Unlock()
	r.sent = true
	if r.here != nil {
		side.Download(r.here, from)
		return
	}
	if l.ring == nil {
		r.sendFrom(side, device.Bytes(from, int(r.size)))
		return
	}
	for i := range r.chunks() {
		s := l.slot()
		if s.gone != nil {
			side.Wait(s.gone)
		}
		buf := r.buffer(s, i)
		side.Download(buf, from+device.Ptr(i)*chunkBytes)
		s.gone, s.used = l.put(operation{room: r, chunk: i, buf: buf, after: side.Record()}), nil
	}
}

// sendFrom sends what lies in memory that the host reads.
func (r *lentRoom) sendFrom(side device.Stream, memory []byte) {
	var gone device.Event
	for i, ready := 0, side.Record(); i < r.chunks(); i++ {
		gone = r.loan.put(operation{room: r, chunk: i, buf: piece(memory, i), after: ready})
	}
	side.Wait(gone)
}

// fetchTo is the way back.
func (r *lentRoom) fetchTo(side device.Stream, memory []byte) {
	var back device.Event
	for i, ready := 0, side.Record(); i < r.chunks(); i++ {
		back = r.loan.get(operation{room: r, chunk: i, buf: piece(memory, i), after: ready})
	}
	side.Wait(back)
}

// put queues an operation, and gives when its data are gone.
func (l *Loan) put(o operation) device.Event {
	o.put = true
	l.puts++
	l.queue <- o
	return &mark{&l.gone, l.puts}
}

// get queues an operation, and gives when its data have come.
func (l *Loan) get(o operation) device.Event {
	l.gets++
	l.queue <- o
	return &mark{&l.back, l.gets}
}

// Fetch implements tensor.Room. It asks for as many chunks as the ring has before it
// waits for the first.
func (r *lentRoom) Fetch(side device.Stream, to device.Ptr) {
	l := r.loan
	l.order.Lock()
	defer l.order.Unlock()
	if r.here != nil {
		side.Upload(to, r.here)
		return
	}
	if l.ring == nil {
		r.fetchTo(side, device.Bytes(to, int(r.size)))
		return
	}
	first := l.next
	for i := range r.chunks() + ringChunks {
		if k := i - ringChunks; k >= 0 {
			s := &l.ring[(first+k)%ringChunks]
			side.Wait(s.back)
			side.Upload(to+device.Ptr(k)*chunkBytes, r.buffer(s, k))
			s.gone, s.used = nil, side.Record()
		}
		if i < r.chunks() {
			s := l.slot()
			s.back = l.get(operation{room: r, chunk: i, buf: r.buffer(s, i), after: s.used})
		}
	}
}

// slot gives the next buffer of the ring.
func (l *Loan) slot() *slot {
	s := &l.ring[l.next]
	l.next = (l.next + 1) % ringChunks
	return s
}

// Free implements tensor.Room.
func (r *lentRoom) Free() error {
	l := r.loan
	l.order.Lock()
	defer l.order.Unlock()
	delete(l.live, r)
	if r.here != nil {
		r.giveBack()
		l.shelf.Lose()
	} else {
		l.shelf.GiveBack(r, r.whole)
	}
	if r.lost.Load() {
		return l.over()
	}
	return nil
}

// move makes the room one in memory of this machine. Operations that are queued come
// before it.
func (r *lentRoom) move() (err error) {
	l := r.loan
	if l.o.Spare == nil {
		return errors.New("no memory is set aside here for what it held")
	}
	here, giveBack, err := l.o.Spare(r.size)
	if err != nil {
		return err
	}
	r.here, r.giveBack = here, giveBack
	if r.sent {
		for i := range r.chunks() {
			l.get(operation{room: r, chunk: i, buf: piece(here, i)})
		}
	}
	return nil
}

// fate says how a connection came to its end.
func fate(err error, patience time.Duration) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it moved less than %s in %v: it hangs, or is too slow, or the network is", size.Format(chunkBytes), patience)
	case eof(err) || hungUp(err):
		return fmt.Errorf("it died, or ended the loan (%w)", err)
	}
	return err
}

// eof is the end of a connection that the other end closed.
func eof(err error) bool { return errors.Is(err, io.EOF) }

// hungUp is the end of one that the other end left in the middle of something.
func hungUp(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// count only grows; goroutines wait for it to reach a number.
type count struct {
	mu      sync.Mutex
	reached sync.Cond
	n       uint64
	next    uint64 // the least that somebody waits for, or less
}

func (c *count) init() { c.reached.L = &c.mu }

func (c *count) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n >= c.next { // who waits for more sleeps on
		c.next = math.MaxUint64
		c.reached.Broadcast()
	}
}

// mark is a device.Event that is reached with a number of a count.
type mark struct {
	of *count
	n  uint64
}

func (m *mark) Done() bool {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	return m.of.n >= m.n
}

func (m *mark) Sync() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	for m.of.n < m.n {
		m.of.next = min(m.of.next, m.n)
		m.of.reached.Wait()
	}
}
