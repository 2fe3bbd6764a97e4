package nn

import "github.com/headroom-go/headroom/tensor"

func (o SGDOptions) update(ps []tensor.Updated, u step) {
	rule := tensor.UpdateSGD
	switch {
	case o.Momentum != 0 && o.Nesterov:
		rule = tensor.UpdateNesterov
	case o.Momentum != 0:
		rule = tensor.UpdateMomentum
	}
	u.run(rule, ps, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Momentum})
}

func (o AdamOptions) update(ps []tensor.Updated, u step) {
	u.run(adamRule(o.AMSGrad), ps, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps})
}

// update of the plain form has a kernel of its own, which computes with vectors.
func (o AdamWOptions) update(ps []tensor.Updated, u step) {
	if !o.AMSGrad {
		tensor.AdamW(ps, u.scale, tensor.AdamWParams{LR: u.lr, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, Step: u.number})
		return
	}
	u.run(tensor.UpdateAMSGrad, ps, tensor.UpdateParams{Decay: o.WeightDecay, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps})
}

func adamRule(amsgrad bool) tensor.UpdateRule {
	if amsgrad {
		return tensor.UpdateAMSGrad
	}
	return tensor.UpdateAdam
}

func (o AdagradOptions) update(ps []tensor.Updated, u step) {
	u.run(tensor.UpdateAdagrad, ps, tensor.UpdateParams{WeightDecay: o.WeightDecay, Eps: o.Eps})
}

func (o RMSPropOptions) update(ps []tensor.Updated, u step) {
	u.run(tensor.UpdateRMSProp, ps, tensor.UpdateParams{WeightDecay: o.WeightDecay, Beta1: o.Momentum, Beta2: o.Alpha, Eps: o.Eps})
}

func (u step) run(rule tensor.UpdateRule, ps []tensor.Updated, params tensor.UpdateParams) {
	params.LR, params.Step = u.lr, u.number
	tensor.Update(rule, ps, u.scale, params)
}
