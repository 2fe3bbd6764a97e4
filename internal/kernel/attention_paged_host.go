package kernel

import "github.com/headroom-go/headroom/device"

// fewQueries is up to how many new tokens of a text are taken one by one. More
// of them are worth packing the keys and values for the tiles of MatMul.
const fewQueries = 4

func (kn *microKernel) pagedAttention(l *device.Launch, w *device.Workers) {
	p := loadPaged(l)
	w.For(p.Texts*p.Heads, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			t, head := p.text(i/p.Heads), i%p.Heads
			if t.rows <= fewQueries {
				t.oneByOne(head, w)
				continue
			}
			size := even(t.rows, queryChunk, queryBlock)
			for first := 0; first < t.rows; first += size {
				room := loans{w: w}
				t.tiles(kn, head, first, min(size, t.rows-first), &room)
				room.release()
			}
		}
	})
}

// oneByOne computes a head's rows from all their scores: a product of a vector
// and the keys, softmax, a product of a vector and the values.
func (t *pagedText) oneByOne(head int, w *device.Workers) {
	buf := w.Scratch(t.D + t.start + t.rows)
	defer w.Release(buf)
	for r := range t.rows {
		q, scores := buf[:t.D], buf[t.D:][:t.start+r+1]
		vecScale(q, t.row(r, 0, head), t.Scale)
		for s := 0; s < len(scores); s += t.PageTokens {
			keys := t.page(s/t.PageTokens, 0, head)
			for i := range min(t.PageTokens, len(scores)-s) {
				scores[s+i] = dotOf(q, keys[i*t.D:][:t.D])
			}
		}
		sum := expShift(scores, scores, maxOf(scores))
		o := t.out(r, head)
		clear(o)
		for s := 0; s < len(scores); s += t.PageTokens {
			values := t.page(s/t.PageTokens, 1, head)
			for i := range min(t.PageTokens, len(scores)-s) {
				vecAxpy(o, values[i*t.D:][:t.D], scores[s+i])
			}
		}
		vecScale(o, o, 1/sum)
	}
}

// tiles computes a head's rows [first, first+n) as attention without pages does
// (attention.go), but that blocks of keys and values are gathered first.
func (t *pagedText) tiles(kn *microKernel, head, first, n int, room *loans) {
	f := t.forward(kn, head, first, n, room)
	values := room.rows(keyBlock, t.D)
	f.begin()
	for key := 0; key < f.visible(first+n-1); key += keyBlock {
		n := min(keyBlock, f.S-key)
		t.gather(f.scaled, values, head, key, n)
		f.block(key, n, f.scaled, values)
	}
	for i, sum := range f.sum {
		vecScale(f.o.row(i, t.D), f.acc.row(i, t.D), 1/sum)
	}
}

// forward is attention of a head's rows [first, first+n), with no keys of its own.
func (t *pagedText) forward(kn *microKernel, head, first, n int, room *loans) *forward {
	return &forward{microKernel: kn, head: head, first: first, n: n,
		Attention: &Attention{Batch: 1, Heads: t.Heads, T: t.rows, S: t.start + t.rows, D: t.D, Causal: true, Scale: t.Scale},

		q:      t.rowsOf(t.QKV, 3*t.Heads*t.D, head, first, n),
		o:      t.rowsOf(t.O, t.Heads*t.D, head, first, n),
		max:    room.floats(n),
		sum:    room.floats(n),
		acc:    room.rows(kn.a.strips(n)*kn.a.width, t.D),
		scaled: room.rows(keyBlock, t.D),
		scores: room.rows(kn.a.width, scoresLD),
		packK:  kn.columns(room, keyBlock, t.D),
		packV:  kn.columns(room, t.D, keyBlock),
		left:   room.floats(kn.a.width * t.D),
		edge:   room.floats(kn.a.width * kn.b.width),
	}
}

// rowsOf is a head's part of the text's rows [first, first+n) of p, ld elements apart.
func (t *pagedText) rowsOf(p device.Ptr, ld, head, first, n int) rowsOf {
	at := (t.first+first)*ld + head*t.D
	return rowsOf{device.Float32s(p+device.Ptr(4*at), span(n, t.D, ld)), ld}
}

// gather copies n keys, scaled, and values from a position on to rows.
func (t *pagedText) gather(keys, values rowsOf, head, from, n int) {
	for i := 0; i < n; {
		page, at := (from+i)/t.PageTokens, (from+i)%t.PageTokens
		m := min(t.PageTokens-at, n-i)
		vecScale(keys.data[i*t.D:][:m*t.D], t.page(page, 0, head)[at*t.D:], t.Scale)
		copy(values.data[i*t.D:][:m*t.D], t.page(page, 1, head)[at*t.D:])
		i += m
	}
}
