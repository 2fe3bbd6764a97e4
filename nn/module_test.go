package nn_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestHooks lists the modules that a forward of GPT-2 enters and leaves.
func TestHooks(t *testing.T) {
	rt := runtime(t)
	model := nn.NewGPT2(rt, nn.GPT2Config{Vocab: 7, Context: 4, Width: 8, Layers: 1, Heads: 2}, 1)
	defer nn.Release(model)
	var got []string
	model.Hooks.Before = func(name string, m nn.Module, x *tensor.Tensor) {
		got = append(got, fmt.Sprintf("%s %v (", name, x.Shape()))
	}
	model.Hooks.After = func(name string, m nn.Module, x, y *tensor.Tensor) {
		got = append(got, fmt.Sprintf(") %s %v %d", name, y.Shape(), nn.Count(m)))
	}
	x := rt.FromInt32s(trace.Input, []int32{1, 2, 3}, 1, 3)
	defer x.Release()
	model.Forward(x).Release()
	want := []string{"transformer.h.0 [1 3 8] ("}
	for _, c := range []struct {
		name    string
		in, out int
		count   int
	}{{"ln_1", 8, 8, 16}, {"attn.c_attn", 8, 24, 216}, {"attn.c_proj", 8, 8, 72}, {"ln_2", 8, 8, 16}, {"mlp.c_fc", 8, 32, 288}, {"mlp.c_proj", 32, 8, 264}} {
		want = append(want, fmt.Sprintf("transformer.h.0.%s [1 3 %d] (", c.name, c.in), fmt.Sprintf(") transformer.h.0.%s [1 3 %d] %d", c.name, c.out, c.count))
	}
	want = append(want, ") transformer.h.0 [1 3 8] 872", "transformer.ln_f [1 3 8] (", ") transformer.ln_f [1 3 8] 16")
	if !slices.Equal(got, want) {
		t.Errorf("modules\n%q, want\n%q", got, want)
	}
}

// TestHooksOf finds the hooks of every kind of model, and none of a part.
func TestHooksOf(t *testing.T) {
	rt := runtime(t)
	gpt2 := nn.NewGPT2(rt, nn.GPT2Config{Vocab: 7, Context: 4, Width: 8, Layers: 1, Heads: 2}, 1)
	bert := nn.NewMaskedLM(rt, nn.BERTConfig{Vocab: 7, Context: 4, Width: 8, Layers: 1, Heads: 2, Hidden: 8, Types: 2, Eps: 1e-5}, 1)
	for m, want := range map[nn.Module]*nn.Hooks{gpt2: gpt2.Hooks, bert: bert.Hooks, &nn.ResNet{}: nil, &nn.MoE{}: nil, gpt2.LNF: nil} {
		if got := nn.HooksOf(m); got != want {
			t.Errorf("%T: hooks %p, want %p", m, got, want)
		}
	}
	nn.Release(gpt2)
	nn.Release(bert)
}

// twice is a module that uses one parameter under two names.
type twice struct{ a, b *nn.Parameter }

func (m twice) Parameters() []*nn.Parameter { return []*nn.Parameter{m.a, m.b} }

// TestShared checks that a parameter with two names counts once, is updated
// once, saved once, clipped once and released once.
func TestShared(t *testing.T) {
	rt := runtime(t)
	w := rt.Parameter(4)
	m := twice{&nn.Parameter{Name: "a", Tensor: w}, &nn.Parameter{Name: "b", Tensor: w}}
	m.a.Set([]float32{1, 1, 1, 1})
	if n := nn.Count(m); n != 4 {
		t.Errorf("count is %d, want 4", n)
	}
	setGrad(rt, m.a, []float32{3, 0, 4, 0})
	scale, norm := nn.ClipGradNorm(m.Parameters(), 0)
	if got := norm.Float32s()[0]; got != 5 {
		t.Errorf("norm is %v, want 5", got)
	}
	opt := nn.NewOptimizer(m.Parameters(), nn.SGDOptions{})
	opt.Step(0.25, scale)
	if got, want := w.Float32s(), []float32{0.25, 1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("weights %v, want %v", got, want)
	}
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := nn.SaveState(path, nil, m.Parameters()); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(f.Tensors()); n != 1 {
		t.Errorf("%d tensors saved, want 1", n)
	}
	for _, r := range []*tensor.Tensor{scale, norm} {
		r.Release()
	}
	opt.Release()
	nn.Release(m)
}

// TestOptimizerState saves what Adam keeps and goes on from the file as if
// nothing had happened.
func TestOptimizerState(t *testing.T) {
	rt := runtime(t)
	p := &nn.Parameter{Name: "w", Tensor: rt.Parameter(3)}
	defer p.Release()
	p.Set([]float32{1, 2, 3})
	rule := nn.AdamWOptions{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, AMSGrad: true}
	first := nn.NewOptimizer([]*nn.Parameter{p}, rule)
	defer first.Release()
	setGrad(rt, p, []float32{1, -2, 0.5})
	first.Step(0.1, nil)
	before := p.Float32s()
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := nn.SaveState(path, nil, first.State()); err != nil {
		t.Fatal(err)
	}
	first.Step(0.1, nil)
	want := p.Float32s()

	p.Set(before)
	second := nn.NewOptimizer([]*nn.Parameter{p}, rule)
	defer second.Release()
	second.Steps = 1
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := nn.LoadState(f, second.State()); err != nil {
		t.Fatal(err)
	}
	second.Step(0.1, nil)
	if got := p.Float32s(); !slices.Equal(got, want) {
		t.Errorf("weights %v after resuming, want %v", got, want)
	}
}
