package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// autocastReference gives the losses of 12 steps of PyTorch under bfloat16 autocast.
func autocastReference(t *testing.T, name string) (losses, norms []float64) {
	t.Helper()
	var want map[string]struct {
		BF16 struct {
			Losses    []float64 `json:"losses"`
			GradNorms []float64 `json:"grad_norms"`
		} `json:"autocast_bf16"`
	}
	text, err := os.ReadFile("testdata/models.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if len(want[name].BF16.Losses) != 12 {
		t.Fatalf("%d steps of %s, want 12", len(want[name].BF16.Losses), name)
	}
	return want[name].BF16.Losses, want[name].BF16.GradNorms
}

// mixedRun trains a model as p says and gives the losses and the gradients'
// norms; a step that overflows is left out. before, if not nil, may change the
// gradients of a step.
type mixedRun struct {
	p      nn.Precision
	before func(step int)
	each   func(step int, p nn.Precision, c nn.PrecisionChange)
}

func (r *mixedRun) train(model nn.Module, opt *nn.Optimizer, lr float64, steps int, loss func(step int) *tensor.Tensor) (losses, norms []float64) {
	rt := model.Parameters()[0].Runtime()
	for step := range steps {
		var l *tensor.Tensor
		rt.Autocast(r.p.Type, func() { l = loss(step) })
		l.Backward(r.p.Seed())
		if r.before != nil {
			r.before(step)
		}
		scale, norm := r.p.ClipGradNorm(model.Parameters(), 0)
		n := float64(norm.Float32s()[0])
		losses, norms = append(losses, float64(l.Float32s()[0])), append(norms, n)
		overflow := math.IsNaN(n) || math.IsInf(n, 0)
		if !overflow {
			opt.Step(lr, scale)
		}
		var c nn.PrecisionChange
		r.p, c = r.p.Update(overflow)
		if r.each != nil {
			r.each(step, r.p, c)
		}
		nn.ZeroGrad(model)
		for _, t := range []*tensor.Tensor{l, scale, norm} {
			t.Release()
		}
	}
	return losses, norms
}

// goldenGPT2 gives the reference model with its weights, and its loss.
func goldenGPT2(t *testing.T, rt *tensor.Runtime) (*nn.GPT2, *nn.Optimizer, func(step int) *tensor.Tensor) {
	values := golden.Open(t, "testdata/gpt2_tiny.safetensors")
	model := nn.NewGPT2(rt, tiny, 1)
	opt := nn.NewAdamW(model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1})
	if err := nn.LoadState(values.File(), nn.State(model)); err != nil {
		t.Fatal(err)
	}
	return model, opt, func(step int) *tensor.Tensor {
		x, y := nextTokens(rt, values.Int32s(fmt.Sprintf("input.%d.0", step%3)), 4, 48)
		defer x.Release()
		defer y.Release()
		return model.Loss(x, y)
	}
}

// nearAll compares two curves.
func nearAll(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		near(t, fmt.Sprintf("%s of step %d", what, i), got[i], want[i], tolerance)
		worst = max(worst, math.Abs(got[i]/want[i]-1))
	}
	t.Logf("%s: within %.2g", what, worst)
}

// TestGoldenAutocast follows PyTorch's curve of the reference model under
// bfloat16 autocast: as it is, and with blocks run again in backward.
func TestGoldenAutocast(t *testing.T) {
	wantLosses, wantNorms := autocastReference(t, "gpt2_tiny")
	for _, around := range []nn.Around{nil, recompute} {
		rt := runtime(t)
		model, opt, loss := goldenGPT2(t, rt)
		model.Around = around
		r := mixedRun{p: nn.NewPrecision(tensor.BFloat16)}
		losses, norms := r.train(model, opt, 1e-3, 12, loss)
		nearAll(t, "loss", losses, wantLosses, 1e-3)
		nearAll(t, "gradient norm", norms, wantNorms, 1e-2)
		opt.Release()
		nn.Release(model)
	}
}
var _ = trace.Input
