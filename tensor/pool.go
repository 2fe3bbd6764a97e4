package tensor

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// PoolParams are the numbers of pooling, the same down and across. A Stride of
// 0 stands for Kernel; Padding is at most half of it. With ChannelsLast images
// are [N, H, W, C].
type PoolParams struct {
	Kernel, Stride, Padding int
	ChannelsLast            bool
}

// MaxPool2D is the greatest element of each window of x, [N, C, H, W]. It
// saves x, which costs nothing where x is made again, and no index.
func MaxPool2D(x *Tensor, p PoolParams) *Tensor {
	k, shape := poolOf("MaxPool2D", x, p)
	return pool("max_pool2d", x, shape, k, true, kernel.MaxPool, kernel.MaxPoolGrad)
}

// AvgPool2D is the mean of each window of x, [N, C, H, W]; padding counts as
// zeros. Nothing is saved.
func AvgPool2D(x *Tensor, p PoolParams) *Tensor {
	k, shape := poolOf("AvgPool2D", x, p)
	return pool("avg_pool2d", x, shape, k, false, kernel.AvgPool, kernel.AvgPoolGrad)
}

// AdaptiveAvgPool2D is the means of h×w windows that cover x, [N, C, H, W].
// Nothing is saved.
func AdaptiveAvgPool2D(x *Tensor, h, w int) *Tensor {
	if len(x.shape) != 4 || x.Len() == 0 || h < 1 || w < 1 {
		fail("AdaptiveAvgPool2D of %v to %d×%d", x, h, w)
	}
	k := kernel.Pool{Planes: x.shape[0] * x.shape[1], H: x.shape[2], W: x.shape[3], OH: h, OW: w}
	return pool("adaptive_avg_pool2d", x, []int{x.shape[0], x.shape[1], h, w}, k, false, kernel.AvgPool, kernel.AvgPoolGrad)
}

func poolOf(name string, x *Tensor, p PoolParams) (k kernel.Pool, shape []int) {
	stride := p.Stride
	if stride == 0 {
		stride = p.Kernel
	}
	if len(x.shape) != 4 || x.Len() == 0 || p.Kernel < 1 || stride < 1 || p.Padding < 0 || 2*p.Padding > p.Kernel {
		fail("%s of %v with %+v", name, x, p)
	}
	n, c, h, w := sidesOf(x, p.ChannelsLast)
	k = kernel.Pool{Planes: n * c, H: h, W: w, OH: kernel.Windows(h, p.Kernel, stride, p.Padding, 1), OW: kernel.Windows(w, p.Kernel, stride, p.Padding, 1),
		Kernel: [2]int{p.Kernel, p.Kernel}, Stride: [2]int{stride, stride}, Pad: [2]int{p.Padding, p.Padding}}
	if k.OH < 1 || k.OW < 1 {
		fail("%s of %v with %+v: the window is larger than the image", name, x, p)
	}
	if p.ChannelsLast {
		k.Planes, k.Channels = n, c
	}
	return k, imageShape(p.ChannelsLast, n, c, k.OH, k.OW)
}

// pool runs k. Its gradient reads x where it must be saved.
func pool(name string, x *Tensor, shape []int, k kernel.Pool, save bool, forward func(device.Stream, kernel.Pool),
	backward func(device.Stream, kernel.Pool, kernel.Array, kernel.Array, bool)) *Tensor {
	rt := x.rt
	n := rt.node(name, x)
	n.remake(func(in []*Tensor) *Tensor { return pool(name, in[0], shape, k, save, forward, backward) }, x)
	var s *saved
	if n != nil {
		s = n.saveIf(save, x)
	}
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(x.dtype, trace.Activation, shape...)
	at := k
	at.X, at.Y = d.ptr(), y.ptr()
	forward(rt.stream, at)
	return n.bind(y, func(g *Tensor) {
		if s != nil {
			x := s.take()
			defer x.Release()
			d := x.contiguous()
			defer d.Release()
			k.X = d.ptr()
		}
		dst, acc := n.into(0)
		backward(rt.stream, k, dst.ptr(), g.ptr(), acc)
	})
}
