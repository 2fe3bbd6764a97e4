package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// UpdateRule names an optimizer's method.
type UpdateRule = kernel.UpdateRule

// UpdateParams are the numbers of one step of a rule.
type UpdateParams = kernel.UpdateParams

// The rules of Update; kernel.Update has their formulas.
const (
	UpdateSGD      = kernel.UpdateSGD
	UpdateMomentum = kernel.UpdateMomentum
	UpdateNesterov = kernel.UpdateNesterov
	UpdateAdam     = kernel.UpdateAdam
	UpdateAMSGrad  = kernel.UpdateAMSGrad
	UpdateAdagrad  = kernel.UpdateAdagrad
	UpdateRMSProp  = kernel.UpdateRMSProp
)

// NewStates gives what a rule keeps of p: n arrays of its shape, at zero,
// counted as optimizer state.
func NewStates(p *Tensor, n int) []*Tensor {
	states := make([]*Tensor, n)
	for i := range states {
		if states[i] = p.forPart(trace.OptimizerState); p.Len() > 0 {
			kernel.Fill(p.rt.stream, states[i].ptr(), p.Len(), 0)
		}
	}
	return states
}

// updatable panics unless p is float32, and counts the change.
func updatable(p *Tensor) {
	if p.dtype != Float32 {
		fail("update of %v: optimizers change float32 parameters alone", p)
	}
	p.st.version++
}

// Update changes p by one step of a rule from its gradient, multiplied by
// scale (one element; nil for 1), in one pass over all arrays.
func Update(rule UpdateRule, p, scale *Tensor, states []*Tensor, params UpdateParams) {
	name := [...]string{"sgd", "momentum", "nesterov", "adam", "amsgrad", "adagrad", "rmsprop"}[rule]
	defer p.rt.endRanges(p.rt.begin(Range{Kind: OpUpdate, Name: name}))
	var at [3]kernel.Array
	for i, s := range states {
		at[i] = s.ptr()
	}
	updatable(p)
	kernel.Update(p.rt.stream, rule, p.Len(), p.ptr(), p.Grad().ptr(), at, address(scale), params)
}
