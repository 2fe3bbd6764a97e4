package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Reshape gives the elements of t, in row-major order, another shape; one
// dimension may be -1. A dense t shares its memory, another is copied.
func Reshape(t *Tensor, shape ...int) *Tensor {
	shape = resolve(t, shape)
	n := t.rt.viewNode("reshape", t)
	n.remake(func(in []*Tensor) *Tensor { return Reshape(in[0], shape...) }, t)
	d := t.contiguous()
	out := d.view(shape, denseStrides(shape), d.offset)
	d.Release()
	return n.bind(out, func(g *Tensor) { n.pass(0, g) })
}

func resolve(t *Tensor, shape []int) []int {
	out := slices.Clone(shape)
	if i := slices.Index(out, -1); i >= 0 {
		out[i] = 1
		if rest := numel(out); rest > 0 {
			out[i] = t.Len() / rest
		}
	}
	if numel(out) != t.Len() {
		fail("Reshape of %v, %d elements, to %v", t, t.Len(), shape)
	}
	return out
}

// Permute gives a view with dimension dims[i] of t as dimension i.
func Permute(t *Tensor, dims ...int) *Tensor {
	if len(dims) != len(t.shape) {
		fail("Permute of %v by %v", t, dims)
	}
	shape, strides, back := make([]int, len(dims)), make([]int, len(dims)), make([]int, len(dims))
	seen := 0
	for i, d := range dims {
		d = axis(d, len(dims))
		seen |= 1 << d
		shape[i], strides[i], back[d] = t.shape[d], t.strides[d], i
	}
	if seen != 1<<len(dims)-1 {
		fail("Permute of %v by %v: every dimension must stand there once", t, dims)
	}
	n := t.rt.viewNode("permute", t)
	out := t.view(shape, strides, t.offset)
	return n.bind(out, func(g *Tensor) {
		src := Permute(g, back...)
		defer src.Release()
		dst, acc := n.into(0)
		kernel.Copy(g.rt.stream, dst.shape, dst.kview(dst.shape), src.kview(dst.shape), acc)
	})
}

// Transpose gives a view with dimensions i and j exchanged.
func Transpose(t *Tensor, i, j int) *Tensor {
	dims := make([]int, len(t.shape))
	for k := range dims {
		dims[k] = k
	}
	i, j = axis(i, len(dims)), axis(j, len(dims))
	dims[i], dims[j] = j, i
	return Permute(t, dims...)
}

// Slice gives a view of every step-th index of dimension dim, from lo up to
// but not including hi.
func Slice(t *Tensor, dim, lo, hi, step int) *Tensor {
	dim = axis(dim, len(t.shape))
	if lo < 0 || hi < lo || hi > t.shape[dim] || step < 1 {
		fail("Slice [%d:%d:%d] of dimension %d of %v", lo, hi, step, dim, t)
	}
	part := func(of *Tensor) *Tensor {
		shape, strides := slices.Clone(of.shape), slices.Clone(of.strides)
		shape[dim] = 0
		if hi > lo {
			shape[dim] = (hi-lo-1)/step + 1
		}
		strides[dim] *= step
		return of.view(shape, strides, of.offset+lo*of.strides[dim])
	}
	n := t.rt.viewNode("slice", t)
	return n.bind(part(t), func(g *Tensor) {
		dst, acc := n.into(0)
		if !acc {
			kernel.Fill(g.rt.stream, dst.ptr(), dst.Len(), 0)
		}
		to := part(dst)
		defer to.Release()
		kernel.Copy(g.rt.stream, g.shape, to.kview(g.shape), g.kview(g.shape), true)
	})
}

// Expand gives a view of t broadcast to shape.
func Expand(t *Tensor, shape ...int) *Tensor {
	if slices.Min(append([]int{0}, shape...)) < 0 || !slices.Equal(broadcast(t.shape, shape), shape) {
		fail("Expand of %v to %v", t, shape)
	}
	n := t.rt.viewNode("expand", t)
	out := t.view(slices.Clone(shape), broadcastStrides(t, shape), t.offset)
	return n.bind(out, func(g *Tensor) { n.sumTo(0, g) })
}

// sumTo adds g, dense, to the gradient of input i, summed over the dimensions
// that were broadcast.
func (n *node) sumTo(i int, g *Tensor) {
	s := n.inputs[i].to
	if s == nil {
		return
	}
	if slices.Equal(s.shape, g.shape) {
		n.pass(i, g)
		return
	}
	dst, acc := n.into(i)
	kernel.SumTo(g.rt.stream, g.shape, dst.kview(g.shape), g.kview(g.shape), acc)
}

// Concat joins tensors along dimension dim; their other dimensions are equal.
func Concat(dim int, ts ...*Tensor) *Tensor {
	if len(ts) == 0 {
		fail("Concat of nothing")
	}
	rt, dim := ts[0].rt, axis(dim, len(ts[0].shape))
	shape := slices.Clone(ts[0].shape)
	sizes := make([]int, len(ts))
	shape[dim] = 0
	for i, t := range ts {
		if t.dtype.Float() != ts[0].dtype.Float() || len(t.shape) != len(shape) || !slices.Equal(t.shape[:dim], shape[:dim]) || !slices.Equal(t.shape[dim+1:], shape[dim+1:]) {
			fail("Concat along dimension %d of %v and %v", dim, ts[0], t)
		}
		sizes[i] = t.shape[dim]
		shape[dim] += sizes[i]
	}
	n := rt.viewNode("concat", ts...)
	n.remake(func(in []*Tensor) *Tensor { return Concat(dim, in...) }, ts...)
	out := rt.Empty(promote(ts...), trace.Activation, shape...)
	eachPart(out, dim, sizes, func(i int, part *Tensor) {
		kernel.Copy(rt.stream, part.shape, part.kview(part.shape), ts[i].kview(part.shape), false)
	})
	return n.bind(out, func(g *Tensor) {
		eachPart(g, dim, sizes, func(i int, part *Tensor) {
			if n.wants(i) {
				dst, acc := n.into(i)
				kernel.Copy(rt.stream, dst.shape, dst.kview(dst.shape), part.kview(dst.shape), acc)
			}
		})
	})
}

// eachPart calls f with views of whole that cut it along dim into sizes.
func eachPart(whole *Tensor, dim int, sizes []int, f func(i int, part *Tensor)) {
	at := 0
	for i, size := range sizes {
		shape := slices.Clone(whole.shape)
		shape[dim] = size
		part := whole.view(shape, whole.strides, whole.offset+at*whole.strides[dim])
		f(i, part)
		part.Release()
		at += size
	}
}
