package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// LogitRows is what the rows of a part of logits are a multiple of. On the host all
// such parts give the same bits: rows are independent, and the products and sums over
// rows are cut where they add up the rows before anyway. A GPU's libraries add in
// another order for another number of rows.
const LogitRows = kernel.PartRows

// mostLogits is how many bytes of logits LinearCrossEntropy makes at a time, if
// nobody says how many: with fewer, each part of the products would be too small
// for a GPU.
const mostLogits = 512 << 20

// WithLogitRows runs f with LinearCrossEntropy making the logits of at most so many
// rows at a time, a multiple of LogitRows; 0: as many as take 512 MiB. Across devices
// all say the same.
func (rt *Runtime) WithLogitRows(rows int, f func()) {
	if rows < 0 || rows%LogitRows != 0 {
		fail("logits of %d rows at a time: want a multiple of %d", rows, LogitRows)
	}
	before := rt.logitRows
	defer func() { rt.logitRows = before }()
	rt.logitRows = rows
	f()
}

// LinearCrossEntropy is CrossEntropyWith of Linear(x, w, bias, true): the loss
// of an output layer, w [classes, in], bias [classes] or nil, for targets,
// int32 [...]. Logits are made for some rows at a time (WithLogitRows), and
// their gradient is written over them and multiplied at once, for a gradient of the
// loss of 1. So what is saved is the gradients of x, w and bias, which backward
// scales, and no logits outlive the operation. Rows of 16-bit logits are padded to a
// multiple of 16 bytes, without which tensor cores are of no use.
func LinearCrossEntropy(x, w, bias, targets *Tensor, p CrossEntropyParams) *Tensor {
	return LinearCrossEntropyAcross(x, w, bias, targets, p, Part{}, nil)
}

// LinearCrossEntropyAcross is LinearCrossEntropy with an output layer of whose
// classes every device has a part, the first one no fewer than another. None has
// the logits of other classes: of each row the greatest logit and the sum of
// exponentials go across, and then the loss. The gradients are those of this
// device's part, that of x too: their sum over the devices is x's. There can be no
// smoothing. A nil a stands for one device.
func LinearCrossEntropyAcross(x, w, bias, targets *Tensor, p CrossEntropyParams, part Part, a Across) *Tensor {
	rt := x.rt
	in, classes := linearSizes(x, w, bias, true)
	if targets.dtype != Int32 || !targets.dense() || !slices.Equal(targets.shape, x.shape[:len(x.shape)-1]) {
		fail("LinearCrossEntropy of %v with targets %v", x, targets)
	}
	h := &head{rt: rt, p: p, of: part, across: a, in: in, rows: targets.Len(), classes: classes, targets: targets}
	h.checkAcross()
	defer rt.lower(&x)()
	n := rt.node("linear_cross_entropy", x, w, bias)
	h.x = x.contiguous()
	defer h.x.Release()
	h.padWeight(w, bias)
	defer releaseAll(h.w, h.bias)
	h.want(n)
	loss := h.run()
	if n == nil {
		return n.bind(loss, nil)
	}
	var saved [3]*saved
	for i, g := range h.grads {
		if g != nil {
			saved[i] = n.save(g)
			g.Release()
		}
	}
	return n.bind(loss, func(g *Tensor) {
		factor := g
		if h.scale != 1 {
			factor = Scale(g, 1/h.scale)
			defer factor.Release()
		}
		for i, s := range saved {
			if s != nil {
				n.inputs[i].to.give(s.take(), factor)
			}
		}
	})
}

// checkAcross panics unless what devices compute together can be.
func (h *head) checkAcross() {
	a, of := h.across, h.of
	switch {
	case a == nil:
	case h.p.Smoothing != 0, h.p.Ignore >= 0, of.First < 0, of.First+h.classes > of.All, h.classes > ceilDiv(of.All, a.Size()):
		fail("LinearCrossEntropyAcross of %d classes, %+v, on %d devices, with %+v: want no smoothing, an ignored target below 0, and as many classes on each", h.classes, of, a.Size(), h.p)
	}
}

// give contributes factor·g, taking over the handle. Where nothing was collected
// yet, g's memory becomes the gradient's, a leaf's too: it was made for it.
func (s *slot) give(g, factor *Tensor) {
	if g.st.refs > 1 { // a graph that is retained holds it
		shared := g
		g = shared.copyDense()
		shared.Release()
	}
	kernel.ScaleBy(s.rt.stream, g.Len(), g.ptr(), factor.ptr())
	if s.before != nil {
		s.before()
	}
	if s.grad == nil && g.dtype == s.dtype {
		s.set(g)
		return
	}
	s.add(g)
}

// head is a LinearCrossEntropy as it runs.
type head struct {
	rt                        *Runtime
	p                         CrossEntropyParams
	of                        Part       // which classes are here …
	across                    Across     // … and who has the others; nil: nobody
	rows, in, classes, padded int        // padded: classes with padding
	x, w, bias, targets       *Tensor    // w [padded, in], bias [padded]
	scale                     float32    // of the gradients
	grads                     [3]*Tensor // of x, w and bias; nil where none is wanted
}

// padWeight makes w and bias what products take: of x's type where there is
// autocast, with zeros for the padding.
func (h *head) padWeight(w, bias *Tensor) {
	t := w.dtype
	if h.rt.casts.to != Float32 {
		t = h.rt.casts.to
	}
	h.padded = padded(h.classes, t)
	h.w = h.pad(w, t)
	if bias != nil {
		h.bias = h.pad(bias, bias.dtype)
	}
}

// padded is how long rows of so many logits are.
func padded(classes int, t DType) int {
	if t.Size() == 2 {
		return (classes + 7) &^ 7
	}
	return classes
}

// pad gives t, [classes, ...], as [padded, ...] of type d: itself where it is
// that.
func (h *head) pad(t *Tensor, d DType) *Tensor {
	if h.padded == h.classes && t.dtype == d {
		return t.contiguous()
	}
	rows := slices.Clone(t.shape)
	rows[0] = h.padded
	to := h.rt.Empty(d, trace.Workspace, rows...)
	same := to.view(t.shape, denseStrides(t.shape), 0)
	defer same.Release()
	kernel.Copy(h.rt.stream, t.shape, same.kview(t.shape), t.kview(t.shape), false)
	if rest := to.Len() - t.Len(); rest > 0 {
		kernel.Fill(h.rt.stream, to.ptr().From(t.Len()), rest, 0)
	}
	return to
}

// want makes room for the gradients that n wants. Those of float16 are scaled
// up to where it has digits.
func (h *head) want(n *node) {
	if h.scale = 1; h.x.dtype == Float16 {
		for h.scale*2 <= float32(min(h.rows, 1<<14)) {
			h.scale *= 2
		}
	}
	if n == nil {
		return
	}
	for i, shape := range [][]int{h.x.shape, {h.padded, h.in}, {h.classes}} {
		if s := n.inputs[i].to; s != nil {
			h.grads[i] = h.rt.Empty(s.dtype, s.purpose, shape...)
		}
	}
	if g := h.grads[1]; g != nil {
		h.grads[1] = g.view([]int{h.classes, h.in}, denseStrides([]int{h.classes, h.in}), 0)
		g.Release()
	}
}

// run gives the loss and fills the gradients.
func (h *head) run() *Tensor {
	rt, size := h.rt, h.partRows()
	logits := rt.Empty(promote(h.x, h.w), trace.Activation, size, h.padded)
	defer logits.Release()
	losses := rt.Empty(Float32, trace.Workspace, ceilDiv(h.rows, LogitRows))
	defer losses.Release()
	var sums *Tensor
	if h.across != nil {
		sums = rt.Empty(Float32, trace.Workspace, 2, size)
		defer sums.Release()
	}
	var dloss kernel.Array
	if h.grads != [3]*Tensor{} {
		one := rt.Full(h.scale)
		defer one.Release()
		dloss = one.ptr()
	}
	for first := 0; first == 0 || first < h.rows; first += size {
		h.part(first, min(size, h.rows-first), logits.ptr(), losses.ptr().From(first/LogitRows), dloss, sums)
	}
	loss := rt.Empty(Float32, trace.Activation)
	kernel.SumTo(rt.stream, losses.shape, kernel.View{Ptr: loss.ptr(), Strides: []int{0}}, losses.kview(losses.shape), false)
	if h.across != nil {
		h.across.Sum(loss)
	}
	return loss
}

// partRows is how many rows of logits are made at a time: parts are as many as they
// must be, and even.
func (h *head) partRows() int {
	most := h.rt.logitRows
	if most == 0 {
		row := h.longest() * promote(h.x, h.w).Size()
		most = max(1, mostLogits/row/LogitRows) * LogitRows
	}
	rows := max(1, h.rows)
	even := ceilDiv(rows, ceilDiv(rows, most))
	return min(rows, ceilDiv(even, LogitRows)*LogitRows)
}

func ceilDiv(n, size int) int { return (n + size - 1) / size }

// longest is how long the rows of logits are where they are longest, so that all
// devices make as many at a time.
func (h *head) longest() int {
	if h.across == nil {
		return h.padded
	}
	return padded(ceilDiv(h.of.All, h.across.Size()), h.w.dtype)
}

// sumsAcross fills sums, at least [2, r.Rows], with what r's rows have over all
// devices: the greatest logit, and Σ exp(logit − greatest).
func (h *head) sumsAcross(r kernel.LogitRows, sums *Tensor, logits kernel.Array) {
	s, n := h.rt.stream, []int{r.Rows}
	kernel.RowSums(s, r, sums.ptr(), logits)
	top, sum := sums.view(n, []int{1}, 0), sums.view(n, []int{1}, r.Rows)
	factor := top.copyDense() // exp(greatest here − greatest)
	defer releaseAll(top, sum, factor)
	h.across.Max(top)
	kernel.Binary(s, kernel.Sub, n, factor.ptr(), factor.kview(n), top.kview(n))
	kernel.Unary(s, kernel.Exp, r.Rows, factor.ptr(), factor.ptr())
	kernel.Binary(s, kernel.Mul, n, sum.ptr(), sum.kview(n), factor.kview(n))
	h.across.Sum(sum)
}

// part does some rows. Their losses, and the bias's gradient, are those of LogitRows
// rows at a time.
func (h *head) part(first, rows int, logits, losses, dloss kernel.Array, sums *Tensor) {
	s, x, w := h.rt.stream, h.x.ptr().From(first*h.in), h.w.ptr()
	g := kernel.Gemm{M: rows, N: h.padded, K: h.in, A: x, LDA: h.in, B: w, LDB: h.in, TransB: true, C: logits, LDC: h.padded, Bias: address(h.bias)}
	kernel.MatMul(s, g)
	r := kernel.LogitRows{Rows: rows, Cols: h.classes, Stride: h.padded, First: first, All: h.rows}
	if h.across != nil {
		h.sumsAcross(r, sums, logits)
		r.Part = kernel.LogitPart{First: h.of.First, All: h.of.All, Sums: sums.ptr()}
	}
	kernel.CrossEntropyOver(s, r, losses, dloss, logits, h.targets.ptr(), h.p)
	if dx := h.grads[0]; dx != nil {
		kernel.MatMul(s, kernel.Gemm{M: rows, N: h.in, K: h.padded, A: logits, LDA: h.padded, B: w, LDB: h.in, C: dx.ptr().From(first * h.in), LDC: h.in})
	}
	if dw := h.grads[1]; dw != nil {
		kernel.MatMul(s, kernel.Gemm{M: h.padded, N: h.in, K: rows, A: logits, LDA: h.padded, TransA: true, B: x, LDB: h.in, C: dw.ptr(), LDC: h.in, Accumulate: first > 0})
	}
	if db := h.grads[2]; db != nil {
		for i := 0; i < rows; i += LogitRows {
			shape := []int{min(LogitRows, rows-i), h.classes}
			kernel.SumTo(s, shape, kernel.View{Ptr: db.ptr(), Strides: []int{0, 1}}, kernel.View{Ptr: logits.From(i * h.padded), Strides: []int{h.padded, 1}}, first+i > 0)
		}
	}
}
