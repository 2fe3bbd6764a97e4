package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// shapes gives rows and columns at which the code for rows changes its ways.
func shapes(r *rand.Rand) [][2]int {
	s := [][2]int{{0, 3}, {1, 1}, {3, 1}, {5, 8}, {2, 16}, {7, 17}, {9, 64}, {3, 2 * pieceLen}, {2, pieceLen + 3}, {trials(700), 31}, {trials(300), 130}}
	for range 4 {
		s = append(s, [2]int{1 + r.IntN(60), 1 + r.IntN(200)})
	}
	return s
}

// The oracles: a row at a time, in float64.

func softmaxOracle(x []float64) []float64 {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = math.Max(top, v)
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = math.Exp(v - top)
		sum += y[i]
	}
	for i := range y {
		y[i] /= sum
	}
	return y
}

func softmaxGradOracle(dy, y []float64) []float64 {
	d := inner(dy, y)
	dx := make([]float64, len(y))
	for i := range dx {
		dx[i] = y[i] * (dy[i] - d)
	}
	return dx
}

func momentsOracle(x []float64, eps float64) (mean, rstd float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v / n
	}
	variance := 0.0
	for _, v := range x {
		variance += (v - mean) * (v - mean) / n
	}
	return mean, 1 / math.Sqrt(variance+eps)
}

func layerNormOracle(x, gamma, beta []float64, eps float64) []float64 {
	mean, rstd := momentsOracle(x, eps)
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = (v-mean)*rstd*gamma[i] + beta[i]
	}
	return y
}

func layerNormGradOracle(dy, x, gamma []float64, eps float64) (dx, dgamma []float64) {
	mean, rstd := momentsOracle(x, eps)
	n := float64(len(x))
	dx, dgamma = make([]float64, len(x)), make([]float64, len(x))
	var meanG, meanGX float64
	for i, v := range x {
		h := (v - mean) * rstd
		dgamma[i] = dy[i] * h
		meanG += dy[i] * gamma[i] / n
		meanGX += dy[i] * gamma[i] * h / n
	}
	for i, v := range x {
		dx[i] = rstd * (dy[i]*gamma[i] - meanG - (v-mean)*rstd*meanGX)
	}
	return dx, dgamma
}

func inner(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// agree compares a gradient with that by differences.
func agree(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i := range got {
		if math.Abs(got[i]-want[i]) > 1e-6*math.Max(1, math.Abs(want[i])) {
			t.Fatalf("%s: element %d of the gradient is %v, by differences %v", what, i, got[i], want[i])
		}
	}
}

func TestRowOracleGradients(t *testing.T) {
	r := seeded(t)
	for range 20 {
		n := 2 + r.IntN(12)
		x, dy := wide(randoms(r, n)), wide(randoms(r, n))
		gamma, beta := wide(randoms(r, n)), wide(randoms(r, n))
		agree(t, "softmax", softmaxGradOracle(dy, softmaxOracle(x)), numericGrad(func(x []float64) float64 {
			return inner(dy, softmaxOracle(x))
		}, x))
		dx, dgamma := layerNormGradOracle(dy, x, gamma, 0.1)
		agree(t, "layer norm", dx, numericGrad(func(x []float64) float64 {
			return inner(dy, layerNormOracle(x, gamma, beta, 0.1))
		}, x))
		agree(t, "layer norm, gamma", dgamma, numericGrad(func(gamma []float64) float64 {
			return inner(dy, layerNormOracle(x, gamma, beta, 0.1))
		}, gamma))
		target := r.IntN(n)
		grad := softmaxOracle(x)
		grad[target]--
		agree(t, "cross entropy", grad, numericGrad(func(x []float64) float64 {
			return -math.Log(softmaxOracle(x)[target])
		}, x))
	}
}

// byRow turns a function of row r into one of element i, computing each row once.
func byRow(cols int, row func(r int) []float64) func(i int) float64 {
	at, values := -1, []float64(nil)
	return func(i int) float64 {
		if i/cols != at {
			at, values = i/cols, row(i/cols)
		}
		return values[i%cols]
	}
}

// rowOf is row r of an array as it was before.
func (a *array) rowOf(r, cols int) []float64 { return wide(a.before[r*cols : (r+1)*cols]) }

// onto adds what an array held before, where a kernel accumulates.
func onto(a *array, accumulate bool, f func(i int) float64) func(i int) float64 {
	if !accumulate {
		return f
	}
	return func(i int) float64 { return a.start(i) + f(i) }
}

func TestSoftmax(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, shape := range shapes(r) {
			rows, cols := shape[0], shape[1]
			c := &testCase{t: t}
			x, y := c.input(randoms(r, rows*cols)), c.output(rows*cols)
			c.run(func(s device.Stream) { Softmax(s, rows, cols, y.ptr(), x.ptr()) })
			c.equal("y", y, 1e-6, byRow(cols, func(r int) []float64 { return softmaxOracle(x.rowOf(r, cols)) }))
			c.cost(2*rows*cols, (expFlops+4)*rows*cols)
		}
		c := &testCase{t: t}
		y := c.inout([]float32{1000, 1001, negInf, -1000, nan, 1, 1, 1})
		c.run(func(s device.Stream) { Softmax(s, 2, 4, y.ptr(), y.ptr()) })
		e := math.E
		c.equal("special values in place", y, 1e-6, func(i int) float64 {
			return []float64{1 / (1 + e), e / (1 + e), 0, 0, math.NaN(), math.NaN(), math.NaN(), math.NaN()}[i]
		})
	})
}

func TestSoftmaxGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, shape := range shapes(r) {
			rows, cols, accumulate := shape[0], shape[1], i%2 == 0
			n := rows * cols
			c := &testCase{t: t}
			dy, y, dx := c.input(randoms(r, n)), c.input(probabilities(r, rows, cols)), c.dst(r, n, accumulate)
			oracle := byRow(cols, func(r int) []float64 { return softmaxGradOracle(dy.rowOf(r, cols), y.rowOf(r, cols)) })
			c.run(func(s device.Stream) { SoftmaxGrad(s, rows, cols, dx.ptr(), dy.ptr(), y.ptr(), accumulate) })
			c.near("dx", dx, 1e-6, 0.1, onto(dx, accumulate, oracle))
			c.cost(n*(3+flag(accumulate)), n*(4+flag(accumulate)))

			for _, over := range []string{"dy", "y"} {
				c = &testCase{t: t}
				dy, y = c.array(dy.before, over == "dy"), c.array(y.before, over == "y")
				dx = map[string]*array{"dy": dy, "y": y}[over]
				c.run(func(s device.Stream) { SoftmaxGrad(s, rows, cols, dx.ptr(), dy.ptr(), y.ptr(), false) })
				c.near("dx over "+over, dx, 1e-6, 0.1, oracle)
			}
		}
	})
}

// probabilities gives rows of positive numbers that add up to 1.
func probabilities(r *rand.Rand, rows, cols int) []float32 {
	p := make([]float32, 0, rows*cols)
	for range rows {
		for _, v := range softmaxOracle(wide(randoms(r, cols))) {
			p = append(p, float32(v))
		}
	}
	return p
}

func TestLayerNorm(t *testing.T) {
	const eps = 1e-5
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, shape := range shapes(r) {
			rows, cols := shape[0], shape[1]
			n := rows * cols
			x := randoms(r, n)
			for i := range x {
				x[i] += 5 // a mean that one pass in float32 would suffer from
			}
			c := &testCase{t: t}
			in, gamma, beta := c.input(x), c.input(randoms(r, cols)), c.input(randoms(r, cols))
			y, mean, rstd := c.output(n), c.output(rows), c.output(rows)
			c.run(func(s device.Stream) {
				LayerNorm(s, rows, cols, y.ptr(), mean.ptr(), rstd.ptr(), in.ptr(), gamma.ptr(), beta.ptr(), eps)
			})
			c.checkMoments(in, mean, rstd, cols, eps)
			if cols > 1 { // the difference of two equal numbers has no digits to compare
				c.near("y", y, 1e-5, meanRounding(mean, rstd, gamma)/1e-5, byRow(cols, func(r int) []float64 {
					return layerNormOracle(in.rowOf(r, cols), wide(gamma.before), wide(beta.before), eps)
				}))
			}
			c.cost(2*n+2*rows+2*cols, 8*n)
			checkApply(t, x, gamma.before, beta.before, y.data, mean.data, rstd.data)

			c = &testCase{t: t}
			in, mean, rstd = c.input(x), c.output(rows), c.output(rows)
			c.run(func(s device.Stream) {
				LayerNorm(s, rows, cols, none, mean.ptr(), rstd.ptr(), in.ptr(), none, none, eps)
			})
			c.checkMoments(in, mean, rstd, cols, eps)
			c.cost(n+2*rows, 4*n)
		}
	})
}

// TestAddLayerNorm: the sum is that with the result of Dropout, of a part of the tokens
// too, and what is made of it is LayerNorm's, bit for bit.
func TestAddLayerNorm(t *testing.T) {
	const sequences, tokens, cols = 3, 8, 50
	const rows = sequences * tokens
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		whole, x, gamma, beta := randoms(r, rows*cols), randoms(r, rows*cols), randoms(r, cols), randoms(r, cols)
		for _, p := range []float32{0, 0.4} {
			for _, n := range []AddNorm{{}, {Tokens: 2, First: 4, Whole: tokens}} {
				n.Rows, n.Cols, n.Eps, n.Dropout, n.Seed = rows, cols, 1e-5, p, 1<<40+5
				own := func(v []float32) (part []float32) { // the tokens that n is of
					if n.Tokens == 0 {
						return v
					}
					for i := range sequences {
						part = append(part, v[(i*tokens+n.First)*cols:][:n.Tokens*cols]...)
					}
					return part
				}
				n.Rows = len(own(x)) / cols
				c := &testCase{t: t}
				inX, inA, g, b := c.input(own(x)), c.input(own(whole)), c.input(gamma), c.input(beta)
				sum, y, mean, rstd := c.output(n.Rows*cols), c.output(n.Rows*cols), c.output(n.Rows), c.output(n.Rows)
				n.X, n.A, n.Gamma, n.Beta, n.Sum = inX.ptr(), inA.ptr(), g.ptr(), b.ptr(), sum.ptr()
				n.Y, n.Mean, n.RStd = y.ptr(), mean.ptr(), rstd.ptr()
				c.run(func(s device.Stream) { AddLayerNorm(s, n) })
				c.cost(4*n.Rows*cols+2*n.Rows+2*cols, 10*n.Rows*cols)

				w := &testCase{t: t}
				all, kept := w.input(whole), w.output(rows*cols)
				w.run(func(s device.Stream) { Dropout(s, 0, rows*cols, kept.ptr(), all.ptr(), p, n.Seed, false) })
				added, start := own(kept.data), own(x)
				c.equal("sum", sum, 1e-6, func(i int) float64 { return float64(start[i]) + float64(added[i]) })
				w = &testCase{t: t}
				in, g2, b2 := w.input(slices.Clone(sum.data)), w.input(gamma), w.input(beta)
				y2, mean2, rstd2 := w.output(n.Rows*cols), w.output(n.Rows), w.output(n.Rows)
				w.run(func(s device.Stream) {
					LayerNorm(s, n.Rows, cols, y2.ptr(), mean2.ptr(), rstd2.ptr(), in.ptr(), g2.ptr(), b2.ptr(), n.Eps)
				})
				for _, pair := range [][2][]float32{{y.data, y2.data}, {mean.data, mean2.data}, {rstd.data, rstd2.data}} {
					if !sameBits(pair[0], pair[1]) {
						t.Errorf("dropout %v, tokens %d: %v, want %v", p, n.Tokens, pair[0][:8], pair[1][:8])
					}
				}

				want := sum.data
				c = &testCase{t: t}
				inX, inA, sum = c.input(own(x)), c.input(own(whole)), c.output(n.Rows*cols)
				n.X, n.A, n.Sum, n.Y, n.Mean, n.RStd, n.Gamma, n.Beta = inX.ptr(), inA.ptr(), sum.ptr(), none, none, none, none, none
				c.run(func(s device.Stream) { AddLayerNorm(s, n) })
				c.cost(3*n.Rows*cols, 2*n.Rows*cols)
				if !sameBits(sum.data, want) {
					t.Errorf("dropout %v, tokens %d: the sum alone is another", p, n.Tokens)
				}
			}
		}
	})
}

func (c *testCase) checkMoments(x, mean, rstd *array, cols int, eps float64) {
	c.t.Helper()
	c.equal("mean", mean, 3e-7, func(r int) float64 {
		m, _ := momentsOracle(x.rowOf(r, cols), eps)
		return m
	})
	c.equal("rstd", rstd, 1e-5, func(r int) float64 {
		_, s := momentsOracle(x.rowOf(r, cols), eps)
		return s
	})
}

// meanRounding is how far the rounding of a mean, which checkMoments bounds, can move a
// result: in a row of two nearly equal numbers, 1/√eps times that.
func meanRounding(mean, rstd, gamma *array) (most float64) {
	for _, g := range gamma.before {
		for r, m := range mean.data {
			most = max(most, math.Abs(3e-7*float64(m)*float64(rstd.data[r])*float64(g)))
		}
	}
	return most
}

// checkApply checks that LayerNormApply gives y bit for bit, in place too.
func checkApply(t *testing.T, x, gamma, beta, y, mean, rstd []float32) {
	t.Helper()
	rows, cols := len(mean), len(gamma)
	for _, inPlace := range []bool{false, true} {
		c := &testCase{t: t}
		in, m, s := c.array(x, inPlace), c.input(mean), c.input(rstd)
		g, b, out := c.input(gamma), c.input(beta), in
		if !inPlace {
			out = c.output(len(x))
		}
		c.run(func(st device.Stream) {
			LayerNormApply(st, rows, cols, out.ptr(), in.ptr(), m.ptr(), s.ptr(), g.ptr(), b.ptr())
		})
		if !sameBits(out.data, y) {
			t.Fatalf("%d × %d: LayerNormApply differs from LayerNorm", rows, cols)
		}
		c.cost(2*len(x)+2*rows+2*cols, 4*len(x))
	}
}

func TestLayerNormGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, shape := range append(shapes(r), [2]int{5000, 9}) {
			if shape[1] < 3 {
				continue // x̂ is ±1 or 0: nothing is left of dx
			}
			checkLayerNormGrad(t, r, shape[0], shape[1], r.IntN(8), r.IntN(8))
		}
		for wanted := range 8 {
			checkLayerNormGrad(t, r, 20, 50, wanted, 7-wanted)
		}
	})
}

// checkLayerNormGrad runs LayerNormGrad with the bits of wanted for the
// destinations dx, dgamma, dbeta and those of acc for adding to them.
func checkLayerNormGrad(t *testing.T, r *rand.Rand, rows, cols, wanted, acc int) {
	t.Helper()
	const eps = 1e-5
	n := rows * cols
	c := &testCase{t: t}
	dy, x, gamma := c.input(randoms(r, n)), c.input(randoms(r, n)), c.input(randoms(r, cols))
	means, rstds := make([]float32, rows), make([]float32, rows)
	for i := range means {
		m, s := momentsOracle(x.rowOf(i, cols), eps)
		means[i], rstds[i] = float32(m), float32(s)
	}
	mean, rstd := c.input(means), c.input(rstds)
	var dst [3]*array
	var ptr [3]Array
	var add [3]bool
	for i, size := range []int{n, cols, cols} {
		add[i] = acc>>i&1 == 1
		if wanted>>i&1 == 1 {
			dst[i] = c.dst(r, size, add[i])
			ptr[i] = dst[i].ptr()
		}
	}
	inPlace := dst[0] != nil && !add[0] && r.IntN(2) == 0
	if inPlace {
		ptr[0], dy.output = dy.ptr(), true
		dst[0].output, dst[0] = false, dy
	}
	c.run(func(s device.Stream) {
		LayerNormGrad(s, rows, cols, ptr[0], ptr[1], ptr[2], dy.ptr(), x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), add[0], add[1], add[2])
	})
	dgamma, dbeta := make([]float64, cols), make([]float64, cols)
	dx := make([]float64, 0, n)
	for i := range rows {
		g := dy.rowOf(i, cols)
		rowDX, rowDGamma := layerNormGradOracle(g, x.rowOf(i, cols), wide(gamma.before), eps)
		dx = append(dx, rowDX...)
		for j := range cols {
			dgamma[j] += rowDGamma[j]
			dbeta[j] += g[j]
		}
	}
	for i, want := range [][]float64{dx, dgamma, dbeta} {
		if dst[i] != nil {
			c.near([]string{"dx", "dgamma", "dbeta"}[i], dst[i], 2e-6, math.Sqrt(float64(rows)), onto(dst[i], add[i], func(j int) float64 { return want[j] }))
		}
	}
}

// TestRMSNorm takes LayerNorm without a mean, and its gradients by differences.
func TestRMSNorm(t *testing.T) {
	const eps = 1e-3
	oracle := func(x, gamma []float64) []float64 {
		square := inner(x, x)/float64(len(x)) + eps
		y := make([]float64, len(x))
		for i := range y {
			y[i] = x[i] / math.Sqrt(square) * gamma[i]
		}
		return y
	}
	r := seeded(t)
	for range 10 {
		rows, cols := 1+r.IntN(40), 1+r.IntN(50)
		n := rows * cols
		c := &testCase{t: t}
		x, gamma, y, rstd := c.input(randoms(r, n)), c.input(randoms(r, cols)), c.output(n), c.output(rows)
		c.run(func(s device.Stream) {
			LayerNorm(s, rows, cols, y.ptr(), none, rstd.ptr(), x.ptr(), gamma.ptr(), none, eps)
		})
		c.equal("y", y, 1e-6, byRow(cols, func(r int) []float64 { return oracle(x.rowOf(r, cols), wide(gamma.before)) }))

		d := &testCase{t: t}
		x, gamma, held := d.input(x.before), d.input(gamma.before), d.input(append([]float32(nil), rstd.data...))
		again := d.output(n)
		d.run(func(s device.Stream) {
			LayerNormApply(s, rows, cols, again.ptr(), x.ptr(), none, held.ptr(), gamma.ptr(), none)
		})
		if !sameBits(again.data, y.data) {
			t.Fatal("the result made again differs")
		}

		d = &testCase{t: t}
		x, gamma, held = d.input(x.before), d.input(gamma.before), d.input(held.before)
		dy, dx, dgamma := d.input(randoms(r, n)), d.output(n), d.dst(r, cols, true)
		d.run(func(s device.Stream) {
			LayerNormGrad(s, rows, cols, dx.ptr(), dgamma.ptr(), none, dy.ptr(), x.ptr(), none, held.ptr(), gamma.ptr(), false, true, false)
		})
		d.near("dx", dx, 1e-5, 1, byRow(cols, func(r int) []float64 {
			return numericGrad(func(x []float64) float64 { return inner(dy.rowOf(r, cols), oracle(x, wide(gamma.before))) }, x.rowOf(r, cols))
		}))
		d.near("dgamma", dgamma, 1e-5, 1, onto(dgamma, true, func(i int) float64 {
			return numericGrad(func(gamma []float64) (sum float64) {
				for r := range rows {
					sum += inner(dy.rowOf(r, cols), oracle(x.rowOf(r, cols), gamma))
				}
				return sum
			}, wide(gamma.before))[i]
		}))
	}
}

func TestLogSoftmax(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, shape := range shapes(r) {
			rows, cols, accumulate := shape[0], shape[1], i%2 == 0
			n := rows * cols
			c := &testCase{t: t}
			x, y := c.input(randoms(r, n)), c.output(n)
			c.run(func(s device.Stream) { LogSoftmax(s, rows, cols, y.ptr(), x.ptr()) })
			c.near("y", y, 5e-7, 1, byRow(cols, func(r int) []float64 {
				p := softmaxOracle(x.rowOf(r, cols))
				for i := range p {
					p[i] = math.Log(p[i])
				}
				return p
			}))
			d := &testCase{t: t}
			dy, held, dx := d.input(randoms(r, n)), d.input(append([]float32(nil), y.data...)), d.dst(r, n, accumulate)
			d.run(func(s device.Stream) { LogSoftmaxGrad(s, rows, cols, dx.ptr(), dy.ptr(), held.ptr(), accumulate) })
			d.near("dx", dx, 2e-6, 1, onto(dx, accumulate, byRow(cols, func(r int) []float64 {
				g, p, sum := dy.rowOf(r, cols), softmaxOracle(wide(x.before[r*cols:(r+1)*cols])), 0.0
				for _, v := range g {
					sum += v
				}
				for i := range g {
					g[i] -= p[i] * sum
				}
				return g
			})))
		}
	})
}
