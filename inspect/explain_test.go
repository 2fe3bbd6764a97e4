package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

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
	r, err := ExplainSnapshot(train(10, func(int) uint64 { return 0 }).snapshot())
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
		r, err := ExplainSnapshot(p.snapshot())
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
		r, err := ExplainSnapshot(train(16, keep).snapshot())
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
		r, err := ExplainSnapshot(p.snapshot())
		if err != nil || r.Verdict != want || *r.RequestBytes != 2<<30 || *r.FreeBytes != free {
			t.Errorf("%d bytes free: report %+v, error %v, want %s", free, r, err, want)
		}
	}
}

func TestNothingToExplain(t *testing.T) {
	if r, err := ExplainSnapshot(&trace.Snapshot{}); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("report %v, error %v", r, err)
	}
}

// FuzzExplainSnapshot explains records of arbitrary events.
func FuzzExplainSnapshot(f *testing.F) {
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
		r, err := ExplainSnapshot(p.snapshot())
		if err == nil && r.Verdict == "" {
			t.Errorf("no verdict for %v", data)
		}
	})
}
