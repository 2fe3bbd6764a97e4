package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

var layerNormKernel = &device.Kernel{Name: "layer_norm", Host: layerNormHost, CUDA: cudaLayerNorm}

// LayerNorm normalises each row of x (rows × cols):
//
//	mean = Σ x / cols;  rstd = 1/√(Σ (x − mean)² / cols + eps)
//	y = (x − mean)·rstd·gamma + beta
//
// mean and rstd, of rows elements, are written. Without y nothing else is, and
// gamma and beta are not read. y may be x. Without mean
// nothing is centred: the mean counts as 0, as in Zhang and Sennrich, "Root
// Mean Square Layer Normalization" (2019). No beta counts as zeros.
func LayerNorm(s device.Stream, rows, cols int, y, mean, rstd, x, gamma, beta Array, eps float32) {
	needMatrix("LayerNorm", rows, cols, rstd, x)
	l := device.Launch{Kernel: layerNormKernel, Bytes: x.bytes(rows*cols) + bytesOf(2*rows), Flops: uint64(4 * rows * cols)}
	if y.given() {
		need("LayerNorm", cols, gamma)
		l.Bytes += y.bytes(rows*cols) + gamma.bytes(2*cols)
		l.Flops += uint64(4 * rows * cols)
	}
	operands(&l, 0, y, mean, rstd, x, gamma, beta)
	l.Int[0], l.Int[1] = rows, cols
	l.Float[0] = eps
	queue(s, &l)
}

func layerNormHost(l *device.Launch, w *device.Workers) {
	rows, cols, eps := l.Int[0], l.Int[1], float64(l.Float[0])
	mean, freeMean := vector(w, l, 1, rows)
	defer freeMean()
	rstd := device.Float32s(l.Ptr[2], rows)
	beta, freeBeta := vector(w, l, 5, cols)
	defer freeBeta()
	gamma, freeGamma := vector(w, l, 4, cols)
	defer freeGamma()
	eachRow(w, rows, cols, numbersOf(l, 0, rows*cols), numbersOf(l, 3, rows*cols), numbers{}, false, func(r int, y, row, _ []float32) {
		if l.Ptr[1] != 0 {
			mean[r] = meanOf(row)
		}
		rstd[r] = deviation(row, mean[r], eps)
		if y != nil {
			vecNorm(y, row, gamma, beta, mean[r], rstd[r])
		}
	})
}

var addLayerNormKernel = &device.Kernel{Name: "add_layer_norm", Host: addLayerNormHost, CUDA: cudaAddLayerNorm}

// AddNorm describes Sum = X + dropout(A), of Rows × Cols, and LayerNorm of what Sum
// then holds. Without Y there is the sum alone.
type AddNorm struct {
	Rows, Cols           int
	Y, Mean, RStd        Array
	Sum, X, A            Array
	Gamma, Beta          Array
	Eps                  float32
	Dropout              float32 // the probability; which elements are dropped follows from Seed, as in Dropout
	Seed                 uint64
	Tokens, First, Whole int // each Tokens rows are those from First on of Whole ones, whose elements Dropout counts; 0 Tokens: all rows are all
}

// AddLayerNorm computes the sum and the normalisation that n describes.
func AddLayerNorm(s device.Stream, n AddNorm) {
	needMatrix("AddLayerNorm", n.Rows, n.Cols, n.Sum, n.X, n.A)
	checkDropout("AddLayerNorm", n.Dropout)
	elements := n.Rows * n.Cols
	l := device.Launch{Kernel: addLayerNormKernel, Bytes: n.X.bytes(elements) + n.A.bytes(elements) + n.Sum.bytes(elements), Flops: uint64(2 * elements)}
	if n.Y.given() {
		needMatrix("AddLayerNorm", n.Rows, n.Cols, n.RStd, n.Gamma)
		l.Bytes += n.Y.bytes(elements) + bytesOf(2*n.Rows) + n.Gamma.bytes(2*n.Cols)
		l.Flops += uint64(8 * elements)
	}
	if n.Tokens == 0 {
		n.Tokens, n.First, n.Whole = max(1, n.Rows), 0, n.Rows
	}
	operands(&l, 0, n.Y, n.Mean, n.RStd, n.Sum, n.Gamma, n.Beta, n.X, n.A)
	l.Int = [device.MaxInts]int{n.Rows, n.Cols, int(uint32(n.Seed >> 32)), int(uint32(n.Seed)), n.Tokens, n.First, n.Whole}
	l.Float[0], l.Float[1] = n.Eps, n.Dropout
	queue(s, &l)
}

func addLayerNormHost(l *device.Launch, w *device.Workers) {
	rows, cols, p := l.Int[0], l.Int[1], l.Float[1]
	tokens, first, whole := l.Int[4], l.Int[5], l.Int[6]
	d := newDropout(p, uint64(uint32(l.Int[2]))<<32|uint64(uint32(l.Int[3])))
	n := rows * cols
	eachRow(w, rows, cols, numbersOf(l, 3, n), numbersOf(l, 6, n), numbersOf(l, 7, n), false, func(r int, sum, x, a []float32) {
		if p > 0 {
			d.apply(sum, a, uint64((r/tokens*whole+first+r%tokens)*cols))
			a = sum
		}
		vecAdd(sum, x, a)
	})
	if l.Ptr[0] != 0 {
		layerNormHost(l, w)
	}
}

// meanOf gives the mean of a row.
func meanOf(row []float32) float32 {
	var sum float64
	for lo := 0; lo < len(row); lo += pieceLen {
		sum += float64(sumOf(row[lo:min(len(row), lo+pieceLen)]))
	}
	return float32(sum / float64(len(row)))
}

// deviation gives 1/√(variance + eps) of a row around mean.
func deviation(row []float32, mean float32, eps float64) float32 {
	var square float64
	for lo := 0; lo < len(row); lo += pieceLen {
		square += float64(squaresOf(row[lo:min(len(row), lo+pieceLen)], mean))
	}
	return float32(1 / math.Sqrt(square/float64(len(row))+eps))
}

var layerNormApplyKernel = &device.Kernel{Name: "layer_norm_apply", Host: layerNormApplyHost, CUDA: cudaWarps(rowsCode, "layer_norm_apply")}

// LayerNormApply computes LayerNorm's y again, bit for bit, from mean and
// rstd. y may be x; mean and beta may be 0 as there.
func LayerNormApply(s device.Stream, rows, cols int, y, x, mean, rstd, gamma, beta Array) {
	needMatrix("LayerNormApply", rows, cols, y, x, rstd, gamma)
	l := device.Launch{Kernel: layerNormApplyKernel, Bytes: x.bytes(rows*cols) + y.bytes(rows*cols) + bytesOf(2*rows) + gamma.bytes(2*cols), Flops: uint64(4 * rows * cols)}
	operands(&l, 0, y, mean, rstd, x, gamma, beta)
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func layerNormApplyHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	rstd := device.Float32s(l.Ptr[2], rows)
	mean, freeMean := vector(w, l, 1, rows)
	defer freeMean()
	beta, freeBeta := vector(w, l, 5, cols)
	defer freeBeta()
	gamma, freeGamma := vector(w, l, 4, cols)
	defer freeGamma()
	eachRow(w, rows, cols, numbersOf(l, 0, rows*cols), numbersOf(l, 3, rows*cols), numbers{}, false, func(r int, y, x, _ []float32) {
		vecNorm(y, x, gamma, beta, mean[r], rstd[r])
	})
}

var layerNormGradKernel = &device.Kernel{Name: "layer_norm_grad", Host: layerNormGradHost, CUDA: cudaLayerNormGrad}

// LayerNormGrad computes the gradients of LayerNorm's x, gamma and beta from
// that of its y and what it saved. With x̂ = (x − mean)·rstd and g = dy·gamma:
//
//	dx = rstd·(g − Σ g / cols − x̂·Σ g·x̂ / cols);  dgamma = Σ dy·x̂;  dbeta = Σ dy
//
// the latter two over rows. A destination of 0 is not wanted; those with their
// acc flag are added to. dx may be dy when accX is false. Where mean is 0, as
// in LayerNorm, dx lacks the term with Σ g.
func LayerNormGrad(s device.Stream, rows, cols int, dx, dgamma, dbeta, dy, x, mean, rstd, gamma Array, accX, accGamma, accBeta bool) {
	needMatrix("LayerNormGrad", rows, cols, dy, x, rstd, gamma)
	l := device.Launch{Kernel: layerNormGradKernel, Bytes: dy.bytes(rows*cols) + x.bytes(rows*cols) + bytesOf(2*rows) + gamma.bytes(cols)}
	if dx.given() {
		l.Bytes += dx.bytes(rows * cols * (1 + flag(accX)))
		l.Flops += uint64(12 * rows * cols)
	}
	for _, p := range [...]struct {
		to  Array
		acc bool
	}{{dgamma, accGamma}, {dbeta, accBeta}} {
		if p.to.given() {
			l.Bytes += p.to.bytes(cols * (1 + flag(p.acc)))
			l.Flops += uint64(2 * rows * cols)
		}
	}
	operands(&l, 0, dx, dgamma, dbeta, dy, x, mean, rstd, gamma)
	l.Int[0], l.Int[1] = rows, cols
	l.Int[2], l.Int[3], l.Int[4] = flag(accX), flag(accGamma), flag(accBeta)
	queue(s, &l)
}

// normGrad is a LayerNormGrad on the host.
type normGrad struct {
	rows, cols        int
	grain             int // rows of a part
	dx, dy, x         numbers
	mean, rstd, gamma []float32
	accumulate        bool      // dx is added to
	centred           bool      // there is a mean
	work              []float32 // for each part: its sums for dgamma, then for dbeta
	w                 *device.Workers
}

// Rows are cut into at most maxNormParts parts, which depend on their number
// alone; each part has a sum for gamma and beta, and these are added in order.
const (
	maxNormParts = 256
	minNormRows  = 16
)

func layerNormGradHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	j := normGrad{
		rows: rows, cols: cols, accumulate: l.Int[2] != 0, w: w,
		grain: max(minNormRows, (rows+maxNormParts-1)/maxNormParts),
		dx:    numbersOf(l, 0, rows*cols), dy: numbersOf(l, 3, rows*cols), x: numbersOf(l, 4, rows*cols),
		rstd: device.Float32s(l.Ptr[6], rows), centred: l.Ptr[5] != 0,
	}
	mean, freeMean := vector(w, l, 5, rows)
	defer freeMean()
	gamma, freeGamma := vector(w, l, 7, cols)
	defer freeGamma()
	j.mean, j.gamma = mean, gamma
	parts := (rows + j.grain - 1) / j.grain
	if l.Ptr[1] != 0 || l.Ptr[2] != 0 {
		j.work = w.Scratch(2 * parts * cols)
		defer w.Release(j.work)
	}
	w.For(rows, j.grain, j.part)
	for i := range 2 {
		if l.Ptr[1+i] != 0 {
			j.foldParams(numbersOf(l, 1+i, cols), i*cols, parts, l.Int[3+i] != 0)
		}
	}
}

// part computes rows lo … hi−1.
func (j *normGrad) part(lo, hi int) {
	room := loans{w: j.w}
	defer room.release()
	winX, winDY, to := room.window(j.x, j.cols), room.window(j.dy, j.cols), room.result(j.dx, j.cols, j.accumulate)
	var sums []float32
	if j.work != nil {
		sums = j.work[lo/j.grain*2*j.cols:][:2*j.cols]
		clear(sums)
	}
	for r := lo; r < hi; r++ {
		at := r * j.cols
		dy, x := winDY.load(at, j.cols), winX.load(at, j.cols)
		if sums != nil {
			addNormParams(sums[:j.cols], sums[j.cols:], dy, x, j.mean[r], j.rstd[r])
		}
		if dx := to.room(at, j.cols); dx != nil {
			j.row(dx, dy, x, j.mean[r], j.rstd[r])
			to.store(at, dx)
		}
	}
}

// row computes a row of dx.
func (j *normGrad) row(dx, dy, x []float32, mean, rstd float32) {
	sumG, sumGX := normSumsOf(dy, x, j.gamma, mean, rstd)
	meanG, meanGX := sumG/float32(j.cols), sumGX/float32(j.cols)
	if !j.centred {
		meanG = 0
	}
	vecNormGrad(dx, dy, x, j.gamma, mean, rstd, meanG, meanGX)
}

// foldParams adds up the parts of a parameter's gradient.
func (j *normGrad) foldParams(dst numbers, off, parts int, accumulate bool) {
	j.w.For(j.cols, pieceLen/8, func(lo, hi int) {
		var buf [pieceLen / 8]float32
		sums := buf[:hi-lo]
		foldParts(sums, j.work, off+lo, parts, 2*j.cols)
		dst.write(lo, 1, sums, accumulate)
	})
}
