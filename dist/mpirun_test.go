package dist_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/mpi"
)

// TestMPIRun runs the suite as processes that the mpirun of each MPI starts.
func TestMPIRun(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range []string{"mpirun.openmpi", "mpirun.mpich"} {
		mpirun, err := exec.LookPath(name)
		if err != nil {
			t.Logf("SKIPPED: %v", err)
			continue
		}
		found = true
		for _, n := range []int{2, 4} {
			if invariant.Enabled && n == 4 {
				continue
			}
			args := append(mpirunFlags(name), "-n", strconv.Itoa(n), program, "-test.run=^TestMPIRank$", "-test.v")
			out, err := exec.CommandContext(t.Context(), mpirun, args...).CombinedOutput()
			if passed := strings.Count(string(out), "--- PASS: TestMPIRank "); err != nil || passed != n {
				t.Errorf("%s -n %d: %v, %d passed\n%s", name, n, err, passed, out)
			}
		}
	}
	if !found {
		t.Skip("SKIPPED: no mpirun here")
	}
}

// mpirunFlags are those for a machine of few processors, whoever runs the test.
func mpirunFlags(name string) []string {
	if name == "mpirun.openmpi" {
		return []string{"--allow-run-as-root", "--oversubscribe"}
	}
	return nil
}

// startedMPI starts MPI in a process that mpirun started; in others it skips.
func startedMPI(t testing.TB) *dist.MPI {
	t.Helper()
	names := mpi.OpenMPI
	switch {
	case os.Getenv("OMPI_COMM_WORLD_SIZE") != "":
	case os.Getenv("PMI_SIZE") != "":
		names = mpi.MPICH
	default:
		t.Skip("mpirun did not start this process")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
	defer cancel()
	m, err := dist.StartMPI(ctx, names, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// joinAs joins a job of so many ranks as this process, if it is one of them.
func joinAs(t testing.TB, m *dist.MPI, size, port int, o dist.Options) []dist.Group {
	t.Helper()
	if size > m.Size() {
		t.Skipf("%d ranks are too few for %d", m.Size(), size)
	}
	if m.Rank() >= size {
		return nil
	}
	g, err := dist.Join(t.Context(), dist.JoinOptions{Options: o, MPI: m, Rank: m.Rank(), Size: size, Address: "0:" + strconv.Itoa(port), Arrival: time.Minute})
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
	m, port := startedMPI(t), 0
	disttest.Run(t, func(t *testing.T, size int, o dist.Options) []dist.Group {
		port++
		return joinAs(t, m, size, port, o)
	})
	if err := m.Close(true); err != nil {
		t.Error(err)
	}
}

// BenchmarkMPIRank is BenchmarkAllReduce in processes that mpirun starts, all with
// the same -test.benchtime, a number of rounds such as 20x.
func BenchmarkMPIRank(b *testing.B) {
	m, port := startedMPI(b), 0
	b.Run("16MiB", func(b *testing.B) {
		port++
		benchmarkAllReduce(b, joinAs(b, m, m.Size(), port, dist.Options{}), 4<<20)
	})
	b.Run("64B", func(b *testing.B) {
		port++
		benchmarkAllReduce(b, joinAs(b, m, m.Size(), port, dist.Options{}), 16)
	})
	if err := m.Close(true); err != nil {
		b.Error(err)
	}
}
