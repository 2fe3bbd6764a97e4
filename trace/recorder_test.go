package trace

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// TestRecorderKeepsTheLast compares rings of several sizes with a list.
func TestRecorderKeepsTheLast(t *testing.T) {
	for _, limit := range []int{0, 1, 2, 7, 100} {
		r := NewRecorder(limit)
		var all []uint64
		for i := range uint64(250) {
			r.Record(Event{Addr: i})
			all = append(all, i)
			want := all
			if limit > 0 && len(all) > limit {
				want = all[len(all)-limit:]
			}
			var got []uint64
			for _, e := range r.Trace().All() {
				got = append(got, e.Addr)
			}
			if !reflect.DeepEqual(got, want) || r.Dropped() != uint64(len(all)-len(want)) {
				t.Fatalf("limit %d: kept %v, dropped %d; want %v", limit, got, r.Dropped(), want)
			}
		}
		r.Reset()
		if r.Trace().Len() != 0 || r.Dropped() != 0 {
			t.Errorf("limit %d: %d entries and %d dropped after Reset", limit, r.Trace().Len(), r.Dropped())
		}
		r.Record(Event{Addr: 9})
		if e := entries(r.Trace()); len(e) != 1 || e[0].Addr != 9 {
			t.Errorf("limit %d: %v after Reset and one event", limit, e)
		}
	}
}

// TestStacksAreInterned checks that stacks are copied, shared when equal and
// looked up rightly.
func TestStacksAreInterned(t *testing.T) {
	r := NewRecorder(0)
	buffer := make([]uintptr, 16)
	for range 3 {
		record(r, buffer)
	}
	r.Record(Event{})
	e := entries(r.Trace())
	if e[0].Stack == nil || e[0].Stack != e[1].Stack || e[1].Stack != e[2].Stack {
		t.Error("three events of one call site have different stacks")
	}
	if e[3].Stack != nil || e[3].Stack.Frames() != nil {
		t.Error("an event without a stack has one")
	}
	if e[0].PCs != nil {
		t.Error("an entry holds program counters")
	}
	f := e[0].Stack.Frames()
	if len(f) < 2 || !strings.HasSuffix(f[0].Func, "trace.record") || !strings.HasSuffix(f[1].Func, "trace.TestStacksAreInterned") || f[0].Line == 0 {
		t.Errorf("frames are %v", f)
	}
}

//go:noinline
func record(r *Recorder, pcs []uintptr) {
	n := runtime.Callers(1, pcs)
	r.Record(Event{PCs: pcs[:n]})
	clear(pcs)
}

// TestStacksAgainstList compares Of with a search through a list.
func TestStacksAgainstList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var stacks Stacks
	known := map[string]*Stack{}
	for range 2000 {
		pcs := make([]uintptr, r.IntN(4))
		for i := range pcs {
			pcs[i] = uintptr(r.IntN(3))
		}
		got, want := stacks.Of(pcs), known[fmt.Sprint(pcs)]
		if (got == nil) != (len(pcs) == 0) || want != nil && got != want {
			t.Fatalf("stack %v is %p, was %p", pcs, got, want)
		}
		for other, s := range known {
			if other != fmt.Sprint(pcs) && s == got {
				t.Fatalf("stacks %v and %s are one", pcs, other)
			}
		}
		known[fmt.Sprint(pcs)] = got
	}
}

func TestRecorderConcurrently(t *testing.T) {
	r := NewRecorder(64)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				r.Record(Event{Stream: g, Addr: uint64(i), PCs: []uintptr{uintptr(i % 5)}})
				if i%50 == 0 {
					r.Trace()
				}
			}
		})
	}
	wg.Wait()
	if n := uint64(r.Trace().Len()) + r.Dropped(); n != 2000 {
		t.Errorf("%d events kept and dropped, want 2000", n)
	}
	last := map[int]uint64{}
	for _, e := range r.Trace().All() {
		if e.Addr < last[e.Stream] {
			t.Errorf("stream %d: event %d after %d", e.Stream, e.Addr, last[e.Stream])
		}
		last[e.Stream] = e.Addr
	}
}

func TestNames(t *testing.T) {
	purposes := "other parameter gradient optimizer_state activation workspace input Purpose(7)"
	var got []string
	for p := range Purpose(NumPurposes + 1) {
		got = append(got, p.String())
	}
	if strings.Join(got, " ") != purposes {
		t.Errorf("purposes are %v", got)
	}
	got = nil
	for a := range Unknown + 2 {
		got = append(got, a.String())
	}
	if strings.Join(got, " ") != "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap oom snapshot user_defined unknown Action(11)" {
		t.Errorf("actions are %v", got)
	}
}

func BenchmarkRecord(b *testing.B) {
	r := NewRecorder(10_000)
	pcs := make([]uintptr, 16)
	n := runtime.Callers(0, pcs)
	b.ReportAllocs()
	for b.Loop() {
		r.Record(Event{Addr: 1, PCs: pcs[:n]})
	}
}
