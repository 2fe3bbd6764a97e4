package kernel

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// channelOf gives the elements of a channel, and the place of each.
func channelOf(b BatchNorm, x []float32, c int) (values []float64, places []int) {
	for i := range b.N * b.P {
		at := (i/b.P*b.C+c)*b.P + i%b.P
		values, places = append(values, float64(x[at])), append(places, at)
	}
	return values, places
}

// batchNorms are sizes with few and many channels, pixels and images.
var batchNorms = []BatchNorm{{N: 4, C: 6, P: 25}, {N: 1, C: 3, P: 5}, {N: 7, C: 2, P: 1}, {N: 2, C: 5, P: 2*pieceLen + 3}, {N: 3, C: 300, P: 40}, {N: 700, C: 64, P: 1}, {N: 300, C: 201, P: 1}}

func TestBatchNorm(t *testing.T) {
	const eps, momentum = 1e-5, 0.25
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, b := range batchNorms {
			n := b.elements()
			c := &testCase{t: t}
			x, mean, rstd := c.input(randoms(r, n)), c.output(b.C), c.output(b.C)
			runMean, runVar := c.inout(randoms(r, b.C)), c.inout(randoms(r, b.C))
			b.X, b.Mean, b.RStd = x.ptr(), mean.ptr(), rstd.ptr()
			c.run(func(s device.Stream) { BatchNormStats(s, b, runMean.ptr(), runVar.ptr(), momentum, eps) })
			variance := func(i int) float64 {
				v, _ := channelOf(b, x.before, i)
				_, s := momentsOracle(v, 0)
				return 1 / (s * s)
			}
			average := func(i int) float64 {
				v, _ := channelOf(b, x.before, i)
				m, _ := momentsOracle(v, 0)
				return m
			}
			c.near("mean", mean, 1e-6, 1, average)
			c.equal("rstd", rstd, 1e-5, func(i int) float64 { return 1 / math.Sqrt(variance(i)+eps) })
			c.near("running mean", runMean, 1e-6, 1, func(i int) float64 { return 0.75*runMean.start(i) + 0.25*average(i) })
			m := float64(b.N * b.P)
			c.near("running variance", runVar, 1e-6, 1, func(i int) float64 { return 0.75*runVar.start(i) + 0.25*variance(i)*m/(m-1) })

			d := &testCase{t: t}
			held := func(a *array) *array { return d.input(append([]float32(nil), a.data...)) }
			x, mean, rstd = held(x), held(mean), held(rstd)
			gamma, beta, y := d.input(randoms(r, b.C)), d.input(randoms(r, b.C)), d.output(n)
			b.X, b.Mean, b.RStd, b.Gamma, b.Beta = x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), beta.ptr()
			d.run(func(s device.Stream) { BatchNormApply(s, b, y.ptr()) })
			z := func(i int) float64 {
				c := i / b.P % b.C
				return (x.start(i)-mean.start(c))*rstd.start(c)*gamma.start(c) + beta.start(c)
			}
			d.near("y", y, 1e-6, 1, z)
			b.Relu = true
			d.run(func(s device.Stream) { BatchNormApply(s, b, y.ptr()) })
			d.near("y with ReLU", y, 1e-6, 1, func(i int) float64 { return max(0, z(i)) })
			residual := d.input(randoms(r, n))
			b.Residual = residual.ptr()
			d.run(func(s device.Stream) { BatchNormApply(s, b, y.ptr()) })
			d.near("y with ReLU and residual", y, 1e-6, 1, func(i int) float64 { return max(0, z(i)+residual.start(i)) })
			b.Relu = false
			d.run(func(s device.Stream) { BatchNormApply(s, b, y.ptr()) })
			d.near("y with residual", y, 1e-6, 1, func(i int) float64 { return z(i) + residual.start(i) })
		}
	})
}

// TestBatchNormBits: on the host ReLU and a residual give the bits that
// operations of their own would.
func TestBatchNormBits(t *testing.T) {
	r := seeded(t)
	s := &inline{w: device.NewWorkers(2)}
	defer s.w.Close()
	b := BatchNorm{N: 2, C: 3, P: pieceLen + 5}
	n := b.elements()
	x, c, want, got := memory(n), memory(b.C), memory(n), memory(n)
	residual := (&testCase{}).input(randoms(r, n))
	copy(residual.data, residual.before)
	b.X, b.Mean, b.RStd, b.Gamma, b.Beta = x.ptr(), c.ptr(), c.ptr(), c.ptr(), c.ptr()
	BatchNormApply(s, b, want.ptr())
	shape, dense := []int{n}, []int{1}
	Binary(s, Add, shape, want.ptr(), View{want.ptr(), dense}, View{residual.ptr(), dense})
	Unary(s, Relu, n, want.ptr(), want.ptr())
	b.Residual, b.Relu = residual.ptr(), true
	BatchNormApply(s, b, got.ptr())
	if !sameBits(got.data, want.data) {
		t.Error("results differ")
	}
	runtime.KeepAlive([]*array{x, c, want, got, residual})
}

// batchNormOracle is the sum of dy·y over a channel, as a function of x.
func batchNormOracle(dy []float64, gamma, eps float64) func(x []float64) float64 {
	return func(x []float64) (sum float64) {
		mean, rstd := momentsOracle(x, eps)
		for i, v := range x {
			sum += dy[i] * (v - mean) * rstd * gamma
		}
		return sum
	}
}

// TestBatchNormGrad tries all sets of wanted gradients, with each way in which y
// may follow from z, into memory of their own or, where that may be, over dy.
func TestBatchNormGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for wanted := range 32 {
			for way := range 4 {
				b := BatchNorm{N: 1 + r.IntN(4), C: 1 + r.IntN(5), P: 2 + r.IntN(10), Relu: way&1 != 0}
				if wanted == 31 { // in packs, and more rows than a thread loads at once
					b.N, b.C, b.P = 333, 8, 1
				}
				checkBatchNormGrad(t, r, b, way&2 != 0, wanted&15, wanted&16 != 0)
			}
		}
	})
}

// checkBatchNormGrad tries one, with the gradients that the bits of wanted say,
// in the order of BatchNormGrad.
func checkBatchNormGrad(t *testing.T, r *rand.Rand, b BatchNorm, residual bool, wanted int, fixed bool) {
	t.Helper()
	const eps = 0.1 // so that few elements give no great derivatives
	n, acc := b.elements(), [4]bool{}
	c := &testCase{t: t}
	x, dys, gamma, beta := c.input(randoms(r, n)), randoms(r, n), c.input(randoms(r, b.C)), c.input(randoms(r, b.C))
	means, rstds := make([]float32, b.C), make([]float32, b.C)
	for i := range means {
		v, _ := channelOf(b, x.before, i)
		m, s := momentsOracle(v, eps)
		means[i], rstds[i] = float32(m), float32(s)
	}
	mean, rstd := c.input(means), c.input(rstds)
	b.X, b.Mean, b.RStd, b.Gamma, b.Beta = x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), beta.ptr()
	residuals := make([]float32, n)
	if residual {
		residuals = randoms(r, n)
		b.Residual = c.input(residuals).ptr()
	}
	var to [4]Array
	var dst [4]*array
	dy := c.inout(dys)
	over := r.IntN(5) // the destination that is dy, if any
	for i, size := range [4]int{n, b.C, b.C, n} {
		switch acc[i] = r.IntN(2) == 0; {
		case wanted>>i&1 == 0:
			continue
		case i == over && (i == 3 || i == 0 && wanted&8 == 0):
			dst[i], acc[i] = dy, false
		default:
			dst[i] = c.dst(r, size, acc[i])
		}
		to[i] = dst[i].ptr()
	}
	c.run(func(s device.Stream) { BatchNormGrad(s, b, to, acc, dy.ptr(), fixed) })

	var want [4][]float64
	for i, size := range [4]int{n, b.C, b.C, n} {
		want[i] = make([]float64, size)
	}
	for i := range b.C {
		v, places := channelOf(b, x.before, i)
		g, _ := channelOf(b, dys, i)
		for j, at := range places {
			hat := (v[j] - mean.start(i)) * rstd.start(i)
			if b.Relu && hat*gamma.start(i)+beta.start(i)+float64(residuals[at]) <= 0 {
				g[j] = 0
			}
			want[1][i] += g[j] * hat
			want[2][i] += g[j]
			want[3][at] = g[j]
		}
		grad := numericGrad(batchNormOracle(g, gamma.start(i), eps), v)
		for j, at := range places {
			if want[0][at] = grad[j]; fixed {
				want[0][at] = g[j] * rstd.start(i) * gamma.start(i)
			}
		}
	}
	for i, d := range dst {
		if d != nil {
			c.near([]string{"dx", "dgamma", "dbeta", "dresidual"}[i], d, 3e-6, 1, onto(d, acc[i], func(j int) float64 { return want[i][j] }))
		}
	}
	if dst[0] != dy && dst[3] != dy && !sameBits(dy.data, dys) {
		t.Error("dy was written")
	}
}

func TestInverseDeviation(t *testing.T) {
	c := &testCase{t: t}
	v, y := c.input([]float32{1, 0.25, 0}), c.output(3)
	c.run(func(s device.Stream) { InverseDeviation(s, 3, y.ptr(), v.ptr(), 1e-4) })
	c.equal("rstd", y, 1e-6, func(i int) float64 { return 1 / math.Sqrt(v.start(i)+1e-4) })
}
