package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// record writes the snapshot of a made-up job that takes a segment, keeps a
// parameter and an activation of so many bytes in it, and frees another block.
func record(t *testing.T, activation uint64, spoil func(*trace.Snapshot)) string {
	t.Helper()
	const base, segment = 1 << 30, 20 << 20
	frame := func(file string, line int, name string) *trace.Stack {
		return trace.NewStack([]trace.Frame{{File: file, Line: line, Func: name}, {File: "/home/me/train.py", Line: 30, Func: "<module>"}})
	}
	build, forward := frame("/home/me/train.py", 5, "__init__"), frame("/home/me/net.py", 42, "forward")
	var events trace.Trace
	add := func(a trace.Action, addr, size uint64, s *trace.Stack) {
		events.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, TimeUS: int64(events.Len() + 1)}, Stack: s})
	}
	add(trace.SegmentAlloc, base, segment, build)
	add(trace.Alloc, base, 4<<20, build)
	add(trace.Alloc, base+4<<20, activation, forward)
	add(trace.Alloc, base+16<<20, 1<<20, forward)
	add(trace.FreeRequested, base+16<<20, 1<<20, nil)
	add(trace.FreeCompleted, base+16<<20, 1<<20, nil)
	s := &trace.Snapshot{Traces: []*trace.Trace{&events}, Segments: []trace.Segment{{Addr: base, Size: segment, Blocks: []trace.Block{
		{Addr: base, Size: 4 << 20, Requested: 4 << 20, Stack: build},
		{Addr: base + 4<<20, Size: activation, Requested: activation, Stack: forward},
		{Addr: base + 4<<20 + activation, Size: 16<<20 - activation, State: trace.Free},
	}}}}
	if spoil != nil {
		spoil(s)
	}
	var b bytes.Buffer
	if err := s.WritePickle(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "memory.pickle")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// gap spoils a snapshot: its second block is too short.
func gap(s *trace.Snapshot) {
	s.Segments[0].Blocks[1].Size -= 512
	s.Segments[0].Blocks[1].Requested -= 512
}

// expect compares a command's status and standard output, and looks for a
// text on standard error.
func expect(t *testing.T, args []string, status int, want, stderrHas string) {
	t.Helper()
	got, stdout, stderr := headroom(args...)
	if got != status || stdout != want || !strings.Contains(stderr, stderrHas) || stderrHas == "" && stderr != "" {
		t.Errorf("headroom %s: status %d, want %d\n%s\nwant\n%s\nstandard error: %s\nwant %q", strings.Join(args, " "), got, status, stdout, want, stderr, stderrHas)
	}
}

const soundText = `devices 1, segments 1, blocks 3, events 6

  rule     checked  broken
  cut            1       0  The file is whole and undamaged.
  empty          1       0  The file holds events or segments.
  values        10       0  Every number in the file is one, and could be true.
  sizes          4       0  Segments and blocks hold bytes, and a block holds what was asked for.
  tiling         1       0  The blocks of a segment tile it.
  totals         1       0  The totals of a segment are the sums of its blocks.
  overlap        1       0  No two segments of a device share an address.
  balance        7       0  Reserved = live + pending + cached, and never is more in use than reserved.
  events         6       0  Nothing is handed out that is in use, or given back that is not.
  end            4       0  What is in use after the last event is what the segments hold.
  time           6       0  Time does not go backwards.

the record agrees with itself
`

const brokenText = `devices 1, segments 1, blocks 3, events 6

  rule     checked  broken
  cut            1       0  The file is whole and undamaged.
  empty          1       0  The file holds events or segments.
  values        10       0  Every number in the file is one, and could be true.
  sizes          4       0  Segments and blocks hold bytes, and a block holds what was asked for.
  tiling         1       1  The blocks of a segment tile it.
  totals         1       0  The totals of a segment are the sums of its blocks.
  overlap        1       0  No two segments of a device share an address.
  balance        7       1  Reserved = live + pending + cached, and never is more in use than reserved.
  events         6       0  Nothing is handed out that is in use, or given back that is not.
  end            4       1  What is in use after the last event is what the segments hold.
  time           6       0  Time does not go backwards.

tiling is broken
  device 0, 0x40000000: block 2 of the segment begins at 0x40800000, and the one before ends at 0x407ffe00

balance is broken
  device 0: live 8388096 + pending 0B + cached 12MiB is 20971008, and 20MiB are reserved

end is broken
  device 0, event 2, 0x40400000: 4MiB were asked for, and the segments hold a block for 4193792

the record contradicts itself
`

func TestCheck(t *testing.T) {
	sound, broken := record(t, 4<<20, nil), record(t, 4<<20, gap)
	expect(t, []string{"check", sound, "--fail-on", "any"}, 0, soundText, "")
	expect(t, []string{"check", broken}, 0, brokenText, "")
	expect(t, []string{"check", broken, "--fail-on", "time,sizes"}, 0, brokenText, "")
	expect(t, []string{"check", broken, "--fail-on", "any"}, 1, brokenText, `the rule "tiling" is broken once`)
	expect(t, []string{"check", broken, "--fail-on", "time,balance"}, 1, brokenText, `the rule "balance" is broken once`)
	expect(t, []string{"check", broken, "--fail-on", "tidiness"}, 2, "", `--fail-on: "tidiness" is no rule: give one or more of cut, empty,`)
	expect(t, []string{"check", broken, "--fail-on", ""}, 2, "", `"" is no rule`)
	expect(t, []string{"check"}, 2, "", "one file")
	expect(t, []string{"check", broken + ".gone"}, 1, "", ".gone")
}

func TestCheckAsJSON(t *testing.T) {
	status, stdout, _ := headroom("check", record(t, 4<<20, gap), "--json")
	var a inspect.Audit
	if err := json.Unmarshal([]byte(stdout), &a); status != 0 || err != nil || len(a.Violations) != 3 || a.Violations[0].Rule != inspect.RuleTiling || a.Violations[0].Address != 1<<30 {
		t.Errorf("status %d, error %v\n%s", status, err, stdout)
	}
}

// TestManyViolations: those that are not printed are counted.
func TestManyViolations(t *testing.T) {
	path := record(t, 4<<20, func(s *trace.Snapshot) {
		for range 15 {
			s.Traces[0].Append(trace.Entry{Event: trace.Event{Action: trace.FreeCompleted, Addr: 1<<30 + 16<<20, Size: 1 << 20, TimeUS: 9}})
		}
	})
	if _, stdout, _ := headroom("check", path); strings.Count(stdout, "is given back that is gone") != mostShown || !strings.Contains(stdout, "  and 5 more") {
		t.Error(stdout)
	}
}

func TestDiff(t *testing.T) {
	before, after := record(t, 4<<20, nil), record(t, 8<<20, nil)
	_, want, _ := headroom("diff", before, after)
	for _, line := range []string{
		"      9MiB      13MiB       +4MiB  +44.4%  peak live\n",
		"     20MiB      20MiB           =          peak reserved\n",
		"\nlive at the peak, by purpose\n      5MiB       9MiB       +4MiB  +80.0%  activation, 2 → 2 blocks\n      4MiB       4MiB           =          parameter, 1 → 1 blocks\n",
		"\nlive at the peak, by call site\n      5MiB       9MiB       +4MiB  +80.0%  net.py:42 forward, 2 → 2 blocks\n",
	} {
		if !strings.Contains(want, line) {
			t.Errorf("no %q in\n%s", line, want)
		}
	}
	expect(t, []string{"diff", before, after, "--fail-on", "peak>50%,reserved>0"}, 0, want, "")
	expect(t, []string{"diff", before, after, "--fail-on", "peak>5%"}, 1, want, "--fail-on peak>5% holds: from 9MiB (9437184 bytes) to 13MiB")
	expect(t, []string{"diff", before, after, "--fail-on", "parameter>0,activation>3MiB"}, 1, want, "--fail-on activation>3MiB holds")
	expect(t, []string{"diff", before, after, "--fail-on", "peek>5%"}, 2, "", `"peek"`)
	expect(t, []string{"diff", before, after, "--fail-on", "peak>5"}, 2, "", "has no unit")
	expect(t, []string{"diff", before, after, "--fail-on", ""}, 2, "", "is not of the form")
	expect(t, []string{"diff", before}, 2, "", "two files")
	expect(t, []string{"diff", before, after + ".gone"}, 1, "", ".gone")
}

// TestDiffOfMovedLines: a call site that moved is said to have, and one that
// only moved is no change.
func TestDiffOfMovedLines(t *testing.T) {
	below := func(s *trace.Snapshot) {
		var events trace.Trace
		for _, e := range s.Traces[0].All() {
			frames := slices.Clone(e.Stack.Frames())
			for i := range frames {
				frames[i].Line += 3
			}
			if e.Stack != nil {
				e.Stack = trace.NewStack(frames)
			}
			events.Append(e)
		}
		s.Traces[0] = &events
	}
	_, stdout, _ := headroom("diff", record(t, 4<<20, nil), record(t, 8<<20, below))
	if !strings.Contains(stdout, "net.py:45 forward, 2 → 2 blocks, moved from net.py:42 forward\n") || strings.Contains(stdout, "__init__") {
		t.Error(stdout)
	}
}

func TestDiffAsJSON(t *testing.T) {
	status, stdout, _ := headroom("diff", record(t, 8<<20, nil), record(t, 4<<20, nil), "--json")
	var d inspect.Difference
	if err := json.Unmarshal([]byte(stdout), &d); status != 0 || err != nil || d.Sites[0].ChangeBytes != -4<<20 || d.New.PeakBytes != 9<<20 {
		t.Errorf("status %d, error %v\n%s", status, err, stdout)
	}
}

func TestExplainExports(t *testing.T) {
	dir := t.TempDir()
	pprof, perfetto, svg := filepath.Join(dir, "heap.pb.gz"), filepath.Join(dir, "trace.pftrace"), filepath.Join(dir, "memory.svg")
	if status, _, stderr := headroom("explain", record(t, 4<<20, nil), "--pprof", pprof, "--perfetto", perfetto, "--svg", svg); status != 0 {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	b, err := os.ReadFile(pprof)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := profile.ParseData(b); err != nil || len(p.Sample) != 3 || !strings.Contains(p.String(), "module:train.py") {
		t.Errorf("%v, %v", p, err)
	}
	if b, err := os.ReadFile(perfetto); err != nil || !bytes.Contains(b, []byte("reserved")) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if b, err := os.ReadFile(svg); err != nil || !bytes.Contains(b, []byte("by call site")) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if status, _, stderr := headroom("explain", "CUDA out of memory. Tried to allocate 2.00 GiB.", "--pprof", pprof); status != 2 || !strings.Contains(stderr, "need a memory snapshot") {
		t.Errorf("a text: status %d, %s", status, stderr)
	}
	in := record(t, 4<<20, nil)
	link := filepath.Join(dir, "link.pickle")
	if err := os.Symlink(in, link); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, []string{"explain", in, "--pprof", in}, 2, "", "is the input, which would be written over")
	expect(t, []string{"explain", in, "--perfetto", link}, 2, "", "is the input, which would be written over")
	expect(t, []string{"explain", in, "--svg", dir + "/./new", "--perfetto", filepath.Join(dir, "new")}, 2, "", "--perfetto and --svg name the same file")
	expect(t, []string{"explain", in, "--perfetto", dir + "/./new", "--pprof", filepath.Join(dir, "new")}, 2, "", "name the same file")
	if after, err := os.ReadFile(in); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the input was changed (%v)", err)
	}
	if status, _, stderr := headroom("explain", record(t, 4<<20, nil), "--perfetto", filepath.Join(dir, "no", "where")); status != 1 || !strings.Contains(stderr, "where") {
		t.Errorf("a folder that is not there: status %d, %s", status, stderr)
	}
}
