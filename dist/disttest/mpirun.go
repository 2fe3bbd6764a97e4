package disttest

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
	"github.com/headroom-go/headroom/internal/mpi"
)

// MPIRuns are the programs that start processes of each MPI.
var MPIRuns = []string{"mpirun.openmpi", "mpirun.mpich"}

// MPIRun runs a test of the program that calls it as n processes, of which so many
// must pass. Where there is no such mpirun, it skips the test.
func MPIRun(t *testing.T, mpirun string, n int, test string, pass int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(mpirun); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	args := []string{"-n", strconv.Itoa(n), program, "-test.run=^" + test + "$", "-test.v"}
	if mpirun == MPIRuns[0] { // on few processors, whoever runs it, and without an end to all where one is killed
		args = append([]string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery"}, args...)
	}
	out, err := exec.CommandContext(t.Context(), mpirun, args...).CombinedOutput()
	if passed := strings.Count(string(out), "--- PASS: "+test+" "); passed != pass || err != nil && pass == n {
		t.Errorf("%s -n %d: %v, %d passed\n%s", mpirun, n, err, passed, out)
	}
}

// StartMPI starts MPI in a process that mpirun started, as its environment says; in
// others it skips the test. Each rank lends so many bytes, the last ones none.
func StartMPI(t testing.TB, env func(string) string, lent ...uint64) *dist.MPI {
	t.Helper()
	names, rank := mpi.OpenMPI, env("OMPI_COMM_WORLD_RANK")
	if rank == "" {
		names, rank = mpi.MPICH, env("PMI_RANK")
	}
	number, err := strconv.Atoi(rank)
	if err != nil {
		t.Skip("mpirun did not start this process")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
	defer cancel()
	m, err := dist.StartMPI(ctx, names, append(lent, make([]uint64, number+1)...)[number])
	if err != nil {
		t.Fatal(err)
	}
	return m
}
