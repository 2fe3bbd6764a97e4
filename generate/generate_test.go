package generate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// open gives a runtime on a device, which the test's end finds without handles
// and blocks.
func open(t testing.TB, name string) *tensor.Runtime {
	t.Helper()
	dev, err := device.Open(name)
	return on(t, dev, err)
}

func on(t testing.TB, dev device.Device, err error) *tensor.Runtime {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	t.Cleanup(func() {
		if n := rt.Live(); n != 0 {
			t.Errorf("%d handles were not released", n)
		}
		for _, close := range []func() error{rt.Sync, mem.Close, stream.Close, dev.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return rt
}

// lm is a model with the forward pass that training runs.
type lm struct {
	generate.Model
	forward func(tokens *tensor.Tensor) *tensor.Tensor
}

// logits is the forward pass over a whole text, without a cache; the last row.
func (m *lm) logits(rt *tensor.Runtime, tokens []int32) (last []float32) {
	rt.NoGrad(func() {
		x := rt.FromInt32s(trace.Input, tokens, 1, len(tokens))
		defer x.Release()
		y := m.forward(x)
		defer y.Release()
		all := y.Float32s()
		last = all[len(all)-m.Shape().Vocab:]
	})
	return last
}

// naive continues a text by the most probable token, from the whole text each
// time. It stops before a token that is too close a choice to depend on.
func (m *lm) naive(rt *tensor.Runtime, r generate.Request) (came []int32) {
	text := slices.Clone(r.Prompt)
	for len(came) < r.MaxTokens && len(text) <= m.Shape().Context {
		logits := m.logits(rt, text)
		next := int32(argmax(logits))
		best := logits[next]
		logits[next] = float32(math.Inf(-1))
		if best-logits[argmax(logits)] < 1e-4 {
			break
		}
		text, came = append(text, next), append(came, next)
		if slices.Contains(r.Stop, next) {
			break
		}
	}
	return came
}

// trials is a number of random trials: n, or fewer where the race detector
// makes each of them slow.
func trials(n int) int {
	if invariant.Slow {
		return n / 4
	}
	return n
}

// argmax is the place of the greatest, of equal ones the first.
func argmax(x []float32) int {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return best
}

// spread makes the initial weights larger, so that texts differ.
func spread(m nn.Module) {
	for _, p := range m.Parameters() {
		w := p.Float32s()
		for i := range w {
			if len(p.Shape()) > 1 {
				w[i] *= 8
			}
		}
		p.Set(w)
	}
}

func gpt2(t testing.TB, rt *tensor.Runtime) *lm {
	m := nn.NewGPT2(rt, nn.GPT2Config{Vocab: 40, Context: 48, Width: 24, Layers: 2, Heads: 3}, 1)
	spread(m)
	t.Cleanup(func() { nn.Release(m) })
	return &lm{generate.GPT2(m), m.Forward}
}

func moe(t testing.TB, rt *tensor.Runtime) *lm {
	m := nn.NewMoE(rt, nn.MoEConfig{Vocab: 40, Width: 24, Layers: 2, Experts: 3, TopK: 2, Hidden: 16, Heads: 3, Context: 48}, 1)
	spread(m)
	t.Cleanup(func() { nn.Release(m) })
	g, err := generate.MoE(m)
	if err != nil {
		t.Fatal(err)
	}
	return &lm{g, func(x *tensor.Tensor) *tensor.Tensor {
		y, balance := m.Forward(x)
		balance.Release()
		return y
	}}
}

// requests draws some, of which many begin alike.
func requests(r *rand.Rand, m *lm, n int) (all []generate.Request) {
	s := m.Shape()
	draw := func(n int) (v []int32) {
		for range n {
			v = append(v, int32(r.IntN(s.Vocab)))
		}
		return v
	}
	common := draw(s.Context / 2)
	for range n {
		prompt := slices.Concat(common[:r.IntN(len(common)+1)], draw(1+r.IntN(s.Context/4)))
		all = append(all, generate.Request{Prompt: prompt, MaxTokens: 1 + r.IntN(s.Context/2), Stop: draw(1)})
	}
	return all
}

// run continues all requests and gives what came.
func run(t *testing.T, e *generate.Engine, all []generate.Request) [][]int32 {
	t.Helper()
	came := make([][]int32, len(all))
	for _, r := range all {
		if _, err := e.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Run(context.Background(), func(k generate.Token) { came[k.Request] = append(came[k.Request], k.Token) }); err != nil {
		t.Fatal(err)
	}
	s := e.Stats()
	if s.Now.UsedBytes != 0 || s.Running+s.Waiting != 0 {
		t.Fatalf("afterwards pages are used: %+v", s)
	}
	return came
}

// TestSameAsWithoutCache continues random texts, many at a time, with few and
// with enough pages, shared or not, and compares with the forward pass over each
// whole text.
func TestSameAsWithoutCache(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var hits, preemptions, evictions int
	for name, model := range map[string]func(testing.TB, *tensor.Runtime) *lm{"gpt2": gpt2, "moe": moe} {
		t.Run(name, func(t *testing.T) {
			rt := open(t, "host:64MiB")
			m := model(t, rt)
			all := requests(r, m, 6)
			var want [][]int32
			for _, q := range all {
				want = append(want, m.naive(rt, q))
			}
			for i := range trials(12) {
				o := generate.Options{PageTokens: 1 + r.IntN(9), Rows: 1 + r.IntN(60), Alone: r.IntN(4) == 0}
				o.Pages = (m.Shape().Context+o.PageTokens-1)/o.PageTokens + r.IntN(20)
				o.Running = 1 + r.IntN(min(o.Rows, 6))
				if i == 0 {
					o = generate.Options{PageTokens: 1, Rows: 60, Pages: m.Shape().Context, Running: 5} // short of pages for sure
				}
				e, err := generate.New(rt, m, o)
				if err != nil {
					t.Fatal(err)
				}
				for i, got := range run(t, e, all) {
					if n := len(want[i]); len(got) < n || !slices.Equal(got[:n], want[i]) || n < len(got) && n > 0 && ended(all[i], want[i]) {
						t.Errorf("%+v: text %d goes on by\n%v, want\n%v", o, i, got, want[i])
					}
				}
				s := e.Stats()
				hits, preemptions, evictions = hits+s.HitTokens, preemptions+s.Preemptions, evictions+s.Evictions
				e.Close()
			}
		})
	}
	if hits == 0 || preemptions == 0 || evictions == 0 {
		t.Errorf("%d hits, %d preemptions, %d evictions: not all was tried", hits, preemptions, evictions)
	}
}

// ended says whether a text that went on by came is at its end.
func ended(r generate.Request, came []int32) bool {
	return len(came) == r.MaxTokens || slices.Contains(r.Stop, came[len(came)-1])
}

// listening is a model that tells its logits.
type listening struct {
	generate.Model
	heard func(logits []float32)
}

func (l listening) Logits(tokens, positions, last *tensor.Tensor, attend generate.Attend) *tensor.Tensor {
	y := l.Model.Logits(tokens, positions, last, attend)
	l.heard(y.Float32s())
	return y
}

// TestLogits compares the logits of one text, token after token, with those of
// the forward pass: within 1e-5 of the greatest.
func TestLogits(t *testing.T) {
	for name, model := range map[string]func(testing.TB, *tensor.Runtime) *lm{"gpt2": gpt2, "moe": moe} {
		rt := open(t, "host:64MiB")
		m := model(t, rt)
		var got [][]float32
		e, err := generate.New(rt, listening{m.Model, func(y []float32) { got = append(got, y) }}, generate.Options{PageTokens: 5, Pages: 10, Rows: 16})
		if err != nil {
			t.Fatal(err)
		}
		text := []int32{1, 2, 3, 5, 8, 13, 21, 34}
		came := run(t, e, []generate.Request{{Prompt: text, MaxTokens: 30}})[0]
		e.Close()
		if len(came) != 30 || len(got) != 30 {
			t.Fatalf("%s: %d tokens, %d logits", name, len(came), len(got))
		}
		for i, next := range came {
			want := m.logits(rt, text)
			scale := float64(want[argmax(want)])
			for j := range want {
				if d := math.Abs(float64(got[i][j] - want[j])); !(d <= 1e-5*math.Max(1, scale)) {
					t.Fatalf("%s: token %d: logit %d is %v, want %v", name, i, j, got[i][j], want[j])
				}
			}
			text = append(text, next)
		}
	}
}

// TestSampledAlike draws texts with a temperature, alone and among others: what
// comes depends on the seed alone.
func TestSampledAlike(t *testing.T) {
	rt := open(t, "host:64MiB")
	m := gpt2(t, rt)
	r := rand.New(rand.NewPCG(3, 4))
	all := requests(r, m, 6)
	for i := range all {
		all[i].Sampling = generate.Sampling{Temperature: 1.5, TopK: 12, TopP: 0.95, Seed: uint64(i)}
		all[i].Stop = nil
	}
	var together [][]int32
	for _, o := range []generate.Options{{PageTokens: 4, Pages: 14, Rows: 24}, {PageTokens: 7, Pages: 9, Rows: 20, Running: 1}} {
		e, err := generate.New(rt, m, o)
		if err != nil {
			t.Fatal(err)
		}
		came := run(t, e, all)
		e.Close()
		if together == nil {
			together = came
		}
		for i := range came {
			if !slices.Equal(came[i], together[i]) {
				t.Errorf("%+v: text %d goes on by %v, and among others by %v", o, i, came[i], together[i])
			}
		}
	}
}

// TestSharedPages runs texts with a common beginning at a time and counts: the
// beginning is there once, the page in which they depart is copied.
func TestSharedPages(t *testing.T) {
	rt := open(t, "host:64MiB")
	m := gpt2(t, rt)
	e, err := generate.New(rt, m, generate.Options{PageTokens: 4, Pages: 40, Rows: 20, Running: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	begin := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10} // two pages and a half
	add := func(tail ...int32) {
		if _, err := e.Add(generate.Request{Prompt: slices.Concat(begin, tail), MaxTokens: 8}); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		if _, err := e.Step(); err != nil {
			t.Fatal(err)
		}
	}
	add(11, 12)
	step()
	add(21, 22)
	add(31, 32)
	step()
	s := e.Stats()
	if want := 2 * 10; s.HitTokens != want {
		t.Errorf("%d tokens were found, want %d", s.HitTokens, want)
	}
	// Text 0 has 13 tokens in 4 pages, 1 and 2 have 12 in 3 each, of which 2 are shared.
	if used, shared, waste := s.Now.UsedBytes/s.PageBytes, s.Now.SharedBytes/s.PageBytes, s.Now.WasteBytes*4/s.PageBytes; used != 6 || shared != 4 || waste != 3 {
		t.Errorf("%d pages are used, %d saved, %d tokens of room are wasted; want 6, 4 and 3", used, shared, waste)
	}
	for s.Running > 0 {
		step()
		s = e.Stats()
	}
	if s.Now.UsedBytes != 0 || s.Now.IdleBytes == 0 {
		t.Errorf("at the end: %+v", s.Now)
	}
}

// TestNoMemory runs on a device that is nearly full, with far more pages allowed
// than there is memory, and with as many as are measured: all texts end.
func TestNoMemory(t *testing.T) {
	for _, pages := range []int{0, 1 << 20} {
		dev, err := device.OpenNull(device.NullOptions{Capacity: 600 << 10, Virtual: true, Granularity: 8 << 10})
		rt := on(t, dev, err)
		m := gpt2(t, rt)
		e, err := generate.New(rt, m, generate.Options{PageTokens: 16, Pages: pages, Rows: 64})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(5, 6))
		all := requests(r, m, 60)
		for i := range all {
			all[i].MaxTokens = 30
		}
		run(t, e, all)
		s, ooms := e.Stats(), rt.Allocator().Stats().OOMs
		if s.Preemptions == 0 || s.Evictions == 0 || pages > 0 && ooms == 0 {
			t.Errorf("%d requests of the allocator failed; %+v", ooms, s)
		}
		e.Close()
	}
}

// TestFaults lets each call of the device fail once, for lack of memory and for
// another reason. Whether or not a step fails then, the texts come as always.
func TestFaults(t *testing.T) {
	var want [][]int32
	for _, injected := range []error{device.ErrOutOfMemory, errors.New("injected")} {
		for nth, failed := 0, true; failed; nth++ {
			inner, err := device.Open("host:16MiB")
			if err != nil {
				t.Fatal(err)
			}
			// What comes before the engine does not fail: its calls are not counted.
			f := &late{Device: inner}
			rt := on(t, f, nil)
			m := gpt2(t, rt)
			f.Device = devicetest.Fail(inner, devicetest.Any, nth, injected)
			came, err := faulty(rt, m, requests(rand.New(rand.NewPCG(7, 8)), m, 6))
			if err != nil {
				t.Fatalf("call %d: %v: %v", nth, injected, err)
			}
			if want == nil {
				want = came
			}
			for i := range came {
				if !slices.Equal(came[i], want[i]) {
					t.Errorf("call %d: %v: text %d goes on by %v, want %v", nth, injected, i, came[i], want[i])
				}
			}
			failed = nth == 0 || f.Device.(*devicetest.Failing).Failed()
			f.Device = inner
		}
	}
}

// late is a device that is wrapped later.
type late struct{ device.Device }

// faulty is run on a device that may fail once.
func faulty(rt *tensor.Runtime, m *lm, all []generate.Request) ([][]int32, error) {
	e, err := generate.New(rt, m, generate.Options{PageTokens: 4, Pages: 30})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	came := make([][]int32, len(all))
	for _, r := range all {
		if _, err := e.Add(r); err != nil {
			return nil, err
		}
	}
	each := func(k generate.Token) { came[k.Request] = append(came[k.Request], k.Token) }
	if err = e.Run(context.Background(), each); err != nil {
		err = e.Run(context.Background(), each)
	}
	return came, err
}

// TestCancel stops between two tokens, and goes on.
func TestCancel(t *testing.T) {
	rt := open(t, "host:64MiB")
	m := gpt2(t, rt)
	e, err := generate.New(rt, m, generate.Options{Pages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	q := generate.Request{Prompt: []int32{1, 2, 3}, MaxTokens: 20}
	if _, err := e.Add(q); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var came []int32
	each := func(k generate.Token) {
		if came = append(came, k.Token); len(came) == 5 {
			cancel()
		}
	}
	if err := e.Run(ctx, each); err != context.Canceled || len(came) != 5 {
		t.Fatalf("%v after %d tokens", err, len(came))
	}
	if err := e.Run(context.Background(), each); err != nil || !slices.Equal(came, m.naive(rt, q)) {
		t.Errorf("%v, %v", err, came)
	}
}

// TestEnds gives each reason.
func TestEnds(t *testing.T) {
	rt := open(t, "host:64MiB")
	m := gpt2(t, rt)
	e, err := generate.New(rt, m, generate.Options{Pages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	prompt := []int32{1, 2, 3}
	came := m.naive(rt, generate.Request{Prompt: prompt, MaxTokens: 50})
	at := slices.IndexFunc(came, func(k int32) bool { return k != came[0] }) // the first of its kind
	var got []string
	for _, q := range []generate.Request{{Prompt: prompt, MaxTokens: 50, Stop: []int32{came[at]}}, {Prompt: prompt, MaxTokens: 3},
		{Prompt: make([]int32, m.Shape().Context), MaxTokens: 3}} {
		if _, err := e.Add(q); err != nil {
			t.Fatal(err)
		}
		n := 0
		if err := e.Run(context.Background(), func(k generate.Token) {
			if n++; k.End != "" {
				got = append(got, fmt.Sprintf("%s %d", k.End, n))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{fmt.Sprintf("stop %d", at+1), "length 3", "context 1"}; !slices.Equal(got, want) {
		t.Errorf("ends %q, want %q", got, want)
	}
}

// TestRefused lists what can't be asked for.
func TestRefused(t *testing.T) {
	rt := open(t, "host:64MiB")
	m := gpt2(t, rt)
	e, err := generate.New(rt, m, generate.Options{PageTokens: 4, Pages: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for want, q := range map[string]generate.Request{
		"0 tokens":       {MaxTokens: 1},
		"at most 0":      {Prompt: []int32{1}},
		"sees at most":   {Prompt: make([]int32, 49), MaxTokens: 1},
		"vocabulary":     {Prompt: []int32{40}, MaxTokens: 1},
		"room for 5":     {Prompt: []int32{1}, MaxTokens: 21},
		"top-p from 0":   {Prompt: []int32{1}, MaxTokens: 1, Sampling: generate.Sampling{TopP: 2}},
		"temperature -1": {Prompt: []int32{1}, MaxTokens: 1, Sampling: generate.Sampling{Temperature: -1}},
	} {
		if _, err := e.Add(q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	for _, o := range []generate.Options{{Rows: -1}, {Rows: 2, Running: 3}} {
		if _, err := generate.New(rt, m, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	capped := nn.NewMoE(rt, nn.MoEConfig{Vocab: 4, Width: 4, Layers: 1, Experts: 2, TopK: 1, Hidden: 4, Heads: 1, Context: 4, Capacity: 1}, 1)
	defer nn.Release(capped)
	if _, err := generate.MoE(capped); err == nil {
		t.Error("experts with a capacity: no error")
	}
}
