package trace

import (
	"errors"
	"fmt"
	"testing"
)

// pythonSnapshot is what testdata/make.py writes, with n events of the first
// device.
func pythonSnapshot(n int) *Snapshot {
	frames := func(i int) *Stack {
		var fs []Frame
		for j := range 1 + i%3 {
			k := (i + j) % 5
			fs = append(fs, Frame{fmt.Sprintf("model%d.py", k%2), 10 * k, fmt.Sprint("f", k)})
		}
		return NewStack(fs)
	}
	event := func(device, i int) Entry {
		actions := []Action{Alloc, FreeRequested, FreeCompleted, SegmentMap, OOM, SnapshotTaken, UserDefined, Unknown}
		e := Entry{Stack: frames(i), Pool: PoolID{uint64(device), uint64(i % 2)}, Event: Event{Action: actions[i%len(actions)], Stream: 1 << 40 * (i % 2),
			Addr: 1<<46 + 512*uint64(i), Size: 1000 * uint64(i), TimeUS: 1795970916755653 + int64(i)}}
		if i%5 == 0 {
			e.Compiled = fmt.Sprint("0/", device)
		}
		return e
	}
	s := &Snapshot{Traces: []*Trace{{}, {}, traceOf(event(2, 0))}, Settings: Settings{Known: true, Conf: "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:8]",
		MaxSplitSize: 64 << 20, GCThreshold: 0.75, ReleaseLock: true, PinnedThreads: 1, RoundupDivisions: [16]uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 8, 8, 8, 8}}}
	for i := range n {
		s.Traces[0].Append(event(0, i))
	}
	for i := range 4 {
		s.Annotations = append(s.Annotations, Annotation{"step", i%2 == 0, 0, 1795970916755653 + 10*int64(i)})
		g := Segment{Device: i % 2, Addr: 1<<47 + 2<<20*uint64(i), Size: 1024 * uint64(i), Small: i%2 == 1, Pool: PoolID{0, uint64(i)}, Expandable: i == 2, Stack: frames(i), Totals: Totals{Known: true}}
		for j := range i {
			b := Block{Addr: g.Addr + 1024*uint64(j), Size: 1024, Requested: 1000 - uint64(j), State: []State{Live, Pending, Free}[j%3], Stack: frames(j)}
			if b.State == Free {
				b.Requested = 0
			}
			g.Blocks = append(g.Blocks, b)
		}
		s.Segments = append(s.Segments, g)
	}
	return s
}

// TestReadsPythonsPickles reads files that Python wrote.
func TestReadsPythonsPickles(t *testing.T) {
	for protocol := 2; protocol <= 5; protocol++ {
		name := fmt.Sprintf("testdata/python%d.pickle.gz", protocol)
		s, err := ReadFile(name)
		if err != nil || s.Cut != nil {
			t.Fatalf("%s: error %v, snapshot %v", name, err, s)
		}
		events := 40
		if protocol == 4 {
			events = 1203
		}
		equal(t, name, s, pythonSnapshot(events))
	}
	var unsafe *UnsafeError
	if s, err := ReadFile("testdata/unsafe.pickle"); !errors.As(err, &unsafe) || unsafe.Class != "builtins.print" || unsafe.Opcode != "STACK_GLOBAL" {
		t.Errorf("unsafe.pickle: snapshot %v, error %v", s, err)
	}
}
