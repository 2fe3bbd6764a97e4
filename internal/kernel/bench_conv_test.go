package kernel

import (
	"runtime"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// BenchmarkConv has the convolutions of ResNet-18 for 16 images of 64×64, and
// a product of matrices of the first one's size.
func BenchmarkConv(b *testing.B) {
	one := [2]int{1, 1}
	for _, x := range []struct {
		name                      string
		c, side, m, k, stride, by int
	}{
		{"conv1 7x7 64", 3, 64, 64, 7, 2, 3},
		{"layer1 3x3 16", 64, 16, 64, 3, 1, 1},
		{"layer2 3x3 16 to 8", 64, 16, 128, 3, 2, 1},
		{"layer2 3x3 8", 128, 8, 128, 3, 1, 1},
		{"layer3 3x3 4", 256, 4, 256, 3, 1, 1},
		{"layer4 3x3 2", 512, 2, 512, 3, 1, 1},
		{"1x1 16", 256, 16, 64, 1, 1, 0},
	} {
		v := Conv{N: 16, C: x.c, H: x.side, W: x.side, M: x.m, KH: x.k, KW: x.k, Groups: 1,
			Stride: [2]int{x.stride, x.stride}, Pad: [2]int{x.by, x.by}, Dilation: one}
		m := &benchMemory{}
		v.X, v.Weight, v.Y = m.ptr(v.N*v.C*v.H*v.W), m.ptr(v.M*v.patch()), m.ptr(v.N*v.M*v.OH()*v.OW())
		benchFlops(b, x.name+"/forward", func(s device.Stream) { Convolve(s, v) })
		benchFlops(b, x.name+"/input", func(s device.Stream) { ConvGradInput(s, v, v.X, v.Y, false) })
		benchFlops(b, x.name+"/weight", func(s device.Stream) { ConvGradWeight(s, v, v.Weight, v.Y, false) })
		runtime.KeepAlive(m)
	}
	m := &benchMemory{}
	g := Gemm{M: 64, N: 4096, K: 576, LDA: 576, LDB: 4096, LDC: 4096, A: m.ptr(64 * 576), B: m.ptr(576 * 4096), C: m.ptr(64 * 4096)}
	benchFlops(b, "product 64x4096x576", func(s device.Stream) { MatMul(s, g) })
	runtime.KeepAlive(m)
}
