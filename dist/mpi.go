package dist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/mpi"
)

// MPI is an MPI library as a network. A connection is a pair of ranks and a tag:
// bytes go as messages with the tag, of which an empty one is the end. A port is
// a tag, too, and who connects to it sends the tag of the new connection.
//
// One goroutine calls the library, on one thread, and but for flushes of a Window
// never waits in a call: all waiting is Go's, with its deadlines, so that a rank that
// died, or a library that hangs in it, is noticed like a silent machine. The library
// sees no memory but segments that stay where they are until it is done with them:
// devices move pages between addresses, and after a failure memory is freed that a
// message was on its way to.
//
// Its methods may be called from several goroutines at once.
type MPI struct {
	rank   int
	lent   []uint64           // bytes that each rank lends; those that lend none train
	memory *device.HostDevice // of what this rank lends, which the library knows by its address alone

	window   chan *Window // while nobody has it
	farewell chan error   // of a lender: how the job ended

	do    chan func()   // to the goroutine that calls the library
	ended chan struct{} // closed when that has ended
	err   error         // why

	// Of that goroutine alone.
	library  messenger
	pending  map[int]func(mpi.Done) // what is to be done at an operation's end
	nextPort int
	dialed   map[int]int // connections that were opened with each rank
	queue    []*access   // to windows, that are not begun
	flying   []*access   // that are
	training int         // of a lender: ranks that have not said farewell
	closing  time.Time   // when Close was called
	well     bool        // what it was told
	pause    *time.Timer
}

// messenger is the part of an MPI library that a network is made of.
type messenger interface {
	Send(data []byte, to, tag int) (id int, err error)
	Receive(data []byte, from, tag int) (id int, err error)
	Cancel(id int) error
	Put(data []byte, to int, offset uint64) (id int, err error)
	Get(data []byte, from int, offset uint64) (id int, err error)
	Flush() error
	Test() ([]mpi.Done, error)
	Finalize() error
}

// Tags. Every library knows those up to lastTag.
const (
	lenderTag = 0       // of words to a lender
	firstPort = 1 << 10 // of those that are given out; below are those agreed on
	firstTag  = 1 << 12 // of connections
	lastTag   = 1<<15 - 1
)

// StartMPI starts MPI in this process, once. It loads the first library of the
// names that the loader has, and waits until all ranks that were started together
// start theirs, or for ctx. A rank that lends so many bytes, if not 0, does not train,
// but serves those that do (Borrow, Lend).
func StartMPI(ctx context.Context, names []string, lend uint64) (*MPI, error) {
	lib, err := mpi.Open(names)
	if err != nil {
		return nil, err
	}
	owner, memory, err := memoryToLend(lend)
	if err != nil {
		return nil, err
	}
	started, failed := make(chan *MPI, 1), make(chan error, 1)
	go func() {
		w, err := lib.Start()
		if err == nil {
			err = w.Lend(memory)
		}
		if err != nil {
			failed <- err
			return
		}
		m := newMPI(w, w.Rank, w.Lent)
		m.memory = owner
		started <- m
		m.drive()
	}()
	select {
	case m := <-started:
		return m, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, fmt.Errorf("not all processes started MPI: %w", context.Cause(ctx))
	}
}

func newMPI(library messenger, rank int, lent []uint64) *MPI {
	m := &MPI{rank: rank, lent: lent, window: make(chan *Window, 1), farewell: make(chan error, 1),
		do: make(chan func(), 64), ended: make(chan struct{}), pause: time.NewTimer(0),
		library: library, pending: map[int]func(mpi.Done){}, nextPort: firstPort, dialed: map[int]int{}}
	m.window <- &Window{mpiEnd: mpiEnd{m: m, shut: make(chan struct{})}, asked: make(chan *access, windowSegments)}
	if _, m.training, _ = m.Place(); lent[rank] > 0 {
		m.attend()
	}
	return m
}

// Rank is this process's number among all that were started.
func (m *MPI) Rank() int { return m.rank }

// Size is how many were started.
func (m *MPI) Size() int { return len(m.lent) }

// Place is this process's number among those that train, how many these are, and the
// address at which the first of them listens.
func (m *MPI) Place() (rank, size int, address string) {
	for r, lent := range m.lent {
		switch {
		case lent > 0:
			continue
		case size == 0:
			address = mpiAddress{r, 1}.String()
		}
		if r < m.rank {
			rank++
		}
		size++
	}
	return rank, size, address
}

// How long the end may take, and how much of that messages that are on their way:
// after a failure some never come.
const (
	endPatience   = 5 * time.Second
	flushPatience = time.Second
)

// Close ends MPI in this process. If all went well it waits until all ranks do so;
// else, as some may be no more, only until what was sent is on its way.
func (m *MPI) Close(well bool) error {
	m.call(func() {
		m.closing, m.well = time.Now(), well
		m.tellLenders(well)
	})
	select {
	case <-m.ended:
	case <-time.After(endPatience):
		return fmt.Errorf("MPI did not end within %v: another rank does not end it", endPatience)
	}
	if errors.Is(m.err, net.ErrClosed) {
		return nil
	}
	return m.err
}

// call has f called by the goroutine that calls the library.
func (m *MPI) call(f func()) {
	select {
	case m.do <- f:
	case <-m.ended:
	}
}

// drive calls the library until it fails or is to end.
func (m *MPI) drive() {
	defer close(m.ended)
	for idle := 0; m.err == nil; idle++ {
		done, err := m.library.Test()
		for _, d := range done {
			then := m.pending[d.ID]
			delete(m.pending, d.ID)
			then(d)
			idle = 0
		}
		switch {
		case err != nil:
			m.err = err
		case m.flushed():
			if m.err = net.ErrClosed; m.well {
				m.err = errors.Join(m.err, m.library.Finalize())
			}
		case m.work(idle):
			idle = 0
		}
	}
}

// flushed says that the network is to end, and all that was sent and awaited is
// there.
func (m *MPI) flushed() bool {
	return !m.closing.IsZero() && (len(m.pending) == 0 || time.Since(m.closing) > flushPatience)
}

// work does what there is to do. If the library has been idle for so many turns,
// it first lets others run, and then waits for work, longer and longer.
func (m *MPI) work(idle int) bool {
	const least, most = 20 * time.Microsecond, time.Millisecond
	eager := 256
	if m.lent[m.rank] > 0 {
		eager = 4096 // what moves pieces of windows has no end that would be seen here
	}
	if idle < eager {
		select {
		case f := <-m.do:
			f()
			return true
		default:
			if idle%16 == 15 {
				runtime.Gosched()
			}
			return false
		}
	}
	m.pause.Reset(min(least<<min((idle-eager)/16, 10), most))
	select {
	case f := <-m.do:
		f()
		return true
	case <-m.pause.C:
		return false
	}
}

// send begins to send data, and has then called when they are gone.
func (m *MPI) send(data []byte, to, tag int, then func(mpi.Done)) {
	id, err := m.library.Send(data, to, tag)
	if err != nil {
		then(mpi.Done{Err: err})
		return
	}
	m.pending[id] = then
}

// receive begins to receive data, and has then called when they are there.
func (m *MPI) receive(data []byte, from, tag int, then func(mpi.Done)) (id int) {
	id, err := m.library.Receive(data, from, tag)
	if err != nil {
		then(mpi.Done{Err: err})
		return
	}
	m.pending[id] = then
	return id
}

// mpiAddress is a rank with a tag, as in 3:4096.
type mpiAddress struct{ rank, tag int }

func (a mpiAddress) Network() string { return "MPI" }
func (a mpiAddress) String() string {
	return net.JoinHostPort(strconv.Itoa(a.rank), strconv.Itoa(a.tag))
}

func parseMPIAddress(text string) (a mpiAddress, err error) {
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		a.rank, err = strconv.Atoi(host)
	}
	if err == nil {
		a.tag, err = strconv.Atoi(port)
	}
	return a, err
}
