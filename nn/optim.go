package nn

import (
	"math"

	"github.com/headroom-go/headroom/tensor"
)

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as
// PyTorch computes it. Its two moments of each parameter are made at once, so
// that a run that starts has what it needs.
type AdamW struct {
	Options AdamWOptions
	Steps   int // done so far

	params []*Parameter
	states []*tensor.Moments
}

// AdamWOptions are the numbers that stay the same over a run.
type AdamWOptions struct {
	Beta1       float64 `json:"beta1"`
	Beta2       float64 `json:"beta2"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
}

// NewAdamW makes an optimizer of params with its moments at zero.
func NewAdamW(params []*Parameter, o AdamWOptions) *AdamW {
	a := &AdamW{Options: o, params: params}
	for _, p := range params {
		a.states = append(a.states, tensor.NewMoments(p.Tensor))
	}
	return a
}

// Step updates every parameter that has a gradient, with gradients multiplied
// by scale, a single element on the device, or as they are for nil.
func (a *AdamW) Step(lr float64, scale *tensor.Tensor) {
	a.Steps++
	for i, p := range a.params {
		if p.Grad() != nil {
			a.states[i].AdamW(p.Tensor, scale, tensor.AdamWParams{LR: lr, Beta1: a.Options.Beta1, Beta2: a.Options.Beta2,
				Eps: a.Options.Eps, WeightDecay: a.Options.WeightDecay, Step: a.Steps})
		}
	}
}

// State gives the moments under the names that they have in state files.
func (a *AdamW) State() []*Parameter {
	var ps []*Parameter
	for i, p := range a.params {
		ps = append(ps, &Parameter{"optimizer.exp_avg." + p.Name, a.states[i].Mean},
			&Parameter{"optimizer.exp_avg_sq." + p.Name, a.states[i].Square})
	}
	return ps
}

// Release frees the moments.
func (a *AdamW) Release() {
	for _, s := range a.states {
		s.Release()
	}
}

// ClipGradNorm computes the norm of all gradients together and the factor
// that brings it to limit where it is greater (1 where it isn't, or limit is
// 0); both are single elements on the device and the caller's to release. The
// gradients are left as they are: AdamW.Step takes the factor.
func ClipGradNorm(params []*Parameter, limit float32) (scale, norm *tensor.Tensor) {
	var grads []*tensor.Tensor
	for _, p := range params {
		if g := p.Grad(); g != nil {
			grads = append(grads, g)
		}
	}
	return tensor.ClipScale(grads, limit)
}

// Cosine is a learning-rate schedule: linear warm-up to Peak over Warmup
// steps, then half a cosine down to Floor at step Steps.
type Cosine struct {
	Peak   float64 `json:"peak"`
	Floor  float64 `json:"floor"`
	Warmup int     `json:"warmup_steps"`
	Steps  int     `json:"steps"`
}

// At is the rate of a step, counted from 1.
func (c Cosine) At(step int) float64 {
	if step <= c.Warmup {
		return c.Peak * float64(step) / float64(c.Warmup)
	}
	if step >= c.Steps {
		return c.Floor
	}
	done := float64(step-c.Warmup) / float64(c.Steps-c.Warmup)
	return c.Floor + (c.Peak-c.Floor)*(1+math.Cos(math.Pi*done))/2
}
