package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// address is t's, or none for nil.
func address(t *Tensor) (none kernel.Array) {
	if t == nil {
		return none
	}
	return t.ptr()
}

// CrossEntropy is the mean over the rows of logits, [..., classes], of the
// negative log-probability of each row's target, int32 [...]; rows whose
// target is ignore don't count. It saves the logits and one number a row.
// Backward writes the logits' gradient over the logits where the caller has
// released them, so that a second set is never held. The loss is float32
// whatever the logits are.
func CrossEntropy(logits, targets *Tensor, ignore int32) *Tensor {
	return CrossEntropyWith(logits, targets, CrossEntropyParams{Ignore: ignore})
}

// CrossEntropyParams are the numbers of a cross entropy.
type CrossEntropyParams = kernel.CrossEntropyParams

// CrossEntropyWith is CrossEntropy with label smoothing, or of the sum over
// the rows.
func CrossEntropyWith(logits, targets *Tensor, p CrossEntropyParams) *Tensor {
	rt, cols := logits.rt, logits.Dim(-1)
	if targets.dtype != Int32 || !targets.dense() || !slices.Equal(targets.shape, logits.shape[:len(logits.shape)-1]) {
		fail("CrossEntropy of logits %v with targets %v", logits, targets)
	}
	n := rt.node("cross_entropy", logits)
	var sl, st *saved
	if n != nil {
		sl, st = n.save(logits), n.save(targets)
	}
	d := logits.contiguous()
	defer d.Release()
	rows := targets.Len()
	lse := rt.Empty(Float32, trace.Activation, rows)
	defer lse.Release()
	loss := rt.Empty(Float32, trace.Activation)
	kernel.CrossEntropy(rt.stream, rows, cols, loss.ptr(), lse.ptr(), d.ptr(), targets.ptr(), p)
	if n == nil {
		return n.bind(loss, nil)
	}
	se := n.save(lse)
	return n.bind(loss, func(g *Tensor) {
		logits, targets, lse := sl.take(), st.take(), se.take()
		defer releaseAll(logits, targets, lse)
		d := logits
		if !logits.dense() {
			d = logits.copyDense()
			defer d.Release()
		}
		dst, acc := n.over(0, d)
		kernel.CrossEntropyGrad(rt.stream, rows, cols, dst.ptr(), g.ptr(), d.ptr(), lse.ptr(), targets.ptr(), p, acc)
	})
}

// Embedding looks the rows of w, [vocabulary, width], up: index, int32 [...],
// to [..., width]. An index out of range gives a row of NaN. It saves the index.
func Embedding(w, index *Tensor) *Tensor { return EmbeddingPart(w, index, Part{}) }

// Part is some of the classes, words or tokens, of which there are All: those from
// First on. The zero Part is all.
type Part struct{ First, All int }

// table is the rows that a table of so many has.
func (p Part) table(rows int) kernel.Table {
	if p.All == 0 {
		return kernel.WholeTable(rows)
	}
	return kernel.Table{Rows: rows, First: p.First, All: p.All}
}

// EmbeddingPart is Embedding in a table of which w is a part: rows of other parts
// are zeros.
func EmbeddingPart(w, index *Tensor, part Part) *Tensor {
	if len(w.shape) != 2 || !w.dense() || index.dtype != Int32 || !index.dense() {
		fail("Embedding of weight %v with index %v", w, index)
	}
	rt, rows, width := w.rt, w.shape[0], w.shape[1]
	table := part.table(rows)
	if part.First < 0 || part.First+rows > table.All {
		fail("EmbeddingPart of weight %v, whose rows are from %d on of %d", w, part.First, part.All)
	}
	n := rt.node("embedding", w)
	n.remake(func(in []*Tensor) *Tensor { return EmbeddingPart(in[0], in[1], part) }, w, index)
	var s *saved
	if n != nil {
		s = n.save(index)
	}
	y := rt.Empty(w.dtype, trace.Activation, append(slices.Clone(index.shape), width)...)
	kernel.Embedding(rt.stream, index.Len(), width, table, y.ptr(), w.ptr(), index.ptr())
	return n.bind(y, func(g *Tensor) {
		index := s.take()
		defer index.Release()
		dst, acc := n.into(0)
		if !acc {
			kernel.Fill(rt.stream, dst.ptr(), dst.Len(), 0)
		}
		kernel.EmbeddingGrad(rt.stream, index.Len(), width, table, dst.ptr(), g.ptr(), index.ptr())
	})
}

// MSE is the mean of (a − b)². It saves a − b.
func MSE(a, b *Tensor) *Tensor {
	if !slices.Equal(a.shape, b.shape) {
		fail("MSE of %v and %v", a, b)
	}
	defer a.rt.raise(&a, &b)()
	d := Sub(a, b)
	defer d.Release()
	s := Mul(d, d)
	defer s.Release()
	return Mean(s)
}

// BCEWithLogits is the mean of −t·log σ(x) − (1−t)·log(1−σ(x)), the binary
// cross entropy of logits x with targets t in [0, 1]. It saves both.
func BCEWithLogits(x, t *Tensor) *Tensor {
	if !slices.Equal(x.shape, t.shape) {
		fail("BCEWithLogits of logits %v with targets %v", x, t)
	}
	defer x.rt.raise(&x, &t)()
	s := Softplus(x)
	defer s.Release()
	p := Mul(x, t)
	defer p.Release()
	d := Sub(s, p)
	defer d.Release()
	return Mean(d)
}
