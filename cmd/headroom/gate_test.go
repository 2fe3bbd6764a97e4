package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// leak spoils a snapshot: a call site keeps memory in each of many steps, until
// a request fails.
func leak(s *trace.Snapshot) {
	site := trace.NewStack([]trace.Frame{{File: "/home/me/eval.py", Line: 7, Func: "keep"}})
	*s = trace.Snapshot{Traces: []*trace.Trace{{}}}
	add := func(a trace.Action, addr, size uint64) {
		t := s.Traces[0]
		t.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, TimeUS: int64(t.Len())}, Stack: site})
	}
	for i := range uint64(20) {
		add(trace.SegmentAlloc, i<<30, 20<<20)
		add(trace.Alloc, i<<30, 16<<20)
		s.Segments = append(s.Segments, trace.Segment{Addr: i << 30, Size: 20 << 20, Blocks: []trace.Block{
			{Addr: i << 30, Size: 16 << 20, Requested: 16 << 20, Stack: site}, {Addr: i<<30 + 16<<20, Size: 4 << 20, State: trace.Free}}})
		s.Annotations = append(s.Annotations, trace.Annotation{Name: "ProfilerStep", TimeUS: int64(s.Traces[0].Len() - 1)})
	}
	add(trace.OOM, 1<<20, 60<<20)
}

// twoDevices spoils a snapshot: there is a second device with a higher peak.
func twoDevices(s *trace.Snapshot) {
	var events trace.Trace
	for _, e := range s.Traces[0].All() {
		e.Addr += 1 << 40
		events.Append(e)
	}
	events.Append(trace.Entry{Event: trace.Event{Action: trace.Alloc, Addr: 1<<40 + 1<<30 + 16<<20, Size: 2 << 20, TimeUS: 99}})
	s.Traces = append(s.Traces, &events)
	g := s.Segments[0]
	g.Device, g.Addr, g.Blocks = 1, g.Addr+1<<40, nil
	for _, b := range s.Segments[0].Blocks {
		b.Addr += 1 << 40
		g.Blocks = append(g.Blocks, b)
	}
	rest := g.Blocks[2]
	g.Blocks[2].Size = 8 << 20
	g.Blocks = append(g.Blocks,
		trace.Block{Addr: rest.Addr + 8<<20, Size: 2 << 20, Requested: 2 << 20},
		trace.Block{Addr: rest.Addr + 10<<20, Size: rest.Size - 10<<20, State: trace.Free})
	s.Segments = append(s.Segments, g)
}

// TestLeakThatFails: the verdict is the leak, with the figures of the request
// that failed in the end.
func TestLeakThatFails(t *testing.T) {
	status, stdout, stderr := headroom("explain", record(t, 4<<20, leak))
	want := "LEAK  16MiB more lives after every step (288MiB over 18 steps), the most of it allocated by eval.py:7 keep, until 60MiB was asked for with 1MiB free on the device and 400MiB reserved, of it 320MiB live and 80MiB free\n"
	if status != 0 || !strings.HasPrefix(stdout, want) || stderr != "" {
		t.Errorf("status %d\n%s%s\nwant %s", status, stdout, stderr, want)
	}
	status, stdout, _ = headroom("explain", record(t, 4<<20, leak), "--json", "--fail-on", "leak")
	if status != 1 || !strings.Contains(stdout, `"request_bytes":62914560,"total_bytes":null,"free_bytes":1048576`) {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// TestFailOn: the words are known ones, in any case.
func TestFailOn(t *testing.T) {
	healthy, leaks := record(t, 16<<20-4<<20, nil), record(t, 4<<20, leak)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"explain", leaks, "--fail-on", "TIGHT,Leak"}, 1, "the verdict is LEAK, which --fail-on names"},
		{[]string{"explain", leaks, "--fail-on", "any"}, 1, "the verdict is LEAK"},
		{[]string{"explain", leaks, "--fail-on", "tight"}, 0, ""},
		{[]string{"explain", healthy, "--fail-on", "ANY"}, 0, ""},
		{[]string{"explain", healthy, "--fail-on", "healthy"}, 1, "the verdict is HEALTHY"},
		{[]string{"explain", leaks, "--fail-on", "leek"}, 2, `--fail-on: "leek" is no verdict: give one or more of CAPACITY, TIGHT,`},
		{[]string{"explain", leaks, "--fail-on", ""}, 2, `"" is no verdict`},
		{[]string{"replay", leaks, "--fail-on", "oom"}, 1, "a request did not fit, which --fail-on names: event 40 asked for 60MiB"},
		{[]string{"replay", leaks}, 0, ""},
		{[]string{"replay", healthy, "--fail-on", "oom"}, 0, ""},
		{[]string{"replay", healthy, "--fail-on", "oom", "--capacity", "8MiB"}, 1, "a request did not fit"},
		{[]string{"replay", healthy, "--fail-on", "oomph"}, 2, `"oomph" is no result`},
	} {
		status, _, stderr := headroom(c.args...)
		if status != c.status || !strings.Contains(stderr, c.want) || c.want == "" && stderr != "" {
			t.Errorf("headroom %s: status %d, want %d with %q\n%s", strings.Join(c.args, " "), status, c.status, c.want, stderr)
		}
	}
}

// TestWrongUse: what was asked for and cannot be meant is refused.
func TestWrongUse(t *testing.T) {
	path := record(t, 4<<20, nil)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"replay", path, "--policy", "headroom", "--alloc-conf", "expandable_segments:True"}, "--alloc-conf holds settings of PyTorch's allocator"},
		{[]string{"replay", path, "--capacity", "0"}, "leaves no memory"},
		{[]string{"replay", path, "--capacity", ""}, "--capacity: size"},
		{[]string{"replay", path, "--alloc-conf", "garbage"}, "such as expandable_segments:True"},
		{[]string{"replay", path, "--alloc-conf", "expandable_segment:True"}, "did you mean expandable_segments?"},
		{[]string{"replay", path, "--gpu", "abc"}, `--gpu "abc" is no whole number: headroom replay --help`},
		{[]string{"replay", path, "--gpu", "3"}, "--gpu 3 is not in the snapshot, which tells of 0"},
		{[]string{"explain", path, "--gpu", "-1"}, "--gpu -1 is not in the snapshot"},
		{[]string{"diff", path, path, "--gpu", "1"}, "--gpu 1 is not in the snapshot"},
	} {
		expect(t, c.args, 2, "", c.want)
	}
}

// TestDevices: every command picks the same device, says which where there are
// several, and takes another one.
func TestDevices(t *testing.T) {
	one, two := record(t, 4<<20, nil), record(t, 4<<20, twoDevices)
	for args, want := range map[string][]string{
		"explain":         {"GPU 1 (the file tells of 0, 1; --gpu picks another)\n", "10MiB live at the peak"},
		"explain --gpu 0": {"GPU 0 (the file tells of 0, 1; --gpu picks another)\n", "9MiB live at the peak"},
		"replay":          {"GPU 1 (", "replayed 7 events on device 1"},
		"replay --gpu 0":  {"GPU 0 (", "replayed 6 events on device 0"},
		"diff":            {"old: GPU 1 (", "new: GPU 1 (", "10MiB"},
		"diff --gpu 0":    {"old: GPU 0 (", "new: GPU 0 (", "9MiB"},
	} {
		words := append(strings.Fields(args), two)
		if words[0] == "diff" {
			words = append(words, two)
		}
		status, stdout, stderr := headroom(words...)
		for _, w := range want {
			if status != 0 || !strings.Contains(stdout, w) {
				t.Errorf("%s: status %d, no %q in\n%s%s", args, status, w, stdout, stderr)
			}
		}
	}
	if _, stdout, _ := headroom("explain", one); strings.Contains(stdout, "GPU 0") {
		t.Errorf("one device is named:\n%s", stdout)
	}
}

// TestContradictions: a record that contradicts itself is not called healthy.
func TestContradictions(t *testing.T) {
	_, stdout, _ := headroom("explain", record(t, 4<<20, gap))
	if !strings.HasPrefix(stdout, "UNKNOWN  this record contradicts itself in 3 places (first: block 2 of the segment begins at") || !strings.Contains(stdout, "headroom check") {
		t.Error(stdout)
	}
	negative := record(t, 4<<20, func(s *trace.Snapshot) { s.Segments[0].Size = -s.Segments[0].Size })
	for _, command := range []string{"explain", "check", "replay"} {
		status, stdout, stderr := headroom(command, negative)
		if status != 0 || !strings.Contains(stderr, "values that cannot be true: 1 (first: the total_size of the segment at byte") || stdout == "" {
			t.Errorf("%s: status %d\n%s%s", command, status, stdout, stderr)
		}
	}
	expect(t, []string{"explain", negative, "--fail-on", "any", "--json", "--gpu", "1"}, 2, "", "--gpu 1")
	if status, _, stderr := headroom("check", negative, "--fail-on", "values"); status != 1 || !strings.Contains(stderr, `the rule "values" is broken once`) {
		t.Errorf("status %d: %s", status, stderr)
	}
}

// TestWhatIfIsNoMeasurement: figures under other settings come with a word on
// how sure they are, and those of the record without.
func TestWhatIfIsNoMeasurement(t *testing.T) {
	const word = "within about 1 %"
	path := record(t, 4<<20, nil)
	if _, stdout, _ := headroom("replay", path); strings.Contains(stdout, word) {
		t.Error(stdout)
	}
	for _, flag := range []string{"--policy=headroom", "--alloc-conf=expandable_segments:True", "--capacity=1GiB"} {
		if _, stdout, _ := headroom("replay", path, flag); strings.Count(stdout, word) != 1 {
			t.Errorf("%s:\n%s", flag, stdout)
		}
	}
}

// TestBug: a mistake of ours ends with a message and status 1, not with Go's
// panic.
func TestBug(t *testing.T) {
	if err := attempt(func() error { panic("index out of range") }); err == nil || !strings.Contains(err.Error(), "a mistake of this program, not of yours: index out of range\n") || !strings.Contains(err.Error(), "TestBug") {
		t.Error(err)
	}
	gone := errors.New("gone")
	if err := attempt(func() error { return gone }); err != gone {
		t.Error(err)
	}
}

// TestSignalEndsReading: a command that waits for its input ends at the first
// signal.
func TestSignalEndsReading(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = before; w.Close() }()
	type ended struct {
		status int
		stderr string
	}
	done := make(chan ended)
	go func() {
		status, _, stderr := headroom("check", "-")
		done <- ended{status, stderr}
	}()
	list := "\x80\x04]" + strings.Repeat("K\x00a", 1<<20)
	if _, err := io.WriteString(w, list); err != nil { // the pipe holds less: when this returns, the command reads
		t.Fatal(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if e := <-done; e.status != 1 || e.stderr != "headroom: interrupted\n" {
		t.Errorf("%+v", e)
	}
}

// TestPromptly: what a command says is what it ends with.
func TestPromptly(t *testing.T) {
	root := rootCommand(io.Discard, io.Discard)
	root.SetArgs([]string{"check", filepath.Join(t.TempDir(), "gone")})
	if err := root.ExecuteContext(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestVersion(t *testing.T) {
	if status, stdout, _ := headroom("--version"); status != 0 || !strings.HasPrefix(stdout, "headroom version ") {
		t.Errorf("status %d: %s", status, stdout)
	}
	_, want, _ := headroom("check", "--help")
	expect(t, []string{"help", "check"}, 0, want, "")
}
