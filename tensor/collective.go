package tensor

import "github.com/headroom-go/headroom/trace"

// Collective is a linear operation that several devices compute together, each
// from a tensor of its own. Its functions queue it on the runtime's stream, from src
// to all of dst, which are dense.
type Collective struct {
	Name     string
	Forward  func(dst, src *Tensor) // from the operand to the result
	Backward func(dst, src *Tensor) // from the result's gradient to the operand's
}

// Together is c of x: a tensor of x's type and the given shape. Nothing is saved.
//
// All devices must come to the same collectives in the same order, in forward, in
// backward and in the second runs of checkpoints. A Schedule is one device's alone,
// and never makes the result again.
func Together(x *Tensor, c Collective, shape ...int) *Tensor {
	n := x.rt.node(c.Name, x)
	y := collect(x, c.Forward, shape)
	like := x.shape
	return n.bind(y, func(g *Tensor) {
		n.contribute(0, func() *Tensor { return collect(g, c.Backward, like) })
	})
}

// collect gives f of x outside any record.
func collect(x *Tensor, f func(dst, src *Tensor), shape []int) *Tensor {
	src := x.contiguous()
	defer src.Release()
	dst := x.rt.Empty(x.dtype, trace.Activation, shape...)
	f(dst, src)
	return dst
}
