package inspect

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// sameLayout compares segments and blocks; for blocks that are not free also
// what was asked for.
func sameLayout(got, want []trace.Segment) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if differenceOf(&got[i], &want[i]) != "" {
			return false
		}
	}
	return true
}

// TestHistoryAt compares the state at every event with what the allocator had
// when it was recorded.
func TestHistoryAt(t *testing.T) {
	for i, text := range oracleConfs {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := randomProgram(text, 300*mib)
			r.keep = true
			r.random(uint64(i)+50, 700)
			h := NewHistory(r.snapshot(), 0)
			moments := 0
			for n, want := range r.layouts {
				if !r.outside[n] {
					continue
				}
				moments++
				state := h.At(n)
				if !sameLayout(state.Segments, want) || len(state.Stray) > 0 || state.Event != n {
					t.Fatalf("after %d events\n%+v\nrecorded\n%+v\nstray %v", n, state.Segments, want, state.Stray)
				}
				checkState(t, h, &state)
			}
			if moments < 500 {
				t.Errorf("only %d moments were compared", moments)
			}
		})
	}
}

// heldAfter says what is in use after the first n events, by going through them from
// the start, and how much is reserved.
func heldAfter(t *trace.Trace, n int) (blocks map[uint64]trace.Block, reserved uint64) {
	blocks = map[uint64]trace.Block{}
	for i, e := range t.All() {
		switch b := blocks[e.Addr]; {
		case i == n:
			return blocks, reserved
		case e.Action == trace.Alloc:
			blocks[e.Addr] = trace.Block{Addr: e.Addr, Requested: e.Size, State: trace.Live}
		case e.Action == trace.FreeRequested:
			b.State = trace.Pending
			blocks[e.Addr] = b
		case e.Action == trace.FreeCompleted:
			delete(blocks, e.Addr)
		case e.Action == trace.SegmentAlloc, e.Action == trace.SegmentMap:
			reserved += e.Size
		case e.Action == trace.SegmentFree, e.Action == trace.SegmentUnmap:
			reserved -= e.Size
		}
	}
	return blocks, reserved
}

// TestSeek jumps to random events of long records, in any order, and compares
// with what going there from the start gives.
func TestSeek(t *testing.T) {
	for seed, text := range []string{"", "max_split_size_mb:24", "expandable_segments:True"} {
		r := randomRecord(text, uint64(seed), 0, 4000)
		h := NewHistory(r.snapshot(), 0)
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		for _, n := range append([]int{h.Len(), 0}, rng.Perm(h.Len())[:60]...) {
			want, reserved := heldAfter(r.t, n)
			state := h.At(n)
			got := map[uint64]trace.Block{}
			var sum uint64
			for _, s := range state.Segments {
				sum += s.Size
				for _, b := range s.Blocks {
					if b.State != trace.Free {
						got[b.Addr] = trace.Block{Addr: b.Addr, Requested: b.Requested, State: b.State}
					}
				}
			}
			if !maps.Equal(got, want) || sum != reserved || len(h.LiveAt(n)) != len(want) || len(state.Stray) > 0 {
				t.Fatalf("%q, after %d of %d events: %d blocks, %d bytes reserved, want %d and %d; stray %v", text, n, h.Len(), len(got), sum, len(want), reserved, state.Stray)
			}
		}
	}
}

// checkState checks that blocks tile segments and that leases belong to them.
func checkState(t *testing.T, h *History, state *State) {
	t.Helper()
	k := 0
	for _, s := range state.Segments {
		at := s.Addr
		for _, b := range s.Blocks {
			if b.Addr != at || b.Size == 0 || b.Size > s.Addr+s.Size-at {
				t.Fatalf("segment at %#x, %d bytes: block at %#x, %d bytes, expected at %#x", s.Addr, s.Size, b.Addr, b.Size, at)
			}
			at += b.Size
			if b.State == trace.Free {
				continue
			}
			if l := h.Leases[state.Leases[k]]; l.Addr != b.Addr || l.Size != b.Requested || l.Born() >= state.Event || l.Done() < state.Event {
				t.Fatalf("after %d events: block %+v has lease %+v", state.Event, b, l)
			}
			k++
		}
		if at != s.Addr+s.Size {
			t.Fatalf("blocks of the segment at %#x end at %#x", s.Addr, at)
		}
	}
	if k != len(state.Leases) {
		t.Fatalf("%d leases for %d blocks", len(state.Leases), k)
	}
}

// TestPeak compares the peak with a count at every moment.
func TestPeak(t *testing.T) {
	r := randomRecord("", 7, 0, 500)
	h := NewHistory(r.snapshot(), 0)
	best, at := uint64(0), 0
	for n := range r.t.Len() + 1 {
		var live uint64
		for _, s := range h.At(n).Segments {
			for _, b := range s.Blocks {
				if b.State == trace.Live {
					live += b.Size
				}
			}
		}
		if live > best {
			best, at = live, n
		}
	}
	if h.Peak() != at || best != r.m.figures.peakLive {
		t.Errorf("peak at %d, counted %d bytes at %d, recorded %d bytes", h.Peak(), best, at, r.m.figures.peakLive)
	}
}

// TestMissingEvents reads traces that lack kinds of events, as recorders may
// leave them out.
func TestMissingEvents(t *testing.T) {
	full := randomRecord("", 5, 0, 300)
	for _, missing := range [][]trace.Action{
		{trace.FreeRequested}, {trace.FreeCompleted}, {trace.SegmentAlloc, trace.SegmentFree}, {trace.Alloc},
		{trace.FreeRequested, trace.FreeCompleted},
	} {
		s := full.snapshot()
		s.Traces[0] = &trace.Trace{}
		for _, e := range full.t.All() {
			keep := true
			for _, a := range missing {
				keep = keep && e.Action != a
			}
			if keep {
				s.Traces[0].Append(e)
			}
		}
		h := NewHistory(s, 0)
		for n := 0; n <= h.Len(); n += 11 {
			state := h.At(n)
			checkState(t, h, &state)
		}
		if end := h.At(h.Len()); missing[0] == trace.SegmentAlloc && !sameLayout(end.Segments, s.Segments) {
			t.Errorf("without %v the end is wrong", missing)
		}
		if _, err := h.Replay(Options{}); err != nil {
			t.Error(err)
		}
	}
}

// TestCutFile reads a snapshot whose trace ends early.
func TestCutFile(t *testing.T) {
	r := randomRecord("", 6, 0, 300)
	s := r.snapshot()
	s.Traces[0] = &trace.Trace{}
	for i, e := range r.t.All() {
		if i < r.t.Len()/2 {
			s.Traces[0].Append(e)
		}
	}
	s.Cut = fmt.Errorf("the file ends early")
	got, err := Replay(s, Options{})
	if err != nil || got.Exact || got.Mismatch == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestIntervals compares the index with a look at everything.
func TestIntervals(t *testing.T) {
	const n, events = 4000, 7000
	from, to := make([]int, n), make([]int, n)
	for k := range n {
		from[k] = k*events/n - 1
		length := int(scatter(uint64(k)) % 50)
		if k%100 < 30 {
			length = int(scatter(uint64(k)) % events)
		}
		to[k] = min(from[k]+1+length, events)
	}
	x := newIntervals(n, func(k int) (int, int) { return from[k], to[k] })
	if len(x.marks) < 3 {
		t.Fatalf("%d marks", len(x.marks))
	}
	for m := 0; m <= events; m += 3 {
		var want []int
		for k := range n {
			if from[k] < m && to[k] >= m {
				want = append(want, k)
			}
		}
		if got := x.at(m); !(len(got) == 0 && len(want) == 0) && !reflect.DeepEqual(got, want) {
			t.Fatalf("after %d events %v, want %v", m, got, want)
		}
	}
}
