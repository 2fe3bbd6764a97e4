package tensor

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// For those who spread a training over several devices: when a gradient is
// complete, where an array lies, and a part of a parameter that has a gradient
// of its own.

// OnGradient has f called in each Backward, as soon as the gradient of t, a
// leaf, is complete: no operation will add to it any more. A leaf that got no
// gradient is not reported. nil ends it.
func (t *Tensor) OnGradient(f func()) { t.leaf.after = f }

// Awaited says whether operations that read t, a leaf, may still add to its
// gradient.
func (t *Tensor) Awaited() bool { return t.leaf.uses > 0 }

// Ptr is the address of t's first element on its device.
func (t *Tensor) Ptr() device.Ptr { return t.ptr().Ptr }

// Part gives elements lo up to but not including hi of t, which is dense, in
// their order in memory, as a leaf of one dimension: it shares t's memory, and
// has a gradient of its own (SetGrad). What is made for it has room for so many
// elements at least: so devices with parts of different sizes need as much memory.
func (t *Tensor) Part(lo, hi, room int) *Tensor {
	if !t.dense() || lo < 0 || hi < lo || hi > t.Len() {
		fail("elements %d to %d of %v (dense: %v)", lo, hi, t, t.dense())
	}
	p := t.view([]int{hi - lo}, []int{1}, t.offset+lo)
	p.leaf = &slot{rt: t.rt, dtype: t.dtype, shape: p.shape, purpose: trace.Gradient}
	p.room = room
	return p
}

// ParameterPart is a Part, of n elements with undefined content, that has memory of
// its own.
func (rt *Runtime) ParameterPart(n, room int) *Tensor {
	whole := rt.Parameter(max(n, room))
	defer whole.Release()
	return whole.Part(0, n, room)
}

// EmptyGrad gives memory for the gradient of t, a Part, with undefined content.
func (t *Tensor) EmptyGrad() *Tensor { return t.forPart(trace.Gradient) }

// forPart gives an array of t's shape and type, with room as t says.
func (t *Tensor) forPart(p trace.Purpose) *Tensor {
	whole := t.rt.Empty(t.dtype, p, max(t.Len(), t.room))
	defer whole.Release()
	return whole.view(t.shape, denseStrides(t.shape), 0)
}

// NeedGrad gives t, a leaf without a gradient, one of zeros.
func (t *Tensor) NeedGrad() {
	if t.leaf.grad == nil {
		dst, _ := t.leaf.target()
		kernel.Fill(t.rt.stream, dst.ptr(), dst.Len(), 0)
	}
}

// ScaleGrad multiplies the gradient of t, a leaf that has one, where it lies.
func (t *Tensor) ScaleGrad(factor float32) {
	g := t.leaf.grad
	kernel.Scale(t.rt.stream, g.Len(), g.ptr(), g.ptr(), factor, false)
}

// SetGrad makes g, dense and of the leaf t's shape and type, t's gradient, or
// adds it where there is one. It takes the handle over.
func (t *Tensor) SetGrad(g *Tensor) {
	if t.leaf == nil || g.Len() != t.Len() || g.dtype != t.dtype || !g.dense() {
		fail("gradient %v of %v", g, t)
	}
	switch {
	case t.leaf.grad == nil:
		t.leaf.set(g)
	case t.Len() == 0:
		g.Release()
	default:
		t.leaf.add(g)
	}
}
