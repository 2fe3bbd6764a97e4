package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

var layerNormKernel = &device.Kernel{Name: "layer_norm", Host: layerNormHost, CUDA: cudaWarps(rowsCode, "layer_norm_f32")}

// LayerNorm normalises each row of x (rows × cols):
//
//	mean = Σ x / cols;  rstd = 1/√(Σ (x − mean)² / cols + eps)
//	y = (x − mean)·rstd·gamma + beta
//
// mean and rstd, of rows elements, are written. With y 0 nothing else is, and
// gamma and beta are not read. y may be x. With an address of 0 for mean
// nothing is centred: the mean counts as 0, as in Zhang and Sennrich, "Root
// Mean Square Layer Normalization" (2019). beta of 0 counts as zeros.
func LayerNorm(s device.Stream, rows, cols int, y, mean, rstd, x, gamma, beta device.Ptr, eps float32) {
	needMatrix("LayerNorm", rows, cols, rstd, x)
	l := device.Launch{Kernel: layerNormKernel, Bytes: bytesOf(rows*cols + 2*rows), Flops: uint64(4 * rows * cols)}
	if y != 0 {
		need("LayerNorm", cols, gamma)
		l.Bytes += bytesOf(rows*cols + 2*cols)
		l.Flops += uint64(4 * rows * cols)
	}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = y, mean, rstd
	l.Ptr[3], l.Ptr[4], l.Ptr[5] = x, gamma, beta
	l.Int[0], l.Int[1] = rows, cols
	l.Float[0] = eps
	queue(s, &l)
}

func layerNormHost(l *device.Launch, w *device.Workers) {
	rows, cols, eps := l.Int[0], l.Int[1], float64(l.Float[0])
	mean, freeMean := orZeros(w, l.Ptr[1], rows)
	defer freeMean()
	rstd, x := device.Float32s(l.Ptr[2], rows), device.Float32s(l.Ptr[3], rows*cols)
	beta, freeBeta := orZeros(w, l.Ptr[5], cols)
	defer freeBeta()
	var y, gamma []float32
	if l.Ptr[0] != 0 {
		y, gamma = device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[4], cols)
	}
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row := x[r*cols:][:cols]
			if l.Ptr[1] != 0 {
				mean[r] = meanOf(row)
			}
			rstd[r] = deviation(row, mean[r], eps)
			if y != nil {
				vecNorm(y[r*cols:][:cols], row, gamma, beta, mean[r], rstd[r])
			}
		}
	})
}

// orZeros gives the n elements at p, or zeros if p is 0; free gives them back.
func orZeros(w *device.Workers, p device.Ptr, n int) (data []float32, free func()) {
	if p != 0 {
		return device.Float32s(p, n), func() {}
	}
	data = w.Scratch(n)
	clear(data)
	return data, func() { w.Release(data) }
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

var layerNormApplyKernel = &device.Kernel{Name: "layer_norm_apply", Host: layerNormApplyHost, CUDA: cudaWarps(rowsCode, "layer_norm_apply_f32")}

// LayerNormApply computes LayerNorm's y again, bit for bit, from mean and
// rstd. y may be x; mean and beta may be 0 as there.
func LayerNormApply(s device.Stream, rows, cols int, y, x, mean, rstd, gamma, beta device.Ptr) {
	needMatrix("LayerNormApply", rows, cols, y, x, rstd, gamma)
	l := device.Launch{Kernel: layerNormApplyKernel, Bytes: bytesOf(2*rows*cols + 2*rows + 2*cols), Flops: uint64(4 * rows * cols)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = y, mean, rstd
	l.Ptr[3], l.Ptr[4], l.Ptr[5] = x, gamma, beta
	l.Int[0], l.Int[1] = rows, cols
	queue(s, &l)
}

func layerNormApplyHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	y, x := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[3], rows*cols)
	rstd, gamma := device.Float32s(l.Ptr[2], rows), device.Float32s(l.Ptr[4], cols)
	mean, freeMean := orZeros(w, l.Ptr[1], rows)
	defer freeMean()
	beta, freeBeta := orZeros(w, l.Ptr[5], cols)
	defer freeBeta()
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			vecNorm(y[r*cols:][:cols], x[r*cols:][:cols], gamma, beta, mean[r], rstd[r])
		}
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
func LayerNormGrad(s device.Stream, rows, cols int, dx, dgamma, dbeta, dy, x, mean, rstd, gamma device.Ptr, accX, accGamma, accBeta bool) {
	needMatrix("LayerNormGrad", rows, cols, dy, x, rstd, gamma)
	l := device.Launch{Kernel: layerNormGradKernel, Bytes: bytesOf(2*rows*cols + 2*rows + cols)}
	if dx != 0 {
		l.Bytes += bytesOf(rows * cols * (1 + flag(accX)))
		l.Flops += uint64(12 * rows * cols)
	}
	for _, p := range [...]struct {
		ptr device.Ptr
		acc bool
	}{{dgamma, accGamma}, {dbeta, accBeta}} {
		if p.ptr != 0 {
			l.Bytes += bytesOf(cols * (1 + flag(p.acc)))
			l.Flops += uint64(2 * rows * cols)
		}
	}
	l.Ptr = [device.MaxPtrs]device.Ptr{dx, dgamma, dbeta, dy, x, mean, rstd, gamma}
	l.Int[0], l.Int[1] = rows, cols
	l.Int[2], l.Int[3], l.Int[4] = flag(accX), flag(accGamma), flag(accBeta)
	queue(s, &l)
}

// normGrad is a LayerNormGrad on the host.
type normGrad struct {
	rows, cols        int
	grain             int // rows of a part
	dx, dy, x         []float32
	mean, rstd, gamma []float32
	accumulate        bool      // dx is added to
	centred           bool      // there is a mean
	work              []float32 // for each part: its sums for dgamma, then for dbeta
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
		rows: rows, cols: cols, accumulate: l.Int[2] != 0,
		grain: max(minNormRows, (rows+maxNormParts-1)/maxNormParts),
		dy:    device.Float32s(l.Ptr[3], rows*cols), x: device.Float32s(l.Ptr[4], rows*cols),
		rstd: device.Float32s(l.Ptr[6], rows), gamma: device.Float32s(l.Ptr[7], cols),
		centred: l.Ptr[5] != 0,
	}
	mean, free := orZeros(w, l.Ptr[5], rows)
	defer free()
	j.mean = mean
	if l.Ptr[0] != 0 {
		j.dx = device.Float32s(l.Ptr[0], rows*cols)
	}
	parts := (rows + j.grain - 1) / j.grain
	if l.Ptr[1] != 0 || l.Ptr[2] != 0 {
		j.work = w.Scratch(2 * parts * cols)
		defer w.Release(j.work)
	}
	w.For(rows, j.grain, j.part)
	for i := range 2 {
		if l.Ptr[1+i] != 0 {
			j.foldParams(device.Float32s(l.Ptr[1+i], cols), i*cols, parts, l.Int[3+i] != 0, w)
		}
	}
}

// part computes rows lo … hi−1.
func (j *normGrad) part(lo, hi int) {
	var buf [pieceLen]float32
	var sums []float32
	if j.work != nil {
		sums = j.work[lo/j.grain*2*j.cols:][:2*j.cols]
		clear(sums)
	}
	for r := lo; r < hi; r++ {
		dy, x := j.dy[r*j.cols:][:j.cols], j.x[r*j.cols:][:j.cols]
		if sums != nil {
			addNormParams(sums[:j.cols], sums[j.cols:], dy, x, j.mean[r], j.rstd[r])
		}
		if j.dx != nil {
			j.row(j.dx[r*j.cols:][:j.cols], dy, x, j.mean[r], j.rstd[r], &buf)
		}
	}
}

// row computes a row of dx.
func (j *normGrad) row(dx, dy, x []float32, mean, rstd float32, buf *[pieceLen]float32) {
	sumG, sumGX := normSumsOf(dy, x, j.gamma, mean, rstd)
	meanG, meanGX := sumG/float32(j.cols), sumGX/float32(j.cols)
	if !j.centred {
		meanG = 0
	}
	if !j.accumulate {
		vecNormGrad(dx, dy, x, j.gamma, mean, rstd, meanG, meanGX)
		return
	}
	for lo := 0; lo < len(dx); lo += pieceLen {
		hi := min(len(dx), lo+pieceLen)
		vecNormGrad(buf[:hi-lo], dy[lo:hi], x[lo:hi], j.gamma[lo:hi], mean, rstd, meanG, meanGX)
		vecAdd(dx[lo:hi], dx[lo:hi], buf[:hi-lo])
	}
}

// foldParams adds up the parts of a parameter's gradient.
func (j *normGrad) foldParams(dst []float32, off, parts int, accumulate bool, w *device.Workers) {
	w.For(j.cols, pieceLen/8, func(lo, hi int) {
		var buf [pieceLen / 8]float32
		sums := buf[:hi-lo]
		foldParts(sums, j.work, off+lo, parts, 2*j.cols)
		putStrided(dst[lo:hi], sums, 1, accumulate)
	})
}
