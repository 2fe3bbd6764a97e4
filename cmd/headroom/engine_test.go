package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/dist/disttest"
	"github.com/headroom-go/headroom/internal/invariant"
)

// app is a command of this program for several processes of a job.
type app struct {
	processes int
	args      []string
}

// mpirunCommand is a job of commands of this program that an mpirun starts; where there
// is none, the test is skipped.
func mpirunCommand(t *testing.T, mpirun string, apps ...app) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath(mpirun); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	var args []string
	for _, a := range apps {
		args = append(append(args, ":", "-n", strconv.Itoa(a.processes), ourselves(t)), a.args...)
	}
	args = args[1:]
	if mpirun == "mpirun.openmpi" {
		args = append([]string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}, args...)
	}
	return exec.CommandContext(t.Context(), mpirun, args...)
}

// TestTrainUnderMPIRun: two processes of each MPI's mpirun have the losses of one
// device, over MPI and over TCP.
func TestTrainUnderMPIRun(t *testing.T) {
	data, dir := text(t), t.TempDir()
	command := func(out string, more ...string) []string {
		return append([]string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "16", "--steps", "3", "--device", "host:128MiB", "--data", data, "--out", filepath.Join(dir, out)}, more...)
	}
	if status, _, stderr := headroom(command("alone")...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	want := runLosses(t, filepath.Join(dir, "alone"))
	for _, mpirun := range disttest.MPIRuns {
		for _, engine := range []string{"auto", "tcp"} {
			t.Run(mpirun+" "+engine, func(t *testing.T) {
				if invariant.Slow && engine == "tcp" {
					t.Skip("TCP is not new to invariants")
				}
				out := mpirun + engine
				words, err := mpirunCommand(t, mpirun, app{2, command(out, "--engine", engine)}).CombinedOutput()
				if err != nil || strings.Contains(string(words), "; over MPI") != (engine == "auto") {
					t.Fatalf("%v\n%s", err, words)
				}
				sameLosses(t, out, runLosses(t, filepath.Join(dir, out)), want, 0)
			})
		}
	}
}

// TestRankFailsUnderMPIRun: what one process says is what both end with, and
// soon.
func TestRankFailsUnderMPIRun(t *testing.T) {
	out, err := mpirunCommand(t, "mpirun.openmpi", app{2, []string{"train", "--devices", "host:64MiB,host:1MiB", "--model", "gpt2-nano", "--data", text(t), "--out", t.TempDir()}}).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "headroom: rank 1: ") || !strings.Contains(string(out), "does not fit 1MiB") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoMPI: without its library, processes of an mpirun meet over TCP, unless
// they were told otherwise.
func TestNoMPI(t *testing.T) {
	before := mpis[0].files
	mpis[0].files = []string{"libno-such-mpi.so"}
	t.Cleanup(func() { mpis[0].files = before })
	l := launchFlags{n: 2}
	env, err := l.environment()
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(env[0], "MASTER_ADDR=") + ":" + strings.TrimPrefix(env[1], "MASTER_PORT=")
	var joined sync.WaitGroup
	for rank := range 2 {
		joined.Go(func() {
			f := ranksFlags{engine: "auto"}
			g, err := f.join(context.Background(), world{rank: rank, size: 2, address: address, mpirun: "Open MPI"})
			if err == nil {
				err = g.Close()
			}
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	joined.Wait()
	for engine, want := range map[string]string{"mpi": "library not found", "auto": "set MASTER_ADDR", "tcp": "set MASTER_ADDR"} {
		f := ranksFlags{engine: engine}
		if _, err := f.join(context.Background(), world{size: 2, mpirun: "Open MPI"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--engine %s without a library and an address: %v, want %q", engine, err, want)
		}
	}
	for flag, want := range map[string]string{"--engine": "none of auto, mpi, tcp", "--collectives": "none of auto, nccl, copies"} {
		if status, _, stderr := headroom("train", flag, "pigeons"); status != 2 || !strings.Contains(stderr, want) {
			t.Errorf("status %d: %s", status, stderr)
		}
	}
}
