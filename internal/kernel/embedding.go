package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

var embeddingKernel = &device.Kernel{Name: "embedding", Host: embeddingHost, CUDA: cudaTable(indexCode, "embedding", 1)}

// Table is some rows of a table that has All: Rows of them, from row First on.
type Table struct{ Rows, First, All int }

// WholeTable is all rows of one.
func WholeTable(rows int) Table { return Table{rows, 0, rows} }

// check panics unless the rows are some of the table's.
func (t Table) check(op string) {
	if t.Rows < 0 || t.First < 0 || t.First+t.Rows > t.All {
		panic(fmt.Sprintf("kernel.%s: %d rows from %d on of a table of %d", op, t.Rows, t.First, t.All))
	}
}

// Embedding sets row i of y (n × cols) to row index[i] of a table, of which w
// (t.Rows × cols) has some rows; a row that w has not becomes 0. index holds n
// int32; one out of the table's range gives a row of NaN.
func Embedding(s device.Stream, n, cols int, t Table, y, w, index Array) {
	needMatrix("Embedding", n, cols, y, index)
	needMatrix("Embedding", t.Rows, cols, w)
	t.check("Embedding")
	l := device.Launch{Kernel: embeddingKernel, Bytes: y.bytes(n*cols) + w.bytes(min(n, t.Rows)*cols) + index.bytes(n)}
	operands(&l, 0, y, w, index)
	l.Int[0], l.Int[1], l.Int[2], l.Int[3], l.Int[4] = n, cols, t.Rows, t.First, t.All
	queue(s, &l)
}

func embeddingHost(l *device.Launch, ws *device.Workers) {
	n, cols, t := l.Int[0], l.Int[1], Table{l.Int[2], l.Int[3], l.Int[4]}
	y, w, index := numbersOf(l, 0, n*cols), numbersOf(l, 1, t.Rows*cols), device.Int32s(l.Ptr[2], n)
	ws.For(n, rowsPerChunk(cols), func(lo, hi int) {
		room := loans{w: ws}
		defer room.release()
		to := room.result(y, cols, false)
		for i := lo; i < hi; i++ {
			dst, row := to.room(i*cols, cols), int(index[i])
			switch at := row - t.First; {
			case row < 0 || row >= t.All:
				vecFill(dst, nan)
			case at < 0 || at >= t.Rows:
				vecFill(dst, 0)
			default:
				w.read(dst, at*cols, 1)
			}
			to.store(i*cols, dst)
		}
	})
}

var embeddingGradKernel = &device.Kernel{Name: "embedding_grad", Host: embeddingGradHost, CUDA: cudaEmbeddingGrad}

// The table is cut into gradParts sets of rows, by their number modulo that,
// and columns of gradCols: each such cell has one thread, which goes through
// all indices. So each element of dw has its additions in the order of dy.
const (
	gradParts = 16
	gradCols  = 1024
)

// EmbeddingGrad adds row i of dy (n × cols) to row index[i] of the table of which
// dw (t.Rows × cols) has some rows, for i from 0 to n−1 in this order. An index of
// a row that dw has not is passed over. Where dw has 16 bits it is rounded after
// each addition.
func EmbeddingGrad(s device.Stream, n, cols int, t Table, dw, dy, index Array) {
	needMatrix("EmbeddingGrad", n, cols, dy, index)
	needMatrix("EmbeddingGrad", t.Rows, cols, dw)
	t.check("EmbeddingGrad")
	l := device.Launch{Kernel: embeddingGradKernel, Bytes: dy.bytes(n*cols) + dw.bytes(2*min(n, t.Rows)*cols) + index.bytes(n), Flops: uint64(n * cols)}
	operands(&l, 0, dw, dy, index)
	l.Int[0], l.Int[1], l.Int[2], l.Int[3], l.Int[4] = n, cols, t.Rows, t.First, t.All
	queue(s, &l)
}

func embeddingGradHost(l *device.Launch, w *device.Workers) {
	n, cols, vocab, first := l.Int[0], l.Int[1], l.Int[2], l.Int[3]
	dw, dy, index := numbersOf(l, 0, vocab*cols), numbersOf(l, 1, n*cols), device.Int32s(l.Ptr[2], n)
	w.For(gradParts*((cols+gradCols-1)/gradCols), 1, func(cell, _ int) {
		part, from := cell%gradParts, cell/gradParts*gradCols
		to := min(cols, from+gradCols)
		var buf [gradCols]float32
		for i, row := range index {
			at := int(row) - first
			if at < 0 || at >= vocab || at%gradParts != part {
				continue
			}
			dw.write(at*cols+from, 1, dy.dense(buf[:], i*cols+from, 1, to-from), true)
		}
	})
}
