package kernel

import "github.com/headroom-go/headroom/device"

var embeddingKernel = &device.Kernel{Name: "embedding", Host: embeddingHost, CUDA: cudaTable(indexCode, "embedding", 1)}

// Embedding sets row i of y (n × cols) to row index[i] of w (vocab × cols).
// index holds n int32; one out of range gives a row of NaN.
func Embedding(s device.Stream, n, cols, vocab int, y, w, index Array) {
	needMatrix("Embedding", n, cols, y, index)
	needMatrix("Embedding", vocab, cols, w)
	l := device.Launch{Kernel: embeddingKernel, Bytes: y.bytes(n*cols) + w.bytes(min(n, vocab)*cols) + index.bytes(n)}
	operands(&l, 0, y, w, index)
	l.Int[0], l.Int[1], l.Int[2] = n, cols, vocab
	queue(s, &l)
}

func embeddingHost(l *device.Launch, ws *device.Workers) {
	n, cols, vocab := l.Int[0], l.Int[1], l.Int[2]
	y, w, index := numbersOf(l, 0, n*cols), numbersOf(l, 1, vocab*cols), device.Int32s(l.Ptr[2], n)
	ws.For(n, rowsPerChunk(cols), func(lo, hi int) {
		room := loans{w: ws}
		defer room.release()
		win := room.window(y, cols)
		for i := lo; i < hi; i++ {
			dst, row := win.room(i*cols, cols), int(index[i])
			if row < 0 || row >= vocab {
				vecFill(dst, nan)
			} else {
				w.read(dst, row*cols, 1)
			}
			win.store(i*cols, dst)
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

// EmbeddingGrad adds row i of dy (n × cols) to row index[i] of dw
// (vocab × cols), for i from 0 to n−1 in this order. An index out of range is
// passed over. Where dw has 16 bits it is rounded after each addition.
func EmbeddingGrad(s device.Stream, n, cols, vocab int, dw, dy, index Array) {
	needMatrix("EmbeddingGrad", n, cols, dy, index)
	needMatrix("EmbeddingGrad", vocab, cols, dw)
	l := device.Launch{Kernel: embeddingGradKernel, Bytes: dy.bytes(n*cols) + dw.bytes(2*min(n, vocab)*cols) + index.bytes(n), Flops: uint64(n * cols)}
	operands(&l, 0, dw, dy, index)
	l.Int[0], l.Int[1], l.Int[2] = n, cols, vocab
	queue(s, &l)
}

func embeddingGradHost(l *device.Launch, w *device.Workers) {
	n, cols, vocab := l.Int[0], l.Int[1], l.Int[2]
	dw, dy, index := numbersOf(l, 0, vocab*cols), numbersOf(l, 1, n*cols), device.Int32s(l.Ptr[2], n)
	w.For(gradParts*((cols+gradCols-1)/gradCols), 1, func(cell, _ int) {
		part, from := cell%gradParts, cell/gradParts*gradCols
		to := min(cols, from+gradCols)
		var buf [gradCols]float32
		for i, row := range index {
			if row < 0 || int(row) >= vocab || int(row)%gradParts != part {
				continue
			}
			dw.write(int(row)*cols+from, 1, dy.dense(buf[:], i*cols+from, 1, to-from), true)
		}
	})
}
