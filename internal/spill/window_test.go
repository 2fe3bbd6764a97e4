//go:build unix

package spill

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
	"github.com/headroom-go/headroom/tensor"
)

// pond is a Window in this process, whose Put, Get and Take each do what they should
// not from their call number failing on.
type pond struct {
	memory  []byte
	asked   chan []byte
	failing int
	fail    func(taken []byte) error // nil: never
	puts    int
	gets    int
	takes   int
}

func newPond() *pond {
	return &pond{memory: make([]byte, conformanceBytes), asked: make(chan []byte, 100)}
}

func (p *pond) call(n *int, taken []byte) error {
	if *n++; p.fail != nil && *n >= p.failing {
		return p.fail(taken)
	}
	return nil
}

func (p *pond) Put(at uint64, data []byte, _ time.Time) error {
	copy(p.memory[at:], data)
	return p.call(&p.puts, nil)
}

func (p *pond) Get(at uint64, bytes int, _ time.Time) error {
	p.asked <- slices.Clone(p.memory[at:][:bytes])
	return p.call(&p.gets, nil)
}

func (p *pond) Take(data []byte, _ time.Time) error {
	copy(data, <-p.asked)
	return p.call(&p.takes, data)
}

func windowLoan(t testing.TB, d device.Device, w Window, bytes uint64, o BorrowOptions) *Loan {
	t.Helper()
	l, err := BorrowWindow(d, w, bytes, o)
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

// TestWindowFails: what a window does wrong is an error that says so, and other bytes
// than were sent never come.
func TestWindowFails(t *testing.T) {
	refuse := func([]byte) error { return errors.New("it refuses") }
	late := func([]byte) error { return os.ErrDeadlineExceeded }
	lie := func(taken []byte) error {
		if taken != nil {
			taken[0] ^= 1
		}
		return nil
	}
	for _, c := range []struct {
		name    string
		failing int
		fail    func([]byte) error
		want    string
	}{{"refuses", 4, refuse, "it refuses"}, {"late", 11, late, "it hangs, or is too slow"}, {"other bytes", 1, lie, "other bytes than it was given"}} {
		for _, staged := range []bool{false, true} {
			p := newPond()
			p.failing, p.fail = c.failing, c.fail
			b := newBench(t)
			h := hold(t, b, windowLoan(t, b, p, 16<<20, BorrowOptions{staged: staged}))
			if whole, lost := h.fetch(t); lost == nil || whole == 3 || !strings.Contains(lost.Error(), "lender of this MPI job: ") || !strings.Contains(lost.Error(), c.want) {
				t.Errorf("%s: %d came back, lost %v", c.name, whole, lost)
			}
		}
	}
}

// TestRoomsUnderMPIRun sends values to windows of processes that the mpirun of each
// MPI starts.
func TestRoomsUnderMPIRun(t *testing.T) {
	for _, mpirun := range disttest.MPIRuns {
		t.Run(mpirun, func(t *testing.T) { disttest.MPIRun(t, mpirun, 3, "TestWindowRank", 3) })
	}
}

// TestWindowRank is what each process of TestRoomsUnderMPIRun does: the first sends
// values to the others.
func TestWindowRank(t *testing.T) {
	m := disttest.StartMPI(t, os.Getenv, 0, conformanceBytes/3+1, conformanceBytes)
	var err error
	if m.Rank() > 0 {
		err = m.Lend()
	} else {
		err = errors.Join(roomsInWindow(t, m, BorrowOptions{}), roomsInWindow(t, m, BorrowOptions{staged: true}))
	}
	if err := errors.Join(err, m.Close(err == nil)); err != nil {
		t.Error(err)
	}
}

func roomsInWindow(t *testing.T, m *dist.MPI, o BorrowOptions) error {
	w, err := m.Borrow(conformanceBytes)
	if err != nil {
		return err
	}
	b := newBench(t)
	l, err := BorrowWindow(b, w, conformanceBytes, o)
	if err != nil {
		return err
	}
	testRooms(t, b, map[string]tensor.Store{"window": l})
	return errors.Join(l.Close(), w.Close(time.Now().Add(time.Minute)))
}

// BenchmarkWindowRank sends a value to another process and fetches it; a copy of the
// same bytes in memory, and a loan over TCP, stand beside it.
//
//	go test -c -o spill.test ./internal/spill
//	mpirun -n 2 --bind-to none ./spill.test -test.run '^$' -test.bench WindowRank -test.benchtime 20x
func BenchmarkWindowRank(b *testing.B) {
	m := disttest.StartMPI(b, os.Getenv, 0, benchBytes)
	b.Run("64MiB", func(b *testing.B) {
		if m.Rank() == 0 {
			benchmarkWindow(b, m)
		}
	})
	var err error
	if m.Rank() > 0 {
		err = m.Lend()
	}
	if err := errors.Join(err, m.Close(err == nil)); err != nil {
		b.Error(err)
	}
}

func benchmarkWindow(b *testing.B, m *dist.MPI) {
	window, err := m.Borrow(benchBytes)
	if err != nil {
		b.Fatal(err)
	}
	w := newBench(b)
	p, data := w.array(b, benchBytes)
	copy(data, randomBytes(benchBytes))
	to := randomBytes(benchBytes)
	var copied cost
	benchmarkLoan(b, w, windowLoan(b, w, window, benchBytes, BorrowOptions{}), p, func() {
		copied.time(func() { copy(to, data) })
	})
	copied.report(b, "copy")
}
