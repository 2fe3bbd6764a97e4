package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestGoldenOptimizers takes six steps of every rule as PyTorch did.
func TestGoldenOptimizers(t *testing.T) {
	values := golden.Open(t, "testdata/optim.safetensors")
	for _, c := range []struct {
		name   string
		lr     float64
		rule   nn.Rule
		states int
	}{
		{"sgd", 0.1, nn.SGDOptions{}, 0},
		{"sgd_momentum", 0.1, nn.SGDOptions{Momentum: 0.9, WeightDecay: 0.01}, 1},
		{"sgd_nesterov", 0.1, nn.SGDOptions{Momentum: 0.9, Nesterov: true}, 1},
		{"adam", 0.01, nn.AdamOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}, 2},
		{"adamw", 0.01, nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, 2},
		{"adamw_amsgrad", 0.01, nn.AdamWOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, AMSGrad: true}, 3},
		{"adagrad", 0.1, nn.AdagradOptions{Eps: 1e-10}, 1},
		{"rmsprop", 0.01, nn.RMSPropOptions{Alpha: 0.99, Momentum: 0.9, Eps: 1e-8}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt := runtime(t)
			p := &nn.Parameter{Name: "w", Tensor: rt.Parameter(5, 3)}
			defer p.Release()
			p.Set(values.Float32s(c.name + "/w0"))
			before := stateBytes(rt)
			opt := nn.NewOptimizer([]*nn.Parameter{p, p}, c.rule)
			defer opt.Release()
			if got, want := len(opt.State()), c.states; got != want {
				t.Errorf("%d states, want %d", got, want)
			}
			if got, want := stateBytes(rt)-before, uint64(c.states)*512; got != want {
				t.Errorf("%d bytes of optimizer state, want %d", got, want)
			}
			for i := range 6 {
				scale := halved(rt, p, values.Float32s(fmt.Sprintf("%s/g%d", c.name, i)))
				opt.Step(c.lr, scale)
				scale.Release()
				golden.Near(t, fmt.Sprintf("weights after step %d", i+1), p.Float32s(), values.Float32s(fmt.Sprintf("%s/w%d", c.name, i+1)), 1e-6)
			}
		})
	}
}

// halved makes twice g the gradient of p and gives the scale that undoes it.
func halved(rt *tensor.Runtime, p *nn.Parameter, g []float32) *tensor.Tensor {
	twice := make([]float32, len(g))
	for i, x := range g {
		twice[i] = 2 * x
	}
	setGrad(rt, p, twice)
	return rt.Full(0.5)
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

// stateBytes is what the device holds for optimizers.
func stateBytes(rt *tensor.Runtime) uint64 {
	return rt.Allocator().Stats().ByPurpose[trace.OptimizerState].Live
}

// TestOnUpdate: who is told of every parameter is told in their order, and the
// weights are the same, bit for bit, as where many are updated at once.
func TestOnUpdate(t *testing.T) {
	rt := runtime(t)
	step := func(told func(*nn.Parameter)) (weights [][]float32) {
		var params []*nn.Parameter
		for i := range 70 {
			p := &nn.Parameter{Name: fmt.Sprint(i), Tensor: rt.Parameter([][]int{{3}, {2, 5}}[i%2]...)}
			defer p.Release()
			g := make([]float32, p.Len())
			for j := range g {
				g[j] = float32(i - 7*j)
			}
			p.Set(g)
			if i%5 != 0 {
				setGrad(rt, p, g)
			}
			params = append(params, p)
		}
		opt := nn.NewAdamW(params, nn.AdamWOptions{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1})
		defer opt.Release()
		opt.Decay, opt.OnUpdate = nn.DecaysMatrices, told
		opt.Step(0.1, nil)
		for _, p := range params {
			weights = append(weights, p.Float32s())
			p.ZeroGrad()
		}
		return weights
	}
	var names []string
	one, many := step(func(p *nn.Parameter) { names = append(names, p.Name) }), step(nil)
	for i := range many {
		if !slices.Equal(one[i], many[i]) {
			t.Errorf("parameter %d is %v alone and %v among many", i, one[i], many[i])
		}
	}
	var want []string
	for i := range 70 {
		if i%5 != 0 {
			want = append(want, fmt.Sprint(i))
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("told of %v, want %v", names, want)
	}
}

// TestDecay leaves a bias out of weight decay: with a gradient of 0, only the
// matrix shrinks, under every rule.
func TestDecay(t *testing.T) {
	for _, rule := range []nn.Rule{
		nn.SGDOptions{Momentum: 0.9, WeightDecay: 0.1}, nn.AdamOptions{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1},
		nn.AdamWOptions{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}, nn.AdagradOptions{Eps: 1e-8, WeightDecay: 0.1},
		nn.RMSPropOptions{Alpha: 0.9, Eps: 1e-8, WeightDecay: 0.1},
	} {
		rt := runtime(t)
		b := nn.NewBuilder(rt, 1)
		ps := []*nn.Parameter{b.Constant("weight", 1, 2, 2), b.Constant("bias", 1, 2)}
		opt := nn.NewOptimizer(ps, rule)
		opt.Decay = nn.DecaysMatrices
		for _, p := range ps {
			sum := tensor.Sum(p.Tensor)
			sum.Backward(0)
			sum.Release()
		}
		opt.Step(0.1, nil)
		if w, bias := ps[0].Float32s()[0], ps[1].Float32s()[0]; w >= 1 || bias != 1 {
			t.Errorf("%T: weight %v and bias %v after a step", rule, w, bias)
		}
		for _, p := range ps {
			p.ZeroGrad()
			p.Release()
		}
		opt.Release()
	}
}
