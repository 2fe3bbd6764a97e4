package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// UpdateRule names how an optimizer turns a gradient into a change of a weight.
type UpdateRule int

const (
	UpdateSGD      UpdateRule = iota // no state
	UpdateMomentum                   // momentum
	UpdateNesterov                   // momentum
	UpdateAdam                       // mean, mean of squares
	UpdateAMSGrad                    // mean, mean of squares, its greatest value so far
	UpdateAdagrad                    // sum of squares
	UpdateRMSProp                    // mean of squares, momentum
)

// States is the number of arrays that the rule keeps beside the weights.
func (r UpdateRule) States() int { return [...]int{0, 1, 1, 2, 3, 1, 2}[r] }

// UpdateParams are the numbers of step Step (1 for the first). A rule that has
// no use for one of them ignores it.
type UpdateParams struct {
	LR          float64
	WeightDecay float64 // added to the gradient: the decay of L2 regularisation
	Decay       float64 // taken from the weight directly (Loshchilov and Hutter, 2019)
	Beta1       float64 // of the mean; the momentum of SGD and RMSProp
	Beta2       float64 // of the mean of squares
	Eps         float64
	Step        int
}

var updateKernel = &device.Kernel{Name: "update", Host: updateHost, CUDA: cudaUpdates("update")}

// Update takes one step of a rule for parameters, in place, in one pass over
// their weights, gradients and the rule's states. With
// g ← *gradScale·g + WeightDecay·w (no gradScale for 1), w ← (1 − LR·Decay)·w,
// β1, β2 and t = Step:
//
//	SGD       w ← w − LR·g
//	Momentum  b ← β1·b + g;                  w ← w − LR·b
//	Nesterov  b ← β1·b + g;                  w ← w − LR·(g + β1·b)
//	Adam      m, v as in AdamW;              w ← w − LR/(1−β1ᵗ) · m/(√v/√(1−β2ᵗ) + eps)
//	AMSGrad   u ← max(u, v);                 as Adam, with u in place of v
//	Adagrad   s ← s + g²;                    w ← w − LR·g/(√s + eps)
//	RMSProp   v ← β2·v + (1−β2)·g²; b ← β1·b + g/(√v + eps);  w ← w − LR·b
//
// The rules are those of Qian (1999), Nesterov (1983), Kingma and Ba (2015),
// Reddi et al. (2018), Duchi et al. (2011) and Tieleman and Hinton (2012), in
// the forms that PyTorch computes. A gradScale that is not a number leaves all
// as it is. Each element depends on its own operands
// alone, so that the result is the same with any number of workers.
func Update(s device.Stream, rule UpdateRule, ps []Updated, gradScale Array, p UpdateParams) {
	if p.Step < 1 {
		panic(fmt.Sprintf("kernel.Update: step %d; the first is 1", p.Step))
	}
	l := device.Launch{Kernel: updateKernel, Float: p.factors(rule)}
	operands(&l, 0, gradScale)
	l.Int[0] = int(rule)
	queueUpdates(s, l, ps, rule.States(), 4+6*rule.States())
}

// factors derives what the inner loops need, in float64: with Beta2 0.999,
// 1−β2 is 0.001, not what the nearest float32 would leave.
func (p UpdateParams) factors(rule UpdateRule) [device.MaxFloats]float32 {
	step, correct := p.LR, 1.0
	if rule == UpdateAdam || rule == UpdateAMSGrad {
		t := float64(p.Step)
		step, correct = p.LR/(1-math.Pow(p.Beta1, t)), 1/math.Sqrt(1-math.Pow(p.Beta2, t))
	}
	return [device.MaxFloats]float32{
		float32(1 - p.LR*p.Decay), float32(p.WeightDecay),
		float32(p.Beta1), float32(p.Beta2), float32(1 - p.Beta2),
		float32(step), float32(correct), float32(p.Eps),
	}
}

// update is one launch as the inner loops see it.
type update struct {
	grad, keep, decay float32 // factors of g, and of w: what stays, what is added to g
	beta1, beta2      float32
	gain2             float32 // 1 − β2
	step, correct     float32 // LR and 1, or with Adam's corrections
	eps               float32
	gain1             float32 // 1 − β1
}

func updateHost(l *device.Launch, ws *device.Workers) {
	f := &l.Float
	u := update{keep: f[0], decay: f[1], beta1: f[2], beta2: f[3], gain2: f[4],
		step: f[5], correct: f[6], eps: f[7], gain1: 1 - f[2]}
	var ok bool
	if u.grad, ok = gradScaleOf(l); !ok {
		return
	}
	for i := range l.Members.Of[:l.Members.N] {
		u.member(UpdateRule(l.Int[0]), &l.Members.Of[i], ws)
	}
}

func (u *update) member(rule UpdateRule, p *device.Member, ws *device.Workers) {
	g, w := typedOf(p), floatsOf(p, 1)
	var s [3][]float32
	for i := range rule.States() {
		s[i] = floatsOf(p, 2+i)
	}
	ws.For(len(w), chunk, func(lo, hi int) {
		var buf [pieceLen]float32
		var part [3][]float32
		for ; lo < hi; lo += pieceLen {
			end := min(hi, lo+pieceLen)
			for i := range rule.States() {
				part[i] = s[i][lo:end]
			}
			u.run(rule, w[lo:end], g.dense(buf[:], lo, 1, end-lo), part)
		}
	})
}

func (u *update) run(rule UpdateRule, w, g []float32, s [3][]float32) {
	switch rule {
	case UpdateSGD:
		u.sgd(w, g)
	case UpdateMomentum:
		u.momentum(w, g, s[0])
	case UpdateNesterov:
		u.nesterov(w, g, s[0])
	case UpdateAdam:
		u.adam(w, g, s[0], s[1])
	case UpdateAMSGrad:
		u.amsGrad(w, g, s[0], s[1], s[2])
	case UpdateAdagrad:
		u.adagrad(w, g, s[0])
	case UpdateRMSProp:
		u.rmsProp(w, g, s[0], s[1])
	}
}

func (u *update) sgd(w, g []float32) {
	for i, x := range w {
		w[i] = x*u.keep - u.step*(g[i]*u.grad+u.decay*x)
	}
}

func (u *update) momentum(w, g, b []float32) {
	for i, x := range w {
		b[i] = u.beta1*b[i] + (g[i]*u.grad + u.decay*x)
		w[i] = x*u.keep - u.step*b[i]
	}
}

func (u *update) nesterov(w, g, b []float32) {
	for i, x := range w {
		d := g[i]*u.grad + u.decay*x
		b[i] = u.beta1*b[i] + d
		w[i] = x*u.keep - u.step*(d+u.beta1*b[i])
	}
}

func (u *update) adam(w, g, m, v []float32) {
	for i, x := range w {
		d := g[i]*u.grad + u.decay*x
		m[i] = u.beta1*m[i] + u.gain1*d
		v[i] = u.beta2*v[i] + u.gain2*d*d
		w[i] = x*u.keep - u.step*m[i]/(root(v[i])*u.correct+u.eps)
	}
}

func (u *update) amsGrad(w, g, m, v, most []float32) {
	for i, x := range w {
		d := g[i]*u.grad + u.decay*x
		m[i] = u.beta1*m[i] + u.gain1*d
		v[i] = u.beta2*v[i] + u.gain2*d*d
		most[i] = max(most[i], v[i]) // NaN if either is
		w[i] = x*u.keep - u.step*m[i]/(root(most[i])*u.correct+u.eps)
	}
}

func (u *update) adagrad(w, g, s []float32) {
	for i, x := range w {
		d := g[i]*u.grad + u.decay*x
		s[i] += d * d
		w[i] = x*u.keep - u.step*d/(root(s[i])+u.eps)
	}
}

func (u *update) rmsProp(w, g, v, b []float32) {
	for i, x := range w {
		d := g[i]*u.grad + u.decay*x
		v[i] = u.beta2*v[i] + u.gain2*d*d
		b[i] = u.beta1*b[i] + d/(root(v[i])+u.eps)
		w[i] = x*u.keep - u.step*b[i]
	}
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }
