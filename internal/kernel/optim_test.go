package kernel

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// adamOracle takes the steps of one parameter in float64, for the gradients in
// their order.
func adamOracle(w float64, grads []float64, lr, beta1, beta2, eps, decay float64) (_, m, v float64) {
	for i, g := range grads {
		t := float64(i + 1)
		w -= lr * decay * w
		m = beta1*m + (1-beta1)*g
		v = beta2*v + (1-beta2)*g*g
		w -= lr / (1 - math.Pow(beta1, t)) * m / (math.Sqrt(v)/math.Sqrt(1-math.Pow(beta2, t)) + eps)
	}
	return w, m, v
}

func TestAdamW(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, n := range lengths(r) {
			p := AdamWParams{LR: 3e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}
			scale := float32(1)
			weights, m, v := randoms(r, n), make([]float32, n), make([]float32, n)
			start, steps := weights, make([][]float32, 3)
			for step := range steps {
				steps[step] = randoms(r, n)
				p.Step = step + 1
				c := &testCase{t: t}
				w, g := c.inout(weights), c.input(steps[step])
				ms, vs := c.inout(m), c.inout(v)
				factor := none
				if i%2 == 0 {
					scale = 0.25
					factor = c.input([]float32{scale}).ptr()
				}
				c.run(func(s device.Stream) { AdamW(s, updates(n, w.ptr(), g.ptr(), ms.ptr(), vs.ptr()), factor, p) })
				c.cost(7*n, 16*n)
				weights, m, v = w.data, ms.data, vs.data
			}
			for j := range n {
				grads := []float64{float64(steps[0][j] * scale), float64(steps[1][j] * scale), float64(steps[2][j] * scale)}
				wantW, wantM, wantV := adamOracle(float64(start[j]), grads, 3e-3, 0.9, 0.999, 1e-8, 0.1)
				for k, pair := range [][2]float64{{float64(weights[j]), wantW}, {float64(m[j]), wantM}, {float64(v[j]), wantV}} {
					if math.Abs(pair[0]-pair[1]) > 1e-6*math.Max(math.Abs(pair[1]), []float64{1, 0.1, 1e-3}[k]) {
						t.Fatalf("parameter %d of %d: %s is %v, want %v", j, n, []string{"w", "m", "v"}[k], pair[0], pair[1])
					}
				}
			}
		}
	})
}

// TestAdamWFactors checks that 1 − β2 is taken before rounding: after it, it
// would be off by a hundred thousandth.
func TestAdamWFactors(t *testing.T) {
	c := &testCase{t: t}
	w, g, m, v := c.inout([]float32{1}), c.input([]float32{3}), c.inout([]float32{0}), c.inout([]float32{0})
	c.run(func(s device.Stream) {
		AdamW(s, updates(1, w.ptr(), g.ptr(), m.ptr(), v.ptr()), none, AdamWParams{LR: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1})
	})
	c.equal("v", v, 1e-7, func(int) float64 { return 0.009 })
	c.equal("m", m, 1e-7, func(int) float64 { return 0.3 })
	c.equal("w", w, 1e-7, func(int) float64 { return 0.999 })
}

// TestAdamWNotFinite checks that a gradient which overflowed is seen.
func TestAdamWNotFinite(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		c := &testCase{t: t}
		w, g, m, v := c.inout([]float32{1}), c.input([]float32{float32(math.Inf(1))}), c.inout([]float32{0}), c.inout([]float32{0})
		c.run(func(s device.Stream) {
			AdamW(s, updates(1, w.ptr(), g.ptr(), m.ptr(), v.ptr()), none, AdamWParams{LR: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1})
		})
		c.equal("w", w, 0, func(int) float64 { return math.NaN() })
	})
}

// TestNoUpdate: where the gradient's factor is not a number, all stays.
func TestNoUpdate(t *testing.T) {
	some := func() []float32 { return []float32{1, 2, 3} }
	run := func(f func(s device.Stream, w, g, m, v, factor Array)) {
		c := &testCase{t: t}
		w, g, m, v, factor := c.inout(some()), c.input(some()), c.inout(some()), c.inout(some()), c.input([]float32{nan})
		c.run(func(s device.Stream) { f(s, w.ptr(), g.ptr(), m.ptr(), v.ptr(), factor.ptr()) })
		for _, a := range []*array{w, m, v} {
			c.equal("state", a, 0, func(i int) float64 { return float64(some()[i]) })
		}
	}
	run(func(s device.Stream, w, g, m, v, factor Array) {
		AdamW(s, updates(3, w, g, m, v), factor, AdamWParams{LR: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1})
	})
	for rule := UpdateSGD; rule <= UpdateRMSProp; rule++ {
		run(func(s device.Stream, w, g, m, v, factor Array) {
			Update(s, rule, updates(3, w, g, m, v, v), factor, UpdateParams{LR: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1})
		})
	}
}
