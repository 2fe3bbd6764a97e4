package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Linear is x·W + bias over the last dimension of x: [..., in] to [..., out].
// W is [in, out], or [out, in] with transposed. bias, [out], may be nil. It
// saves x if W's gradient is wanted, and W if x's is.
func Linear(x, w, bias *Tensor, transposed bool) *Tensor {
	in, out := linearSizes(x, w, bias, transposed)
	rt := x.rt
	defer rt.lower(&x, &w)()
	n := rt.node("linear", x, w, bias)
	n.remake(func(in []*Tensor) *Tensor { return Linear(in[0], in[1], in[2], transposed) }, x, w, bias)
	var sx, sw *saved
	if n != nil {
		sx, sw = n.saveIf(n.wants(1), x), n.saveIf(n.wants(0), w)
	}
	shape := slices.Clone(x.shape)
	shape[len(shape)-1] = out
	rows := numel(shape[:len(shape)-1])
	y := rt.Empty(promote(x, w), trace.Activation, shape...)
	linear(x, w, bias, y, rows, in, out, transposed)
	return n.bind(y, func(g *Tensor) {
		if n.wants(2) {
			dst, acc := n.into(2)
			kernel.BiasGrad(rt.stream, rows, out, dst.ptr(), g.ptr(), acc)
		}
		if n.wants(1) {
			n.weightGrad(1, sx.take(), g, func(to *slot, x, g *Tensor) { linearWeightGrad(to, x, g, rows, in, out, transposed) })
		}
		if n.wants(0) {
			w := sw.take()
			defer w.Release()
			dst, acc := n.into(0)
			kernel.MatMul(rt.stream, kernel.Gemm{M: rows, N: in, K: out, A: g.ptr(), LDA: out, B: w.ptr(), LDB: w.shape[1],
				TransB: !transposed, C: dst.ptr(), LDC: in, Accumulate: acc})
		}
	})
}

func linearSizes(x, w, bias *Tensor, transposed bool) (in, out int) {
	if len(w.shape) != 2 || !w.dense() || len(x.shape) == 0 {
		fail("Linear of %v with weight %v", x, w)
	}
	in, out = w.shape[0], w.shape[1]
	if transposed {
		in, out = out, in
	}
	if x.Dim(-1) != in || bias != nil && !slices.Equal(bias.shape, []int{out}) {
		fail("Linear of %v with weight %v (transposed: %v) and bias %v", x, w, transposed, bias)
	}
	return in, out
}

func linear(x, w, bias, y *Tensor, rows, in, out int, transposed bool) {
	d := x.contiguous()
	defer d.Release()
	g := kernel.Gemm{M: rows, N: out, K: in, A: d.ptr(), LDA: in, B: w.ptr(), LDB: w.shape[1],
		TransB: transposed, C: y.ptr(), LDC: out}
	if bias != nil {
		g.Bias = bias.ptr()
	}
	kernel.MatMul(x.rt.stream, g)
}

// linearWeightGrad adds xᵀ·g (or gᵀ·x for a transposed weight) to W's gradient.
func linearWeightGrad(to *slot, x, g *Tensor, rows, in, out int, transposed bool) {
	d := x.contiguous()
	defer d.Release()
	dst, acc := to.target()
	m := kernel.Gemm{M: in, N: out, K: rows, A: d.ptr(), LDA: in, TransA: true, B: g.ptr(), LDB: out,
		C: dst.ptr(), LDC: out, Accumulate: acc}
	if transposed {
		m.M, m.N, m.A, m.LDA, m.B, m.LDB, m.LDC = out, in, g.ptr(), out, d.ptr(), in, in
	}
	kernel.MatMul(x.rt.stream, m)
}

// MatMul is the matrix product of the last two dimensions, the others
// broadcast. Transposed and sliced views are multiplied where they lie. It
// saves a if b's gradient is wanted and b if a's is.
func MatMul(a, b *Tensor) *Tensor {
	if len(a.shape) < 2 || len(b.shape) < 2 || a.Dim(-1) != b.Dim(-2) {
		fail("MatMul of %v and %v", a, b)
	}
	defer a.rt.lower(&a, &b)()
	n := a.rt.node("matmul", a, b)
	n.remake(func(in []*Tensor) *Tensor { return product(in[0], in[1]) }, a, b)
	var sa, sb *saved
	if n != nil {
		sa, sb = n.saveIf(n.wants(1), a), n.saveIf(n.wants(0), b)
	}
	return n.bind(product(a, b), func(g *Tensor) {
		n.contribute(0, func() *Tensor {
			return with(sb.take(), func(b *Tensor) *Tensor {
				return with(flip(b), func(bt *Tensor) *Tensor { return product(g, bt) })
			})
		})
		n.contribute(1, func() *Tensor {
			return with(sa.take(), func(a *Tensor) *Tensor {
				return with(flip(a), func(at *Tensor) *Tensor { return product(at, g) })
			})
		})
	})
}

// flip is the view with the last two dimensions exchanged.
func flip(t *Tensor) *Tensor { return Transpose(t, -1, -2) }

// product computes a matrix product outside any record.
func product(a, b *Tensor) *Tensor {
	rt := a.rt
	m, k, n := a.Dim(-2), a.Dim(-1), b.Dim(-1)
	batch := broadcast(a.shape[:len(a.shape)-2], b.shape[:len(b.shape)-2])
	out := rt.Empty(promote(a, b), trace.Activation, append(slices.Clone(batch), m, n)...)
	ma, mb := matrixOf(a, batch), matrixOf(b, batch)
	defer ma.t.Release()
	defer mb.t.Release()
	g := kernel.Gemm{M: m, N: n, K: k, Batch: numel(batch), C: out.ptr(), LDC: n, StrideC: m * n,
		A: ma.ptr, LDA: ma.ld, TransA: ma.trans, StrideA: ma.step,
		B: mb.ptr, LDB: mb.ld, TransB: mb.trans, StrideB: mb.step}
	if mb.step == 0 && !ma.trans && ma.step == m*ma.ld { // one b for all: a's matrices are one tall one
		g.M, g.Batch = g.M*g.Batch, 1
	}
	if g.Batch > 0 {
		kernel.MatMul(rt.stream, g)
	}
	return out
}

// matrix is an operand as the kernel takes it.
type matrix struct {
	t     *Tensor // holds the memory
	ptr   kernel.Array
	ld    int
	trans bool
	step  int
}

// matrixOf finds how t, broadcast to batch, is a batch of matrices; a layout
// that the kernel can't take is copied.
func matrixOf(t *Tensor, batch []int) matrix {
	rows, cols := t.Dim(-2), t.Dim(-1)
	strides := broadcastStrides(t, append(slices.Clone(batch), rows, cols))
	step, even := evenStep(batch, strides)
	rs, cs := strides[len(batch)], strides[len(batch)+1]
	switch {
	case even && (cs == 1 || cols == 1) && rs >= cols:
		return matrix{t.Detach(), t.ptr(), rs, false, step}
	case even && (rs == 1 || rows == 1) && cs >= rows:
		return matrix{t.Detach(), t.ptr(), cs, true, step}
	case t.dense(): // dimensions of size 1, or a batch that broadcasts unevenly
		e := t.view(append(slices.Clone(batch), rows, cols), strides, t.offset)
		defer e.Release()
		c := e.copyDense()
		return matrix{c, c.ptr(), cols, false, rows * cols}
	}
	c := t.contiguous()
	defer c.Release()
	return matrixOf(c, batch)
}

// evenStep is the distance from one matrix of the batch to the next, if it is
// the same throughout.
func evenStep(batch, strides []int) (step int, even bool) {
	span := -1 // elements that the dimensions after i cover; -1 while all are 1
	for i := len(batch) - 1; i >= 0; i-- {
		switch {
		case batch[i] == 1:
			continue
		case span < 0:
			step = strides[i]
		case strides[i] != span:
			return 0, false
		}
		span = strides[i] * batch[i]
	}
	return step, true
}
