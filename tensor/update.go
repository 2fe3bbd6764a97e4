package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Moments is what Adam keeps of one parameter: running means of its gradient
// and of the gradient's square.
type Moments struct{ Mean, Square *Tensor }

// AdamWParams are the numbers of one step.
type AdamWParams = kernel.AdamWParams

// AdamW updates p from its gradient, multiplied by scale (one element; nil for
// 1), in one pass over the four arrays.
func (m *Moments) AdamW(p, scale *Tensor, params AdamWParams) {
	defer p.rt.endRanges(p.rt.begin(Range{Kind: OpUpdate, Name: "adamw"}))
	updatable(p)
	kernel.AdamW(p.rt.stream, p.Len(), p.ptr(), p.Grad().ptr(), m.Mean.ptr(), m.Square.ptr(), address(scale), params)
}

// ClipScale gives the norm of all elements of ts together and
// min(1, limit/(norm + 1e-6)), or 1 for a limit of 0; both are single elements.
func ClipScale(ts []*Tensor, limit float32) (scale, norm *Tensor) {
	if len(ts) == 0 {
		fail("ClipScale of no tensors")
	}
	rt := ts[0].rt
	defer rt.endRanges(rt.begin(Range{Kind: OpUpdate, Name: "clip_scale"}))
	sum := rt.Empty(Float32, trace.Workspace)
	defer sum.Release()
	var some []kernel.Sized
	for i, t := range ts {
		if some = append(some, kernel.Sized{Array: t.ptr(), N: t.Len()}); len(some) == kernel.MaxSquared || i == len(ts)-1 {
			kernel.SumSquares(rt.stream, sum.ptr(), i >= kernel.MaxSquared, some...)
			some = some[:0]
		}
	}
	scale, norm = rt.Empty(Float32, trace.Workspace), rt.Empty(Float32, trace.Workspace)
	kernel.ClipScale(rt.stream, scale.ptr(), norm.ptr(), sum.ptr(), limit)
	return scale, norm
}
