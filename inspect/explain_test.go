package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// explainWorst explains a snapshot as a user sees it who names no device.
func explainWorst(s *trace.Snapshot) (*Report, error) {
	h, err := Worst(s)
	if err != nil {
		return nil, err
	}
	return h.Explain(), nil
}

// program is a made-up training job that writes a record as PyTorch would.
type program struct {
	t    trace.Trace
	next uint64
	time int64
	s    trace.Snapshot
}

func stack(lines ...string) *trace.Stack {
	var frames []trace.Frame
	for _, l := range lines {
		var f trace.Frame
		if _, err := fmt.Sscanf(l, "%s %d %s", &f.File, &f.Line, &f.Func); err != nil {
			panic(err)
		}
		frames = append(frames, f)
	}
	return trace.NewStack(frames)
}

var (
	setup    = stack("/x/site-packages/torch/nn/modules/module.py 10 _apply", "/home/me/train.py 5 main")
	forward  = stack("/x/site-packages/torch/nn/functional.py 7 linear", "/x/site-packages/zoo/net.py 42 forward", "/home/me/train.py 9 main")
	backward = stack("/x/site-packages/torch/autograd/graph.py 824 _engine_run_backward", "/home/me/train.py 10 main")
	update   = stack("/x/site-packages/torch/optim/adamw.py 200 step", "/home/me/train.py 11 main")
)

func (p *program) event(a trace.Action, addr, size uint64, s *trace.Stack) {
	p.time++
	p.t.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, TimeUS: p.time}, Stack: s})
}

func (p *program) alloc(size uint64, s *trace.Stack) uint64 {
	p.next += 1 << 30
	p.event(trace.Alloc, p.next, size, s)
	return p.next
}

func (p *program) free(addr, size uint64) {
	p.event(trace.FreeRequested, addr, size, nil)
	p.event(trace.FreeCompleted, addr, size, nil)
}

// step is one of training: activations, a gradient, the update; what keep
// says stays.
func (p *program) step(first bool, keep uint64) {
	act := p.alloc(64<<20, forward)
	if keep > 0 {
		p.alloc(keep, forward)
	}
	grad := p.alloc(16<<20, backward)
	tmp := p.alloc(8<<20, backward)
	p.free(tmp, 8<<20)
	p.free(act, 64<<20)
	if first {
		p.alloc(32<<20, update)
	}
	scratch := p.alloc(1<<20, update)
	p.free(scratch, 1<<20)
	p.free(grad, 16<<20)
	p.s.Annotations = append(p.s.Annotations, trace.Annotation{Name: "Optimizer.step#AdamW.step", TimeUS: p.time})
}

func (p *program) snapshot() *trace.Snapshot {
	p.s.Traces = []*trace.Trace{&p.t}
	return &p.s
}

func train(steps int, keep func(step int) uint64) *program {
	p := &program{}
	p.alloc(16<<20, setup)
	for i := range steps {
		p.step(i == 0, keep(i))
	}
	return p
}

func TestHealthy(t *testing.T) {
	r, err := explainWorst(train(10, func(int) uint64 { return 0 }).snapshot())
	if err != nil || r.Verdict != Healthy {
		t.Fatalf("verdict %v, error %v", r, err)
	}
	want := map[string]uint64{"parameter": 16 << 20, "activation": 64 << 20, "gradient": 16 << 20, "workspace": 8 << 20, "optimizer_state": 32 << 20}
	for _, c := range r.Causes {
		if bytes, ok := want[c.What]; ok && bytes != c.Bytes {
			t.Errorf("%s: %d bytes, want %d", c.What, c.Bytes, bytes)
		}
		delete(want, c.What)
	}
	if len(want) > 0 {
		t.Errorf("the report does not name %v: %+v", want, r.Causes)
	}
}

func TestLeakIsNamed(t *testing.T) {
	for _, how := range []string{"annotations of Optimizer.step", "stacks of optimizer steps", "periodicity"} {
		p := train(12, func(int) uint64 { return 4 << 20 })
		switch how {
		case "stacks of optimizer steps":
			p.s.Annotations = nil
		case "periodicity":
			p = &program{}
			for range 12 {
				tmp := p.alloc(1<<20, stack("/home/me/eval.py 3 main"))
				p.alloc(4<<20, forward)
				p.free(tmp, 1<<20)
			}
		}
		r, err := explainWorst(p.snapshot())
		if err != nil || r.Verdict != Leak {
			t.Errorf("%s: verdict %v, error %v", how, r, err)
			continue
		}
		for _, want := range []string{"4MiB more lives after every step", "net.py:42 forward (called from train.py:9 main)"} {
			if !strings.Contains(r.Summary, want) {
				t.Errorf("%s: no %q in %q", how, want, r.Summary)
			}
		}
		if text := fmt.Sprint(r.Causes); !strings.Contains(text, how) {
			t.Errorf("no %q in %s", how, text)
		}
	}
}

// TestGrowthThatIsNoLeak: what grows at first, or now and then, is not called
// a leak.
func TestGrowthThatIsNoLeak(t *testing.T) {
	for name, keep := range map[string]func(step int) uint64{
		"in the first two steps":    func(i int) uint64 { return map[bool]uint64{true: 64 << 20}[i < 2] },
		"in every fourth step":      func(i int) uint64 { return map[bool]uint64{true: 8 << 20}[i%4 == 0] },
		"less than any that counts": func(i int) uint64 { return 4 << 10 },
	} {
		r, err := explainWorst(train(16, keep).snapshot())
		if err != nil || r.Verdict != Healthy {
			t.Errorf("growth %s: verdict %v, error %v", name, r, err)
		}
	}
}

func TestFailedRequest(t *testing.T) {
	for want, free := range map[Verdict]uint64{Limit: 10 << 30, Capacity: 1 << 20} {
		p := train(2, func(int) uint64 { return 0 })
		p.event(trace.OOM, free, 2<<30, forward)
		p.step(false, 0)
		r, err := explainWorst(p.snapshot())
		if err != nil || r.Verdict != want || *r.RequestBytes != 2<<30 || *r.FreeBytes != free {
			t.Errorf("%d bytes free: report %+v, error %v, want %s", free, r, err, want)
		}
	}
}

func TestNothingToExplain(t *testing.T) {
	if r, err := explainWorst(&trace.Snapshot{}); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("report %v, error %v", r, err)
	}
}

// FuzzExplain explains records of arbitrary events.
func FuzzExplain(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &program{}
		stacks := []*trace.Stack{nil, setup, forward, backward, update}
		for i := 0; i+3 < len(data); i += 4 {
			p.event(trace.Action(data[i]%12), uint64(data[i+1])<<20, uint64(data[i+2])<<(data[i+2]%56), stacks[int(data[i+3])%len(stacks)])
		}
		if len(data) > 0 {
			p.s.Segments = []trace.Segment{{Device: int(data[0]) - 1, Addr: 1 << 20, Size: 1 << 62, Blocks: []trace.Block{{Addr: 1 << 20, Size: 1 << 62, Requested: 1 << 62}}}}
		}
		r, err := explainWorst(p.snapshot())
		if err == nil && r.Verdict == "" {
			t.Errorf("no verdict for %v", data)
		}
	})
}

// phases is a job that reserves much in its first phase and has its peak of live
// bytes, of one block, in the second.
func phases(first uint64) *trace.Snapshot {
	p := &program{}
	p.event(trace.SegmentAlloc, 1<<40, first, setup)
	p.event(trace.Alloc, 1<<40, 100<<20, setup)
	p.free(1<<40, 100<<20)
	p.event(trace.SegmentFree, 1<<40, first, nil)
	p.event(trace.SegmentAlloc, 2<<40, 200<<20, forward)
	p.event(trace.Alloc, 2<<40, 200<<20, forward)
	p.s.Segments = []trace.Segment{{Addr: 2 << 40, Size: 200 << 20, Blocks: []trace.Block{{Addr: 2 << 40, Size: 200 << 20, Requested: 200 << 20}}}}
	return p.snapshot()
}

// TestHeadline: what is reserved is told at the peak of live bytes and at most,
// and a word is said where that is much more than is used.
func TestHeadline(t *testing.T) {
	for first, want := range map[uint64]string{
		100 << 20: "200MiB live at the peak, with 200MiB reserved",
		600 << 20: "200MiB live at the peak, with 200MiB reserved then and 600MiB at most",
	} {
		r, err := explainWorst(phases(first))
		if err != nil || r.Verdict != Healthy || !strings.HasSuffix(r.Summary, ": "+want) || *r.PeakReservedBytes != max(first, 200<<20) {
			t.Errorf("%+v, %v, want %q", r, err, want)
			continue
		}
		if hint := strings.Contains(fmt.Sprint(r.Actions), "3.0 times what is live at the peak was reserved"); hint != (first == 600<<20) {
			t.Errorf("%d reserved at first: %v", first, r.Actions)
		}
	}
}

// TestNoSegments: what was not recorded is not called nothing.
func TestNoSegments(t *testing.T) {
	r, err := explainWorst(train(2, func(int) uint64 { return 0 }).snapshot())
	if err != nil || !strings.HasSuffix(r.Summary, "live at the peak; the record does not tell what was reserved") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestOtherSettingsThatChangeNothing: a replay that reserves as much is not
// shown as one that would not help.
func TestOtherSettingsThatChangeNothing(t *testing.T) {
	p := &program{}
	p.event(trace.SegmentAlloc, 1<<40, 2<<20, setup)
	p.event(trace.Alloc, 1<<40, 1000, setup)
	p.s.Segments = []trace.Segment{{Addr: 1 << 40, Size: 2 << 20, Small: true, Blocks: []trace.Block{
		{Addr: 1 << 40, Size: 1024, Requested: 1000}, {Addr: 1<<40 + 1024, Size: 2<<20 - 1024, State: trace.Free}}}}
	r, err := explainWorst(p.snapshot())
	if err != nil || r.Verdict != Healthy || len(r.Actions)+len(r.Unhelpful) > 0 || r.Unhelpful == nil {
		t.Errorf("%+v, %v", r, err)
	}
	if text := fmt.Sprint(r.Causes); !strings.Contains(text, "1 block}") || strings.Contains(text, "1 blocks") {
		t.Error(text)
	}
}

// TestContradictions: a record that contradicts itself is healthy never, and a
// failure stays what it is.
func TestContradictions(t *testing.T) {
	p := sound()
	p.event(trace.FreeCompleted, 2<<30+512, 700, nil)
	r, err := explainWorst(p.snapshot())
	if err != nil || r.Verdict != Unknown || !strings.HasPrefix(r.Summary, "this record contradicts itself in 1 place (first: a block of 700B is given back that is gone since event 7)") {
		t.Errorf("%+v, %v", r, err)
	}
	p.event(trace.OOM, 1<<20, 1<<30, nil)
	r, err = explainWorst(p.snapshot())
	if err != nil || r.Verdict != Capacity || !strings.Contains(r.Summary, "; but this record contradicts itself") {
		t.Errorf("%+v, %v", r, err)
	}
	p = sound()
	p.s.Oddities = trace.Oddities{Count: 3, First: "a size that is none"}
	if r, err = explainWorst(p.snapshot()); err != nil || r.Verdict != Unknown || !strings.Contains(r.Summary, "3 places (first: a size that is none)") {
		t.Errorf("%+v, %v", r, err)
	}
	p = sound()
	p.time = 1
	p.event(trace.SnapshotTaken, 0, 0, nil)
	if r, err = explainWorst(p.snapshot()); err != nil || r.Verdict != Healthy {
		t.Errorf("time goes backwards: %+v, %v", r, err)
	}
}

// TestManyStreams: a record of very many streams is explained without trying
// Headroom's allocator, whose memory grows with them.
func TestManyStreams(t *testing.T) {
	p := &program{}
	for i := range mostStreams + 1 {
		addr := uint64(i+1) << 30
		p.time++
		for _, e := range []trace.Event{{Action: trace.SegmentAlloc, Size: 2 << 20}, {Action: trace.Alloc, Size: 512}} {
			e.Addr, e.Stream, e.TimeUS = addr, i, p.time
			p.t.Append(trace.Entry{Event: e})
		}
	}
	s := p.snapshot()
	if _, err := Replay(s, Options{Policy: Headroom}); err == nil || !strings.Contains(err.Error(), "the record uses 1025 streams") {
		t.Error(err)
	}
	if r, err := explainWorst(s); err != nil || strings.Contains(fmt.Sprint(r.Actions, r.Unhelpful), "Headroom's allocator") {
		t.Errorf("%+v, %v", r, err)
	}
}
