package kernel

import "github.com/headroom-go/headroom/device"

var embeddingKernel = &device.Kernel{Name: "embedding", Host: embeddingHost, CUDA: cudaTable(indexCode, "embedding_f32", 1)}

// Embedding sets row i of y (n × cols) to row index[i] of w (vocab × cols).
// index holds n int32; one out of range gives a row of NaN.
func Embedding(s device.Stream, n, cols, vocab int, y, w, index device.Ptr) {
	needMatrix("Embedding", n, cols, y, index)
	needMatrix("Embedding", vocab, cols, w)
	l := device.Launch{Kernel: embeddingKernel, Bytes: bytesOf(n*cols + min(n, vocab)*cols + n)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = y, w, index
	l.Int[0], l.Int[1], l.Int[2] = n, cols, vocab
	queue(s, &l)
}

func embeddingHost(l *device.Launch, ws *device.Workers) {
	n, cols, vocab := l.Int[0], l.Int[1], l.Int[2]
	y, w, index := device.Float32s(l.Ptr[0], n*cols), device.Float32s(l.Ptr[1], vocab*cols), device.Int32s(l.Ptr[2], n)
	ws.For(n, rowsPerChunk(cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst, row := y[i*cols:][:cols], int(index[i])
			if row < 0 || row >= vocab {
				vecFill(dst, nan)
				continue
			}
			copy(dst, w[row*cols:])
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
// passed over.
func EmbeddingGrad(s device.Stream, n, cols, vocab int, dw, dy, index device.Ptr) {
	needMatrix("EmbeddingGrad", n, cols, dy, index)
	needMatrix("EmbeddingGrad", vocab, cols, dw)
	l := device.Launch{Kernel: embeddingGradKernel, Bytes: bytesOf(n*cols + 2*min(n, vocab)*cols + n), Flops: uint64(n * cols)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = dw, dy, index
	l.Int[0], l.Int[1], l.Int[2] = n, cols, vocab
	queue(s, &l)
}

func embeddingGradHost(l *device.Launch, w *device.Workers) {
	n, cols, vocab := l.Int[0], l.Int[1], l.Int[2]
	dw, dy, index := device.Float32s(l.Ptr[0], vocab*cols), device.Float32s(l.Ptr[1], n*cols), device.Int32s(l.Ptr[2], n)
	w.For(gradParts*((cols+gradCols-1)/gradCols), 1, func(cell, _ int) {
		part, from := cell%gradParts, cell/gradParts*gradCols
		to := min(cols, from+gradCols)
		for i, row := range index {
			if row < 0 || int(row) >= vocab || int(row)%gradParts != part {
				continue
			}
			dst := dw[int(row)*cols:][from:to]
			vecAdd(dst, dst, dy[i*cols:][from:to])
		}
	})
}
