package dist_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
	"github.com/headroom-go/headroom/internal/invariant"
)

// TestMPIRun runs the suite as processes that the mpirun of each MPI starts.
func TestMPIRun(t *testing.T) {
	for _, mpirun := range disttest.MPIRuns {
		t.Run(mpirun, func(t *testing.T) {
			for _, n := range []int{2, 4} {
				if !invariant.Slow || n < 4 {
					disttest.MPIRun(t, mpirun, n, "TestMPIRank", n)
				}
			}
		})
	}
}

// TestMPIRunDeath lets one of three such processes be killed. MPICH's mpirun
// would end the others at once.
func TestMPIRunDeath(t *testing.T) { disttest.MPIRun(t, "mpirun.openmpi", 3, "TestMPIRankDies", 2) }

// joinAs joins a job of so many ranks as this process, if it is one of them.
func joinAs(t testing.TB, m *dist.MPI, size int, o dist.JoinOptions) []dist.Group {
	t.Helper()
	if size > m.Size() {
		t.Skipf("%d ranks are too few for %d", m.Size(), size)
	}
	if m.Rank() >= size {
		return nil
	}
	o.Rank, o.Size, o.Arrival = m.Rank(), size, time.Minute
	g, err := dist.Join(t.Context(), o)
	if err == nil {
		err = g.Barrier() // else one may fail, as the test has it, before another one has joined
	}
	if err != nil {
		t.Fatal(err)
	}
	return []dist.Group{g}
}

// TestMPIRank is what each process of TestMPIRun does.
func TestMPIRank(t *testing.T) {
	m, port := disttest.StartMPI(t, os.Getenv), 0
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a fault makes no panic")
			}
		}()
		var nowhere *int
		*nowhere = 1 // which the library's own handler of signals would not survive
	}()
	disttest.Run(t, func(t *testing.T, size int, o dist.Options) []dist.Group {
		if port++; o.Patience > 0 {
			t.Skip("processes of a busy machine may all be late")
		}
		return joinAs(t, m, size, dist.JoinOptions{Options: o, MPI: m, Address: fmt.Sprintf("0:%d", port)})
	})
	if err := m.Close(true); err != nil {
		t.Error(err)
	}
}

// TestMPIRankDies is what each process of TestMPIRunDeath does: one kills itself,
// which nothing tells to the others, and they name it.
func TestMPIRankDies(t *testing.T) {
	m := disttest.StartMPI(t, os.Getenv)
	g, err := dist.Join(t.Context(), dist.JoinOptions{MPI: m, Rank: m.Rank(), Size: m.Size(), Address: "0:1", Silence: 15 * time.Second})
	if err == nil {
		err = g.Barrier()
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.Rank() == 1 {
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		t.Fatal(self.Kill())
	}
	if err := g.Barrier(); err == nil || !strings.Contains(err.Error(), "rank 1: it has said nothing for 15s") {
		t.Errorf("the error is %v", err)
	}
	g.Close()
	if err := m.Close(false); err != nil {
		t.Error(err)
	}
}

// BenchmarkMPIRank reduces 16 MiB and 64 bytes in processes that mpirun starts, all
// with the same -test.benchtime, a number of rounds such as 20x, over MPI and TCP.
func BenchmarkMPIRank(b *testing.B) {
	m, port := disttest.StartMPI(b, os.Getenv), 0
	for _, bytes := range []int{16 << 20, 64} {
		for _, over := range []string{"mpi", "tcp"} {
			b.Run(fmt.Sprint(bytes, "/", over), func(b *testing.B) {
				port++
				o := dist.JoinOptions{MPI: m, Address: fmt.Sprintf("0:%d", port)}
				if over == "tcp" {
					o = dist.JoinOptions{Address: fmt.Sprintf("127.0.0.1:%d", 29600+port)}
				}
				benchmarkAllReduce(b, joinAs(b, m, m.Size(), o), bytes/4)
			})
		}
	}
	if err := m.Close(true); err != nil {
		b.Error(err)
	}
}
