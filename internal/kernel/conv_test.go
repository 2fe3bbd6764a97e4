package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// convOracle calls f for every product of a convolution with the places of its
// factors in X and in the weight, and of the sum that it belongs to in Y.
func convOracle(c *Conv, f func(x, w, y int)) {
	cg, mg := c.C/c.Groups, c.M/c.Groups
	for y := range c.N * c.M * c.OH() * c.OW() {
		ox, oy := y%c.OW(), y/c.OW()%c.OH()
		m, n := y/(c.OW()*c.OH())%c.M, y/(c.OW()*c.OH()*c.M)
		for tap := range cg * c.KH * c.KW {
			ix := ox*c.Stride[1] + tap%c.KW*c.Dilation[1] - c.Pad[1]
			iy := oy*c.Stride[0] + tap/c.KW%c.KH*c.Dilation[0] - c.Pad[0]
			if ix < 0 || iy < 0 || ix >= c.W || iy >= c.H {
				continue
			}
			channel := m/mg*cg + tap/(c.KW*c.KH)
			if c.ChannelsLast {
				place := tap % (c.KH * c.KW)
				f(((n*c.H+iy)*c.W+ix)*c.C+channel, (m*c.KH*c.KW+place)*cg+tap/(c.KH*c.KW), ((n*c.OH()+oy)*c.OW()+ox)*c.M+m)
				continue
			}
			f(((n*c.C+channel)*c.H+iy)*c.W+ix, m*cg*c.KH*c.KW+tap, y)
		}
	}
}

func randomConv(r *rand.Rand) Conv {
	for {
		g := 1 + r.IntN(3)
		c := Conv{N: 1 + r.IntN(4), C: g * (1 + r.IntN(5)), M: g * (1 + r.IntN(20)), H: 1 + r.IntN(24), W: 1 + r.IntN(40),
			KH: 1 + r.IntN(4), KW: 1 + r.IntN(4), Groups: g, ChannelsLast: r.IntN(3) == 0}
		for i := range 2 {
			c.Stride[i], c.Pad[i], c.Dilation[i] = 1+r.IntN(3), r.IntN(4), 1+r.IntN(2)
		}
		if r.IntN(4) == 0 {
			c.KH, c.KW, c.Stride, c.Pad = 1, 1, [2]int{1, 1}, [2]int{}
		}
		if c.OH() > 0 && c.OW() > 0 {
			return c
		}
	}
}

// TestConv compares convolutions and their gradients with sums product by
// product, on all micro-kernels.
func TestConv(t *testing.T) {
	r := seeded(t)
	cases := []Conv{{N: 3, C: 20, H: 9, W: 30, M: 13, KH: 3, KW: 3, Groups: 1, Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}},
		{N: 2, C: 40, H: 32, W: 34, M: 3, KH: 5, KW: 3, Groups: 1, Stride: [2]int{1, 2}, Pad: [2]int{2, 0}, Dilation: [2]int{1, 1}}}
	for range trials(40) {
		cases = append(cases, randomConv(r))
	}
	for i, c := range cases {
		for _, kn := range microKernels {
			t.Run(fmt.Sprintf("%s/%d", kn.name, i), func(t *testing.T) { checkConv(t, r, kn, c, r.IntN(2) == 0) })
		}
	}
}

func checkConv(t *testing.T, r *rand.Rand, kn *microKernel, v Conv, flip bool) {
	x, w := randoms(r, v.N*v.C*v.H*v.W), randoms(r, v.M*v.patch())
	dy := randoms(r, v.N*v.M*v.OH()*v.OW())
	sumX, sumW, sumY := make([]float64, len(x)), make([]float64, len(w)), make([]float64, len(dy))
	convOracle(&v, func(i, j, k int) {
		sumY[k] += float64(x[i]) * float64(w[j])
		sumX[i] += float64(dy[k]) * float64(w[j])
		sumW[j] += float64(dy[k]) * float64(x[i])
	})
	bias := randoms(r, v.M)

	c := &testCase{t: t}
	ax, aw, ab, ay := c.input(x), c.input(w), c.input(bias), c.output(len(dy))
	v.X, v.Weight, v.Y = ax.ptr(), aw.ptr(), ay.ptr()
	if flip {
		v.Bias = ab.ptr()
	}
	c.run(func(s device.Stream) { Convolve(using{s, &device.Kernel{Name: "conv", Host: kn.conv}}, v) })
	c.near("y", ay, 2e-6, expectedSum(v.patch()), func(i int) float64 {
		if !flip {
			return sumY[i]
		}
		if v.ChannelsLast {
			return sumY[i] + float64(bias[i%v.M])
		}
		return sumY[i] + float64(bias[i/(v.OH()*v.OW())%v.M])
	})
	c.cost(len(x)+len(w)+len(dy), 2*len(dy)*v.patch())

	c = &testCase{t: t}
	aw, ay, dx := c.input(w), c.input(dy), c.dst(r, len(x), flip)
	v.X, v.Weight, v.Y = none, aw.ptr(), none
	c.run(func(s device.Stream) {
		ConvGradInput(using{s, &device.Kernel{Name: "conv", Host: kn.convGradInput}}, v, dx.ptr(), ay.ptr(), flip)
	})
	c.near("dx", dx, 2e-6, expectedSum(v.M/v.Groups*v.KH*v.KW), onto(dx, flip, func(i int) float64 { return sumX[i] }))

	c = &testCase{t: t}
	ax, ay, dw := c.input(x), c.input(dy), c.dst(r, len(w), flip)
	v.X, v.Weight = ax.ptr(), none
	c.run(func(s device.Stream) {
		ConvGradWeight(using{s, &device.Kernel{Name: "conv", Host: kn.convGradWeight}}, v, dw.ptr(), ay.ptr(), flip)
	})
	c.near("dw", dw, 5e-6, expectedSum(v.N*v.OH()*v.OW()), onto(dw, flip, func(i int) float64 { return sumW[i] }))
}

// expectedSum is how large a sum of n products of random numbers is: where few are compared,
// they may all be small, though what they are sums of is not.
func expectedSum(n int) float64 { return math.Sqrt(float64(n)) }
