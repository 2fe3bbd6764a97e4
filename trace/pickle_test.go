package trace

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// small is a snapshot that holds every kind of value once.
func small() *Snapshot {
	work := NewStack([]Frame{{"/src/model.go", 12, "model.forward"}, {"/src/main.go", 300, "main.main"}})
	load := NewStack([]Frame{{"/src/load.go", 7, "load.weights"}, {"/src/main.go", 300, "main.main"}})
	const base = 1<<63 + 512
	entry := func(a Action, p Purpose, addr, size uint64, s *Stack) Entry {
		return Entry{Event: Event{Action: a, Purpose: p, Stream: 0, Addr: addr, Size: size, TimeUS: 1700000000000000}, Stack: s}
	}
	return &Snapshot{
		Segments: []Segment{
			{Addr: base, Size: 2 << 20, Expandable: true, Small: true, Blocks: []Block{
				{Addr: base, Size: 1024, Requested: 1000, State: Live, Purpose: Parameter, Stack: load},
				{Addr: base + 1024, Size: 512, Requested: 4, State: Pending, Purpose: Activation, Stack: work},
				{Addr: base + 1536, Size: 2<<20 - 1536, State: Free},
			}},
			{Device: 1, Stream: 3, Addr: 1 << 40, Size: 512, Stack: load, Blocks: []Block{
				{Addr: 1 << 40, Size: 512, Requested: 512, State: Live, Purpose: Other, Stack: work},
			}},
		},
		Traces: []*Trace{traceOf(
			entry(SegmentMap, Other, base, 2<<20, nil),
			entry(Alloc, Parameter, base, 1000, load),
			entry(Alloc, Activation, base+1024, 4, work),
			entry(FreeRequested, Activation, base+1024, 4, nil),
			entry(OOM, Gradient, 70000, 1<<35, work),
		), {}},
		Settings: Settings{Known: true, Backend: "headroom", MaxSplitSize: -1, Expandable: true, PinnedThreads: 1},
	}
}

// traceOf gives the trace of entries.
func traceOf(entries ...Entry) *Trace {
	t := new(Trace)
	for _, e := range entries {
		t.Append(e)
	}
	return t
}

// entries gives the entries of a trace.
func entries(t *Trace) []Entry {
	var all []Entry
	for _, e := range t.All() {
		all = append(all, e)
	}
	return all
}

// value gives what a reader should see of the snapshot: its fields by the
// schema's names.
func (s *Snapshot) value() dict {
	segments, traces := []any{}, []any{}
	for _, g := range s.Segments {
		kind := map[bool]string{true: "small", false: "large"}[g.Small]
		var live, active, requested uint64
		blocks := []any{}
		for _, b := range g.Blocks {
			d := dict{"address": b.Addr, "size": b.Size, "requested_size": b.Requested, "frames": frames(b.Stack),
				"state": [...]string{"active_allocated", "active_pending_free", "inactive"}[b.State]}
			if b.State != Free {
				active, requested = active+b.Size, requested+b.Requested
				d["category"] = b.Purpose.String()
			}
			if b.State == Live {
				live += b.Size
			}
			blocks = append(blocks, d)
		}
		if t := g.Totals; t.Known {
			live, active, requested = t.Live, t.Active, t.Requested
		}
		segments = append(segments, dict{"device": number(int64(g.Device)), "address": g.Addr, "total_size": g.Size, "allocated_size": live,
			"active_size": active, "requested_size": requested, "stream": number(int64(g.Stream)), "segment_type": kind,
			"segment_pool_id": [2]any{g.Pool[0], g.Pool[1]}, "is_expandable": g.Expandable, "frames": frames(g.Stack), "blocks": blocks})
	}
	for _, t := range s.Traces {
		entries := []any{}
		for _, e := range t.All() {
			d := dict{"action": e.Action.String(), "addr": e.Addr, "size": e.Size, "stream": number(int64(e.Stream)), "time_us": number(e.TimeUS),
				"compile_context": "N/A", "user_metadata": "", "frames": frames(e.Stack)}
			if e.Action <= FreeCompleted {
				d["category"], d["user_metadata"] = e.Purpose.String(), e.Purpose.String()
			}
			if e.Purpose != Other {
				d["category"] = e.Purpose.String()
			}
			if e.Action == OOM {
				d["device_free"] = d["addr"]
				delete(d, "addr")
			}
			if e.Pool != (PoolID{}) {
				d["pool_id"] = [2]any{e.Pool[0], e.Pool[1]}
			}
			if e.Compiled != "" {
				d["compile_context"] = e.Compiled
			}
			if e.Note != "" {
				d["user_metadata"] = e.Note
			}
			entries = append(entries, d)
		}
		traces = append(traces, entries)
	}
	marks := []any{}
	for _, a := range s.Annotations {
		marks = append(marks, dict{"name": a.Name, "stage": map[bool]string{true: "START", false: "END"}[a.Begin], "device": number(int64(a.Device)), "time_us": number(a.TimeUS)})
	}
	d := dict{"segments": segments, "device_traces": traces, "external_annotations": marks}
	if s.Settings.Known {
		d["allocator_settings"] = s.Settings.value()
	}
	return d
}

func (s *Settings) value() dict {
	divisions := dict{}
	for i, n := range s.RoundupDivisions {
		divisions[fmt.Sprint(1<<i)] = n
	}
	d := dict{"PYTORCH_CUDA_ALLOC_CONF": s.Conf, "max_split_size": number(s.MaxSplitSize), "garbage_collection_threshold": s.GCThreshold,
		"expandable_segments": s.Expandable, "pinned_num_register_threads": s.PinnedThreads, "release_lock_on_cudamalloc": s.ReleaseLock,
		"pinned_use_cuda_host_register": s.PinnedRegister, "graph_capture_record_stream_reuse": s.GraphReuse, "roundup_power2_divisions": divisions}
	if s.Backend != "" {
		d["backend"] = s.Backend
	}
	return d
}

// number gives a number as unpickle does: signed only if it is negative.
func number(n int64) any {
	if n < 0 {
		return n
	}
	return uint64(n)
}

func frames(s *Stack) []any {
	all := []any{}
	for _, f := range s.Frames() {
		all = append(all, dict{"filename": f.File, "line": number(int64(f.Line)), "name": f.Func})
	}
	return all
}

// plain turns lists by reference into slices, so that values compare.
func plain(v any) any {
	switch v := v.(type) {
	case list:
		all := []any{}
		for _, e := range *v {
			all = append(all, plain(e))
		}
		return all
	case dict:
		d := dict{}
		for k, e := range v {
			d[k] = plain(e)
		}
		return d
	}
	return v
}

func pickled(t testing.TB, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WritePickle(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// same fails the test unless the file of s reads as s.
func same(t *testing.T, s *Snapshot) {
	t.Helper()
	v, err := unpickle(pickled(t, s))
	if err != nil {
		t.Fatal(err)
	}
	got := plain(v).(dict)
	if want := s.value(); !reflect.DeepEqual(got, want) {
		t.Fatalf("read\n%v\nwant\n%v", got, want)
	}
}

func TestGolden(t *testing.T) {
	const file = "testdata/small.pickle"
	got := pickled(t, small())
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the file has changed: %d bytes, want %d; after a look at it run go test -update", len(got), len(want))
	}
	same(t, small())
}

// TestRandomSnapshots writes snapshots with numbers of every length, more
// elements than a batch, and strings of every length.
func TestRandomSnapshots(t *testing.T) {
	for seed := uint64(0); seed < 12; seed++ {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { same(t, randomSnapshot(rand.New(rand.NewPCG(seed, 0)), 2500)) })
	}
}

func randomSnapshot(r *rand.Rand, events int) *Snapshot {
	number := func() uint64 { return r.Uint64() >> r.UintN(64) }
	text := func() string { return string(bytes.Repeat([]byte{'a' + byte(r.UintN(26))}, r.IntN(400))) }
	stacks := make([]*Stack, 1+r.IntN(1+events/8))
	for i := range stacks[1:] {
		fs := make([]Frame, r.IntN(5))
		for j := range fs {
			fs[j] = Frame{text(), r.IntN(1 << 20), text()}
		}
		stacks[i+1] = NewStack(fs)
	}
	stack := func() *Stack { return stacks[r.IntN(len(stacks))] }
	signed := func() int { return int(number()) >> 1 }
	pool := func() (p PoolID) {
		if r.IntN(2) == 0 {
			p = PoolID{number(), number()}
		}
		return p
	}
	s := &Snapshot{Segments: make([]Segment, r.IntN(5)), Traces: make([]*Trace, r.IntN(3))}
	for i := range s.Segments {
		g := Segment{Device: r.IntN(8), Stream: signed(), Addr: number(), Size: number(), Small: r.IntN(2) == 0, Expandable: r.IntN(2) == 0, Pool: pool(), Stack: stack()}
		if r.IntN(3) == 0 {
			g.Totals = Totals{true, number(), number(), number()}
		}
		for range r.IntN(20) {
			b := Block{Addr: number(), Size: number() >> 8, State: State(r.IntN(3)), Stack: stack()}
			if b.State != Free {
				b.Requested, b.Purpose = b.Size, Purpose(r.IntN(NumPurposes))
			}
			g.Blocks = append(g.Blocks, b)
		}
		s.Segments[i] = g
	}
	for i := range s.Traces {
		s.Traces[i] = new(Trace)
		for range r.IntN(events) {
			e := Entry{Stack: stack(), Pool: pool(), Event: Event{Action: Action(r.IntN(int(Unknown) + 1)), Purpose: Purpose(r.IntN(NumPurposes)),
				Stream: signed(), Addr: number(), Size: number(), TimeUS: int64(signed())}}
			if r.IntN(9) == 0 {
				e.Compiled, e.Note = text(), text()
			}
			s.Traces[i].Append(e)
		}
	}
	for range r.IntN(4) {
		s.Annotations = append(s.Annotations, Annotation{text(), r.IntN(2) == 0, r.IntN(9), int64(signed())})
	}
	if r.IntN(3) > 0 {
		s.Settings = Settings{true, text(), text(), int64(signed()), r.Float64(), r.IntN(2) == 0, [16]uint64{}, r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, number()}
		for i := range s.Settings.RoundupDivisions {
			s.Settings.RoundupDivisions[i] = number()
		}
	}
	return s
}

func TestNumbersAreExact(t *testing.T) {
	var want []uint64
	for shift := range 64 {
		v := uint64(1) << shift
		want = append(want, v-1, v, v+1)
	}
	want = append(want, math.MaxUint64)
	var b bytes.Buffer
	p := newPickler(&b)
	p.list(len(want), func(i int) { p.uint(want[i]) })
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	v, err := unpickle(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range *v.(list) {
		if got != want[i] {
			t.Errorf("read %v, want %d", got, want[i])
		}
	}
}

// TestSharing checks that equal stacks and frames are one object to a reader.
func TestSharing(t *testing.T) {
	v, err := unpickle(pickled(t, small()))
	if err != nil {
		t.Fatal(err)
	}
	at := func(v any, path ...any) any {
		for _, p := range path {
			switch p := p.(type) {
			case int:
				v = (*v.(list))[p]
			case string:
				v = v.(dict)[p]
			}
		}
		return v
	}
	load := at(v, "segments", 0, "blocks", 0, "frames")
	for _, path := range [][]any{{"segments", 1, "frames"}, {"device_traces", 0, 1, "frames"}} {
		if at(v, path...) != load {
			t.Errorf("%v is another list than the equal stack before it", path)
		}
	}
	work := at(v, "segments", 0, "blocks", 1, "frames")
	if work == load {
		t.Error("different stacks are one list")
	}
	if a, b := reflect.ValueOf(at(load, 1)), reflect.ValueOf(at(work, 1)); a.Pointer() != b.Pointer() {
		t.Error("equal frames of two stacks are two dictionaries")
	}
}

func TestBadUTF8IsReplaced(t *testing.T) {
	s := &Snapshot{Segments: []Segment{{Stack: NewStack([]Frame{{File: "a\xffb"}})}}}
	v, err := unpickle(pickled(t, s))
	if err != nil {
		t.Fatal(err)
	}
	g := (*v.(dict)["segments"].(list))[0].(dict)
	if f := (*g["frames"].(list))[0].(dict); f["filename"] != "a\uFFFDb" {
		t.Errorf("filename is %q", f["filename"])
	}
}

// failingWriter fails after n bytes, silently short if err is nil.
type failingWriter struct {
	n   int
	err error
}

func (w *failingWriter) Write(b []byte) (int, error) {
	if len(b) <= w.n {
		w.n -= len(b)
		return len(b), nil
	}
	n := w.n
	w.n = 0
	return n, w.err
}

func TestWriteErrors(t *testing.T) {
	disk := errors.New("disk full")
	check := func(s *Snapshot, step int) {
		size := len(pickled(t, s))
		for n := 0; n < size; n += step {
			if err := s.WritePickle(&failingWriter{n, disk}); !errors.Is(err, disk) {
				t.Fatalf("failure at byte %d of %d: error %v", n, size, err)
			}
			if err := s.WritePickle(&failingWriter{n, nil}); err == nil {
				t.Fatalf("short write at byte %d of %d: no error", n, size)
			}
		}
		if err := s.WritePickle(&failingWriter{size, disk}); err != nil {
			t.Fatalf("no failure, yet %v", err)
		}
	}
	check(small(), 1)
	big := randomSnapshot(rand.New(rand.NewPCG(3, 3)), 2500)
	big.Traces = append(big.Traces, traceOf(make([]Entry, 5000)...))
	check(big, 9973)
}

func BenchmarkWritePickle(b *testing.B) {
	s := &Snapshot{Traces: []*Trace{{}}}
	stack := small().Traces[0].Entry(1).Stack
	for i := range 100_000 {
		s.Traces[0].Append(Entry{Event: Event{Action: Action(i % 3), Addr: 1<<47 + uint64(i)<<9, Size: 1 << 20, TimeUS: 1700000000000000}, Stack: stack})
	}
	b.ReportAllocs()
	for b.Loop() {
		w := new(countingWriter)
		if err := s.WritePickle(w); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(*w))
	}
}

type countingWriter int

func (w *countingWriter) Write(b []byte) (int, error) {
	*w += countingWriter(len(b))
	return len(b), nil
}
