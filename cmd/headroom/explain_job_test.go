package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

const mib = 1 << 20

// tape writes down what a made-up rank allocates, each block in a segment of its own.
type tape struct {
	events   trace.Trace
	addr     uint64
	segments []trace.Segment
	notes    []trace.Annotation
}

func frames(file string, line int, name string) *trace.Stack {
	return trace.NewStack([]trace.Frame{{File: "/home/me/" + file, Line: line, Func: name}, {File: "/home/me/train.py", Line: 30, Func: "<module>"}})
}

func (r *tape) event(a trace.Action, addr, size uint64, p trace.Purpose, s *trace.Stack) {
	r.events.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, Purpose: p, TimeUS: int64(r.events.Len() + 1)}, Stack: s})
}

// keep allocates n blocks that stay, and gives the address of the last.
func (r *tape) keep(n int, size uint64, p trace.Purpose, s *trace.Stack) uint64 {
	for range n {
		r.addr += 1 << 36
		r.event(trace.SegmentAlloc, r.addr, size, p, s)
		r.event(trace.Alloc, r.addr, size, p, s)
		r.segments = append(r.segments, trace.Segment{Addr: r.addr, Size: size, Blocks: []trace.Block{{Addr: r.addr, Size: size, Requested: size, Purpose: p, Stack: s}}})
	}
	return r.addr
}

// cut allocates n blocks of which every second half is freed: holes.
func (r *tape) cut(n int, size uint64, p trace.Purpose, s *trace.Stack) {
	for range n {
		r.addr += 1 << 36
		r.event(trace.SegmentAlloc, r.addr, size, p, s)
		r.event(trace.Alloc, r.addr, size/2, p, s)
		r.event(trace.Alloc, r.addr+size/2, size/2, p, s)
		r.event(trace.FreeRequested, r.addr+size/2, size/2, p, nil)
		r.event(trace.FreeCompleted, r.addr+size/2, size/2, p, nil)
		r.segments = append(r.segments, trace.Segment{Addr: r.addr, Size: size, Blocks: []trace.Block{
			{Addr: r.addr, Size: size / 2, Requested: size / 2, Purpose: p, Stack: s}, {Addr: r.addr + size/2, Size: size / 2, State: trace.Free}}})
	}
}

// fail lets a request fail where so much of the device is free.
func (r *tape) fail(request, free uint64) {
	r.event(trace.OOM, free, request, trace.Activation, frames("net.py", 42, "forward"))
}

func (r *tape) write(t *testing.T, path string) {
	t.Helper()
	var b bytes.Buffer
	if err := (&trace.Snapshot{Traces: []*trace.Trace{&r.events}, Segments: r.segments, Annotations: r.notes}).WritePickle(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// madeUp are jobs, by what is the matter with them.
var madeUp = map[string]func(rank int, r *tape){
	"pipeline": func(rank int, r *tape) { // 1F1B: stage r keeps 4−r micro-batches
		r.keep(2, 256*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		if r.keep(4-rank, 900*mib, trace.Activation, frames("net.py", 42, "forward")); rank == 0 {
			r.fail(900*mib, 200*mib)
		}
	},
	"experts": func(rank int, r *tape) {
		r.keep(4, 256*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		r.keep(6, []uint64{100, 110, 280, 90}[rank]*mib, trace.Activation, frames("moe.py", 77, "experts"))
		if rank == 2 {
			r.fail(280*mib, 100*mib)
		}
	},
	"head": func(rank int, r *tape) {
		r.keep(6, 256*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		if rank == 3 {
			r.keep(1, 2000*mib, trace.Activation, frames("head.py", 9, "logits"))
			r.fail(2000*mib, 1900*mib)
		}
	},
	"leak": func(rank int, r *tape) {
		r.keep(4, 128*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		for range 12 {
			at := r.keep(1, 4*mib, trace.Workspace, frames("torch/optim/adamw.py", 3, "step"))
			r.event(trace.FreeRequested, at, 4*mib, trace.Workspace, nil)
			r.event(trace.FreeCompleted, at, 4*mib, trace.Workspace, nil)
			r.segments[len(r.segments)-1].Blocks[0] = trace.Block{Addr: at, Size: 4 * mib, State: trace.Free}
			if rank == 0 {
				r.keep(1, 32*mib, trace.Activation, frames("log.py", 12, "log"))
			}
		}
	},
	"fragmented": func(rank int, r *tape) {
		r.keep(4, 256*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		if rank == 1 {
			r.cut(4, 400*mib, trace.Activation, frames("net.py", 42, "forward"))
			r.fail(256*mib, 10*mib)
		} else {
			r.keep(4, 200*mib, trace.Activation, frames("net.py", 42, "forward"))
		}
	},
	"less_room": func(rank int, r *tape) {
		r.keep(5, 512*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		if rank == 3 {
			r.fail(128*mib, 10*mib)
		} else {
			r.keep(4, 128*mib, trace.Activation, frames("net.py", 42, "forward"))
		}
	},
	"even": func(rank int, r *tape) {
		r.keep(5, 512*mib, trace.Parameter, frames("net.py", 5, "__init__"))
		if rank == 2 {
			r.fail(128*mib, 10*mib)
		}
	},
	"healthy": func(_ int, r *tape) { r.keep(5, 512*mib, trace.Parameter, frames("net.py", 5, "__init__")) },
}

// writeRanks writes the snapshots of a job's four ranks, and gives their paths.
func writeRanks(t *testing.T, job func(rank int, r *tape)) (folder string, paths []string) {
	t.Helper()
	folder = t.TempDir()
	for rank := range 4 {
		r := &tape{}
		job(rank, r)
		paths = append(paths, filepath.Join(folder, fmt.Sprintf("rank%d.pickle", rank)))
		r.write(t, paths[rank])
	}
	return folder, paths
}

// TestExplainJobs compares what is said of made-up jobs with what was said when it was
// read by a person.
func TestExplainJobs(t *testing.T) {
	for name, job := range madeUp {
		_, paths := writeRanks(t, job)
		status, got, stderr := headroom(append([]string{"explain"}, paths...)...)
		if status != 0 || stderr != "" {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
		golden := filepath.Join("testdata", "jobs", name+".txt")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || got != string(want) {
			t.Errorf("%s (%v):\n%s\nwant\n%s\n(go test ./cmd/headroom -run ExplainJobs -update)", name, err, got, want)
		}
	}
}

// TestExplainFolder explains all files of a folder in the order of their numbers, as
// JSON, and lets the verdict fail the command.
func TestExplainFolder(t *testing.T) {
	folder, paths := writeRanks(t, madeUp["pipeline"])
	if err := os.Rename(paths[1], filepath.Join(folder, "rank10.pickle")); err != nil {
		t.Fatal(err)
	}
	status, stdout, _ := headroom("explain", "--json", "--fail-on", "IMBALANCE", folder)
	var r inspect.JobReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range r.Ranks {
		names = append(names, k.Name)
	}
	if status != 1 || r.Verdict != inspect.Imbalance || r.Rank != 0 || !slices.Equal(names, []string{"rank0.pickle", "rank2.pickle", "rank3.pickle", "rank10.pickle"}) {
		t.Errorf("status %d, %s of rank %d, of the ranks %v", status, r.Verdict, r.Rank, names)
	}
	if live := r.Ranks[0].LiveBytes; live != 4*900*mib+2*256*mib || !r.Ranks[0].RanOut || r.Ranks[1].RanOut {
		t.Errorf("ranks %+v", r.Ranks)
	}
	cut := filepath.Join(t.TempDir(), "cut.pickle")
	if err := os.WriteFile(cut, []byte("\x80\x04"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"holds no snapshot":      {t.TempDir()},
		"are of one snapshot":    append([]string{"--svg", filepath.Join(t.TempDir(), "x.svg")}, paths[0], paths[2]),
		"one folder, or several": {folder, folder},
		"gone.pickle":            {paths[0], "gone.pickle"},
		"name the files of the":  {paths[0], cut},
		"are one file":           {paths[0], paths[2], folder + "/../" + filepath.Base(folder) + "/rank0.pickle"},
	} {
		if status, _, stderr := headroom(append([]string{"explain"}, args...)...); status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("explain %v: status %d, %q, want %q", args, status, stderr, want)
		}
	}
}

// TestExplainFolderOfOne explains the one snapshot of a folder as that file.
func TestExplainFolderOfOne(t *testing.T) {
	folder, paths := writeRanks(t, madeUp["pipeline"])
	_, alone, _ := headroom("explain", paths[0])
	for _, path := range paths[1:] {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if status, got, stderr := headroom("explain", folder); status != 0 || got != alone || got == "" {
		t.Errorf("status %d: %s%s\nwant\n%s", status, got, stderr, alone)
	}
}

// TestExplainIncompleteJob says which ranks of a job it has seen where snapshots name
// their ranks and not all are there, and nothing of it where they are.
func TestExplainIncompleteJob(t *testing.T) {
	folder := t.TempDir()
	var paths []string
	for rank := range 3 {
		r := &tape{notes: []trace.Annotation{{Name: fmt.Sprintf("rank %d of 3: data %d of 3", rank, rank)}}}
		madeUp["healthy"](rank, r)
		paths = append(paths, filepath.Join(folder, fmt.Sprintf("rank%d.pickle", rank)))
		r.write(t, paths[rank])
	}
	const want = "These are 2 snapshots, of 2 of the 3 ranks of a job"
	if status, got, stderr := headroom("explain", paths[0], paths[2]); status != 0 || !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
		t.Errorf("status %d: %s%s, want %q", status, got, stderr, want)
	}
	if status, got, stderr := headroom("explain", folder); status != 0 || strings.Contains(got, "These are") {
		t.Errorf("status %d: %s%s of all ranks", status, got, stderr)
	}
}
