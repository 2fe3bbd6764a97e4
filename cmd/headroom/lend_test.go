package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/dist/disttest"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/plan"
)

// spoken is what a command has printed, for several goroutines.
type spoken struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *spoken) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestTrainBorrows: a run with values at a lender gives the file of weights of one with
// values on the host, says how fast places are, keeps that with --rates, and the lender
// says who has borrowed what.
func TestTrainBorrows(t *testing.T) {
	if invariant.Slow {
		t.Skip("what is concurrent is tested in dist and internal/spill")
	}
	ctx, cancel := context.WithCancel(context.Background())
	out, done := &spoken{}, make(chan error, 1)
	lender := &lendFlags{bytes: 64 << 20, listen: "0", grace: time.Minute, keep: 1}
	go func() { done <- lender.lend(ctx, out) }()
	for !strings.Contains(out.String(), "\n") {
		time.Sleep(time.Millisecond)
	}
	_, address, _ := strings.Cut(out.String(), " at ")
	address, kept, _ := strings.Cut(address, ", ")
	if kept != "and keeps 1B available\n" {
		t.Errorf("the lender says %q of what it keeps", kept)
	}
	j := newBorrowing(t, address)
	rates := filepath.Join(j.dir, "rates.json")
	train := func(name string, more ...string) (string, []byte) {
		status, _, stderr := headroom(j.args(name, more...)...)
		if status != 0 {
			t.Fatalf("status %d\n%s", status, stderr)
		}
		return stderr, j.weights(t, name)
	}
	words, lent := train("lent", "--away", "64KiB", "--away", "32MiB,"+address, "--rates", rates)
	if _, host := train("host", "--away", "32MiB"); !bytes.Equal(lent, host) {
		t.Error("the weights are others with a lender")
	}
	if !strings.Contains(words, "32MiB,"+address+": ") {
		t.Errorf("no word of the lender's speed:\n%s", words)
	}
	if words, _ := train("again", "--away", "64KiB", "--away", "32MiB,"+address, "--rates", rates); strings.Contains(words, "GB/s") {
		t.Errorf("what --rates knows is measured again:\n%s", words)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"measuring (127.0.0.1:", "gpt2-nano (127.0.0.1:", "borrows 32MiB; 32MiB of 64MiB are lent", "gave back 32MiB; 0B of 64MiB are lent"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestTrainBorrowsUnderMPIRun: so it is where two ranks of each MPI's job lend.
func TestTrainBorrowsUnderMPIRun(t *testing.T) {
	if invariant.Slow {
		t.Skip("what is concurrent is tested in dist and internal/spill")
	}
	j := newBorrowing(t, "mpi")
	if status, _, stderr := headroom(j.args("host", "--away", "32MiB")...); status != 0 {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	for _, mpirun := range disttest.MPIRuns {
		t.Run(mpirun, func(t *testing.T) {
			command := j.args(mpirun, "--away", "64KiB", "--away", "32MiB,mpi")
			out, err := mpirunCommand(t, mpirun, app{1, command}, app{2, []string{"lend", "16MiB", "--mpi"}}).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "32MiB,mpi: ") || !strings.Contains(string(out), "16MiB as rank 2 of 3, to 1 that train") {
				t.Fatalf("%v\n%s", err, out)
			}
			if !bytes.Equal(j.weights(t, mpirun), j.weights(t, "host")) {
				t.Error("the weights are others with ranks that lend")
			}
		})
	}
}

// TestRanksBorrowUnderMPIRun: two ranks train whose first is not the job's first, and
// borrow of the one that is.
func TestRanksBorrowUnderMPIRun(t *testing.T) {
	if invariant.Slow {
		t.Skip("what is concurrent is tested in dist and internal/spill")
	}
	data, dir := text(t), t.TempDir()
	command := func(out string, more ...string) []string {
		return append([]string{"train", "--model", "gpt2-nano", "--batch", "16", "--seq", "128", "--steps", "2", "--data", data, "--out", filepath.Join(dir, out)}, more...)
	}
	out, err := mpirunCommand(t, "mpirun.openmpi", app{1, []string{"lend", "64MiB", "--mpi"}}, app{2, command("lent", "--device", "host:12MiB", "--away", "32MiB,mpi")}).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "moved away") {
		t.Fatalf("%v\n%s", err, out)
	}
	if status, _, stderr := headroom(command("alone", "--device", "host:128MiB")...); status != 0 {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	sameLosses(t, "lent", runLosses(t, filepath.Join(dir, "lent")), runLosses(t, filepath.Join(dir, "alone")), 0)
}

// borrowing is a training of one step by a plan that moves values to a place.
type borrowing struct {
	dir  string
	data string
	job  []string
}

func newBorrowing(t *testing.T, place string) *borrowing {
	t.Helper()
	j := &borrowing{t.TempDir(), text(t), []string{"--model", "gpt2-nano", "--batch", "16", "--seq", "128", "--device", "host:16MiB"}}
	p, fast := filepath.Join(j.dir, "plan.json"), filepath.Join(j.dir, "fast.json")
	known := plan.HostRates(runtime.GOMAXPROCS(0))
	known.Away = map[string]plan.CopyRates{place: {OutBytesPerSecond: 4e9, BackBytesPerSecond: 4e9}}
	if err := known.Write(fast); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := headroom(append([]string{"plan", "--out", p, "--rates", fast, "--away", "64KiB", "--away", "32MiB," + place}, j.job...)...); status != 0 {
		t.Fatal(stderr)
	}
	if made, err := plan.Read(p); err != nil || made.Chosen.AwayBytes <= 64<<10 {
		t.Fatalf("the plan moves nothing to the lender: %v, %v", made.Chosen.Description, err)
	}
	j.job = append(j.job, "--plan", p)
	return j
}

func (j *borrowing) args(out string, more ...string) []string {
	return slices.Concat([]string{"train", "--steps", "1", "--data", j.data, "--out", filepath.Join(j.dir, out)}, j.job, more)
}

func (j *borrowing) weights(t *testing.T, out string) []byte {
	t.Helper()
	w, err := os.ReadFile(filepath.Join(j.dir, out, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestBadLenders: each is a clear message and the right status.
func TestBadLenders(t *testing.T) {
	data := text(t)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"lend"}, 2, "lend needs one size"},
		{[]string{"lend", "0"}, 2, "nothing to lend"},
		{[]string{"lend", "many"}, 2, "many"},
		{[]string{"lend", "1000TiB"}, 2, "available"},
		{[]string{"lend", "1KiB", "--listen", "nowhere:http:1"}, 2, "--listen"},
		{[]string{"lend", "1KiB", "--keep", "some"}, 2, "--keep"},
		{[]string{"lend", "1KiB", "--keep", "1000TiB"}, 2, "leaves nothing to lend"},
		{[]string{"lend", "1KiB", "--grace", "-1s"}, 2, "--grace -1s"},
		{[]string{"lend", "1KiB", "--grace", "0s", "--listen", "nowhere:port"}, 2, "--grace 0s"},
		{[]string{"lend", "1KiB", "--mpi"}, 2, "start it with them, as in mpirun"},
		{[]string{"lend", "1KiB", "--mpi", "--grace", "1s"}, 2, "leave --listen, --grace and --keep out"},
		{[]string{"lend", "1KiB", "--mpi", "--keep", "1KiB"}, 2, "leave --listen, --grace and --keep out"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,mpi"), 2, "no MPI job was started"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,mpi", "--away", "2MiB,mpi"), 2, "give SIZE,mpi once"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,mpi", "--engine", "tcp"), 2, "leave --engine tcp out"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,http://127.0.0.1:1"), 2, "write it like tcp://host:9402"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,tcp://here"), 2, "write it like tcp://host:9402"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,tcp://:"), 2, "write it like tcp://host:9402"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,cuda:x"), 2, "no number of a GPU"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,cuda:1"), 1, "only another GPU does"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,tcp://127.0.0.1:1"), 1, "see that headroom lend runs there"},
	} {
		if status, _, stderr := headroom(c.args...); status != c.status || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}
