package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// poolOracle calls f for each element of each window: its place in Y and in X,
// and the part that it has in a mean.
func poolOracle(p Pool, f func(y, x int, share float64)) {
	for y := range p.Planes * p.OH * p.OW {
		plane, o := y/(p.OH*p.OW), [2]int{y / p.OW % p.OH, y % p.OW}
		var lo, hi [2]int
		share := 1.0
		for i, size := range [2]int{p.H, p.W} {
			if p.Kernel[i] == 0 {
				windows := float64([2]int{p.OH, p.OW}[i])
				lo[i] = int(math.Floor(float64(o[i]*size) / windows))
				hi[i] = int(math.Ceil(float64((o[i]+1)*size) / windows))
			} else {
				lo[i] = o[i]*p.Stride[i] - p.Pad[i]
				hi[i] = lo[i] + p.Kernel[i]
			}
			share /= float64(hi[i] - lo[i])
		}
		for iy := max(0, lo[0]); iy < min(hi[0], p.H); iy++ {
			for ix := max(0, lo[1]); ix < min(hi[1], p.W); ix++ {
				for c := range max(1, p.Channels) {
					f(y*max(1, p.Channels)+c, ((plane*p.H+iy)*p.W+ix)*max(1, p.Channels)+c, share)
				}
			}
		}
	}
}

// randomPool is a pool whose windows end inside of the padding.
func randomPool(r *rand.Rand, even bool) Pool {
	for {
		p := Pool{Planes: 1 + r.IntN(6), H: 1 + r.IntN(20), W: 1 + r.IntN(20)}
		if even {
			p.OH, p.OW = 1+r.IntN(8), 1+r.IntN(8)
			return p
		}
		for i := range 2 {
			p.Kernel[i] = 1 + r.IntN(4)
			p.Stride[i], p.Pad[i] = 1+r.IntN(3), r.IntN(p.Kernel[i]/2+1)
		}
		p.OH, p.OW = Windows(p.H, p.Kernel[0], p.Stride[0], p.Pad[0], 1), Windows(p.W, p.Kernel[1], p.Stride[1], p.Pad[1], 1)
		if p.OH > 0 && p.OW > 0 {
			return p
		}
	}
}

func TestPools(t *testing.T) {
	r := seeded(t)
	for i := range 100 {
		p := randomPool(r, i%3 == 0)
		p.Channels = []int{0, 1, 3, 8, 16}[r.IntN(5)]
		x, y := p.planes()
		x, y = x*p.Planes, y*p.Planes
		accumulate := i%2 == 0
		mean, most, from := make([]float64, y), make([]float64, y), make([]int, y)
		c := &testCase{t: t}
		in, out := c.input(randoms(r, x)), c.output(y)
		p.X, p.Y = in.ptr(), out.ptr()
		for j := range most {
			most[j] = math.Inf(-1)
		}
		poolOracle(p, func(y, x int, share float64) {
			mean[y] += share * in.start(x)
			if v := in.start(x); v > most[y] {
				most[y], from[y] = v, x
			}
		})
		c.run(func(s device.Stream) { AvgPool(s, p) })
		c.near("mean", out, 1e-6, 1, func(i int) float64 { return mean[i] })
		c.run(func(s device.Stream) { MaxPool(s, p) })
		c.equal("greatest", out, 0, func(i int) float64 { return most[i] })

		c = &testCase{t: t}
		in, dy, dx := c.input(in.before), c.input(randoms(r, y)), c.dst(r, x, accumulate)
		p.X = in.ptr()
		want := make([]float64, x)
		poolOracle(p, func(y, x int, share float64) { want[x] += share * dy.start(y) })
		c.run(func(s device.Stream) { AvgPoolGrad(s, p, dx.ptr(), dy.ptr(), accumulate) })
		c.near("gradient of the mean", dx, 1e-6, 1, onto(dx, accumulate, func(i int) float64 { return want[i] }))
		clear(want)
		for i, at := range from {
			want[at] += dy.start(i)
		}
		c.run(func(s device.Stream) { MaxPoolGrad(s, p, dx.ptr(), dy.ptr(), accumulate) })
		c.near("gradient of the greatest", dx, 1e-6, 1, onto(dx, accumulate, func(i int) float64 { return want[i] }))
	}
}

// TestMaxPoolOfLargeWindow has more elements in a window than 16 bits can count.
func TestMaxPoolOfLargeWindow(t *testing.T) {
	const h, w, greatest = 257, 259, 66000
	c := &testCase{t: t}
	values := make([]float32, h*w)
	values[greatest] = 1
	x, dy, dx := c.input(values), c.input([]float32{3}), c.output(h*w)
	p := Pool{Planes: 1, H: h, W: w, OH: 1, OW: 1, X: x.ptr()}
	c.run(func(s device.Stream) { MaxPoolGrad(s, p, dx.ptr(), dy.ptr(), false) })
	c.equal("dx", dx, 0, func(i int) float64 { return float64(3 * flag(i == greatest)) })
}

// TestMaxPoolTies: of equal elements the first is taken, and NaN is the greatest.
func TestMaxPoolTies(t *testing.T) {
	c := &testCase{t: t}
	x, dy, dx := c.input([]float32{3, 3, 1, nan, 5, 3}), c.input([]float32{1, 2}), c.output(6)
	p := Pool{Planes: 2, H: 1, W: 3, OH: 1, OW: 1, X: x.ptr()}
	c.run(func(s device.Stream) { MaxPoolGrad(s, p, dx.ptr(), dy.ptr(), false) })
	c.equal("dx", dx, 0, func(i int) float64 { return []float64{1, 0, 0, 2, 0, 0}[i] })
}
