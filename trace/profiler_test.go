package trace

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// kinetoFile is what the profiler writes, made shorter.
const kinetoFile = `{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150120103936}],
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100.5, "dur": 3.25, "args": {"External id": 7}},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2000300.250,
   "args": {"Total Reserved": 2097152, "Total Allocated": 1024, "Bytes": -512, "Addr": 140000000001024, "Device Id": 0, "Device Type": 1}},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2000100,
   "args": {"Total Reserved": 2097152, "Total Allocated": 1536, "Bytes": 512, "Addr": "140000000001024", "Device Id": 0, "Device Type": 1, "Ev Idx": 4}},
  {"ph": "i", "name": "[memory]", "ts": 2000150, "args": {"Total Reserved": 0, "Total Allocated": 0, "Bytes": 64, "Addr": 94000, "Device Id": -1, "Device Type": 0}},
  {"ph": "i", "name": "[memory]", "ts": 2000160, "args": {"Bytes": 64, "Addr": 94064, "Device Id": 0, "Device Type": 0}},
  {"ph": "i", "name": "[memory]", "ts": 2000200.75, "args": {"Bytes": 1024, "Device Id": 2, "Device Type": 1}}
  ],
  "traceName": "a.json"
}`

func TestKineto(t *testing.T) {
	event := func(a Action, addr, size uint64, us int64) Entry {
		return Entry{Event: Event{Action: a, Addr: addr, Size: size, TimeUS: us}}
	}
	want := &Snapshot{Traces: []*Trace{
		traceOf(event(Alloc, 140000000001024, 512, 2000100), event(FreeCompleted, 140000000001024, 512, 2000300)), {},
		traceOf(event(Alloc, 0, 1024, 2000200))}}
	equal(t, "Kineto", mustRead(t, "Kineto", []byte(kinetoFile)), want)
	equal(t, "Kineto in gzip", mustRead(t, "Kineto", gzipped(t, []byte(kinetoFile))), want)
	_, events, _ := strings.Cut(kinetoFile, `"traceEvents":`)
	events = events[:strings.LastIndex(events, "]")+1]
	equal(t, "events alone", mustRead(t, "Kineto", []byte(events)), want)

	cut, err := Read(strings.NewReader(kinetoFile[:strings.Index(kinetoFile, `"name": "[memory]", "ts": 2000200.75`)]))
	if err != nil || cut.Cut == nil || len(cut.Traces) != 1 || cut.Traces[0].Len() != 2 {
		t.Errorf("cut file: %+v, %v", cut, err)
	}
}

// TestTimeline reads a small raw timeline by hand.
func TestTimeline(t *testing.T) {
	const file = `[[-1, 1, 1000, 0], [5000, 2, 600, 3], [6000, 2, 600, 3], [7500, 3, -600, 3], [7500, 3, 600, 4], [8000, 4, -600, 4], [9000, 4, -40, 2]]`
	event := func(a Action, p Purpose, addr, size uint64, us int64) Entry {
		return Entry{Event: Event{Action: a, Purpose: p, Addr: addr, Size: size, TimeUS: us}}
	}
	want := &Snapshot{NoAddresses: true, Traces: []*Trace{traceOf(
		event(Alloc, Parameter, 0, 1000, 0), event(Alloc, Workspace, 1024, 600, 5), event(Alloc, Workspace, 2048, 600, 6),
		event(FreeCompleted, Workspace, 2048, 600, 7), event(Alloc, Activation, 3072, 600, 7), event(FreeCompleted, Activation, 3072, 600, 8),
		event(FreeCompleted, Input, 4096, 40, 9))}}
	equal(t, "timeline", mustRead(t, "timeline", []byte(file)), want)
	equal(t, "timeline in gzip", mustRead(t, "timeline", gzipped(t, []byte(file))), want)
	s, err := Read(strings.NewReader(file[:len(file)/2]))
	if err != nil || s.Cut == nil || s.Traces[0].Len() < 2 {
		t.Errorf("cut file: %+v, %v", s, err)
	}
}

// TestTimelineKeepsTheBooks compares the live bytes by purpose with a count of
// the rows.
func TestTimelineKeepsTheBooks(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	type made struct{ size, category int }
	var live []made
	var rows []string
	var want [NumPurposes]uint64
	for range 2000 {
		if len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			m := live[i]
			live = slices.Delete(live, i, i+1)
			rows = append(rows, fmt.Sprintf("[%d, 4, %d, %d]", len(rows), -m.size, m.category))
			want[categories[m.category]] -= uint64(m.size)
			continue
		}
		m := made{1 + r.IntN(4), r.IntN(len(categories))}
		live = append(live, m)
		rows = append(rows, fmt.Sprintf("[%d, 2, %d, %d]", len(rows), m.size, m.category))
		want[categories[m.category]] += uint64(m.size)
	}
	s := mustRead(t, "timeline", []byte("["+strings.Join(rows, ",")+"]"))
	got, at := [NumPurposes]uint64{}, map[uint64]Entry{}
	for i, e := range s.Traces[0].All() {
		was, isLive := at[e.Addr]
		switch {
		case e.Action == Alloc && !isLive:
			at[e.Addr] = e
			got[e.Purpose] += e.Size
		case e.Action == FreeCompleted && isLive && was.Size == e.Size && was.Purpose == e.Purpose:
			delete(at, e.Addr)
			got[e.Purpose] -= e.Size
		default:
			t.Fatalf("event %d: %+v, at the address is %+v", i, e, was)
		}
	}
	if !reflect.DeepEqual(got, want) || len(at) != len(live) {
		t.Errorf("live %v in %d allocations, want %v in %d", got, len(at), want, len(live))
	}
}
