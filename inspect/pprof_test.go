package inspect

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// profileOf writes a profile and reads it back.
func profileOf(t *testing.T, s *trace.Snapshot) *profile.Profile {
	t.Helper()
	var b bytes.Buffer
	if err := WritePprof(&b, s, 0); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPprof(t *testing.T) {
	p := &program{}
	p.alloc(100, stack("/x/site-packages/torch/nn/modules/module.py 10 _apply", "/home/me/train.py 5 <module>"))
	p.alloc(300, stack("/x/site-packages/zoo/net.py 42 forward", "native.cpp 0 PyEval", `C:\me\train.py 9 <lambda>`))
	p.alloc(300, stack("/x/site-packages/zoo/net.py 42 forward", "native.cpp 0 PyEval", `C:\me\train.py 9 <lambda>`))
	p.alloc(50, stack("engine.cpp 0 torch::autograd::Engine::run"))
	p.free(p.alloc(7, nil), 7)
	got := profileOf(t, p.snapshot())
	if got.DefaultSampleType != "inuse_space" || len(got.SampleType) != 2 || got.TimeNanos != 5000 {
		t.Errorf("%v", got)
	}
	type sample struct {
		functions, purpose, stream string
		objects, space, bytes      int64
	}
	want := map[sample]bool{
		{"_apply:module.py module:train.py ", "parameter", "0", 1, 100, 100}: true,
		{"forward:net.py lambda:train.py ", "activation", "0", 1, 300, 300}:  true,
		{"torch::autograd::Engine::run ", "workspace", "0", 1, 50, 50}:       true,
		{"no stack recorded ", "other", "0", 1, 7, 7}:                        true,
	}
	objects := int64(0)
	for _, s := range got.Sample {
		x := sample{"", s.Label["purpose"][0], s.Label["stream"][0], s.Value[0], s.Value[1], s.NumLabel["bytes"][0]}
		for _, l := range s.Location {
			x.functions += l.Line[0].Function.Name + " "
		}
		if !want[x] {
			t.Errorf("sample %+v", x)
		}
		objects += x.objects
	}
	if objects != 5 {
		t.Errorf("%d blocks", objects)
	}
}

// TestPprofAddsUp: a profile holds what the report says, and shares its
// functions and locations.
func TestPprofAddsUp(t *testing.T) {
	s := load(t, "leak_cache.pickle.gz")
	got := profileOf(t, s)
	var objects, space int64
	for _, x := range got.Sample {
		objects += x.Value[0]
		space += x.Value[1]
	}
	h := NewHistory(s, 0)
	var want int64
	live := h.liveLeases(h.Peak())
	for _, l := range live {
		want += int64(l.Size)
	}
	if objects != int64(len(live)) || space != want || want == 0 {
		t.Errorf("%d blocks of %d bytes, want %d of %d", objects, space, len(live), want)
	}
	names := map[string]bool{}
	for _, f := range got.Function {
		if names[f.Name+f.Filename] {
			t.Errorf("%s stands twice", f.Name)
		}
		names[f.Name+f.Filename] = true
	}
}

func TestExportOfUnknownDevice(t *testing.T) {
	s := sound().snapshot()
	for _, d := range []int{-1, 1} {
		if WritePprof(io.Discard, s, d) == nil || WritePerfetto(io.Discard, s, d) == nil {
			t.Errorf("device %d was written", d)
		}
	}
}

func TestWorst(t *testing.T) {
	s := train(2, func(int) uint64 { return 0 }).snapshot()
	s.Traces = append([]*trace.Trace{{}}, s.Traces...)
	if h, err := Worst(s); err != nil || h.Device() != 1 {
		t.Errorf("%v, %v", h, err)
	}
	s.Traces[0].Append(trace.Entry{Event: trace.Event{Action: trace.OOM, Addr: 1, Size: 2}})
	if h, err := Worst(s); err != nil || h.Device() != 0 || !slices.Equal(Devices(s), []int{0, 1}) {
		t.Errorf("%v, %v: the one that ran out of memory is the worst; devices %v", h, err, Devices(s))
	}
	if _, err := Worst(&trace.Snapshot{}); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("nothing: %v", err)
	}
}

// TestExplainProfile: what WritePprof wrote is read back with all bytes, and the report
// says how to see what grows.
func TestExplainProfile(t *testing.T) {
	var b bytes.Buffer
	if err := WritePprof(&b, load(t, "leak_cache.pickle.gz"), 0); err != nil {
		t.Fatal(err)
	}
	want := profileOf(t, load(t, "leak_cache.pickle.gz"))
	var space int64
	for _, x := range want.Sample {
		space += x.Value[1]
	}
	s, err := trace.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	r := NewHistory(s, 0).Explain()
	if r.Verdict != Unknown || !strings.Contains(r.Summary, size.Format(uint64(space))) || !strings.Contains(strings.Join(r.Actions, ""), "headroom diff") {
		t.Errorf("%v: %s; %q; %d bytes were live", r.Verdict, r.Summary, r.Actions, space)
	}
}
