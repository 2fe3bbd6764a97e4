package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// AddLayerNorm is LayerNormLow of x + DropoutPart(a, p, part) in one pass. It saves the
// sum, under bfloat16 in 16 bits, as LayerNorm does, and two numbers a row; its
// result is made again for those who save it.
func AddLayerNorm(x, a, gamma, beta *Tensor, eps, p float32, part Part) *Tensor {
	needSame(x, gamma, beta)
	cols := x.Dim(-1)
	if cols == 0 || !slices.Equal(gamma.shape, []int{cols}) || !slices.Equal(x.shape, a.shape) {
		fail("AddLayerNorm of %v and %v with gamma %v", x, a, gamma)
	}
	checkDropout(x, p, part)
	rt := x.rt
	l := &norm{rows: x.Len() / cols, cols: cols, result: rt.low(x)}
	s := &addition{p: p, part: part, k: kernel.AddNorm{Rows: l.rows, Cols: cols, Eps: eps, Dropout: p}}
	var y, mean, rstd *Tensor
	sum := s.of(x, a, func() {
		y, mean, rstd = rt.Empty(l.result, trace.Activation, x.shape...), rt.Empty(Float32, trace.Activation, l.rows), rt.Empty(Float32, trace.Activation, l.rows)
		s.k.Y, s.k.Mean, s.k.RStd, s.k.Gamma, s.k.Beta = y.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), beta.ptr()
	})
	defer releaseAll(sum, mean, rstd)
	l.n = rt.node("layer_norm", sum, gamma, beta)
	return l.bind(y, sum, mean, rstd, gamma, beta)
}

// addition is x + dropout(a), which a kernel may normalise at once.
type addition struct {
	n    *node
	p    float32
	part Part
	k    kernel.AddNorm
}

// of records the sum. more may ask the kernel for more than that.
func (s *addition) of(x, a *Tensor, more func()) *Tensor {
	rt := x.rt
	s.n = rt.node("add", x, a)
	s.n.remake(func(in []*Tensor) *Tensor {
		alone := addition{p: s.p, part: s.part, k: kernel.AddNorm{Rows: s.k.Rows, Cols: s.k.Cols, Dropout: s.p}}
		return alone.of(in[0], in[1], func() {})
	}, x, a)
	if s.p > 0 {
		s.k.Seed = rt.draw()
	}
	if s.part.All > 0 {
		s.k.Tokens, s.k.First, s.k.Whole = x.shape[1], s.part.First, s.part.All
	}
	sum, dx, da := rt.Empty(rt.narrow(promote(x, a)), trace.Activation, x.shape...), x.contiguous(), a.contiguous()
	defer releaseAll(dx, da)
	s.k.Sum, s.k.X, s.k.A = sum.ptr(), dx.ptr(), da.ptr()
	more()
	kernel.AddLayerNorm(rt.stream, s.k)
	return s.n.bind(sum, s.backward)
}

func (s *addition) backward(g *Tensor) {
	switch {
	case s.p == 0:
		s.n.pass(1, g)
	case s.n.wants(1):
		dst, acc := s.n.into(1)
		dropout(dst, g, s.p, s.k.Seed, s.part, acc)
	}
	s.n.pass(0, g)
}
