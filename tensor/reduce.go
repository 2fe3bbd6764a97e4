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
	n.remake(func(in []*Tensor) *Tensor { return Sum(in[0], dims...) }, t)
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
	n.remake(func(in []*Tensor) *Tensor { return Softmax(in[0]) }, x)
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(Float32, trace.Activation, x.shape...)
	rows := y.Len() / max(cols, 1)
	kernel.Softmax(rt.stream, rows, cols, y.ptr(), d.ptr())
	if n == nil {
		return n.bind(y, nil)
	}
	s := n.saveResult(y)
	return n.bind(y, func(g *Tensor) {
		y := s.take()
		defer y.Release()
		dst, acc := n.into(0)
		kernel.SoftmaxGrad(rt.stream, rows, cols, dst.ptr(), g.ptr(), y.ptr(), acc)
	})
}

// SoftmaxDim is Softmax over a dimension.
func SoftmaxDim(x *Tensor, dim int) *Tensor { return overLast(x, dim, Softmax) }

// LogSoftmax is the logarithm of Softmax, over a dimension. It saves its result.
func LogSoftmax(x *Tensor, dim int) *Tensor { return overLast(x, dim, logSoftmax) }

func logSoftmax(x *Tensor) *Tensor {
	rt, cols := x.rt, x.Dim(-1)
	n := rt.node("log_softmax", x)
	n.remake(func(in []*Tensor) *Tensor { return logSoftmax(in[0]) }, x)
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(Float32, trace.Activation, x.shape...)
	rows := y.Len() / max(cols, 1)
	kernel.LogSoftmax(rt.stream, rows, cols, y.ptr(), d.ptr())
	if n == nil {
		return n.bind(y, nil)
	}
	s := n.saveResult(y)
	return n.bind(y, func(g *Tensor) {
		y := s.take()
		defer y.Release()
		dst, acc := n.over(0, g)
		kernel.LogSoftmaxGrad(rt.stream, rows, cols, dst.ptr(), g.ptr(), y.ptr(), acc)
	})
}

// overLast applies f, an operation over the last dimension, to dimension dim of x.
func overLast(x *Tensor, dim int, f func(*Tensor) *Tensor) *Tensor {
	if axis(dim, len(x.shape)) == len(x.shape)-1 {
		return f(x)
	}
	t := Transpose(x, dim, -1)
	defer t.Release()
	y := f(t)
	defer y.Release()
	return Transpose(y, dim, -1)
}

// Var is the variance over the given dimensions, or over all: Σ (x − mean)²
// divided by the number of elements, less one where unbiased. It saves x − mean.
func Var(x *Tensor, unbiased bool, dims ...int) *Tensor {
	all := dims
	if len(dims) == 0 {
		for i := range x.shape {
			all = append(all, i)
		}
	}
	mean := Mean(x, all...)
	defer mean.Release()
	d := Sub(x, mean)
	defer d.Release()
	square := Mul(d, d)
	defer square.Release()
	sum := Sum(square, dims...)
	defer sum.Release()
	count := x.Len() / max(1, sum.Len())
	if unbiased {
		count--
	}
	return Scale(sum, 1/float32(count))
}

// CumSum is the sums of the elements up to each one along a dimension. Nothing
// is saved.
func CumSum(x *Tensor, dim int) *Tensor { return overLast(x, dim, cumSum) }

func cumSum(x *Tensor) *Tensor {
	rt, cols := x.rt, x.Dim(-1)
	n := rt.node("cum_sum", x)
	n.remake(func(in []*Tensor) *Tensor { return cumSum(in[0]) }, x)
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(Float32, trace.Activation, x.shape...)
	rows := y.Len() / max(cols, 1)
	kernel.CumSum(rt.stream, rows, cols, y.ptr(), d.ptr(), false, false)
	return n.bind(y, func(g *Tensor) {
		dst, acc := n.over(0, g)
		kernel.CumSum(rt.stream, rows, cols, dst.ptr(), g.ptr(), true, acc)
	})
}
