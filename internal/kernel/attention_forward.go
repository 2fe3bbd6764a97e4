package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

func (kn *microKernel) attentionForward(l *device.Launch, w *device.Workers) {
	a := loadAttention(l)
	size := even(a.T, queryChunk, queryBlock)
	chunks := ceilDiv(a.T, size)
	w.For(a.Batch*a.Heads*chunks, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			room := loans{w: w}
			kn.newForward(a, i/chunks, i%chunks*size, size, &room).run()
			room.release()
		}
	})
}

// forward computes the queries [first, first+n) of one head.
type forward struct {
	*microKernel
	*Attention
	head       int
	first, n   int
	q, k, v, o rowsOf // of the head; q and o from the first query on
	lse        []float32

	max, sum []float32 // m and l of each query
	acc      rowsOf    // O before the division
	scaled   rowsOf    // a block of keys, times the scale
	scores   rowsOf    // of a strip of queries; then probabilities
	packK    []float32
	packV    []float32
	left     []float32 // a strip of queries that is not whole
	edge     []float32
	hidden   []float32 // what is added to the scores; nil for nothing
}

func (kn *microKernel) newForward(a *Attention, head, first, size int, room *loans) *forward {
	n := min(size, a.T-first)
	return &forward{microKernel: kn, Attention: a, head: head, first: first, n: n,
		q:      a.head(room, a.Q.From(first*a.QStride[2]), a.QStride, head, n),
		k:      a.head(room, a.K, a.KStride, head, a.S),
		v:      a.head(room, a.V, a.VStride, head, a.S),
		o:      a.place(room, a.O.From(first*a.OStride[2]), a.OStride, head, n),
		lse:    device.Float32s(a.LSE.From(head*a.T+first).Ptr, n),
		max:    room.floats(n),
		sum:    room.floats(n),
		acc:    room.rows(kn.a.strips(n)*kn.a.width, a.D),
		scaled: room.rows(keyBlock, a.D),
		scores: room.rows(kn.a.width, scoresLD),
		packK:  kn.columns(room, keyBlock, a.D),
		packV:  kn.columns(room, a.D, keyBlock),
		left:   room.floats(kn.a.width * a.D),
		edge:   room.floats(kn.a.width * kn.b.width),
		hidden: a.hidden(room, head),
	}
}

func (f *forward) run() {
	f.begin()
	for key := 0; key < f.visible(f.first+f.n-1); key += keyBlock {
		n := min(keyBlock, f.S-key)
		scaleRows(f.scaled, f.k.from(key), n, f.D, f.Scale)
		f.block(key, n, f.scaled, f.v.from(key))
	}
	f.finish()
}

// begin starts with no key seen.
func (f *forward) begin() {
	clear(f.sum)
	for i := range f.max {
		f.max[i] = minusInf
	}
}

// block adds n keys, from key on, that are scaled.
func (f *forward) block(key, n int, keys, values rowsOf) {
	k := f.packColumns(f.packK, keys.byRow(), n, f.D)
	v := f.packColumns(f.packV, values.byColumn(), f.D, n)
	for i := 0; i < f.n; i += f.a.width {
		f.strip(i, key, &k, &v)
	}
}

// strip adds a block of keys, from key on, to the strip of queries from i on.
func (f *forward) strip(i, key int, k, v *panel) {
	rows := min(f.a.width, f.n-i)
	n := min(k.n, f.visible(f.first+i+rows-1)-key)
	if n <= 0 {
		return
	}
	q := f.a.inPlace(f.q.from(i).byRow(), rows, f.D, f.left)
	score := product{m: f.a.width, n: keyBlock, c: f.scores.data, ldc: scoresLD}
	for j := range f.b.strips(n) {
		f.tileAt(&score, &q, k, 0, j, 0, f.D, f.edge)
	}
	for r := range rows {
		seen, scores := max(0, min(n, f.visible(f.first+i+r)-key)), f.scores.row(r, n)
		if f.hidden != nil {
			vecAdd(scores[:seen], scores[:seen], f.hidden[key:])
		}
		f.soften(i+r, scores, seen)
		f.drop(scores[:seen], f.head, f.first+i+r, key)
	}
	p := f.wholeRows(f.scores.byRow(), rows, n)
	out := product{m: f.a.width, n: f.D, c: f.acc.from(i).data, ldc: f.D}
	if key > 0 {
		out.src, out.lds = out.c, out.ldc
	}
	for j := range f.b.strips(f.D) {
		f.tileAt(&out, &p, v, 0, j, 0, n, f.edge)
	}
}

// soften turns the scores of query i into probabilities, not yet divided by
// their sum, and scales what came before. Scores from seen on are masked.
func (f *forward) soften(i int, scores []float32, seen int) {
	greatest := max(f.max[i], maxOf(scores[:seen]))
	if greatest > f.max[i] && f.sum[i] > 0 {
		factor := float32(math.Exp(float64(f.max[i] - greatest)))
		f.sum[i] *= factor
		vecScale(f.acc.row(i, f.D), f.acc.row(i, f.D), factor)
	}
	f.max[i] = greatest
	f.sum[i] += expShift(scores[:seen], scores[:seen], max(greatest, -math.MaxFloat32))
	clear(scores[seen:])
}

// finish divides by the sums and writes O and LSE.
func (f *forward) finish() {
	for i, sum := range f.sum {
		o := f.o.row(i, f.D)
		f.lse[i] = f.max[i] + float32(math.Log(float64(sum)))
		if sum == 0 {
			clear(o)
		} else {
			vecScale(o, f.acc.row(i, f.D), 1/sum)
		}
	}
	f.keep(f.o, f.O.From(f.first*f.OStride[2]), f.OStride, f.head, f.n)
}

// scaleRows sets dst = scale·src for n rows of d elements.
func scaleRows(dst, src rowsOf, n, d int, scale float32) {
	for i := range n {
		vecScale(dst.row(i, d), src.row(i, d), scale)
	}
}
