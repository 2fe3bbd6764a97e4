package kernel

import (
	"unsafe"

	"github.com/headroom-go/headroom/device"
)

// product is C = src + op(A)·op(B) with its operands where they lie. See
// gemm.go for how it is computed.
type product struct {
	m, n, k int
	a, b    operand
	c       []float32
	ldc     int
	src     []float32 // nil for zeros; c to accumulate; or the bias, with lds 0
	lds     int
}

// part is the product of a block: at most mb rows from i on, nb columns from j
// on, kb inner indices from k on. All but the first block along k accumulate.
func (g *product) part(i, j, k, mb, nb, kb int) *product {
	p := *g
	p.m, p.n, p.k = min(mb, g.m-i), min(nb, g.n-j), min(kb, g.k-k)
	p.a, p.b = g.a.from(i, k), g.b.from(j, k)
	p.c = g.c[i*g.ldc+j:]
	if k > 0 {
		p.src, p.lds = p.c, p.ldc
	} else if g.src != nil {
		p.src = g.src[i*g.lds+j:]
	}
	return &p
}

const (
	sliceK    = 256     // inner indices of a tile: a strip of B stays in the first-level cache
	taskRows  = 12      // strips of A in a task: a slice of them stays in the second-level cache
	taskCols  = 4       // strips of B in a task
	manyTasks = 32      // enough to keep the threads equally busy
	smallTask = 1 << 20 // multiply-adds (some ten microseconds) that are not worth sharing
	packGroup = 4       // strips packed together
)

// ceilDiv is n/size rounded up.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// even divides n into the fewest blocks of at most limit and gives the size of
// all but the last, a multiple of unit.
func even(n, limit, unit int) int {
	return ceilDiv(ceilDiv(n, ceilDiv(n, limit)), unit) * unit
}

// multiply computes g block by block.
func (kn *microKernel) multiply(g *product, w *device.Workers) {
	kb := min(g.k, even(g.k, kn.panel.k, sliceK))
	mb := even(g.m, kn.panel.elements/kb, kn.a.width)
	nb := even(g.n, kn.panel.elements/kb, kn.b.width)
	bufA, bufB := w.Scratch(mb*kb), w.Scratch(nb*kb)
	for j := 0; j < g.n; j += nb {
		for k := 0; k < g.k; k += kb {
			for i := 0; i < g.m; i += mb {
				p := g.part(i, j, k, mb, nb, kb)
				a, b := kn.panels(p, bufA, bufB)
				if j > 0 && mb >= g.m && kb >= g.k {
					a.pending = 0 // there is only one block of A
				}
				if i > 0 {
					b.pending = 0 // as for the block of A before
				}
				pack(&a, &b, w)
				kn.share(p, &a, &b, w)
			}
		}
	}
	w.Release(bufB)
	w.Release(bufA)
}

// panels says where the tiles read their operands. Packing pays for an operand
// that many tiles read, and for one that does not lie as tiles need it.
func (kn *microKernel) panels(g *product, bufA, bufB []float32) (a, b panel) {
	if g.a.stays() && g.a.inner == 1 && g.n <= 2*kn.b.width {
		a = kn.a.inPlace(g.a, g.m, g.k, bufA)
	} else {
		a = kn.a.packed(g.a, g.m, g.k, bufA)
	}
	if g.b.stays() && g.b.outer == 1 && g.m <= 4*kn.a.width {
		b = kn.b.inPlace(g.b, g.n, g.k, bufB)
	} else {
		b = kn.b.packed(g.b, g.n, g.k, bufB)
	}
	return a, b
}

// pack packs what is pending.
func pack(a, b *panel, w *device.Workers) {
	grain := max(1, chunk/(packGroup*b.width*b.k))
	w.For(a.pending+b.pending, grain, func(lo, hi int) {
		for g := lo; g < hi; g++ {
			if g < a.pending {
				a.packGroup(g)
			} else {
				b.packGroup(g - a.pending)
			}
		}
	})
}

// share cuts the tiles of g into tasks and shares them out.
func (kn *microKernel) share(g *product, a, b *panel, w *device.Workers) {
	down, across := a.strips(g.m), b.strips(g.n)
	rows, cols := kn.taskSize(down, across, g.k)
	perRow := ceilDiv(across, cols)
	w.For(ceilDiv(down, rows)*perRow, 1, func(lo, hi int) {
		edge := w.Scratch(a.width * b.width)
		for t := lo; t < hi; t++ {
			i, j := t/perRow*rows, t%perRow*cols
			kn.tiles(g, a, b, i, min(i+rows, down), j, min(j+cols, across), edge)
		}
		w.Release(edge)
	})
}

// taskSize gives the strips of A and of B in a task: fewer when there would be
// too few tasks, if there is work for more.
func (kn *microKernel) taskSize(down, across, k int) (rows, cols int) {
	rows, cols = even(down, taskRows, 1), min(across, taskCols)
	for cols > 1 && ceilDiv(down, rows)*ceilDiv(across, cols) < manyTasks && rows*kn.a.width*cols*kn.b.width*k > smallTask {
		cols /= 2
	}
	return rows, cols
}

// tiles computes the tiles of strips [i0, i1) of A and [j0, j1) of B, slice
// after slice of k. edge is room for one tile.
func (kn *microKernel) tiles(g *product, a, b *panel, i0, i1, j0, j1 int, edge []float32) {
	slice := *g
	for q := 0; q < g.k; q += sliceK {
		for j := j0; j < j1; j++ {
			for i := i0; i < i1; i++ {
				kn.tileAt(&slice, a, b, i, j, q, min(q+sliceK, g.k), edge)
			}
		}
		slice.src, slice.lds = g.c, g.ldc
	}
}

// tileAt computes the tile of strip is of A and strip js of B over the inner
// indices [from, to).
func (kn *microKernel) tileAt(g *product, a, b *panel, is, js, from, to int, edge []float32) {
	i, j := is*a.width, js*b.width
	pa, rs, cs := a.at(is, from)
	pb, _, ldb := b.at(js, from)
	c, src := g.c[i*g.ldc+j:], g.src
	if src != nil {
		src = src[i*g.lds+j:]
	}
	if rows, cols := min(a.width, g.m-i), min(b.width, g.n-j); rows < a.width || cols < b.width {
		kn.tile(to-from, pa, rs, cs, pb, ldb, &edge[0], b.width, nil, 0)
		addTile(c, g.ldc, src, g.lds, edge, b.width, rows, cols)
		return
	}
	kn.tile(to-from, pa, rs, cs, pb, ldb, &c[0], g.ldc, unsafe.SliceData(src), g.lds)
}

// addTile sets c = src + tile for the part of a tile that lies inside of C.
func addTile(c []float32, ldc int, src []float32, lds int, tile []float32, ldt, rows, cols int) {
	for i := range rows {
		row, t := c[i*ldc:][:cols], tile[i*ldt:][:cols]
		if src == nil {
			copy(row, t)
			continue
		}
		for j, x := range src[i*lds:][:cols] {
			row[j] = t[j] + x
		}
	}
}
