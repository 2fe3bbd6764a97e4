package tensor

import "github.com/headroom-go/headroom/trace"

// Collective is a linear operation that several devices compute together, each
// from a tensor of its own. Its functions queue it on the runtime's stream, from src
// to all of dst, which are dense.
type Collective struct {
	Name     string
	Forward  func(dst, src *Tensor) // from the operand to the result; nil: that is the operand
	Backward func(dst, src *Tensor) // from the result's gradient to the operand's

	// Again is for a result that is not to be kept: those who save it have it made
	// again in backward, by all devices, and share it until the last has read it. It
	// is of the type of Autocast, which is that of the operations that read it.
	Again bool
}

// Together is c of x: a tensor of the given shape, and of x's type unless c says
// otherwise. Of x only what Again needs is saved.
//
// All devices must come to the same collectives in the same order, in forward, in
// backward and in the second runs of checkpoints. A Schedule is one device's alone,
// and never makes the result again, nor what is made of a result that is not kept.
func Together(x *Tensor, c Collective, shape ...int) *Tensor {
	if c.Again {
		defer x.rt.lower(&x)()
	}
	n := x.rt.node(c.Name, x)
	if n != nil && c.Again {
		s := n.save(x)
		n.shared = &shared{again: func() *Tensor {
			return with(s.get(), func(x *Tensor) *Tensor { return collect(x, c.Forward, shape) })
		}}
		n.again, n.together = n.shared.get, true
	}
	like := x.shape
	return n.bind(collect(x, c.Forward, shape), func(g *Tensor) {
		n.contribute(0, func() *Tensor { return collect(g, c.Backward, like) })
	})
}

// collect gives f of x outside any record.
func collect(x *Tensor, f func(dst, src *Tensor), shape []int) *Tensor {
	if f == nil {
		return x.Detach()
	}
	src := x.contiguous()
	defer src.Release()
	dst := x.rt.Empty(x.dtype, trace.Activation, shape...)
	f(dst, src)
	return dst
}

// shared is a result that its readers have made again, once for all of them.
type shared struct {
	again   func() *Tensor
	value   *Tensor // nil while it is not there
	readers int     // that have not read it yet
}

func (s *shared) get() *Tensor {
	if s.value == nil {
		s.value = s.again()
		s.value.held = true
	}
	return s.value.Detach()
}

// enter and leave tell of a reader. After the last one the value goes. Those of a
// nil s do nothing.
func (s *shared) enter() {
	if s != nil {
		s.readers++
	}
}

func (s *shared) leave() {
	if s == nil {
		return
	}
	if s.readers--; s.readers == 0 && s.value != nil {
		s.value.drop()
		s.value = nil
	}
}

// joint says whether all devices make n's result again.
func (n *node) joint() bool {
	for _, s := range n.saved {
		if s.recipe != nil && s.recipe.joint() {
			return true
		}
	}
	return n.together
}
