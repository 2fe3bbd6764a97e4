package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Add is a + b, broadcast. Nothing is saved.
func Add(a, b *Tensor) *Tensor {
	return binary("add", kernel.Add, a, b, func(n *node, g *Tensor) {
		n.sumTo(0, g)
		n.sumTo(1, g)
	})
}

// Sub is a − b, broadcast. Nothing is saved.
func Sub(a, b *Tensor) *Tensor {
	return binary("sub", kernel.Sub, a, b, func(n *node, g *Tensor) {
		n.sumTo(0, g)
		n.contribute(1, func() *Tensor { return unary(kernel.Neg, g) })
	})
}

// Mul is a·b elementwise, broadcast. It saves a if b's gradient is wanted and
// b if a's is.
func Mul(a, b *Tensor) *Tensor {
	var sa, sb *saved
	return binarySaving("mul", kernel.Mul, a, b, func(n *node) {
		sa, sb = n.saveIf(n.wants(1), a), n.saveIf(n.wants(0), b)
	}, func(n *node, g *Tensor) {
		n.contribute(0, func() *Tensor { return with(sb.take(), func(b *Tensor) *Tensor { return plain(kernel.Mul, g, b) }) })
		n.contribute(1, func() *Tensor { return with(sa.take(), func(a *Tensor) *Tensor { return plain(kernel.Mul, g, a) }) })
	})
}

// Div is a/b elementwise, broadcast. It saves b, and a if b's gradient is wanted.
func Div(a, b *Tensor) *Tensor {
	var sa, sb *saved
	return binarySaving("div", kernel.Div, a, b, func(n *node) {
		sa, sb = n.saveIf(n.wants(1), a), n.save(b)
	}, func(n *node, g *Tensor) {
		with(sb.take(), func(b *Tensor) *Tensor {
			n.contribute(0, func() *Tensor { return plain(kernel.Div, g, b) })
			n.contribute(1, func() *Tensor { // −g·a/b²
				return with(sa.take(), func(a *Tensor) *Tensor {
					q := plain(kernel.Div, a, b)
					return with(plain(kernel.Div, q, b), func(r *Tensor) *Tensor {
						q.Release()
						return with(plain(kernel.Mul, g, r), func(p *Tensor) *Tensor { return unary(kernel.Neg, p) })
					})
				})
			})
			return nil
		})
	})
}

// Scale is factor·x.
func Scale(x *Tensor, factor float32) *Tensor {
	rt := x.rt
	n := rt.node("scale", x)
	n.remake(func(in []*Tensor) *Tensor { return Scale(in[0], factor) }, x)
	d := x.contiguous()
	defer d.Release()
	out := rt.Empty(x.dtype, trace.Activation, x.shape...)
	kernel.Scale(rt.stream, out.Len(), out.ptr(), d.ptr(), factor, false)
	return n.bind(out, func(g *Tensor) {
		dst, acc := n.over(0, g)
		kernel.Scale(rt.stream, dst.Len(), dst.ptr(), g.ptr(), factor, acc)
	})
}

// AddInPlace adds b, broadcast, to a, whose past does not see it: it is for
// tensors that no gradient flows through. Backward finds a changed value that
// it needs and says so.
func AddInPlace(a, b *Tensor) {
	if a.NeedsGrad() && !a.rt.noGrad {
		fail("AddInPlace to %v, which needs a gradient: use Add", a)
	}
	if !slices.Equal(broadcast(a.shape, b.shape), a.shape) {
		fail("AddInPlace of %v to %v, which it does not broadcast to", b, a)
	}
	if !a.dense() {
		fail("AddInPlace to a view %v that is not dense", a)
	}
	a.st.version++
	kernel.Binary(a.rt.stream, kernel.Add, a.shape, a.ptr(), a.kview(a.shape), b.kview(a.shape))
}

func binary(name string, op kernel.BinaryOp, a, b *Tensor, back func(n *node, g *Tensor)) *Tensor {
	return binarySaving(name, op, a, b, func(*node) {}, back)
}

func binarySaving(name string, op kernel.BinaryOp, a, b *Tensor, save func(n *node), back func(n *node, g *Tensor)) *Tensor {
	n := a.rt.node(name, a, b)
	if n != nil {
		save(n)
	}
	n.remake(func(in []*Tensor) *Tensor { return plain(op, in[0], in[1]) }, a, b)
	return n.bind(plain(op, a, b), func(g *Tensor) { back(n, g) })
}

// saveIf saves t if want, and is nil otherwise.
func (n *node) saveIf(want bool, t *Tensor) *saved {
	if !want {
		return nil
	}
	return n.save(t)
}

// contribute adds what f makes to the gradient of input i, summed over what
// was broadcast, if that gradient is wanted.
func (n *node) contribute(i int, f func() *Tensor) {
	if n.wants(i) {
		with(f(), func(d *Tensor) *Tensor { n.sumTo(i, d); return nil })
	}
}

// with releases t when f is done with it.
func with(t *Tensor, f func(t *Tensor) *Tensor) *Tensor {
	defer t.Release()
	return f(t)
}

// plain computes a binary operation outside any record.
func plain(op kernel.BinaryOp, a, b *Tensor) *Tensor {
	shape := broadcast(a.shape, b.shape)
	out := a.rt.Empty(promote(a, b), trace.Activation, shape...)
	kernel.Binary(a.rt.stream, op, shape, out.ptr(), a.kview(shape), b.kview(shape))
	return out
}

// unary computes a unary operation outside any record, in x's type.
func unary(op kernel.UnaryOp, x *Tensor) *Tensor { return unaryTo(x.dtype, op, x) }

// unaryTo is unary with a result of type t.
func unaryTo(t DType, op kernel.UnaryOp, x *Tensor) *Tensor {
	d := x.contiguous()
	defer d.Release()
	out := x.rt.Empty(t, trace.Activation, x.shape...)
	kernel.Unary(x.rt.stream, op, out.Len(), out.ptr(), d.ptr())
	return out
}

// unaryOver is unary of an x that it takes over, written over it where nobody
// else holds it.
func unaryOver(op kernel.UnaryOp, x *Tensor) *Tensor {
	if x.st.refs > 1 || !x.dense() {
		return with(x, func(x *Tensor) *Tensor { return unary(op, x) })
	}
	kernel.Unary(x.rt.stream, op, x.Len(), x.ptr(), x.ptr())
	return x
}

// recorded computes a unary operation whose gradient follows from x, which it
// saves. A cheap one is made again for those who save its result.
func recorded(name string, op kernel.UnaryOp, cheap bool, x *Tensor) *Tensor {
	n, t := x.rt.node(name, x), x.dtype
	switch op {
	case kernel.Exp, kernel.Log, kernel.RSqrt, kernel.Softplus:
		t = x.rt.wide(x)
	}
	if n == nil {
		return n.bind(unaryTo(t, op, x), nil)
	}
	s := n.save(x)
	if cheap {
		n.again = func() *Tensor { return unaryOver(op, s.get()) }
	} else {
		n.remake(func(in []*Tensor) *Tensor { return unaryTo(t, op, in[0]) }, x)
	}
	return n.bindUnary(op, s, unaryTo(t, op, x))
}

// bindUnary makes out the result of op on what s saved.
func (n *node) bindUnary(op kernel.UnaryOp, s *saved, out *Tensor) *Tensor {
	rt := out.rt
	return n.bind(out, func(g *Tensor) {
		x := s.take()
		defer x.Release()
		d := x.contiguous()
		defer d.Release()
		dst, acc := n.over(0, g)
		kernel.UnaryGrad(rt.stream, op, dst.Len(), dst.ptr(), g.ptr(), d.ptr(), acc)
	})
}

// Neg is −x.
func Neg(x *Tensor) *Tensor { return Scale(x, -1) }

// Exp is eˣ. It saves x.
func Exp(x *Tensor) *Tensor { return recorded("exp", kernel.Exp, false, x) }

// Log is the natural logarithm. It saves x.
func Log(x *Tensor) *Tensor { return recorded("log", kernel.Log, false, x) }

// Sqrt is √x. It saves x.
func Sqrt(x *Tensor) *Tensor { return recorded("sqrt", kernel.Sqrt, false, x) }

// Tanh is the hyperbolic tangent. It saves x.
func Tanh(x *Tensor) *Tensor { return recorded("tanh", kernel.Tanh, false, x) }

// Relu is max(x, 0). It saves x; its result is made again for those who save it.
func Relu(x *Tensor) *Tensor { return recorded("relu", kernel.Relu, true, x) }

// ReluOver is Relu of an x that it takes over, the caller's only handle: it
// writes over x's memory where x is not saved, or can be made again.
func ReluOver(x *Tensor) *Tensor {
	defer x.Release()
	if x.st.refs > 1 || !x.dense() || x.NeedsGrad() && !x.rt.noGrad && !x.rt.byRecipe(x) {
		return Relu(x)
	}
	n := x.rt.node("relu", x)
	kernel.Unary(x.rt.stream, kernel.Relu, x.Len(), x.ptr(), x.ptr())
	if n == nil {
		return n.bind(x.Detach(), nil)
	}
	s := n.save(x)
	n.again = func() *Tensor { return unaryOver(kernel.Relu, s.get()) }
	return n.bindUnary(kernel.Relu, s, x.Detach())
}

// Gelu is GPT-2's GELU, with tanh. It saves x; its result is made again for
// those who save it.
func Gelu(x *Tensor) *Tensor { return recorded("gelu", kernel.GeluTanh, true, x) }

// GeluErf is the GELU by its definition, x·Φ(x), as in BERT. It saves x; its
// result is made again for those who save it.
func GeluErf(x *Tensor) *Tensor { return recorded("gelu_erf", kernel.GeluErf, true, x) }

// Silu is x·σ(x). It saves x; its result is made again for those who save it.
func Silu(x *Tensor) *Tensor { return recorded("silu", kernel.Silu, true, x) }

// Sigmoid is σ(x) = 1/(1 + e⁻ˣ). It saves x.
func Sigmoid(x *Tensor) *Tensor { return recorded("sigmoid", kernel.Sigmoid, false, x) }

// Softplus is log(1 + eˣ). It saves x.
func Softplus(x *Tensor) *Tensor { return recorded("softplus", kernel.Softplus, false, x) }

// Abs is |x|, with a gradient of 0 at 0. It saves x.
func Abs(x *Tensor) *Tensor { return recorded("abs", kernel.Abs, false, x) }

// RSqrt is 1/√x. It saves x.
func RSqrt(x *Tensor) *Tensor { return recorded("rsqrt", kernel.RSqrt, false, x) }

// Clamp is min(max(x, least), most); its gradient is 0 outside of these. It saves x.
func Clamp(x *Tensor, least, most float32) *Tensor {
	rt := x.rt
	n := rt.node("clamp", x)
	n.remake(func(in []*Tensor) *Tensor { return Clamp(in[0], least, most) }, x)
	var s *saved
	if n != nil {
		s = n.save(x)
	}
	d := x.contiguous()
	defer d.Release()
	out := rt.Empty(x.dtype, trace.Activation, x.shape...)
	kernel.Clamp(rt.stream, out.Len(), out.ptr(), d.ptr(), least, most)
	return n.bind(out, func(g *Tensor) {
		x := s.take()
		defer x.Release()
		d := x.contiguous()
		defer d.Release()
		dst, acc := n.over(0, g)
		kernel.ClampGrad(rt.stream, dst.Len(), dst.ptr(), g.ptr(), d.ptr(), least, most, acc)
	})
}
