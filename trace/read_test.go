package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// lines gives the content of a snapshot, so that snapshots compare.
func lines(s *Snapshot) []string {
	all := []string{fmt.Sprintf("settings %+v", s.Settings), fmt.Sprint("no addresses ", s.NoAddresses)}
	for _, a := range s.Annotations {
		all = append(all, fmt.Sprintf("annotation %+v", a))
	}
	for _, g := range s.Segments {
		blocks, stack := g.Blocks, g.Stack.Frames()
		if !g.Totals.Known { // our pickles give them all the same
			g.Totals = g.Sum()
		}
		g.Blocks, g.Stack = nil, nil
		all = append(all, fmt.Sprintf("segment %+v %+v", g, stack))
		for _, b := range blocks {
			stack := b.Stack.Frames()
			b.Stack = nil
			all = append(all, fmt.Sprintf("block %+v %+v", b, stack))
		}
	}
	for i, t := range s.Traces {
		all = append(all, fmt.Sprint("device ", i))
		for _, e := range t.All() {
			stack := e.Stack.Frames()
			e.Stack = nil
			all = append(all, fmt.Sprintf("event %+v %+v", e, stack))
		}
	}
	return all
}

// equal fails the test unless got has the content of want.
func equal(t *testing.T, what string, got, want *Snapshot) {
	t.Helper()
	a, b := lines(got), lines(want)
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			t.Fatalf("%s: nothing more in place of\n%s", what, b[i])
		case i >= len(b):
			t.Fatalf("%s: too much:\n%s", what, a[i])
		case a[i] != b[i]:
			t.Fatalf("%s: line %d is\n%s\nwant\n%s", what, i, a[i], b[i])
		}
	}
}

func mustRead(t *testing.T, what string, file []byte) *Snapshot {
	t.Helper()
	s, err := Read(bytes.NewReader(file))
	if err != nil || s.Cut != nil {
		t.Fatalf("%s: error %v, cut %v", what, err, s)
	}
	return s
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

func jsonLines(t testing.TB, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteJSONLines(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadsWhatWeWrite reads our own files, plain and compressed.
func TestReadsWhatWeWrite(t *testing.T) {
	for seed := uint64(0); seed < 4; seed++ {
		want := randomSnapshot(rand.New(rand.NewPCG(seed, 1)), 2500)
		file := pickled(t, want)
		equal(t, fmt.Sprint("pickle of seed ", seed), mustRead(t, "pickle", file), want)
		equal(t, fmt.Sprint("JSON lines of seed ", seed), mustRead(t, "JSON lines", jsonLines(t, want)), want)
		if seed > 0 {
			continue
		}
		equal(t, "gzip", mustRead(t, "gzip", gzipped(t, file)), want)
		equal(t, "zstd", mustRead(t, "zstd", zstandard(t, file)), want)
		equal(t, "gzip in zstd", mustRead(t, "gzip in zstd", zstandard(t, gzipped(t, file))), want)
		s, err := Read(iotest.OneByteReader(bytes.NewReader(file)))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "bytes one by one", s, want)
	}
}

// age is a version of PyTorch's format, newest first.
type age int

const (
	newest   age = iota // pool_id at events, categories, keys that are not known
	compiled            // compile_context and user_metadata
	spoken              // without them
	silent              // no settings, no annotations
	timeless            // no time_us
	historic            // blocks with history and without address, no pools, no frames at segments
	bare                // a list of segments
	ages
)

// degrade gives what a file of that age tells of s.
func (s *Snapshot) degrade(a age) *Snapshot {
	d := &Snapshot{}
	for _, g := range s.Segments {
		g.Blocks = slices.Clone(g.Blocks)
		if a >= historic {
			g.Pool, g.Expandable, g.Stack = PoolID{}, false, nil
		}
		at := g.Addr
		for i := range g.Blocks {
			b := &g.Blocks[i]
			if a > newest {
				b.Purpose = Other
			}
			if a >= historic {
				b.Addr = at
				at += b.Size
				if b.State == Free {
					b.Stack = nil
				}
			}
		}
		d.Segments = append(d.Segments, g)
	}
	if a < silent {
		d.Settings, d.Annotations = s.Settings, s.Annotations
	}
	if a == bare {
		return d
	}
	for _, t := range s.Traces {
		c := new(Trace)
		for _, e := range t.All() {
			if a > newest {
				e.Pool, e.Purpose = PoolID{}, Other
			}
			if a > compiled {
				e.Compiled, e.Note = "", ""
			}
			if a >= timeless {
				e.TimeUS = 0
			}
			c.Append(e)
		}
		d.Traces = append(d.Traces, c)
	}
	return d
}

// planter makes the trees of snapshots. It shares frames, and half of the lists of
// them.
type planter struct {
	age
	r      *rand.Rand
	frames map[Frame]*shared
	lists  map[*Stack]*shared
}

// tree gives the tree of a snapshot as a version of PyTorch writes it.
func (p *planter) tree(s *Snapshot) any {
	var segments, traces, marks items
	for i := range s.Segments {
		segments = append(segments, p.segment(&s.Segments[i]))
	}
	for _, t := range s.Traces {
		var events items
		for _, e := range t.All() {
			events = append(events, p.event(e))
		}
		traces = append(traces, events)
	}
	for _, a := range s.Annotations {
		stage := map[bool]string{true: "START", false: "END"}[a.Begin]
		marks = append(marks, p.odd(pairs{"stage", stage, "name", a.Name, "device", a.Device, "time_us", a.TimeUS}))
	}
	if p.age == bare {
		return segments
	}
	d := pairs{"segments", segments, "device_traces", traces}
	if s.Settings.Known {
		d = append(d, "allocator_settings", p.settings(&s.Settings))
	}
	if p.age < silent {
		d = append(d, "external_annotations", marks)
	}
	return p.odd(d)
}

// odd adds keys that are not known, with values of every shape, to a
// dictionary of the newest format.
func (p *planter) odd(d pairs) pairs {
	if p.age > newest || p.r.IntN(3) > 0 {
		return d
	}
	values := items{nil, true, -1, 3.5, "text", items{}, pairs{}, items{nil, items{1, 2, 3}, pairs{"size", 5}}, tuple{1, 2}, tuple{"x"}, tuple{items{}, items{}, items{}},
		pairs{"address", 7, 3, 4, nil, nil}, pairs{"frames", p.stack(NewStack([]Frame{{"odd.py", 1, "odd"}}))}, raw("\x8f"), raw("(K\x01K\x02\x91"), raw("\x8f(K\x01\x90"),
		raw("C\x02ab"), raw("B\x02\x00\x00\x00ab"), raw("\x96\x01\x00\x00\x00\x00\x00\x00\x00a"), raw("K\x010K\x02"), raw("K\x0120"), raw("(K\x011N"), raw("U\x01a"),
		raw("(K\x01K\x02l"), raw("(K\x01K\x02K\x03K\x04t"), raw("(\x8c\x01aK\x01d"), raw(")"), raw("\x8a\x00"), raw("\x8b\x02\x00\x00\x00\x01\x02"), strings.Repeat("long ", 30_000)}
	at := 2 * p.r.IntN(len(d)/2+1)
	return slices.Insert(slices.Clone(d), at, any(fmt.Sprint("odd_", p.r.IntN(5))), values[p.r.IntN(len(values))])
}

func (p *planter) segment(g *Segment) any {
	var blocks items
	for i := range g.Blocks {
		blocks = append(blocks, p.block(&g.Blocks[i]))
	}
	t := g.Totals
	if !t.Known {
		t = g.Sum()
	}
	d := pairs{"device", g.Device, "address", g.Addr, "total_size", g.Size, "allocated_size", t.Live, "active_size", t.Active, "requested_size", t.Requested,
		"stream", g.Stream, "segment_type", map[bool]string{true: "small", false: "large"}[g.Small]}
	if p.age < historic {
		d = append(d, "segment_pool_id", p.pool(g.Pool), "is_expandable", g.Expandable, "frames", p.stack(g.Stack))
	}
	at := p.r.IntN(len(d)/2) * 2
	return p.odd(slices.Insert(d, at, any("blocks"), any(blocks)))
}

func (p *planter) block(b *Block) any {
	state := b.State.String()
	if b.State == Pending && p.r.IntN(2) == 0 {
		state = "active_awaiting_free"
	}
	d := pairs{"size", b.Size, "state", state}
	switch {
	case p.age < historic:
		d = append(d, "address", b.Addr, "requested_size", b.Requested, "frames", p.stack(b.Stack))
	case b.State != Free:
		d = append(d, "history", items{pairs{"addr", b.Addr, "real_size", b.Requested, "frames", p.stack(b.Stack)}, pairs{"addr", 1, "real_size", 2, "frames", items{}}})
	}
	if p.age == newest && b.Purpose != Other {
		d = append(d, "category", strings.ToUpper(b.Purpose.String()))
	}
	return p.odd(d)
}

func (p *planter) event(e Entry) any {
	d := pairs{"action", e.Action.String(), "addr", e.Addr, "size", e.Size, "stream", e.Stream}
	if e.Action == OOM {
		d[2] = "device_free"
	}
	if e.Action == Unknown {
		d[1] = "resized"
	}
	if p.age < timeless {
		d = append(d, "time_us", e.TimeUS)
	}
	if p.age <= compiled {
		d = append(d, "compile_context", e.Compiled, "user_metadata", e.Note)
	}
	if p.age == newest {
		d = append(d, "pool_id", p.pool(e.Pool))
		if e.Purpose != Other {
			d = append(d, "category", strings.ToUpper(e.Purpose.String()))
		}
	}
	if e.Stack != nil || p.r.IntN(2) == 0 {
		d = append(d, "frames", p.stack(e.Stack))
	}
	return p.odd(d)
}

func (p *planter) pool(id PoolID) any {
	if p.r.IntN(2) == 0 {
		return items{id[0], id[1]}
	}
	return tuple{id[0], id[1]}
}

func (p *planter) stack(s *Stack) any {
	if l := p.lists[s]; l != nil && p.r.IntN(2) == 0 {
		return l
	}
	list := items{}
	for _, f := range s.Frames() {
		if p.frames[f] == nil || p.r.IntN(8) == 0 {
			p.frames[f] = &shared{p.odd(pairs{"name", f.Func, "filename", f.File, "line", f.Line})}
		}
		list = append(list, p.frames[f])
	}
	p.lists[s] = &shared{list}
	return p.lists[s]
}

func (p *planter) settings(s *Settings) any {
	var divisions pairs
	for i, n := range s.RoundupDivisions {
		divisions = append(divisions, fmt.Sprint(1<<i), n)
	}
	d := pairs{"PYTORCH_CUDA_ALLOC_CONF", s.Conf, "max_split_size", s.MaxSplitSize, "garbage_collection_threshold", s.GCThreshold, "expandable_segments", s.Expandable,
		"pinned_num_register_threads", s.PinnedThreads, "release_lock_on_cudamalloc", s.ReleaseLock, "pinned_use_cuda_host_register", s.PinnedRegister,
		"graph_capture_record_stream_reuse", s.GraphReuse, "roundup_power2_divisions", divisions}
	if s.Backend != "" {
		d = append(d, "backend", s.Backend)
	}
	return p.odd(d)
}

// TestReadsEveryVersion reads files of all ages in all styles.
func TestReadsEveryVersion(t *testing.T) {
	for i, s := range styles {
		for a := range ages {
			for seed := range uint64(2) {
				r := rand.New(rand.NewPCG(seed, uint64(a)<<8|uint64(i)))
				want := randomSnapshot(r, 200).degrade(a)
				for len(want.Segments) == 0 && a == bare {
					want = randomSnapshot(r, 200).degrade(a)
				}
				p := planter{age: a, r: r, frames: map[Frame]*shared{}, lists: map[*Stack]*shared{}}
				what := fmt.Sprintf("age %d, %v, seed %d", a, s, seed)
				equal(t, what, mustRead(t, what, assemble(s, p.tree(want))), want)
			}
		}
	}
}

// TestSharesStacks checks that equal stacks are one *Stack, whether a file says
// so or not, and that no frames are nil.
func TestSharesStacks(t *testing.T) {
	frames := func() any {
		return items{pairs{"filename", "a.py", "line", 1, "name", "f"}, pairs{"filename", "a.py", "line", 2, "name", "g"}}
	}
	list := &shared{frames()}
	event := func(frames any) any {
		return pairs{"action", "alloc", "addr", 1, "size", 2, "stream", 0, "frames", frames}
	}
	file := pairs{"segments", items{}, "device_traces", items{items{event(list), event(list), event(frames()), event(items{})}, items{event(frames())}}}
	for _, style := range styles {
		s := mustRead(t, style.String(), assemble(style, file))
		e := entries(s.Traces[0])
		if e[0].Stack == nil || e[1].Stack != e[0].Stack || e[2].Stack != e[0].Stack || e[3].Stack != nil || s.Traces[1].Entry(0).Stack != e[0].Stack {
			t.Errorf("%v: stacks are %p %p %p %p %p", style, e[0].Stack, e[1].Stack, e[2].Stack, e[3].Stack, s.Traces[1].Entry(0).Stack)
		}
		if f := e[0].Stack.Frames(); !reflect.DeepEqual(f, []Frame{{"a.py", 1, "f"}, {"a.py", 2, "g"}}) || e[0].Stack.Len() != 2 {
			t.Errorf("%v: frames are %v", style, f)
		}
	}
}

// TestNumbers reads numbers of every form and length.
func TestNumbers(t *testing.T) {
	cases := []struct {
		value any
		want  uint64
	}{
		{0, 0}, {255, 255}, {65535, 65535}, {math.MaxInt32, math.MaxInt32}, {uint64(1) << 47, 1 << 47}, {uint64(math.MaxUint64), math.MaxUint64},
		{-1, math.MaxUint64}, {-1 << 63, 1 << 63}, {true, 1}, {false, 0}, {nil, 0}, {"text", 0}, {items{1}, 0}, {12.9, 12}, {-2.5, 0}, {1e30, math.MaxUint64}, {math.NaN(), 0},
		{raw("\x8a\x00"), 0}, {raw("\x8a\x01\xff"), math.MaxUint64}, {raw("\x8a\x02\xff\xff"), math.MaxUint64}, {raw("\x8a\x02\x80\x00"), 128}, {raw("\x8a\x01\x80"), math.MaxUint64 - 127},
		{raw("\x8a\x0b" + strings.Repeat("\x01", 11)), math.MaxUint64}, {raw("\x8a\x0b" + strings.Repeat("\x01", 10) + "\x80"), 1 << 63},
		{raw("\x8a\x09" + strings.Repeat("\x00", 8) + "\xff"), 1 << 63}, {raw("\x8a\x14\x07" + strings.Repeat("\x00", 19)), 7}, {raw("\x8b\x02\x00\x00\x00\x07\x01"), 263},
	}
	for _, c := range cases {
		file := pairs{"segments", items{}, "device_traces", items{items{pairs{"action", "alloc", "addr", c.value, "size", c.value, "stream", c.value, "time_us", c.value}}}}
		e := mustRead(t, fmt.Sprintf("%q", c.value), assemble(styles[2], file)).Traces[0].Entry(0)
		if e.Addr != c.want || e.Size != c.want && !(e.Size == 0 && int64(c.want) < 0) || e.Stream != int(c.want) || e.TimeUS != int64(c.want) {
			t.Errorf("%q is read as %+v, want %d", c.value, e.Event, c.want)
		}
	}
}

// TestOddPickles reads what no program of PyTorch writes and pickle allows.
func TestOddPickles(t *testing.T) {
	alloc := "}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x07u"
	wrap := func(trace string) string { return "\x80\x04}\x8c\x0ddevice_traces](" + trace + "es." }
	for name, c := range map[string]struct {
		file string
		want int // events
	}{
		"a trace that is a tuple":            {wrap("(" + alloc + alloc + "t"), 2},
		"a trace that is one value of DUP":   {wrap("](" + alloc + "e2"), 2},
		"keys one by one":                    {wrap("]}\x8c\x06action\x8c\x05allocs\x8c\x04sizeK\x07sa"), 1},
		"DICT":                               {wrap("](" + alloc + "(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x07de"), 2},
		"LIST":                               {wrap("(" + alloc + alloc + alloc + "l"), 3},
		"a list in itself":                   {wrap("]q\x00(h\x00" + alloc + "e"), 1},
		"an event among others":              {wrap("](N" + alloc + "K\x01" + alloc + "]" + alloc + "e"), 3},
		"events of an inner list first":      {wrap("](" + alloc + "](" + alloc + alloc + "e" + alloc + "e"), 2},
		"memo out of order":                  {wrap("]r\xff\xff\xff\xff(" + alloc + "e0j\xff\xff\xff\xff"), 1},
		"a list that grows after its number": {wrap("]q\x05" + alloc + "ah\x05(" + alloc + alloc + "e0"), 3},
		"POP_MARK":                           {wrap("(NN1](" + alloc + "e"), 1},
		"a dictionary that is no event":      {wrap("](}" + alloc + "e"), 1},
		"things added to values":             {wrap("](" + alloc + "K\x01N(NNe(NNuNaNNs0" + alloc + "e"), 2},
		"an event with more keys later":      {wrap("](" + alloc + "\x8c\x06streamK\x09s" + "e"), 1},
		"NEXT_BUFFER":                        {wrap("](\x97\x98" + alloc + "e"), 1},
	} {
		s := mustRead(t, name, []byte(c.file))
		total := 0
		for _, tr := range s.Traces {
			for _, e := range tr.All() {
				if e.Action != Alloc || e.Size != 7 {
					t.Errorf("%s: event %+v", name, e)
				}
				total++
			}
		}
		if total != c.want {
			t.Errorf("%s: %d events, want %d", name, total, c.want)
		}
	}
}

func TestUnsafe(t *testing.T) {
	for _, c := range []struct {
		ops, name, class string
		at               int // of the instruction in ops
	}{
		{"cos\nsystem\n", "GLOBAL", "os.system", 0}, {"(ios\nsystem\n", "INST", "os.system", 1}, {"\x8c\x02os\x8c\x06system\x93", "STACK_GLOBAL", "os.system", 12},
		{"\x8c\x05posix\x94\x8c\x06system\x94\x93", "STACK_GLOBAL", "posix.system", 17}, {"NN\x93", "STACK_GLOBAL", "", 2}, {"NNR", "REDUCE", "", 2}, {"NNb", "BUILD", "", 2},
		{"(No", "OBJ", "", 2}, {"NN\x81", "NEWOBJ", "", 2}, {"NNN\x92", "NEWOBJ_EX", "", 3}, {"P12\n", "PERSID", "", 0}, {"NQ", "BINPERSID", "", 1},
		{"\x82\x01", "EXT1", "", 0}, {"\x83\x01\x02", "EXT2", "", 0}, {"\x84\x01\x02\x03\x04", "EXT4", "", 0}, {"c\x1b[31mx\ny\xff\n", "GLOBAL", "?[31mx.y?", 0}, {"cos", "GLOBAL", "", 0},
	} {
		for _, inside := range []string{"", "}\x8c\x08segments](", "}(\x8c\x05other"} {
			s, err := Read(strings.NewReader("\x80\x04" + inside + c.ops + "."))
			want := UnsafeError{c.name, int64(2 + len(inside) + c.at), c.class}
			var unsafe *UnsafeError
			if !errors.As(err, &unsafe) || s != nil || *unsafe != want {
				t.Errorf("%q: snapshot %v, error %+v, want %+v", c.ops, s, err, want)
			} else if !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.class) {
				t.Errorf("%q: message %q", c.ops, err)
			}
		}
	}
}

// TestRefuses reads what is no snapshot. Each kind has its own message.
func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		kind Kind // empty: not a *FormatError
		says string
	}{
		"nothing":              {"", KindEmpty, "not one byte"},
		"compressed nothing":   {string(gzipped(t, nil)), KindEmpty, "not one byte"},
		"a page":               {"\n<!DOCTYPE html><html>\nx", KindWebPage, "<!DOCTYPE html>"},
		"a page with a mark":   {"\ufeff<html>", KindWebPage, "download the file itself"},
		"an error text":        {"torch.OutOfMemoryError: CUDA out of memory.\nTried", KindText, "torch.OutOfMemoryError: CUDA out of memory."},
		"a Git LFS pointer":    {"version https://git-lfs.github.com/spec/v1\noid", KindText, "git lfs pull"},
		"an xz file":           {"\xfd7zXZ\x00\x00\x04", KindXZ, "xz -dc"},
		"a bzip2 file":         {"BZh91AY&SY", KindBzip2, "bzip2 -dc"},
		"a checkpoint":         {"PK\x03\x04\x00\x00", KindZip, "torch.save"},
		"bytes":                {"\x7fELF\x02\x01", KindBinary, "7f 45 4c 46"},
		"protocol 0":           {"(dp0\n.", KindPickle, "protocol is 0 or 1"},
		"protocol 1":           {"}q\x00.", KindPickle, "protocol is 0 or 1"},
		"protocol 6":           {"\x80\x06N.", KindPickle, "none of 2 to 5"},
		"other JSON":           {`{"loss": [1, 2], "steps": 3}`, KindJSON, `"loss", "steps"`},
		"a JSON list":          {`["a", "b"]`, KindJSON, "list that begins"},
		"an empty JSON list":   {`[]`, KindJSON, "empty list"},
		"summed timeline":      {`[[1, 2, 3], [[0, 1], [0, 2], [0, 3]]]`, KindJSON, ".raw.json.gz"},
		"bad JSON":             {`{"format" x}`, KindJSON, "damaged at byte"},
		"trace without memory": {`{"traceEvents": [{"name": "aten::mm", "ts": 1}]}`, KindJSON, "profile_memory=True"},
		"traceEvents no list":  {`{"traceEvents": {}}`, KindJSON, "no list"},
		"a pickled number":     {"\x80\x04K\x01.", KindPickle, "a number"},
		"a pickled string":     {"\x80\x04\x8c\x01a.", KindPickle, "a string"},
		"a pickled list":       {"\x80\x04](K\x01K\x02e.", KindPickle, "a list"},
		"a pickled dictionary": {"\x80\x04}(\x8c\x05model]\x8c\x05epochK\x01u.", KindPickle, `"model", "epoch"`},
		"a pickled event":      {"\x80\x04}(\x8c\x06action\x8c\x05allocu.", KindPickle, `"action"`},
		"an unknown byte":      {"\x80\x04\xff.", "", "0xff is no instruction"},
		"a missing value":      {"\x80\x04.", "", "a value is missing"},
		"a missing mark":       {"\x80\x04]e.", "", "a mark is missing"},
		"a missing list":       {"\x80\x04(NNe.", "", "a list is missing"},
		"a missing list of a":  {"\x80\x04Na.", "", "a list is missing"},
		"a missing dictionary": {"\x80\x04(NNu.", "", "a dictionary is missing"},
		"a key alone":          {"\x80\x04}(Nu.", "", "a key without a value"},
		"too few for SETITEM":  {"\x80\x04}Ns.", "", "a value is missing"},
		"too few for a tuple":  {"\x80\x04N(N\x86.", "", "a value is missing"},
		"memo not given":       {"\x80\x04h\x07.", "", "value 7 is used and was never given"},
		"memo of nothing":      {"\x80\x04\x94.", "", "a value is missing"},
		"an event twice":       {"\x80\x04}\x8c\x0ddevice_traces](](}\x94(\x8c\x06action\x8c\x05allocuh\x00ees.", "", "one event is used twice"},
		"too deep":             {"\x80\x04" + strings.Repeat("](", 2000), "", "more than 1000 deep"},
		"too many values":      {"\x80\x04" + strings.Repeat("N", 1<<20), "", "values are on the stack"},
		"too many lists":       {"\x80\x04" + strings.Repeat("]", 1<<20), "", "lists and dictionaries are open"},
		"protocol 9 inside":    {"\x80\x04\x80\x09N.", "", "protocol 9"},
		"a 10 GB string":       {"\x80\x04}\x8c\x08segments\x8d\x00\xe4\x0b\x54\x02\x00\x00\x00abc", "", "a string of 10000000000 bytes"},
		"10 GB of bytes":       {"\x80\x05\x96\x00\xe4\x0b\x54\x02\x00\x00\x00abc", "", "a string of bytes of 10000000000 bytes"},
		"a 4 GB number":        {"\x80\x04\x8b\xff\xff\xff\xffabc", "", "a number of 4294967295 bytes"},
		"a 1 MB number":        {"\x80\x04\x8b\x00\x00\x10\x00abc", "", "a number has 1048576 bytes"},
		"damaged gzip header":  {"\x1f\x8b\x07\x00\x00\x00\x00\x00\x00\x00\x00", "", "gzip header is damaged"},
		"damaged gzip data":    {string(gzipped(t, nil)[:10]) + "\xff\xff\xff", "", "damaged from the start"},
		"damaged zstd data":    {"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff\xff", "", "damaged from the start"},
		"JSON lines version":   {`{"format":"headroom-trace","version":2}`, "", "version 2"},
		"JSON lines devices":   {`{"format":"headroom-trace","version":1,"devices":1000000000}`, "", "1000000000 devices"},
		"JSON lines types":     {`{"format":"headroom-trace","version":1,"devices":"x"}`, "", "line 1"},
		"JSON lines device":    {`{"format":"headroom-trace","version":1,"devices":1}{"kind":"event","device":1}`, "", "line 2: device 1"},
		"JSON lines stack":     {`{"format":"headroom-trace","version":1,"devices":1}{"kind":"event","stack":5}`, "", "stack 5 is used before"},
		"JSON lines no stack":  {`{"format":"headroom-trace","version":1,"devices":1}{"kind":"event","stack":-5}`, "", "stack -5"},
		"JSON lines address":   {`{"format":"headroom-trace","version":1,"devices":1}{"kind":"event","address":-5}`, "", "line 2"},
		"timeline action":      {`[[1, 9, 3, 4]]`, "", "row 1: action 9"},
		"timeline category":    {`[[1, 2, 3, 4], [1, 2, 3, 8]]`, "", "row 2: action 2 with category 8"},
		"timeline number":      {`[[1, 2, 3.5, 4]]`, "", "row 1"},
		"Kineto device":        {`[{"name": "[memory]", "ts": 1, "args": {"Bytes": 1, "Device Id": 5000}}]`, "", "device 5000"},
		"Kineto bytes":         {`[{"name": "[memory]", "ts": 1, "args": {"Device Id": 0}}]`, "", "[memory] event"},
	} {
		s, err := Read(strings.NewReader(c.file))
		var format *FormatError
		switch {
		case s != nil || err == nil:
			t.Errorf("%s: no error, snapshot %v", name, s)
		case !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: error %q, want one that says %q", name, err, c.says)
		case errors.As(err, &format) != (c.kind != ""), format != nil && format.Kind != c.kind:
			t.Errorf("%s: error %#v, want kind %q", name, err, c.kind)
		}
	}
}

// TestCut cuts files at every byte, or every third. What is read is a part of the whole, and
// grows with the file.
func TestCut(t *testing.T) {
	whole := small()
	files := map[string][]byte{"ours": pickled(t, whole), "JSON lines": jsonLines(t, whole), "gzip": gzipped(t, pickled(t, whole)), "zstd": zstandard(t, pickled(t, whole))}
	p := planter{age: compiled, r: rand.New(rand.NewPCG(1, 1)), frames: map[Frame]*shared{}, lists: map[*Stack]*shared{}}
	for _, s := range styles {
		files[s.String()] = assemble(s, p.tree(whole.degrade(compiled)))
	}
	for name, file := range files {
		most, last, step := 0, 0, 3
		if name == "ours" || name == styles[0].String() {
			step = 1
		}
		for n := 0; n < len(file); n += step {
			s, err := Read(bytes.NewReader(file[:n]))
			switch {
			case err != nil && s == nil:
				if most > 0 {
					t.Fatalf("%s, %d of %d bytes: %v, after %d lines were read of less", name, n, len(file), err, most)
				}
				continue
			case err != nil || s.Cut == nil && name != "gzip" && name != "JSON lines":
				t.Fatalf("%s, %d of %d bytes: error %v, snapshot %v", name, n, len(file), err, s)
			}
			got := countRows(t, name, s, whole)
			if got < last {
				t.Fatalf("%s, %d of %d bytes: %d rows, of less %d", name, n, len(file), got, last)
			}
			most, last = max(most, got), got
		}
		if most < 5 && name != "zstd" && name != styles[5].String() { // which are complete only at the end
			t.Errorf("%s: at most %d segments and events were read of a cut file", name, most)
		}
	}
}

// countRows checks that a cut snapshot is the begin of the whole and gives the
// number of its segments and events.
func countRows(t *testing.T, name string, s, whole *Snapshot) int {
	t.Helper()
	n := len(s.Segments)
	for i, g := range s.Segments {
		if w := whole.Segments[i]; g.Addr != w.Addr || g.Size != w.Size || len(g.Blocks) != len(w.Blocks) {
			t.Fatalf("%s: segment %+v, want %+v", name, g, w)
		}
	}
	for i, tr := range s.Traces {
		n += tr.Len()
		for j, e := range tr.All() {
			if w := whole.Traces[i].Entry(j); e.Action != w.Action || e.Addr != w.Addr || e.Size != w.Size || !reflect.DeepEqual(e.Stack.Frames(), w.Stack.Frames()) {
				t.Fatalf("%s: event %+v, want %+v", name, e, w)
			}
		}
	}
	return n
}

// TestReaderErrors checks that an error of the reader itself ends the reading.
func TestReaderErrors(t *testing.T) {
	disk := errors.New("disk failed")
	file := pickled(t, small())
	for name, file := range map[string][]byte{"pickle": file, "gzip": gzipped(t, file), "zstd": zstandard(t, file), "JSON lines": jsonLines(t, small())} {
		for n := 0; n < len(file)-1; n += 3 {
			if s, err := Read(io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(disk))); s != nil || !errors.Is(err, disk) {
				// A pickle may be complete, and a checksum not yet read.
				if err == nil && n > len(file)-9 {
					continue
				}
				t.Fatalf("%s, failure at byte %d of %d: snapshot %v, error %v", name, n, len(file), s, err)
			}
		}
	}
	if _, err := Read(stuck{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: %v", err)
	}
}

// stuck gives neither bytes nor errors.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestReadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "small.pickle")
	if err := os.WriteFile(name, pickled(t, small()), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, name, s, small())
	if _, err := ReadFile(name + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if _, err := ReadFile(name); !errors.As(err, &format) || !strings.Contains(err.Error(), name) {
		t.Errorf("an empty file: %v", err)
	}
}

// TestTotals: what a file says of a segment is kept, and what it leaves out is
// counted.
func TestTotals(t *testing.T) {
	block := pairs{"address", 512, "size", 1024, "requested_size", 1000, "state", "active_allocated"}
	pending := pairs{"address", 1536, "size", 512, "requested_size", 4, "state", "active_pending_free"}
	for _, c := range []struct {
		told pairs
		want Totals
	}{
		{pairs{}, Totals{}},
		{pairs{"allocated_size", 7}, Totals{true, 7, 1536, 1004}},
		{pairs{"allocated_size", 1024, "active_size", 9}, Totals{true, 1024, 9, 1004}},
		{pairs{"requested_size", 0}, Totals{true, 1024, 1536, 0}},
	} {
		segment := append(pairs{"device", 0, "address", 512, "total_size", 2048, "blocks", items{block, pending}}, c.told...)
		s := mustRead(t, "totals", assemble(styles[2], pairs{"segments", items{segment}, "device_traces", items{}}))
		if got := s.Segments[0].Totals; got != c.want {
			t.Errorf("%v: %+v, want %+v", c.told, got, c.want)
		}
	}
}

// TestOddities: a value that is not what its key says is counted, and the first
// is told.
func TestOddities(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		want  string // empty: nothing is odd
		size  uint64
	}{
		{"size", 512, "", 512}, {"size", 512.0, "", 512}, {"size", uint64(1) << 62, "", 1 << 62},
		{"size", "512", `the size of the event at byte`, 0}, {"size", "512", `is the text "512"`, 0},
		{"size", -512, "is -512", 0}, {"size", nil, "is missing, or no number", 0}, {"size", true, "is a truth value", 1},
		{"size", uint64(1) << 63, "2⁶³ or more", 1 << 63}, {"size", 1.5, "is 1.5", 1}, {"size", math.NaN(), "is NaN", 0}, {"size", math.Inf(1), "is +Inf", math.MaxUint64},
		{"other", 1, "the size of the event", 0}, {"addr", "x", "the addr of the event", 8}, {"device_free", -1, "the device_free of the event", 8},
		{"addr", -1, "", 8}, {"time_us", "now", "the time_us", 8}, {"stream", items{3, 4, 5}, "the stream", 8},
	} {
		event := pairs{"action", "oom", c.key, c.value}
		if c.key != "size" && c.key != "other" {
			event = append(event, "size", 8)
		}
		s := mustRead(t, c.key, assemble(styles[2], pairs{"segments", items{}, "device_traces", items{items{event}}}))
		odd := s.Oddities
		if (odd.Count == 1) != (c.want != "") || !strings.Contains(odd.First, c.want) || s.Traces[0].Entry(0).Size != c.size {
			t.Errorf("%s %v: %+v, want %q; size %d", c.key, c.value, odd, c.want, s.Traces[0].Entry(0).Size)
		}
	}
	block := pairs{"address", 0, "size", "a", "requested_size", -1, "state", "active_allocated"}
	s := mustRead(t, "blocks", assemble(styles[2], pairs{"segments", items{pairs{"address", 0, "allocated_size", nil, "blocks", items{block}}}}))
	if s.Oddities.Count != 4 || !strings.Contains(s.Oddities.First, `the size of the block`) {
		t.Errorf("a segment: %+v", s.Oddities)
	}
}

// TestDamage: what can be read to its end and yet is not as it was written says
// so.
func TestDamage(t *testing.T) {
	plain := assemble(styles[2], pairs{"segments", items{}, "device_traces", items{items{pairs{"action", "alloc", "addr", 1, "size", 2}}}})
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(plain)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	zipped := b.Bytes()
	wrong := bytes.Clone(zipped)
	wrong[len(wrong)-6] ^= 1
	for name, c := range map[string]struct {
		file []byte
		want string // empty: sound
	}{
		"plain":            {plain, ""},
		"zipped":           {zipped, ""},
		"a wrong checksum": {wrong, "checksum"},
		"no checksum":      {zipped[:len(zipped)-8], "damaged or cut"},
		"bytes behind":     {append(bytes.Clone(zipped), "more"...), "damaged or cut"},
		"two pickles":      {append(bytes.Clone(plain), plain...), "goes on after the record"},
	} {
		s := mustRead(t, name, c.file)
		if (s.Damage == nil) != (c.want == "") || s.Damage != nil && !strings.Contains(s.Damage.Error(), c.want) || s.Traces[0].Len() != 1 {
			t.Errorf("%s: %v, want %q", name, s.Damage, c.want)
		}
	}
}

// TestListsInLists: a small file cannot ask for much memory by lists that hold
// one another.
func TestListsInLists(t *testing.T) {
	file := "\x80\x04)" + strings.Repeat("\x85", 1<<20) + "."
	if _, err := Read(strings.NewReader(file)); err == nil || !strings.Contains(err.Error(), "lists in lists") {
		t.Error(err)
	}
}
