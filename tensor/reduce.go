package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Sum is the sum over the given dimensions, which keep a size of 1, or over
// all of them, to a single element of shape [], when none are given. Nothing
// is saved.
func Sum(t *Tensor, dims ...int) *Tensor {
	kept := slices.Clone(t.shape)
	shape := kept
	for _, d := range dims {
		kept[axis(d, len(kept))] = 1
	}
	if len(dims) == 0 {
		kept, shape = slices.Repeat([]int{1}, len(t.shape)), []int{}
	}
	n := t.rt.node("sum", t)
	out := t.rt.Empty(Float32, trace.Activation, shape...)
	wide := out.view(kept, denseStrides(kept), 0)
	defer wide.Release()
	kernel.SumTo(t.rt.stream, t.shape, wide.kview(t.shape), t.kview(t.shape), false)
	return n.bind(out, func(g *Tensor) {
		wide := g.view(kept, denseStrides(kept), g.offset)
		defer wide.Release()
		dst, acc := n.into(0)
		kernel.Copy(g.rt.stream, dst.shape, dst.kview(dst.shape), wide.kview(dst.shape), acc)
	})
}

// Mean is Sum divided by the number of elements summed.
func Mean(t *Tensor, dims ...int) *Tensor {
	s := Sum(t, dims...)
	defer s.Release()
	return Scale(s, float32(s.Len())/float32(t.Len()))
}

// Softmax is over the last dimension. It saves its result.
func Softmax(x *Tensor) *Tensor {
	rt, cols := x.rt, x.Dim(-1)
	n := rt.node("softmax", x)
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(Float32, trace.Activation, x.shape...)
	rows := y.Len() / max(cols, 1)
	kernel.Softmax(rt.stream, rows, cols, y.ptr(), d.ptr())
	if n == nil {
		return y
	}
	s := n.save(y)
	return n.bind(y, func(g *Tensor) {
		y := s.take()
		defer y.Release()
		dst, acc := n.into(0)
		kernel.SoftmaxGrad(rt.stream, rows, cols, dst.ptr(), g.ptr(), y.ptr(), acc)
	})
}

// LayerNorm normalises over the last dimension: (x − mean)/√(var + eps)·gamma + beta.
// It saves x and two numbers a row; its result is made again for those who save it.
func LayerNorm(x, gamma, beta *Tensor, eps float32) *Tensor {
	rt, cols := x.rt, x.Dim(-1)
	if cols == 0 || !slices.Equal(gamma.shape, []int{cols}) || !slices.Equal(beta.shape, gamma.shape) {
		fail("LayerNorm of %v with gamma %v and beta %v", x, gamma, beta)
	}
	n := rt.node("layer_norm", x, gamma, beta)
	var sx *saved
	if n != nil {
		sx = n.save(x)
	}
	d := x.contiguous()
	defer d.Release()
	rows := x.Len() / cols
	y := rt.Empty(Float32, trace.Activation, x.shape...)
	mean, rstd := rt.Empty(Float32, trace.Activation, rows), rt.Empty(Float32, trace.Activation, rows)
	defer mean.Release()
	defer rstd.Release()
	kernel.LayerNorm(rt.stream, rows, cols, y.ptr(), mean.ptr(), rstd.ptr(), d.ptr(), gamma.ptr(), beta.ptr(), eps)
	if n == nil {
		return y
	}
	l := &layerNorm{n, rows, cols, sx, n.save(mean), n.save(rstd), n.save(gamma), n.save(beta)}
	n.again = l.again
	return n.bind(y, l.backward)
}

type layerNorm struct {
	n                          *node
	rows, cols                 int
	x, mean, rstd, gamma, beta *saved
}

func (l *layerNorm) again() *Tensor {
	x, mean, rstd, gamma, beta := l.x.get(), l.mean.get(), l.rstd.get(), l.gamma.get(), l.beta.get()
	defer releaseAll(x, mean, rstd, gamma, beta)
	d := x.contiguous()
	defer d.Release()
	y := x.rt.Empty(Float32, trace.Activation, x.shape...)
	kernel.LayerNormApply(x.rt.stream, l.rows, l.cols, y.ptr(), d.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), beta.ptr())
	return y
}

func (l *layerNorm) backward(g *Tensor) {
	x, mean, rstd, gamma := l.x.take(), l.mean.take(), l.rstd.take(), l.gamma.take()
	defer releaseAll(x, mean, rstd, gamma)
	d := x.contiguous()
	defer d.Release()
	var to [3]*Tensor
	var acc [3]bool
	for i := 2; i >= 0; i-- { // x last: it may be written over g
		switch {
		case !l.n.wants(i):
		case i == 0:
			to[i], acc[i] = l.n.over(i, g)
		default:
			to[i], acc[i] = l.n.into(i)
		}
	}
	kernel.LayerNormGrad(g.rt.stream, l.rows, l.cols, address(to[0]), address(to[1]), address(to[2]), g.ptr(), d.ptr(),
		mean.ptr(), rstd.ptr(), gamma.ptr(), acc[0], acc[1], acc[2])
}

func releaseAll(ts ...*Tensor) {
	for _, t := range ts {
		t.Release()
	}
}
