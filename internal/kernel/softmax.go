package kernel

import "github.com/headroom-go/headroom/device"

var softmaxKernel = &device.Kernel{Name: "softmax", Host: softmaxHost, CUDA: cudaRows(rowsCode, "softmax")}

// Softmax sets y = exp(x)/Σ exp(x) for each row of x (rows × cols). −Inf gives
// 0; a row of nothing else gives NaN. y may be x.
func Softmax(s device.Stream, rows, cols int, y, x Array) {
	needMatrix("Softmax", rows, cols, y, x)
	l := device.Launch{Kernel: softmaxKernel, Bytes: x.bytes(rows*cols) + y.bytes(rows*cols), Flops: uint64((expFlops + 4) * rows * cols)}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func softmaxHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	eachRow(w, rows, cols, numbersOf(l, 0, rows*cols), numbersOf(l, 1, rows*cols), numbers{}, false, func(_ int, to, from, _ []float32) {
		vecScale(to, to, 1/expShift(to, from, maxOf(from)))
	})
}

var softmaxGradKernel = &device.Kernel{Name: "softmax_grad", Host: softmaxGradHost, CUDA: cudaRows(rowsCode, "softmax_grad")}

// SoftmaxGrad sets dx = y·(dy − Σ dy·y) for each row, or adds that with
// accumulate. y is Softmax's result. dx may be dy or y when not accumulating.
func SoftmaxGrad(s device.Stream, rows, cols int, dx, dy, y Array, accumulate bool) {
	needMatrix("SoftmaxGrad", rows, cols, dx, dy, y)
	n := rows * cols
	l := device.Launch{Kernel: softmaxGradKernel, Bytes: dy.bytes(n) + y.bytes(n) + dx.bytes(n*(1+flag(accumulate))), Flops: uint64(n * (4 + flag(accumulate)))}
	operands(&l, 0, dx, dy, y)
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, flag(accumulate)
	queue(s, &l)
}

func softmaxGradHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	n := rows * cols
	eachRow(w, rows, cols, numbersOf(l, 0, n), numbersOf(l, 1, n), numbersOf(l, 2, n), l.Int[2] != 0, softmaxGradRow)
}

func softmaxGradRow(_ int, dx, dy, y []float32) { vecSoftmaxGrad(dx, dy, y, dotOf(dy, y)) }

var logSoftmaxKernel = &device.Kernel{Name: "log_softmax", Host: logSoftmaxHost, CUDA: cudaRows(rowsCode, "log_softmax")}

// LogSoftmax sets y = x − log Σ exp(x) for each row of x (rows × cols). y may be x.
func LogSoftmax(s device.Stream, rows, cols int, y, x Array) {
	needMatrix("LogSoftmax", rows, cols, y, x)
	l := device.Launch{Kernel: logSoftmaxKernel, Bytes: x.bytes(rows*cols) + y.bytes(rows*cols), Flops: uint64((expFlops + 4) * rows * cols)}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func logSoftmaxHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	eachRow(w, rows, cols, numbersOf(l, 0, rows*cols), numbersOf(l, 1, rows*cols), numbers{}, false, func(_ int, to, from, _ []float32) {
		top, logSum := logSumExp(from)
		for i, v := range from {
			to[i] = float32(float64(v) - top - logSum)
		}
	})
}

var logSoftmaxGradKernel = &device.Kernel{Name: "log_softmax_grad", Host: logSoftmaxGradHost, CUDA: cudaRows(rowsCode, "log_softmax_grad")}

// LogSoftmaxGrad sets dx = dy − exp(y)·Σ dy for each row, or adds that with
// accumulate. y is LogSoftmax's result. dx may be dy when not accumulating.
func LogSoftmaxGrad(s device.Stream, rows, cols int, dx, dy, y Array, accumulate bool) {
	needMatrix("LogSoftmaxGrad", rows, cols, dx, dy, y)
	n := rows * cols
	l := device.Launch{Kernel: logSoftmaxGradKernel, Bytes: dy.bytes(n) + y.bytes(n) + dx.bytes(n*(1+flag(accumulate))), Flops: uint64(n * (expFlops + 3 + flag(accumulate)))}
	operands(&l, 0, dx, dy, y)
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, flag(accumulate)
	queue(s, &l)
}

func logSoftmaxGradHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	n := rows * cols
	eachRow(w, rows, cols, numbersOf(l, 0, n), numbersOf(l, 1, n), numbersOf(l, 2, n), l.Int[2] != 0, logSoftmaxGradRow)
}

func logSoftmaxGradRow(_ int, dx, dy, y []float32) {
	var buf [pieceLen]float32
	var sum float64
	for lo := 0; lo < len(dy); lo += pieceLen {
		sum += float64(sumOf(dy[lo:min(len(dy), lo+pieceLen)]))
	}
	for lo := 0; lo < len(dx); lo += pieceLen {
		hi := min(len(dx), lo+pieceLen)
		p := buf[:hi-lo]
		expShift(p, y[lo:hi], 0)
		vecScale(p, p, -float32(sum))
		vecAdd(dx[lo:hi], p, dy[lo:hi])
	}
}
