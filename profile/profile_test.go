package profile

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/story"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

var update = flag.Bool("update", false, "rewrite the stories")

// Sizes of the step: sequences, tokens of each, and those of gpt2-nano.
const (
	batch, seq                  = 2, 32
	vocab, width, heads, layers = 256, 128, 4, 4
)

// job is gpt2-nano on a device.
type job struct {
	rt    *tensor.Runtime
	model *nn.GPT2
	opt   *nn.AdamW
}

func newJob(t testing.TB, dev device.Device) *job {
	t.Helper()
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	c, err := nn.LookupGPT2("gpt2-nano")
	if err != nil {
		t.Fatal(err)
	}
	j := &job{rt: tensor.New(mem, stream)}
	j.model = nn.NewGPT2(j.rt, c, 1)
	j.opt = nn.NewAdamW(j.model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8})
	t.Cleanup(func() {
		nn.Release(j.model)
		j.opt.Release()
		for _, close := range []func() error{j.rt.Sync, mem.Close, stream.Close, dev.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return j
}

func host(t testing.TB) *job {
	t.Helper()
	dev, err := device.Open("host:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	return newJob(t, dev)
}

// step trains once, with look called before backward, and gives the loss.
func (j *job) step(look func(loss *tensor.Tensor)) (value float32) {
	j.rt.Range("ProfilerStep#1", func() {
		data := make([]int32, batch*seq)
		for i := range data {
			data[i] = int32(i * 37 % vocab)
		}
		tokens := j.rt.FromInt32s(trace.Input, data, batch, seq)
		defer tokens.Release()
		var loss *tensor.Tensor
		j.rt.Range("forward", func() { loss = j.model.Loss(tokens, tokens) })
		defer loss.Release()
		value = loss.Float32s()[0]
		look(loss)
		loss.Backward(1)
		j.rt.Range("optimizer", func() {
			scale, norm := nn.ClipGradNorm(j.model.Parameters(), 1)
			j.opt.Step(1e-3, scale)
			scale.Release()
			norm.Release()
		})
		nn.ZeroGrad(j.model)
	})
	return value
}

// watch calls p around the model's modules.
func (j *job) watch(p *Profiler) {
	j.model.Hooks.Before = func(name string, _ nn.Module, _ *tensor.Tensor) { p.Enter(name) }
	j.model.Hooks.After = func(string, nn.Module, *tensor.Tensor, *tensor.Tensor) { p.Leave() }
}

// profiled profiles one step by a clock that goes on by a millisecond whenever
// it is read.
func (j *job) profiled(look func(*tensor.Tensor)) (*Profile, *trace.Snapshot, float32) {
	var now time.Duration
	p := startWith(j.rt, func() time.Duration { now += time.Millisecond; return now })
	j.watch(p)
	loss := j.step(look)
	*j.model.Hooks = nn.Hooks{}
	return p.Stop(), p.Snapshot(), loss
}

func nothing(*tensor.Tensor) {}

// TestStory is the tables of a step of gpt2-nano.
func TestStory(t *testing.T) {
	var p *Profile
	story.Play(t, "testdata/*.txt", *update, func(t *testing.T) story.Command {
		return func(out *strings.Builder, words []string) {
			switch words[0] {
			case "profile": // on a device, with so many blocks recomputed
				var j *job
				if words[1] == "null" {
					j = onNull(t)
				} else {
					j = host(t)
				}
				recompute, _ := strconv.Atoi(words[2])
				j.model.Around = func(i int, x *tensor.Tensor, block func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
					if i < recompute {
						return tensor.Checkpoint(x, block)
					}
					return block(x)
				}
				p, _, _ = j.profiled(nothing)
			case "text": // by a column, so many rows
				n, _ := strconv.Atoi(words[2])
				var text strings.Builder
				if err := p.WriteText(&text, Table{Sort: words[1], Top: n}); err != nil {
					t.Error(err)
				}
				out.WriteString(strings.ReplaceAll(text.String(), "\n\n", "\n"))
			default:
				t.Fatalf("what is %v?", words)
			}
		}
	})
}

// launches passes launches on to the profiler of the moment.
type launches struct{ p *Profiler }

func onNull(t testing.TB) *job {
	t.Helper()
	dev, err := device.OpenNull(device.NullOptions{Capacity: 64 << 20, Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	return newJob(t, dev)
}

// TestSums: the self times of operators, and of modules, add up to the total,
// and the sums of a module's parts to what is within it; what is allocated is
// what the allocator's events say.
func TestSums(t *testing.T) {
	p, s, _ := host(t).profiled(nothing)
	var events uint64
	for _, e := range s.Traces[0].All() {
		if e.Action == trace.Alloc {
			events += e.Size
		}
	}
	if p.Total == 0 || events == 0 {
		t.Fatalf("total %v, %d bytes", p.Total, events)
	}
	within := map[string]time.Duration{}
	for what, rows := range map[string][]Row{"operators": p.Operators, "modules": p.Modules} {
		var self time.Duration
		var allocated uint64
		for _, r := range rows {
			self += r.Self
			allocated += r.Allocated
			within[r.Name] = r.Within
			if r.Self > r.Within || r.Peak > p.PeakBytes {
				t.Errorf("%s: %+v", what, r)
			}
		}
		if self != p.Total || allocated != events {
			t.Errorf("%s: %v of %v, %d of %d bytes", what, self, p.Total, allocated, events)
		}
	}
	var parts time.Duration
	for _, r := range p.Modules {
		if strings.HasPrefix(r.Name, "transformer.h.2.") {
			parts += r.Within
		} else if r.Name == "transformer.h.2" {
			parts += r.Self
		}
	}
	if parts != within["transformer.h.2"] || parts == 0 {
		t.Errorf("the parts of a block take %v, the block %v", parts, within["transformer.h.2"])
	}
	const around = 2 * time.Millisecond // before the step and after it
	if within["ProfilerStep#1"] != p.Total-around {
		t.Errorf("the step takes %v of %v", within["ProfilerStep#1"], p.Total)
	}
}

// TestKept: what the rows keep adds up to what tensor.Kept lists, and that is
// what one can work out: for each element of the residual stream 40 bytes a
// block, the softmax's and the normalisations' numbers, the last
// normalisation's input, the tokens, and the gradients of the output layer's
// input and weight.
func TestKept(t *testing.T) {
	var listed uint64
	p, _, _ := host(t).profiled(func(loss *tensor.Tensor) {
		for _, k := range loss.Kept() {
			listed += k.Bytes
		}
	})
	const rows = batch * seq
	const perLayer = 10*rows*width + rows*heads + 4*rows // attention's sums; mean and deviation, twice
	const want = 4 * (layers*perLayer + rows*width + 2*rows + rows + (rows+vocab)*width)
	var operators, modules uint64
	for _, r := range p.Operators {
		operators += r.Kept
	}
	for _, r := range p.Modules {
		modules += r.Kept
	}
	if p.KeptBytes != listed || operators != listed || modules != listed || listed != want {
		t.Errorf("kept %d, by operators %d, by modules %d, listed %d; want %d", p.KeptBytes, operators, modules, listed, want)
	}
}

// TestProfilingChangesNothing: losses are the same bit for bit, with and without.
func TestProfilingChangesNothing(t *testing.T) {
	plain, watched := host(t), host(t)
	for i := range 3 {
		want := plain.step(nothing)
		if _, _, got := watched.profiled(nothing); got != want {
			t.Errorf("step %d: loss %v when profiled, %v otherwise", i, got, want)
		}
	}
}

// TestLaunches: where the device tells of launches, their sums over operators
// and over modules are all of them.
func TestLaunches(t *testing.T) {
	var all launchSum
	told := &launches{}
	dev, err := device.OpenNull(device.NullOptions{Capacity: 64 << 20, Virtual: true, OnLaunch: func(l *device.Launch) {
		if told.p != nil {
			all.add(1, l.Flops, l.Bytes)
			told.p.Launched(l)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(t, dev)
	told.p = Start(j.rt)
	j.watch(told.p)
	j.step(nothing)
	p := told.p.Stop()
	told.p = nil
	for what, rows := range map[string][]Row{"operators": p.Operators, "modules": p.Modules} {
		var sum launchSum
		for _, r := range rows {
			sum.add(r.Launches, r.Flops, r.Moved)
		}
		if sum != all || all.n == 0 || all.flops == 0 {
			t.Errorf("%s: %+v of %+v", what, sum, all)
		}
	}
	var text strings.Builder
	if err := p.WriteText(&text, Table{Sort: "flops"}); err != nil || !strings.Contains(text.String(), "flops") {
		t.Errorf("%v\n%s", err, &text)
	}
}

type launchSum struct{ n, flops, bytes uint64 }

func (s *launchSum) add(n, flops, bytes uint64) {
	s.n += n
	s.flops += flops
	s.bytes += bytes
}

// TestSnapshot: the record can be explained and drawn, and its annotations,
// written and read again, are the parts of the step, well nested. They change
// no verdict.
func TestSnapshot(t *testing.T) {
	_, s, _ := host(t).profiled(nothing)
	var file bytes.Buffer
	if err := s.WritePickle(&file); err != nil {
		t.Fatal(err)
	}
	read, err := trace.Read(&file)
	if err != nil || !slices.Equal(read.Annotations, s.Annotations) {
		t.Fatalf("annotations %v, read again %v: %v", s.Annotations, read.Annotations, err)
	}
	var got, open []string
	in := map[string][]string{} // by part of the step: the modules that begin in it, with those around them
	var last int64
	for _, a := range s.Annotations {
		module := strings.HasPrefix(a.Name, "transformer.")
		switch n := len(open) - 1; {
		case a.Begin:
			open = append(open, a.Name)
		case n < 0 || open[n] != a.Name:
			t.Fatalf("%s ends in %q", a.Name, open)
		default:
			open = open[:n]
		}
		switch {
		case !module:
			got = append(got, fmt.Sprint(a.Name, " ", a.Begin))
		case a.Begin:
			in[open[1]] = append(in[open[1]], strings.Join(open[2:], " "))
		}
		if a.TimeUS < last || a.TimeUS < s.Traces[0].Entry(0).TimeUS-1e6 {
			t.Errorf("%+v lies before %d", a, last)
		}
		last = a.TimeUS
	}
	want := []string{"ProfilerStep#1 true", "forward true", "forward false", "backward true", "backward false", "optimizer true", "optimizer false", "ProfilerStep#1 false"}
	if !slices.Equal(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
	forward, backward := slices.Sorted(slices.Values(in["forward"])), slices.Sorted(slices.Values(in["backward"]))
	if !slices.Equal(forward, backward) || !slices.Contains(forward, "transformer.h.2 transformer.h.2.mlp.c_fc") || len(in) != 2 {
		t.Errorf("the modules are %q", in)
	}
	if first := in["backward"][0]; first != "transformer.ln_f" {
		t.Errorf("backward begins with %s", first)
	}
	var reports []string
	for _, s := range []*trace.Snapshot{s, read, {Segments: s.Segments, Traces: s.Traces, Settings: s.Settings}} {
		text, err := json.Marshal(inspect.NewHistory(s, 0).Explain())
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, string(text))
	}
	if reports[0] != reports[1] || reports[0] != reports[2] || !strings.Contains(reports[0], "HEALTHY") {
		t.Errorf("with annotations\n%s\nread again\n%s\nwithout\n%s", reports[0], reports[1], reports[2])
	}
	if err := inspect.WriteSVG(io.Discard, s, 0); err != nil {
		t.Error(err)
	}
}

// TestFailedStep: a step that fails inside a module ends all ranges and
// modules, and its profile still adds up.
func TestFailedStep(t *testing.T) {
	j := host(t)
	var now time.Duration
	p := startWith(j.rt, func() time.Duration { now += time.Millisecond; return now })
	j.watch(p)
	err := j.rt.Try(func() {
		j.rt.Range("step", func() {
			j.model.Blocks[0].Forward(j.rt.Full(1, 1, 2, width+1))
		})
	})
	*j.model.Hooks = nn.Hooks{}
	if err == nil || len(p.open) != 1 || len(p.path) != 0 {
		t.Errorf("error %v, %d ranges and modules %v are open", err, len(p.open), p.path)
	}
	out := p.Stop()
	var self time.Duration
	for _, r := range out.Operators {
		self += r.Self
	}
	if self != out.Total || out.Total == 0 {
		t.Errorf("%v of %v", self, out.Total)
	}
}

// TestSort orders by every column.
func TestSort(t *testing.T) {
	rows := []Row{{Name: "b", Self: 1, Calls: 3}, {Name: "a", Self: 1, Calls: 2}, {Name: "c", Self: 2, Kept: 1}}
	for by, want := range map[string]string{"self": "cab", "calls": "bac", "kept": "cab", "name": "abc", "flops": "abc"} {
		Sort(rows, by)
		if got := rows[0].Name + rows[1].Name + rows[2].Name; got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
	if len(Columns()) != len(columns)+1 {
		t.Error(Columns())
	}
	defer func() {
		if recover() == nil {
			t.Error("sorted by what is no column")
		}
	}()
	Sort(rows, "colour")
}

func TestFailingWriter(t *testing.T) {
	if err := new(Profile).WriteText(failing{}, Table{}); err != io.ErrShortWrite {
		t.Errorf("got %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
