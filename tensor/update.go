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
	return ts[0].rt.ClipScaleAcross(ts, limit, nil)
}

// ClipScaleAcross is ClipScale of tensors of which others have more: across, if
// not nil, is given the sum of the squares of these, a single element, and makes
// it that of all. There may be none here.
func (rt *Runtime) ClipScaleAcross(ts []*Tensor, limit float32, across func(squares *Tensor)) (scale, norm *Tensor) {
	defer rt.endRanges(rt.begin(Range{Kind: OpUpdate, Name: "clip_scale"}))
	sum := rt.Empty(Float32, trace.Workspace)
	defer sum.Release()
	if len(ts) == 0 {
		kernel.Fill(rt.stream, sum.ptr(), 1, 0)
	}
	var some []kernel.Sized
	for i, t := range ts {
		if some = append(some, kernel.Sized{Array: t.ptr(), N: t.Len()}); len(some) == kernel.MaxSquared || i == len(ts)-1 {
			kernel.SumSquares(rt.stream, sum.ptr(), i >= kernel.MaxSquared, some...)
			some = some[:0]
		}
	}
	if across != nil {
		across(sum)
	}
	scale, norm = rt.Empty(Float32, trace.Workspace), rt.Empty(Float32, trace.Workspace)
	kernel.ClipScale(rt.stream, scale.ptr(), norm.ptr(), sum.ptr(), limit)
	return scale, norm
}
