package trace

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestTraceAgainstSlice compares a trace with a slice of its entries, over
// several chunks and cuts.
func TestTraceAgainstSlice(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	stacks := []*Stack{nil, NewStack([]Frame{{"a", 1, "f"}}), NewStack([]Frame{{"a", 1, "f"}}), NewStack(nil)}
	var tr Trace
	var want []Entry
	for range 60 {
		for range r.IntN(chunkRows / 2) {
			e := Entry{Stack: stacks[r.IntN(len(stacks))], Pool: PoolID{uint64(r.IntN(2)), 0},
				Event: Event{Action: Action(r.IntN(3)), Purpose: Purpose(r.IntN(3)), Stream: r.IntN(3) - 1, Addr: r.Uint64(), Size: r.Uint64(), TimeUS: int64(r.Uint64()), Note: []string{"", "n"}[r.IntN(2)]}}
			tr.Append(e)
			want = append(want, e)
		}
		if r.IntN(3) == 0 {
			n := len(want) + 1 - r.IntN(min(len(want), chunkRows/2)+2)
			tr.truncate(max(n, 0))
			want = want[:min(max(n, 0), len(want))]
		}
		if tr.Len() != len(want) {
			t.Fatalf("%d events, want %d", tr.Len(), len(want))
		}
	}
	if len(want) < 2*chunkRows {
		t.Fatalf("%d events are too few to test with", len(want))
	}
	for i, e := range tr.All() {
		if !reflect.DeepEqual(e, want[i]) || e.Stack != want[i].Stack {
			t.Fatalf("event %d is %+v, want %+v", i, e, want[i])
		}
	}
	for i := range tr.All() {
		if i > 3 {
			t.Fatal("All goes on after the loop has ended")
		}
		if i == 3 {
			break
		}
	}
	tr.truncate(0)
	tr.Append(want[0])
	if tr.Len() != 1 || !reflect.DeepEqual(tr.Entry(0), want[0]) {
		t.Errorf("%d events, the first is %+v", tr.Len(), tr.Entry(0))
	}
}

// TestAppendDropsPCs checks that a trace holds no program counters.
func TestAppendDropsPCs(t *testing.T) {
	var tr Trace
	tr.Append(Entry{Event: Event{PCs: []uintptr{1}}})
	if e := tr.Entry(0); e.PCs != nil || e.Stack != nil {
		t.Errorf("entry %+v", e)
	}
}
