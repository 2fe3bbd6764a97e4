package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Dropout sets elements of x to 0 with probability p and divides the others by
// 1 − p. Which ones follows from the runtime's seed and the number of random
// operations since (Runtime.SetSeed); backward makes the same choices again,
// so that no mask is kept. With p 0 it gives x.
func Dropout(x *Tensor, p float32) *Tensor {
	if !(p >= 0 && p < 1) {
		fail("Dropout of %v with %v: want a probability below 1", x, p)
	}
	if p == 0 {
		return x.Retain()
	}
	rt := x.rt
	n := rt.node("dropout", x)
	n.remake(func(in []*Tensor) *Tensor { return Dropout(in[0], p) }, x)
	seed := rt.draw()
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(x.dtype, trace.Activation, x.shape...)
	kernel.Dropout(rt.stream, y.Len(), y.ptr(), d.ptr(), p, seed, false)
	return n.bind(y, func(g *Tensor) {
		dst, acc := n.over(0, g)
		kernel.Dropout(rt.stream, dst.Len(), dst.ptr(), g.ptr(), p, seed, acc)
	})
}
