package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// updateOracle takes one step of one weight in float64.
func updateOracle(rule UpdateRule, w, g float64, s *[3]float64, p UpdateParams) float64 {
	g += p.WeightDecay * w
	w -= p.LR * p.Decay * w
	t := float64(p.Step)
	adam := func(v float64) float64 {
		return w - p.LR/(1-math.Pow(p.Beta1, t))*s[0]/(math.Sqrt(v/(1-math.Pow(p.Beta2, t)))+p.Eps)
	}
	switch rule {
	case UpdateSGD:
		return w - p.LR*g
	case UpdateMomentum:
		s[0] = p.Beta1*s[0] + g
		return w - p.LR*s[0]
	case UpdateNesterov:
		s[0] = p.Beta1*s[0] + g
		return w - p.LR*(g+p.Beta1*s[0])
	case UpdateAdam, UpdateAMSGrad:
		s[0] += (1 - p.Beta1) * (g - s[0])
		s[1] += (1 - p.Beta2) * (g*g - s[1])
		s[2] = max(s[2], s[1])
		if rule == UpdateAMSGrad {
			return adam(s[2])
		}
		return adam(s[1])
	case UpdateAdagrad:
		s[0] += g * g
		return w - p.LR*g/(math.Sqrt(s[0])+p.Eps)
	default: // UpdateRMSProp
		s[0] += (1 - p.Beta2) * (g*g - s[0])
		s[1] = p.Beta1*s[1] + g/(math.Sqrt(s[0])+p.Eps)
		return w - p.LR*s[1]
	}
}

// TestUpdate takes three steps of every rule at lengths around a chunk's, with
// falling gradients, so that a greatest value differs from the last.
func TestUpdate(t *testing.T) {
	for rule := UpdateSGD; rule <= UpdateRMSProp; rule++ {
		t.Run(fmt.Sprint(rule), func(t *testing.T) {
			r := seeded(t)
			for _, n := range []int{0, 1, 7, 100, chunk + 5} {
				p := UpdateParams{LR: 0.03, WeightDecay: 0.02, Decay: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-3}
				weights := randoms(r, n)
				var states [3][]float32
				for i := range states {
					states[i] = make([]float32, n)
				}
				for step := 1; step <= 3; step++ {
					p.Step = step
					updateStep(t, rule, weights, randoms(r, n), &states, float32(1)/float32(step), p)
				}
			}
		})
	}
}

// updateStep takes one step, compares it with the oracle and leaves the results
// in weights and states.
func updateStep(t *testing.T, rule UpdateRule, weights, grads []float32, states *[3][]float32, scale float32, p UpdateParams) {
	n := len(weights)
	c := &testCase{t: t}
	w, g, factor := c.inout(weights), c.input(grads), c.input([]float32{scale})
	arrays, ptrs := [3]*array{}, [3]Array{}
	for i := range rule.States() {
		arrays[i] = c.inout(states[i])
		ptrs[i] = arrays[i].ptr()
	}
	c.run(func(s device.Stream) { Update(s, rule, n, w.ptr(), g.ptr(), ptrs, factor.ptr(), p) })
	c.cost((3+2*rule.States())*n, (4+6*rule.States())*n)
	want, wantStates := make([]float64, n), make([][3]float64, n)
	for j := range n {
		for i := range rule.States() {
			wantStates[j][i] = float64(states[i][j])
		}
		want[j] = updateOracle(rule, float64(weights[j]), float64(grads[j])*float64(scale), &wantStates[j], p)
	}
	c.near("w", w, 1e-6, 1, func(j int) float64 { return want[j] })
	copy(weights, w.data)
	for i := range rule.States() {
		c.near(fmt.Sprintf("state %d", i), arrays[i], 1e-6, 1, func(j int) float64 { return wantStates[j][i] })
		copy(states[i], arrays[i].data)
	}
}

// TestUpdateWithoutScale checks that no scale is a scale of 1, and that a
// gradient which overflowed is seen.
func TestUpdateWithoutScale(t *testing.T) {
	c := &testCase{t: t}
	w, g := c.inout([]float32{2, 2}), c.input([]float32{3, float32(math.NaN())})
	c.run(func(s device.Stream) {
		Update(s, UpdateSGD, 2, w.ptr(), g.ptr(), [3]Array{}, none, UpdateParams{LR: 0.5, Step: 1})
	})
	c.equal("w", w, 0, func(i int) float64 { return []float64{0.5, math.NaN()}[i] })
}

func TestUpdateMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"no state": func() { Update(&sink{}, UpdateAdam, 1, some, some, [3]Array{some}, none, UpdateParams{Step: 1}) },
		"step 0":   func() { Update(&sink{}, UpdateSGD, 1, some, some, [3]Array{}, none, UpdateParams{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestUpdateQueuesWithoutAllocating(t *testing.T) {
	s := device.Stream(&sink{})
	states := [3]Array{some, some, some}
	if n := testing.AllocsPerRun(100, func() {
		Update(s, UpdateAMSGrad, 10, some, some, states, none, UpdateParams{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Step: 3})
	}); n != 0 {
		t.Errorf("Update allocates %v times", n)
	}
}

func BenchmarkUpdate(b *testing.B) {
	const n = 1 << 22
	ws := device.NewWorkers(2)
	defer ws.Close()
	s := &inline{w: ws}
	for rule := UpdateSGD; rule <= UpdateRMSProp; rule++ {
		b.Run(fmt.Sprint(rule), func(b *testing.B) {
			c := &testCase{}
			var ptrs [5]Array
			for i := range ptrs {
				ptrs[i] = c.inout(make([]float32, n)).ptr()
			}
			b.SetBytes(int64(4 * (3 + 2*rule.States()) * n))
			for b.Loop() {
				Update(s, rule, n, ptrs[0], ptrs[1], [3]Array(ptrs[2:]), none, UpdateParams{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1})
			}
		})
	}
}
