package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// runtime gives a runtime on a host device for the duration of the test, at
// whose end every handle must be released and every byte given back.
func runtime(t testing.TB) *tensor.Runtime {
	t.Helper()
	dev, err := device.Open("host:64MiB")
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

// tiny is the configuration of the reference model.
var tiny = nn.GPT2Config{Vocab: 503, Context: 64, Width: 64, Layers: 3, Heads: 4}

// TestGoldenGPT2 trains the reference model for 12 steps as PyTorch did:
// first gradients, losses and gradient norms agree.
func TestGoldenGPT2(t *testing.T) {
	var want map[string]struct {
		FP32 struct {
			Losses    []float64 `json:"losses"`
			GradNorms []float64 `json:"grad_norms"`
		} `json:"fp32"`
	}
	text, err := os.ReadFile("testdata/models.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	values := golden.Open(t, "testdata/gpt2_tiny.safetensors")
	rt := runtime(t)
	model := nn.NewGPT2(rt, tiny, 1)
	defer nn.Release(model)
	if err := nn.LoadState(values.File(), model.Parameters()); err != nil {
		t.Fatal(err)
	}
	opt := nn.NewAdamW(model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1})
	defer opt.Release()
	for step, wantLoss := range want["gpt2_tiny"].FP32.Losses {
		x, y := nextTokens(rt, values.Int32s(fmt.Sprintf("input.%d.0", step%3)), 4, 48)
		l := model.Loss(x, y)
		loss := float64(l.Float32s()[0])
		l.Backward(1)
		if step == 0 {
			checkGradients(t, values, model.Parameters())
		}
		scale, norm := nn.ClipGradNorm(model.Parameters(), 0)
		near(t, fmt.Sprintf("loss of step %d", step), loss, wantLoss)
		near(t, fmt.Sprintf("gradient norm of step %d", step), float64(norm.Float32s()[0]), want["gpt2_tiny"].FP32.GradNorms[step])
		opt.Step(1e-3, scale)
		nn.ZeroGrad(model)
		for _, r := range []*tensor.Tensor{x, y, l, scale, norm} {
			r.Release()
		}
	}
}

// nextTokens gives a batch and its targets: each row shifted by one, its last
// place left out of the loss.
func nextTokens(rt *tensor.Runtime, tokens []int32, batch, seq int) (x, y *tensor.Tensor) {
	targets := make([]int32, len(tokens))
	for i := range targets {
		targets[i] = nn.IgnoreTarget
		if (i+1)%seq != 0 {
			targets[i] = tokens[i+1]
		}
	}
	return rt.FromInt32s(trace.Input, tokens, batch, seq), rt.FromInt32s(trace.Input, targets, batch, seq)
}

func checkGradients(t *testing.T, values golden.Values, params []*nn.Parameter) {
	t.Helper()
	checked := 0
	for _, p := range params {
		if name := "grad." + p.Name; values.Has(name) {
			golden.Near(t, name, p.Grad().Float32s(), values.Float32s(name), 1e-4)
			checked++
		}
	}
	if checked < 30 {
		t.Errorf("only %d gradients have reference values", checked)
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-4*math.Abs(want)) {
		t.Errorf("%s is %v, want %v within 1e-4", what, got, want)
	}
}

func TestGoldenAdamW(t *testing.T) {
	values := golden.Open(t, "testdata/optim.safetensors")
	rt := runtime(t)
	p := &nn.Parameter{Name: "w", Tensor: rt.Parameter(5, 3)}
	defer p.Release()
	p.Set(values.Float32s("adamw/w0"))
	opt := nn.NewAdamW([]*nn.Parameter{p}, nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1})
	defer opt.Release()
	for i := range 6 {
		setGrad(rt, p, values.Float32s(fmt.Sprintf("adamw/g%d", i)))
		opt.Step(0.01, nil)
		golden.Near(t, fmt.Sprintf("weights after step %d", i+1), p.Float32s(), values.Float32s(fmt.Sprintf("adamw/w%d", i+1)), 1e-6)
	}
}

func TestGoldenClipGradNorm(t *testing.T) {
	values := golden.Open(t, "testdata/optim.safetensors")
	rt := runtime(t)
	var params []*nn.Parameter
	for i := range 3 {
		p := &nn.Parameter{Tensor: rt.Parameter(4, 4)}
		defer p.Release()
		setGrad(rt, p, values.Float32s(fmt.Sprintf("clip_grad_norm/in%d", i)))
		params = append(params, p)
	}
	scale, norm := nn.ClipGradNorm(params, 1)
	defer scale.Release()
	defer norm.Release()
	golden.Near(t, "norm", norm.Float32s(), values.Float32s("clip_grad_norm/norm"), 1e-6)
	for i, p := range params {
		clipped := tensor.Mul(p.Grad(), scale)
		golden.Near(t, "clipped gradient", clipped.Float32s(), values.Float32s(fmt.Sprintf("clip_grad_norm/out%d", i)), 1e-6)
		clipped.Release()
	}
}

// setGrad makes g the gradient of p: that of the sum of p·g.
func setGrad(rt *tensor.Runtime, p *nn.Parameter, g []float32) {
	p.ZeroGrad()
	c := rt.FromFloat32s(trace.Other, g, p.Shape()...)
	m := tensor.Mul(p.Tensor, c)
	s := tensor.Sum(m)
	s.Backward(1)
	for _, r := range []*tensor.Tensor{c, m, s} {
		r.Release()
	}
}
