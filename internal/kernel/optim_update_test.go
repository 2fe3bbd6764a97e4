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
	c.run(func(s device.Stream) { Update(s, rule, updates(n, w.ptr(), g.ptr(), ptrs[:]...), factor.ptr(), p) })
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
		Update(s, UpdateSGD, updates(2, w.ptr(), g.ptr()), none, UpdateParams{LR: 0.5, Step: 1})
	})
	c.equal("w", w, 0, func(i int) float64 { return []float64{0.5, math.NaN()}[i] })
}

func TestUpdateMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"no state": func() { Update(&sink{}, UpdateAdam, updates(1, some, some, some), none, UpdateParams{Step: 1}) },
		"step 0":   func() { Update(&sink{}, UpdateSGD, updates(1, some, some), none, UpdateParams{}) },
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

// TestUpdateOfMany takes a step of more parameters than one launch has room for:
// without elements, shorter than a pack, longer than a chunk.
func TestUpdateOfMany(t *testing.T) {
	r := seeded(t)
	p := UpdateParams{LR: 0.03, WeightDecay: 0.02, Beta1: 0.9, Step: 2}
	lens := []int{0, cudaUpdateChunk, 3, 2*cudaUpdateChunk + 9, 0, chunk + 1}
	for len(lens) < 2*device.MaxMembers+1 {
		lens = append(lens, r.IntN(70))
	}
	c := &testCase{t: t, launches: 3}
	var many []Updated
	var arrays [][3]*array
	for _, n := range lens {
		a := [3]*array{c.inout(randoms(r, n)), c.input(randoms(r, n)), c.inout(randoms(r, n))}
		arrays, many = append(arrays, a), append(many, updates(n, a[0].ptr(), a[1].ptr(), a[2].ptr())...)
	}
	c.run(func(s device.Stream) { Update(s, UpdateMomentum, many, none, p) })
	for i, a := range arrays {
		want, states := make([]float64, lens[i]), make([][3]float64, lens[i])
		for j := range want {
			states[j][0] = a[2].start(j)
			want[j] = updateOracle(UpdateMomentum, a[0].start(j), a[1].start(j), &states[j], p)
		}
		c.near(fmt.Sprint("w of parameter ", i), a[0], 1e-6, 1, func(j int) float64 { return want[j] })
		c.near(fmt.Sprint("state of parameter ", i), a[2], 1e-6, 1, func(j int) float64 { return states[j][0] })
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
				Update(s, rule, updates(n, ptrs[0], ptrs[1], ptrs[2:]...), none, UpdateParams{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1})
			}
		})
	}
}
