package nn

import "github.com/headroom-go/headroom/tensor"

func (o SGDOptions) update(p *tensor.Tensor, states []*tensor.Tensor, u step) {
	rule := tensor.UpdateSGD
	switch {
	case o.Momentum != 0 && o.Nesterov:
		rule = tensor.UpdateNesterov
	case o.Momentum != 0:
		rule = tensor.UpdateMomentum
	}
	u.run(rule, p, states, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Momentum})
}

func (o AdamOptions) update(p *tensor.Tensor, states []*tensor.Tensor, u step) {
	u.run(adamRule(o.AMSGrad), p, states, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps})
}

// update of the plain form has a kernel of its own, which computes with vectors.
func (o AdamWOptions) update(p *tensor.Tensor, states []*tensor.Tensor, u step) {
	if !o.AMSGrad {
		m := tensor.Moments{Mean: states[0], Square: states[1]}
		m.AdamW(p, u.scale, tensor.AdamWParams{LR: u.lr, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, Step: u.number})
		return
	}
	u.run(tensor.UpdateAMSGrad, p, states, tensor.UpdateParams{Decay: o.WeightDecay, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps})
}

func adamRule(amsgrad bool) tensor.UpdateRule {
	if amsgrad {
		return tensor.UpdateAMSGrad
	}
	return tensor.UpdateAdam
}

func (o AdagradOptions) update(p *tensor.Tensor, states []*tensor.Tensor, u step) {
	u.run(tensor.UpdateAdagrad, p, states, tensor.UpdateParams{WeightDecay: o.WeightDecay, Eps: o.Eps})
}

func (o RMSPropOptions) update(p *tensor.Tensor, states []*tensor.Tensor, u step) {
	u.run(tensor.UpdateRMSProp, p, states, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Momentum, Beta2: o.Alpha, Eps: o.Eps})
}

func (u step) run(rule tensor.UpdateRule, p *tensor.Tensor, states []*tensor.Tensor, params tensor.UpdateParams) {
	params.LR, params.Step = u.lr, u.number
	tensor.Update(rule, p, u.scale, states, params)
}
