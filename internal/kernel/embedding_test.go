package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// indices gives n indices below vocab, a few of them too great or negative.
func indices(r *rand.Rand, n, vocab int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(r.IntN(vocab))
		switch r.IntN(20) {
		case 0:
			v[i] = int32(vocab)
		case 1:
			v[i] = math.MinInt32
		}
	}
	return v
}

// someRows is all of a table in half of the cases.
func someRows(r *rand.Rand, all int) Table {
	if r.IntN(2) == 0 {
		return WholeTable(all)
	}
	first := r.IntN(all)
	return Table{1 + r.IntN(all-first), first, all}
}

func TestEmbedding(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, shape := range shapes(r) {
			n, cols, vocab := shape[0], shape[1], 1+r.IntN(50)
			index := indices(r, n, vocab)
			part := someRows(r, vocab)
			c := &testCase{t: t}
			w, at, y := c.input(randoms(r, part.Rows*cols)), c.indices(index), c.output(n*cols)
			c.run(func(s device.Stream) { Embedding(s, n, cols, part, y.ptr(), w.ptr(), at.ptr()) })
			c.equal("y", y, 0, func(i int) float64 {
				row := int(index[i/cols])
				if row < 0 || row >= vocab {
					return math.NaN()
				}
				if row -= part.First; row < 0 || row >= part.Rows {
					return 0
				}
				return w.start(row*cols + i%cols)
			})
			c.cost(n*cols+min(n, part.Rows)*cols+n, 0)
		}
	})
}

func TestEmbeddingGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for _, shape := range shapes(r) {
			n, cols, vocab := shape[0], shape[1], 1+r.IntN(50)
			index := indices(r, n, vocab)
			part := someRows(r, vocab)
			c := &testCase{t: t}
			dw, at, dy := c.inout(randoms(r, part.Rows*cols)), c.indices(index), c.input(randoms(r, n*cols))
			want := wide(dw.before)
			for i, row := range index {
				for j := range cols {
					if at := int(row) - part.First; row >= 0 && at >= 0 && at < part.Rows {
						want[at*cols+j] += dy.start(i*cols + j)
					}
				}
			}
			c.run(func(s device.Stream) { EmbeddingGrad(s, n, cols, part, dw.ptr(), dy.ptr(), at.ptr()) })
			c.near("dw", dw, 2e-6, math.Sqrt(float64(n)), func(i int) float64 { return want[i] })
			c.cost(n*cols+2*min(n, part.Rows)*cols+n, n*cols)
		}
	})
}
