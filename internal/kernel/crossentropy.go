package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

var nan = float32(math.NaN())

var crossEntropyKernel = &device.Kernel{Name: "cross_entropy", Host: crossEntropyHost}

// CrossEntropy sets *loss to the mean of lse − logits[target] over the rows
// whose target is not ignore (0 when there is none), and lse, of rows
// elements, to log Σ exp of every row of logits (rows × cols). targets holds
// rows int32. A target that is neither ignore nor a column makes the loss NaN.
func CrossEntropy(s device.Stream, rows, cols int, loss, lse, logits, targets device.Ptr, ignore int32) {
	needMatrix("CrossEntropy", rows, cols, lse, logits, targets)
	need("CrossEntropy", 1, loss)
	n := rows * cols
	l := device.Launch{Kernel: crossEntropyKernel, Bytes: bytesOf(n + 2*rows + 1), Flops: uint64((expFlops + 3) * n)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2], l.Ptr[3] = loss, lse, logits, targets
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, int(ignore)
	queue(s, &l)
}

func crossEntropyHost(l *device.Launch, w *device.Workers) {
	rows, cols, ignore := l.Int[0], l.Int[1], int32(l.Int[2])
	loss, lse := device.Float32s(l.Ptr[0], 1), device.Float32s(l.Ptr[1], rows)
	logits, targets := device.Float32s(l.Ptr[2], rows*cols), device.Int32s(l.Ptr[3], rows)
	losses := w.Scratch(rows)
	defer w.Release(losses)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row := logits[r*cols:][:cols]
			top, logSum := logSumExp(row)
			lse[r] = float32(top + logSum)
			losses[r] = rowLoss(row, targets[r], ignore, top, logSum)
		}
	})
	var sum float64
	for _, x := range losses {
		sum += float64(x)
	}
	loss[0] = float32(sum / float64(max(1, counted(targets, ignore))))
}

// rowLoss is a row's part of the loss. It takes log Σ exp as two numbers,
// because their sum has too few digits where the logits are great.
func rowLoss(row []float32, target, ignore int32, top, logSum float64) float32 {
	switch {
	case target == ignore:
		return 0
	case target < 0 || int(target) >= len(row):
		return nan
	}
	return float32(top - float64(row[target]) + logSum)
}

// counted is the number of targets that are not ignored.
func counted(targets []int32, ignore int32) int {
	n := 0
	for _, t := range targets {
		if t != ignore {
			n++
		}
	}
	return n
}

// logSumExp gives the greatest of x and log Σ exp(x − top). It goes over x
// once: what was summed up is scaled down when a piece has a greater element.
func logSumExp(x []float32) (top, logSum float64) {
	var buf [pieceLen]float32
	var sum float64
	top = math.Inf(-1)
	for lo := 0; lo < len(x); lo += pieceLen {
		piece := x[lo:min(len(x), lo+pieceLen)]
		if most := float64(maxOf(piece)); most > top {
			sum *= math.Exp(top - most)
			top = most
		}
		shift := float32(max(top, -math.MaxFloat32)) // finite, so that −Inf gives 0
		sum += float64(expShift(buf[:len(piece)], piece, shift))
	}
	return top, math.Log(sum)
}

var crossEntropyGradKernel = &device.Kernel{Name: "cross_entropy_grad", Host: crossEntropyGradHost}

// CrossEntropyGrad sets dlogits = (softmax(logits) − onehot(target))·*dloss/count,
// or adds that with accumulate; count is the number of targets that are not
// ignore, and the rows of those that are get 0. A row whose target is no
// column gets NaN. dlogits may be logits when not accumulating.
func CrossEntropyGrad(s device.Stream, rows, cols int, dlogits, dloss, logits, lse, targets device.Ptr, ignore int32, accumulate bool) {
	needMatrix("CrossEntropyGrad", rows, cols, dlogits, logits, lse, targets)
	need("CrossEntropyGrad", 1, dloss)
	n := rows * cols
	l := device.Launch{Kernel: crossEntropyGradKernel, Bytes: bytesOf(n*(2+flag(accumulate)) + 2*rows + 1), Flops: uint64((expFlops + 2 + flag(accumulate)) * n)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2], l.Ptr[3], l.Ptr[4] = dlogits, dloss, logits, lse, targets
	l.Int[0], l.Int[1], l.Int[2], l.Int[3] = rows, cols, int(ignore), flag(accumulate)
	queue(s, &l)
}

func crossEntropyGradHost(l *device.Launch, w *device.Workers) {
	rows, cols, ignore := l.Int[0], l.Int[1], int32(l.Int[2])
	dlogits, logits := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[2], rows*cols)
	lse, targets := device.Float32s(l.Ptr[3], rows), device.Int32s(l.Ptr[4], rows)
	dloss := device.Float32s(l.Ptr[1], 1)[0]
	scale := float32(float64(dloss) / float64(max(1, counted(targets, ignore))))
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		var buf [pieceLen]float32
		for r := lo; r < hi; r++ {
			dst := dlogits[r*cols:][:cols]
			crossEntropyGradRow(dst, logits[r*cols:][:cols], lse[r], targets[r], ignore, scale, l.Int[3] != 0, &buf)
		}
	})
}

func crossEntropyGradRow(dst, logits []float32, lse float32, target, ignore int32, scale float32, accumulate bool, buf *[pieceLen]float32) {
	if target == ignore {
		if !accumulate {
			clear(dst)
		}
		return
	}
	if target < 0 || int(target) >= len(dst) {
		vecFill(dst, nan)
		return
	}
	for lo := 0; lo < len(dst); lo += pieceLen {
		hi := min(len(dst), lo+pieceLen)
		p := buf[:hi-lo]
		expShift(p, logits[lo:hi], lse)
		if i := int(target) - lo; i >= 0 && i < len(p) {
			p[i]--
		}
		if accumulate {
			vecAxpy(dst[lo:hi], p, scale)
		} else {
			vecScale(dst[lo:hi], p, scale)
		}
	}
}
