package dist

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/mpi"
	"github.com/headroom-go/headroom/internal/size"
)

// How memory of ranks is lent over MPI.
//
// A rank of an MPI job trains or lends, which it says at its start. What all lenders
// have is one row of bytes, in the order of their ranks, of which each of N ranks that
// train has an N-th, so that nobody needs to be asked. A rank puts bytes there and gets
// them by itself (MPI's one-sided communication): the lender does nothing, but must
// enter its library now and then, since some libraries move bytes only then. An empty
// message goes before each piece, at which it enters its library again and again for
// a while.
//
// MPI keeps no order between a piece that is put and another one in the same place,
// unless there is a flush between them, which waits. Pieces are mostly got long after
// they were put, so there is a flush only before one that overlaps with an earlier one.
// It is the only call that waits for another rank, between start and end.

const (
	// windowSegments is how many pieces can be on their way, and mostUnflushed how
	// many that were put are looked through for what overlaps.
	windowSegments = 8
	mostUnflushed  = 64
)

// memoryToLend is memory of this process, as its pages are written to.
func memoryToLend(bytes uint64) (owner *device.HostDevice, memory []byte, err error) {
	if bytes == 0 {
		return nil, nil, nil
	}
	const page = 4096
	owner, err = device.OpenHost(device.HostOptions{Capacity: (bytes + page - 1) / page * page, Workers: 1, Plain: true})
	if err != nil {
		return nil, nil, err
	}
	p, err := owner.Alloc(bytes)
	if err != nil {
		return nil, nil, errors.Join(err, owner.Close())
	}
	return owner, device.Bytes(p, int(bytes)), nil
}

// Window is memory that other ranks of an MPI job lend to this one. Puts and gets that
// overlap come about in the order of the calls. One goroutine at a time may Put or Get,
// and one may Take; none while it is closed. Each call has until a time, by, after which
// the window is of no more use, as after any other failure.
type Window struct {
	mpiEnd
	start, size uint64       // in what all lend
	free        chan []byte  // segments
	asked       chan *access // in the order of Get
}

// access is a piece of a window that is put or got. Of it the goroutine that calls the
// library has over, and all lists.
type access struct {
	of     *Window
	put    bool
	rank   int    // that lends it
	at     uint64 // in its memory
	data   []byte // the beginning of a segment
	over   bool   // it was put, but not flushed
	landed chan struct{}
}

// Borrow gives the first bytes of this rank's part, which trains, of what others lend.
// There is one Window at a time.
func (m *MPI) Borrow(bytes uint64) (*Window, error) {
	rank, ranks, _ := m.Place()
	var lent uint64
	for _, n := range m.lent {
		lent += n
	}
	part := lent / uint64(ranks)
	switch {
	case lent == 0:
		return nil, errors.New("no rank of this MPI job lends memory")
	case bytes > part:
		return nil, fmt.Errorf("ranks of this MPI job lend %s, of which each of %d that train has %s", size.Format(lent), ranks, size.Format(part))
	}
	select {
	case w := <-m.window:
		if w.start, w.size = part*uint64(rank), bytes; w.free == nil {
			w.allot()
		}
		return w, nil
	default:
		return nil, errors.New("what ranks of this MPI job lend to this process is in use, or was not given back")
	}
}

// allot makes the segments, once: a library may remember where they are.
func (w *Window) allot() {
	w.free = make(chan []byte, windowSegments)
	for range windowSegments {
		w.free <- make([]byte, longSegment)
	}
}

// Close gives the window back, once all pieces have landed.
func (w *Window) Close(by time.Time) error {
	for len(w.asked) > 0 {
		if _, err := w.next(nil, by); err != nil {
			return err
		}
	}
	var home [windowSegments][]byte
	for i := range home {
		var err error
		if home[i], err = await(&w.mpiEnd, w.free, by); err != nil {
			return err
		}
	}
	for _, s := range home {
		w.free <- s
	}
	w.m.window <- w
	return nil
}

// Put copies data into the window. They may change when it returns; what goes wrong
// with them later, a later call returns.
func (w *Window) Put(at uint64, data []byte, by time.Time) error {
	for len(data) > 0 {
		a, err := w.piece(at, len(data), by)
		if err != nil {
			return err
		}
		n := copy(a.data, data)
		a.put = true
		w.m.call(func() { w.m.access(a) })
		at, data = at+uint64(n), data[n:]
	}
	return nil
}

// Get asks for bytes, at most windowSegments pieces ahead of Take, which gives them.
func (w *Window) Get(at uint64, bytes int, by time.Time) error {
	for bytes > 0 {
		a, err := w.piece(at, bytes, by)
		if err != nil {
			return err
		}
		n := len(a.data)
		w.asked <- a
		w.m.call(func() { w.m.access(a) })
		at, bytes = at+uint64(n), bytes-n
	}
	return nil
}

// Take waits for what was asked for first, and copies it to data, which are as many
// bytes as one Get asked for.
func (w *Window) Take(data []byte, by time.Time) error {
	for len(data) > 0 {
		n, err := w.next(data, by)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// next takes one piece.
func (w *Window) next(data []byte, by time.Time) (n int, err error) {
	a, err := await(&w.mpiEnd, w.asked, by)
	if err == nil {
		_, err = await(&w.mpiEnd, a.landed, by)
	}
	if err != nil {
		w.fail(err)
		return 0, err
	}
	n = copy(data, a.data)
	w.free <- a.data[:longSegment]
	return n, nil
}

// piece is the beginning of so many bytes, with a segment for it.
func (w *Window) piece(at uint64, bytes int, by time.Time) (*access, error) {
	if at > w.size || uint64(bytes) > w.size-at {
		return nil, fmt.Errorf("%d bytes at %d of %d that are lent", bytes, at, w.size)
	}
	s, err := await(&w.mpiEnd, w.free, by)
	if err != nil {
		w.fail(err)
		return nil, err
	}
	rank, at, rest := w.m.locate(w.start + at)
	return &access{of: w, rank: rank, at: at, data: s[:min(uint64(bytes), rest, longSegment)], landed: make(chan struct{})}, nil
}

// locate says at which rank a byte of what all lend lies, where in its memory, and how
// many bytes that has from there on.
func (m *MPI) locate(at uint64) (rank int, offset, rest uint64) {
	for m.lent[rank] <= at {
		at -= m.lent[rank]
		rank++
	}
	return rank, at, m.lent[rank] - at
}

// access queues a piece.
func (m *MPI) access(a *access) {
	m.send(nil, a.rank, lenderTag, func(mpi.Done) {})
	m.queue = append(m.queue, a)
	m.advance()
}

// advance begins what is queued, up to a piece that must wait for another one.
func (m *MPI) advance() {
	for len(m.queue) > 0 && m.settled(m.queue[0]) {
		a := m.queue[0]
		m.queue = m.queue[1:]
		if err := m.begin(a); err != nil {
			a.of.fail(err)
		}
	}
}

// settled says that nothing on its way overlaps with a piece.
func (m *MPI) settled(a *access) bool {
	flush := len(m.flying) >= mostUnflushed
	for _, f := range m.flying {
		if f.meets(a) && !f.over {
			return false
		}
		flush = flush || f.meets(a)
	}
	if flush {
		if err := m.library.Flush(); err != nil {
			a.of.fail(err)
		}
		m.flying = slices.DeleteFunc(m.flying, func(f *access) bool { return f.over })
	}
	return true
}

// meets says that the order of two pieces matters.
func (a *access) meets(b *access) bool {
	return (a.put || b.put) && a.rank == b.rank && a.at < b.at+uint64(len(b.data)) && b.at < a.at+uint64(len(a.data))
}

// begin begins to move a piece.
func (m *MPI) begin(a *access) error {
	move := m.library.Get
	if a.put {
		move = m.library.Put
	}
	id, err := move(a.data, a.rank, a.at)
	if err != nil {
		return err
	}
	m.flying = append(m.flying, a)
	m.pending[id] = func(d mpi.Done) {
		m.land(a, d.Err)
		m.advance()
	}
	return nil
}

// land notes that the library is done with a piece's data.
func (m *MPI) land(a *access, err error) {
	switch {
	case err != nil:
		a.of.fail(err)
	case a.put:
		a.over = true
		a.of.free <- a.data[:longSegment]
	default:
		m.flying = slices.DeleteFunc(m.flying, func(f *access) bool { return f == a })
		close(a.landed)
	}
}

// tellLenders says farewell, after a run that went well or failed.
func (m *MPI) tellLenders(well bool) {
	word := []byte{0}
	if well {
		word[0] = 1
	}
	for rank, n := range m.lent {
		if n > 0 && m.lent[m.rank] == 0 {
			m.send(word, rank, lenderTag, func(mpi.Done) {})
		}
	}
}

// attend takes the words to a lender: no byte before a piece is put or got, and one at
// the end.
func (m *MPI) attend() {
	word := make([]byte, 1)
	m.receive(word, mpi.AnySource, lenderTag, func(d mpi.Done) {
		if d.Bytes == 1 {
			m.training--
		}
		switch {
		case d.Err != nil:
			m.farewell <- d.Err
		case d.Bytes == 1 && word[0] == 0:
			m.farewell <- errors.New("a rank that trains failed")
		case m.training == 0:
			m.farewell <- nil
		default:
			m.attend()
		}
	})
}

// Lend waits until all ranks that train have closed MPI, or one has done so after a
// failure, which is an error.
func (m *MPI) Lend() error {
	select {
	case err := <-m.farewell:
		return err
	case <-m.ended:
		return m.err
	}
}
