package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// ConvParams are the numbers of a convolution, the same down and across. 0
// stands for 1 (for Padding, for 0).
type ConvParams struct {
	Stride, Padding, Dilation, Groups int
	ChannelsLast                      bool // of the images
}

// Conv2D is the convolution of x, [N, C, H, W], with w, [M, C/Groups, KH, KW],
// plus bias, [M] or nil, giving [N, M, OH, OW]. With ChannelsLast x is
// [N, H, W, C] and the result [N, OH, OW, M]; w is as ever, and its elements are
// put in the order of the images' for the time of the operation. It saves x if
// w's gradient is wanted, and w if x's is. Patches of x are never held as a
// matrix.
func Conv2D(x, w, bias *Tensor, p ConvParams) *Tensor {
	rt, k := x.rt, convOf(x, w, bias, p)
	defer rt.lower(&x, &w)()
	n := rt.node("conv2d", x, w, bias)
	n.remake(func(in []*Tensor) *Tensor { return Conv2D(in[0], in[1], in[2], p) }, x, w, bias)
	var sx, sw *saved
	if n != nil {
		sx, sw = n.saveIf(n.wants(1), x), n.saveIf(n.wants(0), w)
	}
	d := x.contiguous()
	defer d.Release()
	ordered := kernelOrder(w, p.ChannelsLast)
	defer ordered.Release()
	y := rt.Empty(promote(x, w), trace.Activation, imageShape(p.ChannelsLast, k.N, k.M, k.OH(), k.OW())...)
	at := k
	at.X, at.Weight, at.Bias, at.Y = d.ptr(), ordered.ptr(), address(bias), y.ptr()
	kernel.Convolve(rt.stream, at)
	return n.bind(y, func(g *Tensor) {
		if n.wants(2) {
			dst, acc := n.into(2)
			rows, pixels := k.N, k.OH()*k.OW()
			if p.ChannelsLast {
				rows, pixels = k.N*pixels, 1
			}
			kernel.SumTo(rt.stream, []int{rows, k.M, pixels}, kernel.View{Ptr: dst.ptr(), Strides: []int{0, 1, 0}},
				kernel.View{Ptr: g.ptr(), Strides: []int{k.M * pixels, pixels, 1}}, acc)
		}
		if n.wants(1) {
			n.convWeightGrad(k, sx.take(), g)
		}
		if n.wants(0) {
			w := sw.take()
			defer w.Release()
			ordered := kernelOrder(w, p.ChannelsLast)
			defer ordered.Release()
			dst, acc := n.into(0)
			k.Weight = ordered.ptr()
			kernel.ConvGradInput(rt.stream, k, dst.ptr(), g.ptr(), acc)
		}
	})
}

func (n *node) convWeightGrad(k kernel.Conv, x, g *Tensor) {
	defer x.Release()
	d := x.contiguous()
	defer d.Release()
	dst, acc := n.into(1)
	k.X = d.ptr()
	if !k.ChannelsLast || k.KH*k.KW == 1 {
		kernel.ConvGradWeight(x.rt.stream, k, dst.ptr(), g.ptr(), acc)
		return
	}
	ordered := x.rt.Empty(dst.dtype, trace.Workspace, k.M, k.KH, k.KW, k.C/k.Groups)
	defer ordered.Release()
	kernel.ConvGradWeight(x.rt.stream, k, ordered.ptr(), g.ptr(), false)
	back := Permute(ordered, 0, 3, 1, 2)
	defer back.Release()
	kernel.Copy(x.rt.stream, dst.shape, dst.kview(dst.shape), back.kview(dst.shape), acc)
}

// kernelOrder gives the elements of w, [M, C/Groups, KH, KW], in the order of
// the images': with channels last, [M, KH, KW, C/Groups].
func kernelOrder(w *Tensor, channelsLast bool) (ordered *Tensor) {
	if !channelsLast || w.shape[2]*w.shape[3] == 1 {
		return w.Retain()
	}
	w.rt.NoGrad(func() {
		last := Permute(w, 0, 2, 3, 1)
		defer last.Release()
		ordered = last.contiguous()
	})
	return ordered
}

// imageShape is the shape of images.
func imageShape(channelsLast bool, n, c, h, w int) []int {
	if channelsLast {
		return []int{n, h, w, c}
	}
	return []int{n, c, h, w}
}

// sidesOf gives the sizes of images.
func sidesOf(x *Tensor, channelsLast bool) (n, c, h, w int) {
	if channelsLast {
		return x.shape[0], x.shape[3], x.shape[1], x.shape[2]
	}
	return x.shape[0], x.shape[1], x.shape[2], x.shape[3]
}

// convOf checks the operands and gives the kernel's description without them.
func convOf(x, w, bias *Tensor, p ConvParams) kernel.Conv {
	stride, dilation, groups := orOne(p.Stride), orOne(p.Dilation), orOne(p.Groups)
	bad := len(x.shape) != 4 || len(w.shape) != 4 || !w.dense() || x.Len()*w.Len() == 0 ||
		stride < 1 || dilation < 1 || groups < 1 || p.Padding < 0 || w.shape[0]%groups != 0 || bias != nil && !slices.Equal(bias.shape, w.shape[:1])
	if !bad {
		n, c, height, width := sidesOf(x, p.ChannelsLast)
		k := kernel.Conv{N: n, C: c, H: height, W: width, M: w.shape[0], KH: w.shape[2], KW: w.shape[3], Groups: groups, ChannelsLast: p.ChannelsLast,
			Stride: [2]int{stride, stride}, Pad: [2]int{p.Padding, p.Padding}, Dilation: [2]int{dilation, dilation}}
		if w.shape[1]*groups == c && k.OH() > 0 && k.OW() > 0 {
			return k
		}
	}
	fail("Conv2D of %v with weight %v, bias %v and %+v", x, w, bias, p)
	panic("unreachable")
}

func orOne(n int) int {
	if n == 0 {
		return 1
	}
	return n
}
