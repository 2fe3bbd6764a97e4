package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

func (kn *microKernel) attentionBackward(l *device.Launch, w *device.Workers) {
	a, g := loadAttention(l), loadAttentionGrads(l)
	w.For(a.Batch*a.Heads, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			room := loans{w: w}
			kn.newBackward(a, g, i, &room).run()
			room.release()
		}
	})
}

func loadAttentionGrads(l *device.Launch) *AttentionGrads {
	at := func(i int) Array { return operandOf(l, 5+i) }
	return &AttentionGrads{DO: at(0), DQ: at(1), DK: at(2), DV: at(3), Delta: at(4), Accumulate: l.Int[attentionInts] != 0}
}

// backward computes the gradients of one head: for each block of keys it goes
// over the queries block by block. dK and dV of the block of keys gather in
// scratch memory, dQ where it belongs.
type backward struct {
	*microKernel
	*Attention
	grads          *AttentionGrads
	head           int
	hidden         []float32 // what is added to the scores; nil for nothing
	q, k, v, o     rowsOf
	dq, dk, dv, do rowsOf
	lse, delta     []float32

	scaled               rowsOf // a block of keys, times the scale
	p, ds                rowsOf // scores then P, and dP then dS, of a block of queries
	accK, accV           rowsOf // dK (not yet scaled) and dV of a block of keys
	packK, packV, packKt []float32
	packQ, packDO        []float32
	leftQ, leftDO        []float32 // strips that are not whole
	edge                 []float32
}

func (kn *microKernel) newBackward(a *Attention, g *AttentionGrads, head int, room *loans) *backward {
	keys := kn.a.strips(keyBlock) * kn.a.width
	row := func(p Array) []float32 { return device.Float32s(p.From(head*a.T).Ptr, a.T) }
	to := a.place
	if g.Accumulate {
		to = a.head
	}
	return &backward{microKernel: kn, Attention: a, grads: g, head: head, hidden: a.hidden(room, head),
		q:  a.head(room, a.Q, a.QStride, head, a.T),
		dq: to(room, g.DQ, a.QStride, head, a.T),
		k:  a.head(room, a.K, a.KStride, head, a.S),
		dk: to(room, g.DK, a.KStride, head, a.S),
		v:  a.head(room, a.V, a.VStride, head, a.S),
		dv: to(room, g.DV, a.VStride, head, a.S),
		o:  a.head(room, a.O, a.OStride, head, a.T),
		do: a.head(room, g.DO, a.OStride, head, a.T),

		lse: row(a.LSE), delta: row(g.Delta),
		scaled: room.rows(keyBlock, a.D),
		p:      room.rows(queryBlock, scoresLD),
		ds:     room.rows(queryBlock, scoresLD),
		accK:   room.rows(keys, a.D),
		accV:   room.rows(keys, a.D),
		packK:  kn.columns(room, keyBlock, a.D),
		packV:  kn.columns(room, keyBlock, a.D),
		packKt: kn.columns(room, a.D, keyBlock),
		packQ:  kn.columns(room, a.D, queryBlock),
		packDO: kn.columns(room, a.D, queryBlock),
		leftQ:  room.floats(kn.a.width * a.D),
		leftDO: room.floats(kn.a.width * a.D),
		edge:   room.floats(kn.a.width * kn.b.width),
	}
}

func (b *backward) run() {
	for t := range b.T {
		b.delta[t] = dotOf(b.do.row(t, b.D), b.o.row(t, b.D))
		if !b.grads.Accumulate {
			clear(b.dq.row(t, b.D))
		}
	}
	for key := 0; key < b.S; key += keyBlock {
		b.keys(key, min(keyBlock, b.S-key))
	}
	b.keep(b.dq, b.grads.DQ, b.QStride, b.head, b.T)
	b.keep(b.dk, b.grads.DK, b.KStride, b.head, b.S)
	b.keep(b.dv, b.grads.DV, b.VStride, b.head, b.S)
}

// keys does the block of n keys from key on.
func (b *backward) keys(key, n int) {
	scaleRows(b.scaled, b.k.from(key), n, b.D, b.Scale)
	k := b.packColumns(b.packK, b.scaled.byRow(), n, b.D)
	kt := b.packColumns(b.packKt, b.scaled.byColumn(), b.D, n)
	v := b.packColumns(b.packV, b.v.from(key).byRow(), n, b.D)
	clear(b.accK.data)
	clear(b.accV.data)
	for t := 0; t < b.T; t += queryBlock {
		rows := min(queryBlock, b.T-t)
		seen := min(n, b.visible(t+rows-1)-key)
		if seen <= 0 {
			continue
		}
		for i := 0; i < rows; i += b.a.width {
			b.strip(t, i, min(b.a.width, rows-i), key, seen, &k, &v, &kt)
		}
		b.gather(t, rows, key, seen)
	}
	b.write(key, n)
}

// strip does one strip of the queries of a block: rows of them from t+i on. It
// fills in P and dS up to what the block has seen, and adds to dQ.
func (b *backward) strip(t, i, rows, key, seen int, k, v, kt *panel) {
	n := max(0, min(seen, b.visible(t+i+rows-1)-key))
	q := b.a.inPlace(b.q.from(t+i).byRow(), rows, b.D, b.leftQ)
	do := b.a.inPlace(b.do.from(t+i).byRow(), rows, b.D, b.leftDO)
	score := product{m: b.a.width, n: keyBlock, c: b.p.from(i).data, ldc: scoresLD}
	dp := product{m: b.a.width, n: keyBlock, c: b.ds.from(i).data, ldc: scoresLD}
	for j := range b.b.strips(n) {
		b.tileAt(&score, &q, k, 0, j, 0, b.D, b.edge)
		b.tileAt(&dp, &do, v, 0, j, 0, b.D, b.edge)
	}
	room := b.a.strips(seen) * b.a.width
	for r := range rows {
		valid := max(0, min(seen, b.visible(t+i+r)-key))
		b.row(t+i+r, key, b.p.row(i+r, room), b.ds.row(i+r, room), valid)
	}
	if n > 0 {
		ds := b.wholeRows(b.ds.from(i).byRow(), rows, n)
		b.add(b.dq.from(t+i), rows, &ds, kt, 0, n)
	}
}

// row turns scores into P and dP into dS for query t and the keys from key on.
// From valid on keys are masked.
func (b *backward) row(t, key int, p, ds []float32, valid int) {
	if b.hidden != nil {
		vecAdd(p[:valid], p[:valid], b.hidden[key:])
	}
	expShift(p[:valid], p[:valid], max(b.lse[t], -math.MaxFloat32))
	b.drop(ds[:valid], b.head, t, key)
	vecSoftmaxGrad(ds[:valid], ds[:valid], p[:valid], b.delta[t])
	b.drop(p[:valid], b.head, t, key)
	clear(p[valid:])
	clear(ds[valid:])
}

// gather adds a block of queries to dK and dV.
func (b *backward) gather(t, rows, key, seen int) {
	q := b.packColumns(b.packQ, b.q.from(t).byColumn(), b.D, rows)
	do := b.packColumns(b.packDO, b.do.from(t).byColumn(), b.D, rows)
	for j := 0; j < seen; j += b.a.width {
		first := b.firstQuery(key+j) - t
		if first >= rows {
			continue
		}
		ds := b.wholeRows(operand{data: floats(b.ds.data[j:]), outer: 1, inner: scoresLD}, b.a.width, rows)
		p := b.wholeRows(operand{data: floats(b.p.data[j:]), outer: 1, inner: scoresLD}, b.a.width, rows)
		b.add(b.accK.from(j), b.a.width, &ds, &q, max(0, first), rows)
		b.add(b.accV.from(j), b.a.width, &p, &do, max(0, first), rows)
	}
}

// firstQuery is the first query that sees a key.
func (a *Attention) firstQuery(key int) int {
	if !a.Causal {
		return 0
	}
	return key + a.T - a.S
}

// add adds op(A)·op(B) over the inner indices [from, to) to dst, for one strip
// of op(A) and D columns.
func (b *backward) add(dst rowsOf, rows int, x, y *panel, from, to int) {
	g := product{m: rows, n: b.D, c: dst.data, ldc: dst.ld, src: dst.data, lds: dst.ld}
	for j := range b.b.strips(b.D) {
		b.tileAt(&g, x, y, 0, j, from, to, b.edge)
	}
}

// write moves dK and dV of a block of keys to where they belong.
func (b *backward) write(key, n int) {
	for i := range n {
		dk, dv := b.dk.row(key+i, b.D), b.dv.row(key+i, b.D)
		if b.grads.Accumulate {
			vecAxpy(dk, b.accK.row(i, b.D), b.Scale)
			vecAdd(dv, dv, b.accV.row(i, b.D))
		} else {
			vecScale(dk, b.accK.row(i, b.D), b.Scale)
			copy(dv, b.accV.row(i, b.D))
		}
	}
}
