package nn

import "github.com/headroom-go/headroom/tensor"

// Optimizer updates parameters from their gradients by a rule. What the rule
// keeps of each parameter is made at once, at zero, so that a run that starts
// has the memory that it needs. It is used from one goroutine at a time.
type Optimizer struct {
	Rule  Rule
	Steps int                     // done so far
	Decay func(p *Parameter) bool // whether weight decay is for p; nil: it is for all

	// OnUpdate, if not nil, is told of every parameter once its update is queued,
	// in their order. Without it many parameters are updated at once.
	OnUpdate func(p *Parameter)

	params []*Parameter
	kept   []tensor.Updated // each parameter with its states, in the order of Rule.states
}

// Rule is an optimizer's method with the numbers that stay the same over a
// run: SGDOptions, AdamOptions, AdamWOptions, AdagradOptions, RMSPropOptions.
// Each computes what PyTorch's optimizer of that name does.
type Rule interface {
	// states names what is kept of each parameter, an array of its shape each.
	states() []string
	// update changes ps by their gradients, multiplied by u.scale.
	update(ps []tensor.Updated, u step)
	// withoutDecay is the rule with a weight decay of 0.
	withoutDecay() Rule
}

// step is what all parameters have in common in one step.
type step struct {
	lr     float64
	number int            // 1 for the first
	scale  *tensor.Tensor // a single element, or nil for 1
}

// NewOptimizer makes an optimizer of params. A parameter that is given twice,
// since two parts of a model share it, is updated once.
func NewOptimizer(params []*Parameter, r Rule) *Optimizer {
	o := &Optimizer{Rule: r, params: Unique(params)}
	for _, p := range o.params {
		o.kept = append(o.kept, tensor.Updated{Tensor: p.Tensor, States: tensor.NewStates(p.Tensor, len(r.states()))})
	}
	return o
}

// Step updates every parameter that has a gradient, with gradients multiplied
// by scale, a single element on the device, or as they are for nil.
func (o *Optimizer) Step(lr float64, scale *tensor.Tensor) {
	o.Steps++
	u := step{lr, o.Steps, scale}
	var with, without []tensor.Updated // weight decay
	for i, p := range o.params {
		switch {
		case p.Len() == 0 || p.Grad() == nil:
		case o.OnUpdate != nil:
			o.rule(p).update(o.kept[i:i+1], u)
			o.OnUpdate(p)
		case o.decays(p):
			with = append(with, o.kept[i])
		default:
			without = append(without, o.kept[i])
		}
	}
	if len(with) > 0 {
		o.Rule.update(with, u)
	}
	if len(without) > 0 {
		o.Rule.withoutDecay().update(without, u)
	}
}

func (o *Optimizer) decays(p *Parameter) bool { return o.Decay == nil || o.Decay(p) }

// rule is the one for p.
func (o *Optimizer) rule(p *Parameter) Rule {
	if o.decays(p) {
		return o.Rule
	}
	return o.Rule.withoutDecay()
}

// DecaysMatrices is the usual choice for Optimizer.Decay: what has one
// dimension, the weights and biases of normalisations and the biases of
// layers, is left out.
func DecaysMatrices(p *Parameter) bool { return len(p.Shape()) > 1 }

// State gives what the rule keeps under the names that it has in state files;
// the number of steps is the caller's to keep.
func (o *Optimizer) State() []*Parameter {
	var ps []*Parameter
	for i, p := range o.params {
		for j, name := range o.StateNames(p) {
			ps = append(ps, &Parameter{Name: name, Tensor: o.kept[i].States[j]})
		}
	}
	return ps
}

// StateNames are the names of what the rule keeps of p, also of a p that is not
// the optimizer's.
func (o *Optimizer) StateNames(p *Parameter) []string {
	var names []string
	for _, name := range o.Rule.states() {
		names = append(names, "optimizer."+name+"."+p.Name)
	}
	return names
}

// Release frees what the rule keeps.
func (o *Optimizer) Release() {
	for _, p := range o.kept {
		for _, s := range p.States {
			s.Release()
		}
	}
}

// AdamW is an optimizer by AdamWOptions.
type AdamW = Optimizer

// NewAdamW makes an optimizer of params by Adam with decoupled weight decay.
func NewAdamW(params []*Parameter, o AdamWOptions) *AdamW { return NewOptimizer(params, o) }

// ClipGradNorm computes the norm of all gradients together and the factor
// that brings it to limit where it is greater (1 where it isn't, or limit is
// 0); both are single elements on the device and the caller's to release. The
// gradients are left as they are: Optimizer.Step takes the factor.
func ClipGradNorm(params []*Parameter, limit float32) (scale, norm *tensor.Tensor) {
	var grads []*tensor.Tensor
	for _, p := range Unique(params) {
		if g := p.Grad(); g != nil {
			grads = append(grads, g)
		}
	}
	return tensor.ClipScale(grads, limit)
}
