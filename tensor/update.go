package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Updated is a parameter with what an optimizer's rule keeps of it.
type Updated struct {
	*Tensor
	States []*Tensor
}

// AdamWParams are the numbers of one step.
type AdamWParams = kernel.AdamWParams

// AdamW updates parameters from their gradients, multiplied by scale (one
// element; nil for 1), in one pass over all arrays. Their states are running
// means of the gradient and of its square.
func AdamW(ps []Updated, scale *Tensor, params AdamWParams) {
	rt := ps[0].rt
	defer rt.endRanges(rt.begin(Range{Kind: OpUpdate, Name: "adamw"}))
	kernel.AdamW(rt.stream, updated(ps), address(scale), params)
}

// updated is the parameters as kernels take them, and counts the change. It
// panics unless they are float32.
func updated(ps []Updated) []kernel.Updated {
	arrays := make([]kernel.Updated, len(ps))
	for i, p := range ps {
		if p.dtype != Float32 {
			fail("update of %v: optimizers change float32 parameters alone", p.Tensor)
		}
		p.st.version++
		arrays[i] = kernel.Updated{N: p.Len(), W: p.ptr(), G: p.Grad().ptr()}
		for j, s := range p.States {
			arrays[i].States[j] = s.ptr()
		}
	}
	return arrays
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
	var arrays []kernel.Sized
	for _, t := range ts {
		arrays = append(arrays, kernel.Sized{Array: t.ptr(), N: t.Len()})
	}
	if len(ts) == 0 {
		kernel.Fill(rt.stream, sum.ptr(), 1, 0)
	} else {
		kernel.SumSquares(rt.stream, sum.ptr(), false, arrays...)
	}
	if across != nil {
		across(sum)
	}
	scale, norm = rt.Empty(Float32, trace.Workspace), rt.Empty(Float32, trace.Workspace)
	kernel.ClipScale(rt.stream, scale.ptr(), norm.ptr(), sum.ptr(), limit)
	return scale, norm
}
