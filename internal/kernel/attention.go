package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// How attention is computed on the host.
//
// The method is that of Dao et al., "FlashAttention" (2022): keys are taken
// block by block, and the scores of a block live only until they have been
// multiplied by V. The softmax is kept online: m is the greatest score of a row
// so far, l the sum of exp(score − m), and both l and the row of O are scaled
// when m grows. At the end O is divided by l, and LSE = m + log l. The backward
// pass computes the probabilities again, P = exp(score − LSE), and with
// Delta = Σ dO·O of each row
//
//	dV = Pᵀ·dO    dP = dO·Vᵀ    dS = P∘(dP − Delta)    dQ = scale·dS·K    dK = scale·dSᵀ·Q
//
// The products are made of the tiles of MatMul. Packed once for a block of
// keys, K (already scaled) and V serve many queries. A strip of queries sees
// only the keys up to the last that its last row sees: tiles above the diagonal
// are left out, and what is masked within a tile is set to zero.
//
// Threads share the heads, and in the forward pass chunks of queries as well.
// Whatever is summed over keys or queries is summed by one thread in order.

const (
	keyBlock   = 256 // keys whose packed K and V stay in the second-level cache
	queryChunk = 384 // queries for which they are packed; a multiple of each tile's rows
	queryBlock = 96  // queries of the backward pass at once; likewise
	scoresLD   = keyBlock + 16
)

var minusInf = float32(math.Inf(-1))

var (
	attentionForwardKernel  = &device.Kernel{Name: "attention_forward", Host: microKernels[0].attentionForward, CUDA: cudaAttention}
	attentionBackwardKernel = &device.Kernel{Name: "attention_backward", Host: microKernels[0].attentionBackward, CUDA: cudaAttentionGrad}
)

// AttentionForward computes O and LSE. The row of a query that sees no key is
// zero and its LSE −Inf. O must not overlap Q, K or V.
func AttentionForward(s device.Stream, a Attention) {
	a.check("AttentionForward")
	if a.rows() == 0 {
		return
	}
	l := device.Launch{Kernel: attentionForwardKernel}
	l.Flops = 4 * uint64(a.Batch*a.Heads*a.D) * uint64(a.pairs())
	l.Bytes = bytesOf(a.rows()*(2*a.D+1) + a.keyRows()*2*a.D)
	a.store(&l)
	queue(s, &l)
}

// AttentionBackward computes the gradients of Q, K and V from that of O, and
// writes Delta. O and LSE are those of the forward pass. The gradients must not
// overlap each other nor any operand.
func AttentionBackward(s device.Stream, a Attention, g AttentionGrads) {
	a.check("AttentionBackward")
	a.checkGrads(&g)
	if a.rows()+a.keyRows() == 0 {
		return
	}
	l := device.Launch{Kernel: attentionBackwardKernel}
	writes := 1 + flag(g.Accumulate)
	l.Flops = 10*uint64(a.Batch*a.Heads*a.D)*uint64(a.pairs()) + 2*uint64(a.rows()*a.D)
	l.Bytes = bytesOf(a.rows()*((3+writes)*a.D+2) + a.keyRows()*(2+2*writes)*a.D)
	a.store(&l)
	copy(l.Ptr[5:], []device.Ptr{g.DO, g.DQ, g.DK, g.DV, g.Delta})
	l.Int[attentionInts] = flag(g.Accumulate)
	queue(s, &l)
}

func (a *Attention) rows() int    { return a.Batch * a.Heads * a.T }
func (a *Attention) keyRows() int { return a.Batch * a.Heads * a.S }

// visible is the number of keys that query t sees, from the first on.
func (a *Attention) visible(t int) int {
	if !a.Causal {
		return a.S
	}
	return max(0, min(a.S, t+1+a.S-a.T))
}

// pairs is the number of pairs of a query and a key that it sees, in one head.
func (a *Attention) pairs() int {
	if !a.Causal {
		return a.T * a.S
	}
	first := max(0, a.T-a.S) // queries before it see nothing
	return (a.visible(first) + a.S) * (a.T - first) / 2
}

// attentionInts is the number of integers that store fills.
const attentionInts = 6 + 4*3 + 2

// maskPtr is the place of KeyMask among the addresses, after those of the gradients.
const maskPtr = 10

func (a *Attention) store(l *device.Launch) {
	l.Ptr = [device.MaxPtrs]device.Ptr{a.Q, a.K, a.V, a.O, a.LSE}
	l.Ptr[maskPtr] = a.KeyMask
	l.Float[0], l.Float[1] = a.Scale, a.Dropout
	l.Int = [device.MaxInts]int{a.Batch, a.Heads, a.T, a.S, a.D, flag(a.Causal)}
	for i, s := range [...]*[3]int{&a.QStride, &a.KStride, &a.VStride, &a.OStride} {
		copy(l.Int[6+3*i:], s[:])
	}
	l.Int[18], l.Int[19] = int(uint32(a.Seed>>32)), int(uint32(a.Seed))
}

func loadAttention(l *device.Launch) *Attention {
	n := &l.Int
	a := &Attention{Batch: n[0], Heads: n[1], T: n[2], S: n[3], D: n[4], Causal: n[5] != 0, Scale: l.Float[0],
		KeyMask: l.Ptr[maskPtr], Dropout: l.Float[1], Seed: uint64(uint32(n[18]))<<32 | uint64(uint32(n[19])),
		Q: l.Ptr[0], K: l.Ptr[1], V: l.Ptr[2], O: l.Ptr[3], LSE: l.Ptr[4]}
	for i, s := range [...]*[3]int{&a.QStride, &a.KStride, &a.VStride, &a.OStride} {
		copy(s[:], n[6+3*i:])
	}
	return a
}

func (a *Attention) check(op string) {
	if a.Batch < 0 || a.Heads < 0 || a.T < 0 || a.S < 0 || a.D < 1 {
		panic(fmt.Sprintf("kernel.%s: %d×%d heads of %d queries and %d keys of %d elements", op, a.Batch, a.Heads, a.T, a.S, a.D))
	}
	checkDropout(op, a.Dropout)
	need(op, a.rows(), a.Q, a.O, a.LSE)
	need(op, a.keyRows(), a.K, a.V)
	a.checkStrides(op, "Q", a.QStride, a.T, false)
	a.checkStrides(op, "K", a.KStride, a.S, false)
	a.checkStrides(op, "V", a.VStride, a.S, false)
	a.checkStrides(op, "O", a.OStride, a.T, true)
}

func (a *Attention) checkGrads(g *AttentionGrads) {
	const op = "AttentionBackward"
	need(op, a.rows(), g.DO, g.DQ, g.Delta)
	need(op, a.keyRows(), g.DK, g.DV)
	a.checkStrides(op, "DQ", a.QStride, a.T, true)
	a.checkStrides(op, "DK", a.KStride, a.S, true)
	a.checkStrides(op, "DV", a.VStride, a.S, true)
}

// checkStrides panics if rows of an operand would overlap. Whole heads may
// coincide unless they are written.
func (a *Attention) checkStrides(op, name string, stride [3]int, rows int, written bool) {
	bad := stride[0] < 0 || stride[1] < 0 || rows > 1 && stride[2] < a.D ||
		written && (a.Batch > 1 && stride[0] < a.D || a.Heads > 1 && stride[1] < a.D)
	if bad {
		panic(fmt.Sprintf("kernel.%s: strides %v of %s for %d×%d heads of %d rows of %d elements", op, stride, name, a.Batch, a.Heads, rows, a.D))
	}
}

// rowsOf are the rows of one head of an operand, ld elements apart.
type rowsOf struct {
	data []float32
	ld   int
}

// row is row i, of d elements.
func (r rowsOf) row(i, d int) []float32 { return r.data[i*r.ld:][:d] }

// from is row i and those after it.
func (r rowsOf) from(i int) rowsOf { return rowsOf{r.data[i*r.ld:], r.ld} }

// byRow takes the rows as rows of op(A), or as columns of op(B).
func (r rowsOf) byRow() operand { return operand{data: r.data, outer: r.ld, inner: 1} }

// byColumn takes the columns as rows of op(A), or as columns of op(B).
func (r rowsOf) byColumn() operand { return operand{data: r.data, outer: 1, inner: r.ld} }

// head gives the rows of head i of Batch·Heads.
func (a *Attention) head(p device.Ptr, stride [3]int, i, rows int) rowsOf {
	at := i/a.Heads*stride[0] + i%a.Heads*stride[1]
	return rowsOf{device.Float32s(p+device.Ptr(4*at), span(rows, a.D, stride[2])), stride[2]}
}

// hidden gives what is added to the scores of a head: 0 or, for keys that are
// masked, −Inf. It is nil where no key is.
func (a *Attention) hidden(l *loans, head int) []float32 {
	if a.KeyMask == 0 {
		return nil
	}
	add := l.floats(a.S)
	for i, seen := range device.Int32s(a.KeyMask+device.Ptr(4*(head/a.Heads)*a.S), a.S) {
		add[i] = 0
		if seen == 0 {
			add[i] = minusInf
		}
	}
	return add
}

// drop applies dropout to n probabilities of query t from a key on, or to
// their gradients.
func (a *Attention) drop(p []float32, head, t, key int) {
	if a.Dropout == 0 {
		return
	}
	d := newDropout(a.Dropout, a.Seed)
	d.apply(p, p, (uint64(head)*uint64(a.T)+uint64(t))*uint64(a.S)+uint64(key))
}

// loans is scratch memory of one task.
type loans struct {
	w    *device.Workers
	bufs [][]float32
}

func (l *loans) floats(n int) []float32 {
	buf := l.w.Scratch(n)
	l.bufs = append(l.bufs, buf)
	return buf
}

func (l *loans) rows(n, d int) rowsOf { return rowsOf{l.floats(n * d), d} }

func (l *loans) release() {
	for _, buf := range l.bufs {
		l.w.Release(buf)
	}
}

// columns is the room for n outer and k inner indices of op(B), packed.
func (kn *microKernel) columns(l *loans, n, k int) []float32 {
	return l.floats(kn.b.strips(n) * kn.b.width * k)
}

// packColumns packs n outer and k inner indices of op(B) to buf.
func (kn *microKernel) packColumns(buf []float32, src operand, n, k int) panel {
	kn.b.pack(buf, src, n, k)
	return kn.b.packed(src, n, k, buf)
}

// wholeRows is op(A) of n rows and k inner indices in scratch memory that has
// room for whole strips. Rows past n may hold anything.
func (kn *microKernel) wholeRows(src operand, n, k int) panel {
	return kn.a.inPlace(src, kn.a.strips(n)*kn.a.width, k, nil)
}
