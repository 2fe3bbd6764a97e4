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

// Update changes parameters by one step of a rule from their gradients,
// multiplied by scale (one element; nil for 1), in one pass over all arrays.
func Update(rule UpdateRule, ps []Updated, scale *Tensor, params UpdateParams) {
	name := [...]string{"sgd", "momentum", "nesterov", "adam", "amsgrad", "adagrad", "rmsprop"}[rule]
	rt := ps[0].rt
	defer rt.endRanges(rt.begin(Range{Kind: OpUpdate, Name: name}))
	kernel.Update(rt.stream, rule, updated(ps), address(scale), params)
}
