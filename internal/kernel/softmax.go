package kernel

import "github.com/headroom-go/headroom/device"

var softmaxKernel = &device.Kernel{Name: "softmax", Host: softmaxHost, CUDA: cudaRows(rowsCode, "softmax_f32")}

// Softmax sets y = exp(x)/Σ exp(x) for each row of x (rows × cols). −Inf gives
// 0; a row of nothing else gives NaN. y may be x.
func Softmax(s device.Stream, rows, cols int, y, x device.Ptr) {
	needMatrix("Softmax", rows, cols, y, x)
	l := device.Launch{Kernel: softmaxKernel, Bytes: bytesOf(2 * rows * cols), Flops: uint64((expFlops + 4) * rows * cols)}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func softmaxHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	y, x := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[1], rows*cols)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			from, to := x[r*cols:][:cols], y[r*cols:][:cols]
			vecScale(to, to, 1/expShift(to, from, maxOf(from)))
		}
	})
}

var softmaxGradKernel = &device.Kernel{Name: "softmax_grad", Host: softmaxGradHost, CUDA: cudaRows(rowsCode, "softmax_grad_f32")}

// SoftmaxGrad sets dx = y·(dy − Σ dy·y) for each row, or adds that with
// accumulate. y is Softmax's result. dx may be dy or y when not accumulating.
func SoftmaxGrad(s device.Stream, rows, cols int, dx, dy, y device.Ptr, accumulate bool) {
	needMatrix("SoftmaxGrad", rows, cols, dx, dy, y)
	n := rows * cols
	l := device.Launch{Kernel: softmaxGradKernel, Bytes: bytesOf(n * (3 + flag(accumulate))), Flops: uint64(n * (4 + flag(accumulate)))}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = dx, dy, y
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, flag(accumulate)
	queue(s, &l)
}

func softmaxGradHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	n := rows * cols
	dx, dy, y := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], n), device.Float32s(l.Ptr[2], n)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		var buf [pieceLen]float32
		for r := lo; r < hi; r++ {
			softmaxGradRow(dx[r*cols:][:cols], dy[r*cols:][:cols], y[r*cols:][:cols], l.Int[2] != 0, &buf)
		}
	})
}

func softmaxGradRow(dx, dy, y []float32, accumulate bool, buf *[pieceLen]float32) {
	d := dotOf(dy, y)
	if !accumulate {
		vecSoftmaxGrad(dx, dy, y, d)
		return
	}
	for lo := 0; lo < len(dx); lo += pieceLen {
		hi := min(len(dx), lo+pieceLen)
		vecSoftmaxGrad(buf[:hi-lo], dy[lo:hi], y[lo:hi], d)
		vecAdd(dx[lo:hi], dx[lo:hi], buf[:hi-lo])
	}
}

var logSoftmaxKernel = &device.Kernel{Name: "log_softmax", Host: logSoftmaxHost, CUDA: cudaRows(rowsCode, "log_softmax_f32")}

// LogSoftmax sets y = x − log Σ exp(x) for each row of x (rows × cols). y may be x.
func LogSoftmax(s device.Stream, rows, cols int, y, x device.Ptr) {
	needMatrix("LogSoftmax", rows, cols, y, x)
	l := device.Launch{Kernel: logSoftmaxKernel, Bytes: bytesOf(2 * rows * cols), Flops: uint64((expFlops + 4) * rows * cols)}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func logSoftmaxHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	y, x := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[1], rows*cols)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			from, to := x[r*cols:][:cols], y[r*cols:][:cols]
			top, logSum := logSumExp(from)
			for i, v := range from {
				to[i] = float32(float64(v) - top - logSum)
			}
		}
	})
}

var logSoftmaxGradKernel = &device.Kernel{Name: "log_softmax_grad", Host: logSoftmaxGradHost, CUDA: cudaRows(rowsCode, "log_softmax_grad_f32")}

// LogSoftmaxGrad sets dx = dy − exp(y)·Σ dy for each row, or adds that with
// accumulate. y is LogSoftmax's result. dx may be dy when not accumulating.
func LogSoftmaxGrad(s device.Stream, rows, cols int, dx, dy, y device.Ptr, accumulate bool) {
	needMatrix("LogSoftmaxGrad", rows, cols, dx, dy, y)
	n := rows * cols
	l := device.Launch{Kernel: logSoftmaxGradKernel, Bytes: bytesOf(n * (3 + flag(accumulate))), Flops: uint64(n * (expFlops + 3 + flag(accumulate)))}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = dx, dy, y
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, flag(accumulate)
	queue(s, &l)
}

func logSoftmaxGradHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	n := rows * cols
	dx, dy, y := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], n), device.Float32s(l.Ptr[2], n)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		var buf [pieceLen]float32
		for r := lo; r < hi; r++ {
			logSoftmaxGradRow(dx[r*cols:][:cols], dy[r*cols:][:cols], y[r*cols:][:cols], l.Int[2] != 0, &buf)
		}
	})
}

func logSoftmaxGradRow(dx, dy, y []float32, accumulate bool, buf *[pieceLen]float32) {
	var sum float64
	for lo := 0; lo < len(dy); lo += pieceLen {
		sum += float64(sumOf(dy[lo:min(len(dy), lo+pieceLen)]))
	}
	for lo := 0; lo < len(dx); lo += pieceLen {
		hi := min(len(dx), lo+pieceLen)
		p := buf[:hi-lo]
		expShift(p, y[lo:hi], 0)
		vecScale(p, p, -float32(sum))
		vecAdd(p, p, dy[lo:hi])
		putStrided(dx[lo:hi], p, 1, accumulate)
	}
}
