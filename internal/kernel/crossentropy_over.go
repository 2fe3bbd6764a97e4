package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// PartRows is how many rows give one number of CrossEntropyOver's losses. A product
// whose inner indices are cut at multiples of it, where each part accumulates, adds in
// the order of the whole one on the host.
const PartRows = sliceK

// LogitRows are some rows of the logits of a batch.
type LogitRows struct {
	Rows, Cols int
	Stride     int // elements from one row to the next, Cols or more; those between are padding
	First, All int // row 0 is row First of the batch, which has All

	Part LogitPart
}

// LogitPart is for rows of which only some classes are here: column 0 is class
// First of All, and Sums are the RowSums of the rows with all classes. The zero
// LogitPart stands for all classes.
type LogitPart struct {
	First, All int
	Sums       Array
}

func (r LogitRows) check(op string) {
	if r.Stride < r.Cols || r.First < 0 || r.First+r.Rows > r.All || r.Part.Sums.given() && (r.Part.First < 0 || r.Part.First+r.Cols > r.Part.All) {
		panic(fmt.Sprintf("kernel.%s: %+v", op, r))
	}
}

// check panics where p can't be had of a part of the classes.
func (r LogitPart) check(op string, p CrossEntropyParams) {
	if r.Sums.given() && (p.Smoothing != 0 || p.Ignore >= 0) {
		panic(fmt.Sprintf("kernel.%s of a part of the classes with %+v: want no smoothing, and an ignored target below 0", op, p))
	}
}

var rowSumsKernel = &device.Kernel{Name: "row_sums", Host: rowSumsHost, CUDA: cudaRowSums}

// RowSums sets sums, of 2·r.Rows elements, to the greatest logit of every row and
// then, for every row, to Σ exp(logit − greatest).
func RowSums(s device.Stream, r LogitRows, sums, logits Array) {
	const op = "RowSums"
	needMatrix(op, r.Rows, r.Cols, logits, sums)
	r.check(op)
	n := r.Rows * r.Cols
	l := device.Launch{Kernel: rowSumsKernel, Bytes: logits.bytes(n) + bytesOf(2*r.Rows), Flops: uint64((expFlops + 2) * n)}
	operands(&l, 0, sums, logits)
	l.Int[0], l.Int[1], l.Int[2] = r.Rows, r.Cols, r.Stride
	queue(s, &l)
}

func rowSumsHost(l *device.Launch, w *device.Workers) {
	rows, cols, stride := l.Int[0], l.Int[1], l.Int[2]
	sums, logits := device.Float32s(l.Ptr[0], 2*rows), numbersOf(l, 1, rows*stride)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		win := room.window(logits, cols)
		for r := lo; r < hi; r++ {
			top, sum := sumExp(win.load(r*stride, cols))
			sums[r], sums[rows+r] = float32(top), float32(sum)
		}
	})
}

var crossEntropyOverKernel = &device.Kernel{Name: "cross_entropy_over", Host: crossEntropyOverHost, CUDA: cudaCrossEntropyOver}

// CrossEntropyOver is CrossEntropy and CrossEntropyGrad in one pass over some
// rows of logits: each PartRows of them set a number of losses, the last one fewer
// perhaps, to their part of the batch's loss, and their gradient is written over
// them, with 0 in the padding. Without dloss the logits stay. targets are the batch's, r.All int32. Of rows of which only some
// classes are here, those whose target is not among them have no part of the loss
// here: the sum of the parts is all of it. There p.Smoothing must be 0, and
// p.Ignore below.
func CrossEntropyOver(s device.Stream, r LogitRows, losses, dloss, logits, targets Array, p CrossEntropyParams) {
	const op = "CrossEntropyOver"
	needMatrix(op, r.Rows, r.Cols, logits, targets)
	need(op, r.Rows, losses)
	r.check(op)
	r.Part.check(op, p)
	n := r.Rows * r.Cols
	l := device.Launch{Kernel: crossEntropyOverKernel, Bytes: logits.bytes(n) + bytesOf(r.All+ceilDiv(r.Rows, PartRows)), Flops: uint64((expFlops + 3) * n)}
	if dloss.given() {
		l.Bytes += logits.bytes(r.Rows * r.Stride)
		l.Flops += uint64((expFlops + 2) * n)
	}
	operands(&l, 0, losses, dloss, logits, targets)
	l.Int[0], l.Int[1] = r.Rows, r.Cols
	p.store(&l, 2)
	l.Int[4], l.Int[5], l.Int[6], l.Int[9] = r.Stride, r.First, r.All, PartRows
	if l.Int[8] = r.Cols; r.Part.Sums.given() {
		operands(&l, 4, r.Part.Sums)
		l.Int[7], l.Int[8] = r.Part.First, r.Part.All
	}
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
	j.first, j.classes = l.Int[7], l.Int[8]
	if l.Ptr[4] != 0 {
		j.sums = device.Float32s(l.Ptr[4], 2*l.Int[0])
	}
	w.For(l.Int[0], rowsPerChunk(j.cols), func(lo, hi int) { j.rows(w, lo, hi) })
	sums := device.Float32s(l.Ptr[0], ceilDiv(l.Int[0], PartRows))
	for i := range sums {
		var sum float64
		for _, x := range j.losses[i*PartRows : min((i+1)*PartRows, len(j.losses))] {
			sum += float64(x)
		}
		sums[i] = float32(sum / divisor)
	}
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

	first, classes int
	sums           []float32 // nil: all classes are here
}

func (j *overJob) rows(w *device.Workers, lo, hi int) {
	room := loans{w: w}
	defer room.release()
	win, buf := room.window(j.logits, j.cols), room.floats(pieceLen)
	for r := lo; r < hi; r++ {
		first, target := r*j.stride, j.target(r)
		row := win.load(first, j.cols)
		top, logSum := j.logSumExp(r, row)
		if j.losses[r] = 0; target != notHere {
			j.losses[r] = j.p.rowLoss(row, target, top, logSum)
		}
		if j.grad {
			j.p.gradRow(&j.logits, &win, first, j.cols, float32(top+logSum), target, j.scale, false, buf)
			j.logits.clear(first+j.cols, j.stride-j.cols)
		}
	}
}

// notHere is the target of a row whose class is not here. No target has this
// number.
const notHere = math.MinInt32

// target is the column of row r's target; no column where it is no class.
func (j *overJob) target(r int) int32 {
	t := j.targets[r]
	here := int(t) - j.first
	switch {
	case j.sums == nil || t == j.p.Ignore || t < 0 || int(t) >= j.classes:
		return t
	case here < 0 || here >= j.cols:
		return notHere
	}
	return int32(here)
}

// logSumExp is that of all classes of row r.
func (j *overJob) logSumExp(r int, row []float32) (top, logSum float64) {
	if j.sums == nil {
		return logSumExp(row)
	}
	return float64(j.sums[r]), math.Log(float64(j.sums[len(j.losses)+r]))
}
