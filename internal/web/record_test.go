package web_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// strange is a record with all that makes counting hard: blocks from before
// its start, frees that were never recorded, pending blocks, several streams,
// and pages that are mapped and unmapped.
func strange(seed uint64, events int) *trace.Snapshot {
	rng := rand.New(rand.NewPCG(seed, 1))
	var tr trace.Trace
	stacks := []*trace.Stack{nil}
	for i := range 12 {
		stacks = append(stacks, trace.NewStack([]trace.Frame{{File: "/a/b.py", Line: i, Func: "f"}}))
	}
	for i := range events {
		e := trace.Entry{Event: trace.Event{Addr: 1<<40 + uint64(rng.IntN(60))<<21, Size: uint64(1 + rng.IntN(2<<21)), TimeUS: int64(5000 + i), Stream: rng.IntN(2), Purpose: trace.Purpose(rng.IntN(3))}, Stack: stacks[rng.IntN(len(stacks))]}
		actions := []trace.Action{trace.Alloc, trace.Alloc, trace.FreeRequested, trace.FreeCompleted, trace.SegmentAlloc, trace.SegmentFree, trace.SegmentMap, trace.SegmentUnmap, trace.OOM}
		e.Action = actions[rng.IntN(len(actions))]
		if e.Action >= trace.SegmentAlloc {
			e.Size = uint64(1+rng.IntN(3)) << 21
		}
		tr.Append(e)
	}
	return &trace.Snapshot{Traces: []*trace.Trace{&tr}}
}

// liveAt counts live and reserved bytes at a moment the slow way.
func liveAt(h *inspect.History, moment int) (live, reserved uint64) {
	for k := range h.Leases {
		l := &h.Leases[k]
		if l.Born() < moment && max(l.Freed(), l.Born()) >= moment {
			live += max(l.Block, h.Conf.Round(l.Size))
		}
	}
	for _, s := range h.Spans() {
		if s.From < moment && max(s.To, s.From) >= moment {
			reserved += s.Size
		}
	}
	return live, reserved
}

// TestSamples counts every sample of random views again.
func TestSamples(t *testing.T) {
	for seed := range uint64(12) {
		s := strange(seed, 700)
		if seed == 0 {
			s = newJob(20_000, "/m.py", false) // more moments than a summary has spans
		}
		h := inspect.NewHistory(s, 0)
		r := recordOf(t, s)
		rng := rand.New(rand.NewPCG(seed, 2))
		for range 12 {
			from := rng.IntN(h.Len() + 1)
			to := from + rng.IntN(h.Len()+1-from)
			width := 1 + rng.IntN(60)
			got := r.Samples(from, to, width)
			if n := len(got.Moments); n == 0 || n > 2*width+2 {
				t.Fatalf("seed %d: %d samples for a width of %d", seed, n, width)
			}
			for i, m := range got.Moments {
				live, reserved := liveAt(h, m)
				for _, parts := range got.Parts {
					var sum uint64
					for _, p := range parts {
						sum += uint64(p[i])
					}
					if sum != live {
						t.Fatalf("seed %d, moment %d: %d live, counted %d", seed, m, sum, live)
					}
				}
				if uint64(got.Reserved[i]) < reserved {
					t.Fatalf("seed %d, moment %d: %d reserved at most, counted %d", seed, m, got.Reserved[i], reserved)
				}
			}
		}
	}
}

// TestSamplesKeepPeaks looks for the highest moment of a view in its samples.
func TestSamplesKeepPeaks(t *testing.T) {
	s := newJob(40_000, "/m.py", true)
	h := inspect.NewHistory(s, 0)
	most, _ := liveAt(h, h.Peak())
	for _, width := range []int{1, 7, 100, 1500} {
		var top int64
		got := recordOf(t, s).Samples(0, h.Len(), width)
		for i := range got.Moments {
			var sum int64
			for _, p := range got.Parts[0] {
				sum += p[i]
			}
			top = max(top, sum)
		}
		if uint64(top) != most {
			t.Errorf("width %d: the highest sample has %d bytes, the peak %d", width, top, most)
		}
	}
}

// TestState compares with History.At.
func TestState(t *testing.T) {
	for seed := range uint64(30) {
		s := strange(seed, 300)
		if seed == 0 {
			s = newJob(3000, "/m.py", true)
		}
		h := inspect.NewHistory(s, 0)
		r := recordOf(t, s)
		for moment := 0; moment <= h.Len(); moment += 1 + h.Len()/40 {
			want := h.At(moment)
			got := r.State(moment)
			if len(got.Segments) != len(want.Segments) {
				t.Fatalf("seed %d, moment %d: %d segments, want %d", seed, moment, len(got.Segments), len(want.Segments))
			}
			for i, g := range got.Segments {
				w := want.Segments[i]
				var sum uint64
				for _, tile := range g.Tiles {
					sum += tile.Size
				}
				if g.Addr != w.Addr || g.Size != w.Size || sum != g.Size {
					t.Fatalf("seed %d, moment %d: segment %x of %d with %d bytes of tiles, want %x of %d", seed, moment, g.Addr, g.Size, sum, w.Addr, w.Size)
				}
				compareTiles(t, g.Tiles, w.Blocks)
			}
			if got.Stray != len(want.Stray) {
				t.Fatalf("seed %d, moment %d: %d stray, want %d", seed, moment, got.Stray, len(want.Stray))
			}
		}
	}
}

func compareTiles(t *testing.T, tiles []web.Tile, blocks []trace.Block) {
	t.Helper()
	if len(tiles) != len(blocks) {
		t.Fatalf("%d tiles, want %d", len(tiles), len(blocks))
	}
	for i, tile := range tiles {
		b := blocks[i]
		if tile.Addr != b.Addr || tile.Size != b.Size || (tile.Lease < 0) != (b.State == trace.Free) || tile.Pending != (b.State == trace.Pending) {
			t.Fatalf("tile %+v, want %+v", tile, b)
		}
	}
}

// TestLives looks at every lease.
func TestLives(t *testing.T) {
	s := strange(5, 500)
	h := inspect.NewHistory(s, 0)
	r := recordOf(t, s)
	for _, view := range [][2]int{{0, 500}, {100, 101}, {250, 250}, {499, 500}} {
		var want []int
		for k, l := range h.Leases {
			if l.Done() >= view[0] && l.Born() < view[1] || l.Born() < view[0] && l.Done() >= view[0] {
				want = append(want, k)
			}
		}
		got := r.Lives(view[0], view[1], 1000)
		var have []int
		for _, l := range got.Lives {
			have = append(have, l.Lease)
		}
		slices.Sort(have)
		if !slices.Equal(have, want) || got.Count != len(want) {
			t.Errorf("view %v: leases %v, want %v", view, have, want)
		}
		if few := r.Lives(view[0], view[1], 3); len(few.Lives) > 3 || few.Count != got.Count || len(few.Lives) > 0 && !reflect.DeepEqual(few.Lives, got.Lives[:len(few.Lives)]) {
			t.Errorf("view %v: of %d leases the heaviest are not the first ones", view, got.Count)
		}
	}
}

func TestSearch(t *testing.T) {
	r := recordOf(t, newJob(2000, "/home/user/Model.py", false))
	for query, want := range map[string]struct {
		kind string
		some bool
	}{
		"model.py:103":   {"text", true},
		"FORWARD":        {"text", true},
		"nothing there":  {"text", false},
		"":               {"text", false},
		"0x7f0000000000": {"address", true},
		"0x10":           {"address", false},
		">=2MiB":         {"size", true},
		"> 1TiB":         {"size", false},
		"2MiB":           {"size", true},
		"<1KiB":          {"size", false},
	} {
		got := r.Search(query, 10)
		if got.Kind != want.kind || (got.Count > 0) != want.some || len(got.Lives.Lives) > 10 {
			t.Errorf("%q: %d leases by %s", query, got.Count, got.Kind)
		}
		for _, l := range got.Lives.Lives {
			b := r.Block(l.Lease)
			if b == nil || query == "0x7f0000000000" && b.Addr != jobStart || query == ">=2MiB" && b.Size < 2<<20 {
				t.Errorf("%q found %+v", query, b)
			}
		}
	}
	if r.Block(-1) != nil || r.Block(1<<30) != nil {
		t.Error("there are blocks that there are not")
	}
}

// TestWeights adds up every lease.
func TestWeights(t *testing.T) {
	s := newJob(3000, "/m.py", false)
	h := inspect.NewHistory(s, 0)
	from, to := 500, 1700
	var want float64
	for _, l := range h.Leases {
		for m := max(l.Born()+1, from); m < min(l.Freed()+1, to); m++ {
			want += float64(max(l.Block, l.Size)) * float64(h.Time(m+1, true)-h.Time(m, true))
		}
	}
	var got float64
	for _, w := range recordOf(t, s).Weights(from, to) {
		got += w.Area
	}
	if got != want || want == 0 {
		t.Errorf("the stacks weigh %g, their leases %g", got, want)
	}
}

func TestWhatIf(t *testing.T) {
	r := recordOf(t, newJob(5000, "/m.py", false))
	for _, text := range []string{"headroom", "recorded", "expandable_segments:True"} {
		setting, err := web.ParseSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.WhatIf(setting)
		if err != nil {
			t.Fatal(err)
		}
		if most := slices.Max(got.Reserved); most != got.Result.PeakReservedBytes {
			t.Errorf("%s: the curve reaches %d, the result says %d", text, most, got.Result.PeakReservedBytes)
		}
	}
	for _, text := range []string{"", "no_such_setting:1"} {
		if _, err := web.ParseSetting(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestAnnotations: what the program named stands at its moments, in a lane
// below what it lies in; of too many the longest are shown.
func TestAnnotations(t *testing.T) {
	s := strange(3, 400)
	first := s.Traces[0].Entry(0).TimeUS
	mark := func(name string, from, to int64) {
		s.Annotations = append(s.Annotations, trace.Annotation{Name: name, Begin: true, TimeUS: first + from}, trace.Annotation{Name: name, TimeUS: first + to})
	}
	mark("step", 0, 300)
	mark("forward", 10, 100)
	mark("layer", 20, 60)
	mark("backward", 100, 250)
	mark("layer", 110, 200)
	mark("before", -50, -20)
	dir := t.TempDir()
	write(t, dir, "a.pickle", s)
	type annotation struct {
		Name           string
		From, To, Lane int
	}
	shown := func(dir string) []annotation {
		t.Helper()
		_, body, _ := get(t, serve(t, dir).URL+"/api/open?file=a.pickle", nil)
		var metas []struct{ Annotations []annotation }
		if err := json.Unmarshal([]byte(body), &metas); err != nil || len(metas) == 0 {
			t.Fatalf("%v: %s", err, body)
		}
		return metas[0].Annotations
	}
	want := []annotation{{"step", 1, 301, 0}, {"forward", 11, 101, 1}, {"backward", 101, 251, 1}, {"layer", 21, 61, 2}, {"layer", 111, 201, 2}}
	if got := shown(dir); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range int64(5000) {
		mark("short", i%350, i%350+2)
	}
	many := t.TempDir()
	write(t, many, "a.pickle", s)
	got := shown(many)
	if len(got) > 2000 || !slices.Contains(got, want[0]) || !slices.Contains(got, want[2]) {
		t.Errorf("%d annotations, the long ones among them: %v", len(got), slices.Contains(got, want[0]))
	}
}

// FuzzRecords asks all questions about records of arbitrary events, with numbers up to the
// largest.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x04\x01\x28\x15\x01\x00\x01\x28\x15\x02\x00\x02\x28\x3f\x03\x01\x01\x28\x15\x40\x07\x00\x3f\x3e\x05"))
	f.Add([]byte("\x00\x01\x28\x3f\x01\x00\x02\x29\x3f\x02\x00\x03\x2a\x3e\x03\x05\x01\x3f\x3f\x3f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var tr trace.Trace
		for ; len(data) >= 5 && tr.Len() < 100; data = data[5:] {
			tr.Append(trace.Entry{Event: trace.Event{
				Action: trace.Action(data[0] % 11), Purpose: trace.Purpose(int(data[1]) % trace.NumPurposes), Stream: int(data[1] % 2),
				Addr: uint64(data[1]) << (data[2] % 64), Size: uint64(data[1]) << (data[3] % 64), TimeUS: int64(data[4]) << (data[4] % 64),
			}})
		}
		records, err := web.Records("any.pickle", &trace.Snapshot{Traces: []*trace.Trace{&tr}})
		if err != nil {
			return
		}
		for _, r := range records {
			for _, moment := range []int{math.MinInt, 0, tr.Len() / 2, math.MaxInt} {
				r.Samples(0, moment, moment)
				r.Lives(moment, moment, moment)
				r.Weights(0, moment)
				r.State(moment)
				r.Block(moment)
			}
			r.Search(">=0", math.MaxInt)
			r.Stacks()
		}
		for _, text := range []string{"planned", "headroom", "expandable_segments:True"} {
			setting, err := web.ParseSetting(text)
			if err != nil {
				t.Fatal(err)
			}
			records[0].WhatIf(setting) // fails where a plan would be too large
		}
	})
}
