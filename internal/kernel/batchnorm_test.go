package kernel

import (
	"math"
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
			d.near("y", y, 1e-6, 1, func(i int) float64 {
				c := i / b.P % b.C
				return (x.start(i)-mean.start(c))*rstd.start(c)*gamma.start(c) + beta.start(c)
			})
		}
	})
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

func TestBatchNormGrad(t *testing.T) {
	const eps = 0.1 // so that few elements give no great derivatives
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for wanted := range 16 {
			b := BatchNorm{N: 1 + r.IntN(4), C: 1 + r.IntN(5), P: 2 + r.IntN(10)}
			fixed, acc, n := wanted&8 != 0, r.IntN(8), b.elements()
			means, rstds := make([]float32, b.C), make([]float32, b.C)
			c := &testCase{t: t}
			x, dy, gamma := c.input(randoms(r, n)), c.input(randoms(r, n)), c.input(randoms(r, b.C))
			for i := range means {
				v, _ := channelOf(b, x.before, i)
				m, s := momentsOracle(v, eps)
				means[i], rstds[i] = float32(m), float32(s)
			}
			mean, rstd := c.input(means), c.input(rstds)
			dst := [3]*array{c.dst(r, n, acc&1 != 0), c.dst(r, b.C, acc&2 != 0), c.dst(r, b.C, acc&4 != 0)}
			var to [3]Array
			for i := range to {
				if wanted>>i&1 != 0 {
					to[i] = dst[i].ptr()
				}
			}
			b.X, b.Mean, b.RStd, b.Gamma = x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr()
			c.run(func(s device.Stream) {
				BatchNormGrad(s, b, to[0], to[1], to[2], dy.ptr(), fixed, acc&1 != 0, acc&2 != 0, acc&4 != 0)
			})
			dx, dgamma, dbeta := make([]float64, n), make([]float64, b.C), make([]float64, b.C)
			for i := range b.C {
				v, places := channelOf(b, x.before, i)
				g, _ := channelOf(b, dy.before, i)
				grad := numericGrad(batchNormOracle(g, gamma.start(i), eps), v)
				for j, at := range places {
					dgamma[i] += g[j] * (v[j] - mean.start(i)) * rstd.start(i)
					dbeta[i] += g[j]
					if dx[at] = grad[j]; fixed {
						dx[at] = g[j] * rstd.start(i) * gamma.start(i)
					}
				}
			}
			for i, want := range [][]float64{dx, dgamma, dbeta} {
				if to[i].given() {
					c.near([]string{"dx", "dgamma", "dbeta"}[i], dst[i], 3e-6, 1, onto(dst[i], acc>>i&1 != 0, func(j int) float64 { return want[j] }))
				}
			}
		}
	})
}

func TestInverseDeviation(t *testing.T) {
	c := &testCase{t: t}
	v, y := c.input([]float32{1, 0.25, 0}), c.output(3)
	c.run(func(s device.Stream) { InverseDeviation(s, 3, y.ptr(), v.ptr(), 1e-4) })
	c.equal("rstd", y, 1e-6, func(i int) float64 { return 1 / math.Sqrt(v.start(i)+1e-4) })
}
