package dist

import (
	"errors"
	"slices"
	"sync"

	"github.com/headroom-go/headroom/internal/mpi"
)

// FakeMPI is MPI between goroutines of this process: each rank's library, which
// fails from its call number failing on, if that is not 0.
func FakeMPI(size int, failing ...int) []*MPI {
	return FakeLenders(make([]uint64, size), failing...)
}

// FakeLenders is FakeMPI with ranks that lend so many bytes each.
func FakeLenders(lent []uint64, failing ...int) []*MPI {
	w := &fakeWorld{}
	for _, n := range lent {
		w.memory = append(w.memory, make([]byte, n))
	}
	ranks := make([]*MPI, len(lent))
	for r := range ranks {
		f := &fakeMPI{world: w, rank: r}
		if r < len(failing) {
			f.failing = failing[r]
		}
		ranks[r] = newMPI(f, r, lent)
		go ranks[r].drive()
	}
	return ranks
}

type fakeWorld struct {
	mu       sync.Mutex
	messages []*fakeMessage // on their way, in the order of sending
	memory   [][]byte       // of the ranks that lend
	deaf     bool           // pieces of windows stay on their way
}

type fakeMessage struct {
	from, to, tag int
	data          []byte
	taken         bool
}

// fakeMPI is one rank's library.
type fakeMPI struct {
	world   *fakeWorld
	rank    int
	failing int
	calls   int
	ops     []fakeOp
	put     []func() // what a flush does, in any order
}

type fakeOp struct {
	id        int
	sent      *fakeMessage // else it receives
	into      []byte
	from, tag int
	cancelled bool
	access    func(data []byte) // of a window; with into
	patience  int               // calls of Test until its end
}

// Deafen lets pieces of windows stay on their way for ever.
func Deafen(m *MPI) {
	w := m.library.(*fakeMPI).world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf = true
}

var errFake = errors.New("the library is broken")

func (f *fakeMPI) call() error {
	if f.calls++; f.failing > 0 && f.calls >= f.failing {
		return errFake
	}
	return nil
}

func (f *fakeMPI) Send(data []byte, to, tag int) (int, error) {
	m := &fakeMessage{from: f.rank, to: to, tag: tag, data: data}
	if len(data) < 4<<10 { // such are buffered, as by real ones
		m.data, m.taken = slices.Clone(data), true
	}
	f.world.mu.Lock()
	f.world.messages = append(f.world.messages, m)
	f.world.mu.Unlock()
	return f.begin(fakeOp{sent: m})
}

func (f *fakeMPI) Receive(data []byte, from, tag int) (int, error) {
	return f.begin(fakeOp{into: data, from: from, tag: tag})
}

// Put lands with the next flush, and until then nobody finds it.
func (f *fakeMPI) Put(data []byte, to int, offset uint64) (int, error) {
	there := f.world.memory[to][offset:][:len(data)]
	return f.begin(fakeOp{into: data, patience: 3, access: func(data []byte) {
		data = slices.Clone(data)
		f.put = append(f.put, func() { copy(there, data) })
	}})
}

func (f *fakeMPI) Get(data []byte, from int, offset uint64) (int, error) {
	there := f.world.memory[from][offset:][:len(data)]
	return f.begin(fakeOp{into: data, patience: 5, access: func(data []byte) { copy(data, there) }})
}

func (f *fakeMPI) Flush() error {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	for _, land := range slices.Backward(f.put) {
		land()
	}
	f.put = nil
	return f.call()
}

func (f *fakeMPI) begin(op fakeOp) (int, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	op.id = f.calls
	f.ops = append(f.ops, op)
	return op.id, nil
}

func (f *fakeMPI) Cancel(id int) error {
	for i := range f.ops {
		f.ops[i].cancelled = f.ops[i].cancelled || f.ops[i].id == id
	}
	return nil
}

func (f *fakeMPI) Test() (done []mpi.Done, err error) {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	for i := range f.ops {
		f.ops[i].patience--
	}
	f.ops = slices.DeleteFunc(f.ops, func(op fakeOp) bool {
		d, over := f.test(op)
		if over {
			done = append(done, d)
		}
		return over
	})
	if len(done) > 0 {
		err = f.call()
	}
	return done, err
}

func (f *fakeMPI) test(op fakeOp) (d mpi.Done, over bool) {
	d.ID = op.id
	if op.access != nil {
		if over = op.patience < 0 && !f.world.deaf; over {
			op.access(op.into)
		}
		return d, over
	}
	if op.sent != nil {
		return d, op.sent.taken
	}
	for i, m := range f.world.messages {
		if op.cancelled || m.to != f.rank || m.tag != op.tag || op.from != mpi.AnySource && m.from != op.from {
			continue
		}
		f.world.messages = slices.Delete(f.world.messages, i, i+1)
		m.taken = true
		d.From, d.Bytes = m.from, copy(op.into, m.data)
		if d.Bytes < len(m.data) {
			d.Err = errors.New("a message is longer than the memory for it")
		}
		return d, true
	}
	return d, op.cancelled
}

func (f *fakeMPI) Finalize() error { return f.call() }
