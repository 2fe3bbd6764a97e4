package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// BatchNorm describes the normalisation of each channel of X, [N, C, P] dense,
// by its mean and rstd = 1/√(variance + eps), which have C elements:
//
//	x̂ = (x − mean)·rstd;  z = x̂·gamma + beta + residual;  y = z, or max(z, 0)
type BatchNorm struct {
	N, C, P                    int
	X, Mean, RStd, Gamma, Beta Array
	Residual                   Array // of X's size; none stands for zeros
	Relu                       bool  // y is max(z, 0)
}

// needAll panics unless the sizes are positive and each of ps is an address.
func (b *BatchNorm) needAll(op string, ps ...Array) {
	if b.N < 1 || b.C < 1 || b.P < 1 {
		panic(fmt.Sprintf("kernel.%s: %d×%d×%d elements", op, b.N, b.C, b.P))
	}
	need(op, b.C, ps...)
}

func (b *BatchNorm) elements() int { return b.N * b.C * b.P }

// launch leaves Int[7], Int[8], Int[12], Int[13] and Ptr[9] to the device.
func (b *BatchNorm) launch(k *device.Kernel) device.Launch {
	l := device.Launch{Kernel: k}
	l.Int[0], l.Int[1], l.Int[2], l.Int[9] = b.N, b.C, b.P, flag(b.Relu)
	operands(&l, 0, b.X, b.Mean, b.RStd, b.Gamma, b.Beta)
	operands(&l, 10, b.Residual)
	return l
}

// channels is a BatchNorm on the host.
type channels struct {
	n, c, p                 int
	x, residual             numbers
	relu                    bool
	mean, rstd, gamma, beta []float32
	w                       *device.Workers
	free                    [2]func() // gamma's and beta's memory
}

func loadBatchNorm(l *device.Launch, w *device.Workers) *channels {
	b := &channels{n: l.Int[0], c: l.Int[1], p: l.Int[2], relu: l.Int[9] != 0, w: w}
	b.x, b.residual = numbersOf(l, 0, b.elements()), numbersOf(l, 10, b.elements())
	b.mean, b.rstd = device.Float32s(l.Ptr[1], b.c), device.Float32s(l.Ptr[2], b.c)
	b.gamma, b.free[0] = vector(w, l, 3, b.c)
	b.beta, b.free[1] = vector(w, l, 4, b.c)
	return b
}

func (b *channels) elements() int { return b.n * b.c * b.p }

func (b *channels) release() {
	b.free[0]()
	b.free[1]()
}

// each calls f for the channels, a few to a chunk.
func (b *channels) each(f func(channel int, room *loans)) {
	b.w.For(b.c, rowsPerChunk(b.n*b.p), func(lo, hi int) {
		room := loans{w: b.w}
		defer room.release()
		for c := lo; c < hi; c++ {
			f(c, &room)
			room.release()
		}
	})
}

// pieces calls f for the pieces of a channel's elements, in order.
func (b *channels) pieces(channel int, f func(at, n int)) {
	for i := range b.n {
		at := (i*b.c + channel) * b.p
		for lo := 0; lo < b.p; lo += pieceLen {
			f(at+lo, min(b.p-lo, pieceLen))
		}
	}
}

var batchNormStatsKernel = &device.Kernel{Name: "batch_norm_stats", Host: batchNormStatsHost, CUDA: cudaChannels("batch_norm_stats", "channel_sums", "channel_stats")}

// BatchNormStats sets Mean and RStd to those of X. With runMean and runVar,
// of C elements, it moves these by momentum towards the mean and the unbiased
// variance.
func BatchNormStats(s device.Stream, b BatchNorm, runMean, runVar Array, momentum, eps float32) {
	b.needAll("BatchNormStats", b.X, b.Mean, b.RStd)
	b = BatchNorm{N: b.N, C: b.C, P: b.P, X: b.X, Mean: b.Mean, RStd: b.RStd}
	l := b.launch(batchNormStatsKernel)
	operands(&l, 5, runMean, runVar)
	l.Float[0], l.Float[1] = momentum, eps
	l.Bytes, l.Flops = b.X.bytes(b.elements())+bytesOf(2*b.C), uint64(4*b.elements())
	if runMean.given() {
		need("BatchNormStats", b.C, runVar)
		l.Bytes += bytesOf(4 * b.C)
	}
	queue(s, &l)
}

func batchNormStatsHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l, w)
	defer b.release()
	var runMean, runVar []float32
	if l.Ptr[5] != 0 {
		runMean, runVar = device.Float32s(l.Ptr[5], b.c), device.Float32s(l.Ptr[6], b.c)
	}
	momentum, eps, count := float64(l.Float[0]), float64(l.Float[1]), float64(b.n*b.p)
	b.each(func(c int, room *loans) {
		mean, square := b.moments(c, room)
		b.mean[c], b.rstd[c] = mean, float32(1/math.Sqrt(square/count+eps))
		if runMean != nil {
			runMean[c] += float32(momentum * float64(mean-runMean[c]))
			runVar[c] += float32(momentum * (square/max(1, count-1) - float64(runVar[c])))
		}
	})
}

// moments gives a channel's mean and Σ (x − mean)².
func (b *channels) moments(c int, room *loans) (mean float32, square float64) {
	var sum float64
	x := room.window(b.x, pieceLen)
	b.pieces(c, func(at, n int) { sum += float64(sumOf(x.load(at, n))) })
	mean = float32(sum / float64(b.n*b.p))
	b.pieces(c, func(at, n int) { square += float64(squaresOf(x.load(at, n), mean)) })
	return mean, square
}

var batchNormApplyKernel = &device.Kernel{Name: "batch_norm_apply", Host: batchNormApplyHost, CUDA: cudaChannels("batch_norm_apply", "channel_apply")}

// BatchNormApply sets y, of X's size. y may be X.
func BatchNormApply(s device.Stream, b BatchNorm, y Array) {
	b.needAll("BatchNormApply", b.X, b.Mean, b.RStd, b.Gamma, b.Beta, y)
	l := b.launch(batchNormApplyKernel)
	operands(&l, 5, y)
	n := b.elements()
	l.Bytes, l.Flops = b.X.bytes(n)+y.bytes(n)+b.residualBytes()+bytesOf(4*b.C), uint64(4*n)
	queue(s, &l)
}

// residualBytes is the traffic of a pass over the residual, if there is one.
func (b *BatchNorm) residualBytes() uint64 {
	if !b.Residual.given() {
		return 0
	}
	return b.Residual.bytes(b.elements())
}

// line computes z of one channel on the host.
type line struct {
	mean, rstd    float32
	gammas, betas []float32 // a piece of the channel's gamma, and of its beta
	x, residual   window
}

func (b *channels) line(c int, room *loans) *line {
	n := min(b.p, pieceLen)
	l := &line{b.mean[c], b.rstd[c], room.floats(n), room.floats(n), room.window(b.x, n), room.window(b.residual, n)}
	vecFill(l.gammas, b.gamma[c])
	vecFill(l.betas, b.beta[c])
	return l
}

// z sets to, which may be x, to those of x's elements, which begin at number at.
func (l *line) z(to, x []float32, at int) {
	n := len(to)
	vecNorm(to, x, l.gammas[:n], l.betas[:n], l.mean, l.rstd)
	if l.residual.given() {
		vecAdd(to, to, l.residual.load(at, n))
	}
}

func batchNormApplyHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l, w)
	defer b.release()
	b.each(func(c int, room *loans) {
		line, y := b.line(c, room), room.result(numbersOf(l, 5, b.elements()), pieceLen, false)
		b.pieces(c, func(at, n int) {
			to := y.room(at, n)
			line.z(to, line.x.load(at, n), at)
			if b.relu {
				vecRelu(to, to)
			}
			y.store(at, to)
		})
	})
}

var batchNormGradKernel = &device.Kernel{Name: "batch_norm_grad", Host: batchNormGradHost, CUDA: cudaChannels("batch_norm_grad", "channel_grad_sums", "channel_grad_fold", "channel_grad")}

// BatchNormGrad computes the gradients of X, Gamma, Beta and Residual from dy,
// that of y, over the m = N·P elements of each channel:
//
//	g = dy where y is z, and 0 where ReLU cut z off;  dgamma = Σ g·x̂;  dbeta = Σ g;  dresidual = g
//	dx = gamma·rstd·(g − Σ g / m − x̂·Σ g·x̂ / m)
//
// With fixed, Mean and RStd don't depend on X: dx = gamma·rstd·g. A
// destination of 0 in to is not wanted; those with their acc flag are added to.
// dresidual may be dy when it is not added to, and otherwise dx may.
//
// z is computed again, with ReLU, so that nothing needs to be kept for its
// gradient. Where there is a dresidual that has g now, the second pass, for dx,
// reads that instead of dy and the residual.
func BatchNormGrad(s device.Stream, b BatchNorm, to [4]Array, acc [4]bool, dy Array, fixed bool) {
	b.needAll("BatchNormGrad", b.X, b.Mean, b.RStd, b.Gamma, dy)
	if b.Relu {
		need("BatchNormGrad", b.C, b.Beta)
	} else {
		b.Beta, b.Residual = Array{}, Array{}
	}
	l := b.launch(batchNormGradKernel)
	operands(&l, 5, to[0], to[1], to[2], dy)
	operands(&l, 11, to[3])
	reuse := to[3].given() && !acc[3] && to[3].Type == dy.Type
	copy(l.Int[3:], []int{flag(fixed), flag(acc[0]), flag(acc[1]), flag(acc[2])})
	l.Int[10], l.Int[11] = flag(acc[3]), flag(reuse)
	n := b.elements()
	pass := b.X.bytes(n) + dy.bytes(n)
	l.Bytes, l.Flops = pass+b.residualBytes()+bytesOf(3*b.C), uint64(4*n)
	if to[3].given() {
		l.Bytes += to[3].bytes(n * (1 + flag(acc[3])))
	}
	if to[0].given() {
		l.Bytes += pass + to[0].bytes(n*(1+flag(acc[0])))
		l.Flops += uint64(6 * n)
		if !reuse {
			l.Bytes += b.residualBytes()
		}
	}
	queue(s, &l)
}

// batchGrad is a BatchNormGrad on the host.
type batchGrad struct {
	*channels
	dx, dgamma, dbeta, dy, dresidual        numbers
	fixed                                   bool
	accX, accGamma, accBeta, accRes, reuses bool
}

func batchNormGradHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l, w)
	defer b.release()
	n := b.elements()
	g := &batchGrad{b, numbersOf(l, 5, n), numbersOf(l, 6, b.c), numbersOf(l, 7, b.c), numbersOf(l, 8, n), numbersOf(l, 11, n),
		l.Int[3] != 0, l.Int[4] != 0, l.Int[5] != 0, l.Int[6] != 0, l.Int[10] != 0, l.Int[11] != 0}
	b.each(g.channel)
}

// channel computes the gradients of one channel, in a pass for the sums and one
// for dx.
func (b *batchGrad) channel(c int, room *loans) {
	l := gradLine{line: b.line(c, room), dy: room.window(b.dy, pieceLen), relu: b.relu, buf: room.floats(pieceLen)}
	sum, sumX := b.sums(c, &l, room)
	if b.dgamma.given() {
		b.dgamma.write(c, 1, []float32{float32(sumX)}, b.accGamma)
	}
	if b.dbeta.given() {
		b.dbeta.write(c, 1, []float32{float32(sum)}, b.accBeta)
	}
	if !b.dx.given() {
		return
	}
	if b.reuses {
		l.dy, l.relu = room.window(b.dresidual, pieceLen), false
	}
	factor := float64(b.gamma[c]) / float64(b.n*b.p)
	if b.fixed {
		factor = 0
	}
	mean, meanX := float32(sum*factor), float32(sumX*factor)
	dx := room.result(b.dx, pieceLen, b.accX)
	b.pieces(c, func(at, n int) {
		g, x := l.load(at, n)
		to := dx.room(at, n)
		vecNormGrad(to, g, x, l.gammas[:n], l.mean, l.rstd, mean, meanX)
		dx.store(at, to)
	})
}

// sums gives a channel's Σ g and Σ g·x̂, and writes dresidual.
func (b *batchGrad) sums(c int, l *gradLine, room *loans) (sum, sumX float64) {
	ones := room.floats(min(b.p, pieceLen))
	vecFill(ones, 1)
	b.pieces(c, func(at, n int) {
		g, x := l.load(at, n)
		s, sx := normSumsOf(g, x, ones[:n], l.mean, l.rstd)
		sum, sumX = sum+float64(s), sumX+float64(sx)
		if b.dresidual.given() {
			b.dresidual.write(at, 1, g, b.accRes)
		}
	})
	return sum, sumX
}

// gradLine computes g of one channel on the host.
type gradLine struct {
	*line
	dy   window
	relu bool      // dy still has what ReLU cut off
	buf  []float32 // a piece of g, where it is not dy itself
}

// load gives n elements of g and of x from number at on.
func (l *gradLine) load(at, n int) (g, x []float32) {
	dy, x := l.dy.load(at, n), l.x.load(at, n)
	if !l.relu {
		return dy, x
	}
	g = l.buf[:n]
	l.z(g, x, at)
	vecReluGrad(g, dy, g)
	return g, x
}

var inverseDeviationKernel = &device.Kernel{Name: "inverse_deviation", Host: inverseDeviationHost, CUDA: cudaElements(imageCode, "inverse_deviation")}

// InverseDeviation sets rstd = 1/√(variance + eps) for n elements.
func InverseDeviation(s device.Stream, n int, rstd, variance Array, eps float32) {
	need("InverseDeviation", n, rstd, variance)
	l := device.Launch{Kernel: inverseDeviationKernel, Bytes: bytesOf(2 * n), Flops: uint64(3 * n)}
	operands(&l, 0, rstd, variance)
	l.Int[0] = n
	l.Float[0] = eps
	queue(s, &l)
}

func inverseDeviationHost(l *device.Launch, w *device.Workers) {
	rstd, variance := device.Float32s(l.Ptr[0], l.Int[0]), device.Float32s(l.Ptr[1], l.Int[0])
	for i, v := range variance {
		rstd[i] = float32(1 / math.Sqrt(float64(v)+float64(l.Float[0])))
	}
}
