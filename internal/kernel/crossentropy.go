package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

var nan = float32(math.NaN())

// CrossEntropyParams are the numbers of a cross entropy.
type CrossEntropyParams struct {
	Ignore    int32   // the target of rows that don't count
	Smoothing float32 // ε: the target's probability is 1 − ε, and ε is shared out evenly to all classes
	Sum       bool    // over the rows, instead of the mean
}

// store puts p into a launch, after so many integers.
func (p *CrossEntropyParams) store(l *device.Launch, ints int) {
	l.Int[ints], l.Int[ints+1] = int(p.Ignore), flag(p.Sum)
	l.Float[0] = p.Smoothing
}

func loadCrossEntropy(l *device.Launch, ints int) *CrossEntropyParams {
	return &CrossEntropyParams{int32(l.Int[ints]), l.Float[0], l.Int[ints+1] != 0}
}

// divisor is what the sum over the rows is divided by.
func (p *CrossEntropyParams) divisor(targets []int32) float64 {
	n := 0
	for _, t := range targets {
		if t != p.Ignore {
			n++
		}
	}
	if p.Sum {
		return 1
	}
	return float64(max(1, n))
}

var crossEntropyKernel = &device.Kernel{Name: "cross_entropy", Host: crossEntropyHost, CUDA: cudaCrossEntropy}

// CrossEntropy sets *loss to the mean of lse − logits[target] over the rows
// whose target is not p.Ignore (0 when there is none), and lse, of rows
// elements, to log Σ exp of every row of logits (rows × cols). targets holds
// rows int32. A target that is neither p.Ignore nor a column makes the loss NaN.
func CrossEntropy(s device.Stream, rows, cols int, loss, lse, logits, targets Array, p CrossEntropyParams) {
	needMatrix("CrossEntropy", rows, cols, lse, logits, targets)
	need("CrossEntropy", 1, loss)
	n := rows * cols
	l := device.Launch{Kernel: crossEntropyKernel, Bytes: logits.bytes(n) + bytesOf(2*rows+1), Flops: uint64((expFlops + 3) * n)}
	operands(&l, 0, loss, lse, logits, targets)
	l.Int[0], l.Int[1] = rows, cols
	p.store(&l, 2)
	queue(s, &l)
}

func crossEntropyHost(l *device.Launch, w *device.Workers) {
	rows, cols, p := l.Int[0], l.Int[1], loadCrossEntropy(l, 2)
	loss, lse := device.Float32s(l.Ptr[0], 1), device.Float32s(l.Ptr[1], rows)
	targets := device.Int32s(l.Ptr[3], rows)
	losses := w.Scratch(rows)
	defer w.Release(losses)
	eachRow(w, rows, cols, numbers{}, numbersOf(l, 2, rows*cols), numbers{}, false, func(r int, _, row, _ []float32) {
		top, logSum := logSumExp(row)
		lse[r] = float32(top + logSum)
		losses[r] = p.rowLoss(row, targets[r], top, logSum)
	})
	var sum float64
	for _, x := range losses {
		sum += float64(x)
	}
	loss[0] = float32(sum / p.divisor(targets))
}

// rowLoss is a row's part of the loss. It takes log Σ exp as two numbers,
// because their sum has too few digits where the logits are great.
func (p *CrossEntropyParams) rowLoss(row []float32, target int32, top, logSum float64) float32 {
	switch {
	case target == p.Ignore:
		return 0
	case target < 0 || int(target) >= len(row):
		return nan
	}
	loss := top - float64(row[target]) + logSum
	if p.Smoothing > 0 {
		var sum float64
		for lo := 0; lo < len(row); lo += pieceLen {
			sum += float64(sumOf(row[lo:min(len(row), lo+pieceLen)]))
		}
		loss += float64(p.Smoothing) * (float64(row[target]) - sum/float64(len(row)))
	}
	return float32(loss)
}

// logSumExp gives the greatest of x and log Σ exp(x − top). It goes over x
// once: what was summed up is scaled down when a piece has a greater element.
func logSumExp(x []float32) (top, logSum float64) {
	top, sum := sumExp(x)
	return top, math.Log(sum)
}

// sumExp gives the greatest of x and Σ exp(x − top).
func sumExp(x []float32) (top, sum float64) {
	var buf [pieceLen]float32
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
	return top, sum
}

var crossEntropyGradKernel = &device.Kernel{Name: "cross_entropy_grad", Host: crossEntropyGradHost, CUDA: cudaCrossEntropyGrad}

// CrossEntropyGrad sets dlogits = (softmax(logits) − onehot(target))·*dloss/count,
// or adds that with accumulate; count is the number of targets that are not
// p.Ignore (1 for a sum), and the rows of those that are get 0. A row whose target is no
// column gets NaN. dlogits may be logits when not accumulating.
func CrossEntropyGrad(s device.Stream, rows, cols int, dlogits, dloss, logits, lse, targets Array, p CrossEntropyParams, accumulate bool) {
	needMatrix("CrossEntropyGrad", rows, cols, dlogits, logits, lse, targets)
	need("CrossEntropyGrad", 1, dloss)
	n := rows * cols
	l := device.Launch{Kernel: crossEntropyGradKernel, Bytes: logits.bytes(n) + dlogits.bytes(n*(1+flag(accumulate))) + bytesOf(2*rows+1), Flops: uint64((expFlops + 2 + flag(accumulate)) * n)}
	operands(&l, 0, dlogits, dloss, logits, lse, targets)
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, flag(accumulate)
	p.store(&l, 3)
	queue(s, &l)
}

func crossEntropyGradHost(l *device.Launch, w *device.Workers) {
	rows, cols, p := l.Int[0], l.Int[1], loadCrossEntropy(l, 3)
	dlogits, logits := numbersOf(l, 0, rows*cols), numbersOf(l, 2, rows*cols)
	lse, targets := device.Float32s(l.Ptr[3], rows), device.Int32s(l.Ptr[4], rows)
	dloss := operandOf(l, 1).numbers(1)
	scale := float32(float64(dloss.at(0)) / p.divisor(targets))
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		win := room.window(logits, pieceLen)
		buf := room.floats(pieceLen)
		for r := lo; r < hi; r++ {
			p.gradRow(&dlogits, &win, r*cols, cols, lse[r], targets[r], scale, l.Int[2] != 0, buf)
		}
	})
}

// gradRow computes the row that begins at element first.
func (p *CrossEntropyParams) gradRow(dst *numbers, logits *window, first, cols int, lse float32, target int32, scale float32, accumulate bool, buf []float32) {
	if target == p.Ignore {
		if !accumulate {
			dst.clear(first, cols)
		}
		return
	}
	if target != notHere && (target < 0 || int(target) >= cols) {
		for i := range cols {
			dst.write(first+i, 1, []float32{nan}, false)
		}
		return
	}
	share := p.Smoothing / float32(cols)
	for lo := 0; lo < cols; lo += pieceLen {
		grad := buf[:min(pieceLen, cols-lo)]
		expShift(grad, logits.load(first+lo, len(grad)), lse)
		if share > 0 {
			for i := range grad {
				grad[i] -= share
			}
		}
		if i := int(target) - lo; i >= 0 && i < len(grad) {
			grad[i] -= 1 - p.Smoothing
		}
		vecScale(grad, grad, scale)
		dst.write(first+lo, 1, grad, accumulate)
	}
}
