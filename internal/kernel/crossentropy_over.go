package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// LogitRows are some rows of the logits of a batch.
type LogitRows struct {
	Rows, Cols int
	Stride     int // elements from one row to the next, Cols or more; those between are padding
	First, All int // row 0 is row First of the batch, which has All
}

var crossEntropyOverKernel = &device.Kernel{Name: "cross_entropy_over", Host: crossEntropyOverHost, CUDA: cudaCrossEntropyOver}

// CrossEntropyOver is CrossEntropy and CrossEntropyGrad in one pass over some
// rows of logits: *loss becomes their part of the batch's loss, and their
// gradient is written over them, with 0 in the padding. Without dloss the
// logits stay. targets are the batch's, r.All int32.
func CrossEntropyOver(s device.Stream, r LogitRows, loss, dloss, logits, targets Array, p CrossEntropyParams) {
	const op = "CrossEntropyOver"
	needMatrix(op, r.Rows, r.Cols, logits, targets)
	need(op, 1, loss)
	if r.Stride < r.Cols || r.First < 0 || r.First+r.Rows > r.All {
		panic(fmt.Sprintf("kernel.%s: %+v", op, r))
	}
	n := r.Rows * r.Cols
	l := device.Launch{Kernel: crossEntropyOverKernel, Bytes: logits.bytes(n) + bytesOf(r.All+1), Flops: uint64((expFlops + 3) * n)}
	if dloss.given() {
		l.Bytes += logits.bytes(r.Rows * r.Stride)
		l.Flops += uint64((expFlops + 2) * n)
	}
	operands(&l, 0, loss, dloss, logits, targets)
	l.Int[0], l.Int[1] = r.Rows, r.Cols
	p.store(&l, 2)
	l.Int[4], l.Int[5], l.Int[6] = r.Stride, r.First, r.All
	queue(s, &l)
}

func crossEntropyOverHost(l *device.Launch, w *device.Workers) {
	j := overJob{cols: l.Int[1], stride: l.Int[4], p: loadCrossEntropy(l, 2),
		logits: numbersOf(l, 2, l.Int[0]*l.Int[4]), grad: l.Ptr[1] != 0, losses: w.Scratch(l.Int[0])}
	defer w.Release(j.losses)
	targets := device.Int32s(l.Ptr[3], l.Int[6])
	divisor := j.p.divisor(targets)
	if j.grad {
		dloss := operandOf(l, 1).numbers(1)
		j.scale = float32(float64(dloss.at(0)) / divisor)
	}
	j.targets = targets[l.Int[5]:]
	w.For(l.Int[0], rowsPerChunk(j.cols), func(lo, hi int) { j.rows(w, lo, hi) })
	var sum float64
	for _, x := range j.losses {
		sum += float64(x)
	}
	device.Float32s(l.Ptr[0], 1)[0] = float32(sum / divisor)
}

// overJob is a CrossEntropyOver on the host.
type overJob struct {
	cols, stride int
	p            *CrossEntropyParams
	logits       numbers
	targets      []int32 // from the first row on
	losses       []float32
	grad         bool
	scale        float32
}

func (j *overJob) rows(w *device.Workers, lo, hi int) {
	room := loans{w: w}
	defer room.release()
	win, buf := room.window(j.logits, j.cols), room.floats(pieceLen)
	for r := lo; r < hi; r++ {
		first, target := r*j.stride, j.targets[r]
		row := win.load(first, j.cols)
		top, logSum := logSumExp(row)
		j.losses[r] = j.p.rowLoss(row, target, top, logSum)
		if j.grad {
			j.p.gradRow(&j.logits, &win, first, j.cols, float32(top+logSum), target, j.scale, false, buf)
			j.logits.clear(first+j.cols, j.stride-j.cols)
		}
	}
}
