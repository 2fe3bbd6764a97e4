package nn_test

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestMoEGradients checks the gradients of the whole loss, balancing part
// included, numerically: with everything computed and with dropped places.
func TestMoEGradients(t *testing.T) {
	for _, capacity := range []float64{0, 0.5} {
		checkMoE(t, nn.MoEConfig{Vocab: 20, Width: 8, Layers: 2, Experts: 3, TopK: 2, Hidden: 12, Balance: 0.5, Capacity: capacity})
	}
	checkMoE(t, nn.MoEConfig{Vocab: 20, Width: 8, Layers: 2, Experts: 3, TopK: 1, Hidden: 16, Balance: 0.5, Heads: 2, Context: 8})
}

func checkMoE(t *testing.T, c nn.MoEConfig) {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	rt := runtime(t)
	model := nn.NewMoE(rt, c, 7) // no choice of this seed's is a close one
	defer nn.Release(model)
	spread(model)
	x := rt.FromInt32s(trace.Input, []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, 2, 6)
	y := rt.FromInt32s(trace.Input, []int32{1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, -100}, 2, 6)
	defer x.Release()
	defer y.Release()
	checkNumerically(t, model, func() *tensor.Tensor { return model.Loss(x, y) })
}

// spread makes the initial weights larger, so that no gradient is too small to
// be measured and no small step changes what a router chooses.
func spread(m nn.Module) {
	for _, p := range m.Parameters() {
		w := p.Float32s()
		for i := range w {
			if len(p.Shape()) > 1 {
				w[i] *= 15
			}
		}
		p.Set(w)
	}
}

// TestMoEBalance checks the balancing loss at its two ends: 1 per choice where
// all experts are as probable, nearly as many as there are experts where one
// has all.
func TestMoEBalance(t *testing.T) {
	rt := runtime(t)
	model := nn.NewMoE(rt, nn.MoEConfig{Vocab: 20, Width: 8, Layers: 1, Experts: 4, TopK: 1, Hidden: 8}, 1)
	defer nn.Release(model)
	x := rt.FromInt32s(trace.Input, []int32{1, 2, 3, 4}, 1, 4)
	defer x.Release()
	gate, norm := model.Blocks[0].Gate.Weight, model.Norms[0]
	for _, c := range []struct{ weight, want float64 }{{0, 1}, {50, 4}} {
		fill(gate, func(i int) float32 { return float32(c.weight) * float32(1-min(i/8, 1)) })
		fill(norm.Weight, func(int) float32 { return 0 })
		fill(norm.Bias, func(int) float32 { return 1 })
		logits, balance := model.Forward(x)
		if got := float64(balance.Float32s()[0]); math.Abs(got-c.want) > 1e-5 {
			t.Errorf("gate weights of %v: balancing loss %v, want %v", c.weight, got, c.want)
		}
		logits.Release()
		balance.Release()
	}
}

// TestMoECapacity sends four equal tokens to the same expert, which has room
// for two: the first two get its result, the others nothing.
func TestMoECapacity(t *testing.T) {
	rt := runtime(t)
	layer := nn.NewBuilder(rt, 1).MoELayer("moe", nn.MoEConfig{Width: 4, Layers: 1, Experts: 2, TopK: 1, Hidden: 8, Capacity: 1})
	defer nn.Release(layer)
	x := rt.FromFloat32s(trace.Input, []float32{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, 1, 4, 4)
	defer x.Release()
	y, balance := layer.Forward(x, 0, nil)
	defer y.Release()
	defer balance.Release()
	for i, v := range y.Float32s() {
		if (v != 0) != (i < 8) {
			t.Errorf("element %d of token %d is %v", i%4, i/4, v)
		}
	}
}

func fill(p *nn.Parameter, f func(i int) float32) {
	w := make([]float32, p.Len())
	for i := range w {
		w[i] = f(i)
	}
	p.Set(w)
}

func TestMoEValidate(t *testing.T) {
	for _, name := range []string{"moe-nano", "moe-mini"} {
		if c, err := nn.LookupMoE(name); err != nil || c.Validate() != nil {
			t.Errorf("%s: %v, %v", name, err, c.Validate())
		}
	}
	good := nn.MoEConfig{Vocab: 10, Width: 8, Layers: 1, Experts: 4, TopK: 2, Hidden: 8, Balance: 0.01, Capacity: 1.25}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(c *nn.MoEConfig){
		"more choices than experts": func(c *nn.MoEConfig) { c.TopK = 5 },
		"no layer":                  func(c *nn.MoEConfig) { c.Layers = 0 },
		"capacity NaN":              func(c *nn.MoEConfig) { c.Capacity = math.NaN() },
		"heads that don't divide":   func(c *nn.MoEConfig) { c.Heads, c.Context = 3, 10 },
		"heads without context":     func(c *nn.MoEConfig) { c.Heads = 2 },
		"balance under 0":           func(c *nn.MoEConfig) { c.Balance = -1 },
	} {
		c := good
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
