package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// BatchNorm describes the normalisation of each channel of X, [N, C, P] dense,
// by its mean and rstd = 1/√(variance + eps), which have C elements:
//
//	x̂ = (x − mean)·rstd;  y = x̂·gamma + beta
type BatchNorm struct {
	N, C, P                    int
	X, Mean, RStd, Gamma, Beta device.Ptr
}

// needAll panics unless the sizes are positive and each of ps is an address.
func (b *BatchNorm) needAll(op string, ps ...device.Ptr) {
	if b.N < 1 || b.C < 1 || b.P < 1 {
		panic(fmt.Sprintf("kernel.%s: %d×%d×%d elements", op, b.N, b.C, b.P))
	}
	need(op, b.C, ps...)
}

func (b *BatchNorm) elements() int { return b.N * b.C * b.P }

func (b *BatchNorm) launch(k *device.Kernel) device.Launch {
	l := device.Launch{Kernel: k}
	l.Int[0], l.Int[1], l.Int[2] = b.N, b.C, b.P
	copy(l.Ptr[:], []device.Ptr{b.X, b.Mean, b.RStd, b.Gamma, b.Beta})
	return l
}

// channels is a BatchNorm on the host.
type channels struct {
	n, c, p                    int
	x, mean, rstd, gamma, beta []float32
}

func loadBatchNorm(l *device.Launch) *channels {
	b := &channels{n: l.Int[0], c: l.Int[1], p: l.Int[2]}
	b.x = device.Float32s(l.Ptr[0], b.n*b.c*b.p)
	for i, s := range []*[]float32{&b.mean, &b.rstd, &b.gamma, &b.beta} {
		if p := l.Ptr[1+i]; p != 0 {
			*s = device.Float32s(p, b.c)
		}
	}
	return b
}

// each calls f for the channels, a few to a chunk.
func (b *channels) each(w *device.Workers, f func(channel int)) {
	w.For(b.c, rowsPerChunk(b.n*b.p), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			f(c)
		}
	})
}

// pieces calls f for the pieces of a channel's elements, in order.
func (b *channels) pieces(channel int, f func(lo, hi int)) {
	for i := range b.n {
		at := (i*b.c + channel) * b.p
		for lo := 0; lo < b.p; lo += pieceLen {
			f(at+lo, at+min(b.p, lo+pieceLen))
		}
	}
}

var batchNormStatsKernel = &device.Kernel{Name: "batch_norm_stats", Host: batchNormStatsHost}

// BatchNormStats sets Mean and RStd to those of X. With runMean and runVar,
// of C elements, it moves these by momentum towards the mean and the unbiased
// variance; 0 for none.
func BatchNormStats(s device.Stream, b BatchNorm, runMean, runVar device.Ptr, momentum, eps float32) {
	b.needAll("BatchNormStats", b.X, b.Mean, b.RStd)
	b.Gamma, b.Beta = 0, 0
	l := b.launch(batchNormStatsKernel)
	l.Ptr[5], l.Ptr[6] = runMean, runVar
	l.Float[0], l.Float[1] = momentum, eps
	l.Bytes, l.Flops = bytesOf(b.elements()+2*b.C), uint64(4*b.elements())
	if runMean != 0 {
		need("BatchNormStats", b.C, runVar)
		l.Bytes += bytesOf(4 * b.C)
	}
	queue(s, &l)
}

func batchNormStatsHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l)
	var runMean, runVar []float32
	if l.Ptr[5] != 0 {
		runMean, runVar = device.Float32s(l.Ptr[5], b.c), device.Float32s(l.Ptr[6], b.c)
	}
	momentum, eps, count := float64(l.Float[0]), float64(l.Float[1]), float64(b.n*b.p)
	b.each(w, func(c int) {
		mean, square := b.moments(c)
		b.mean[c], b.rstd[c] = mean, float32(1/math.Sqrt(square/count+eps))
		if runMean != nil {
			runMean[c] += float32(momentum * float64(mean-runMean[c]))
			runVar[c] += float32(momentum * (square/max(1, count-1) - float64(runVar[c])))
		}
	})
}

// moments gives a channel's mean and Σ (x − mean)².
func (b *channels) moments(c int) (mean float32, square float64) {
	var sum float64
	b.pieces(c, func(lo, hi int) { sum += float64(sumOf(b.x[lo:hi])) })
	mean = float32(sum / float64(b.n*b.p))
	b.pieces(c, func(lo, hi int) { square += float64(squaresOf(b.x[lo:hi], mean)) })
	return mean, square
}

var batchNormApplyKernel = &device.Kernel{Name: "batch_norm_apply", Host: batchNormApplyHost}

// BatchNormApply sets y, of X's size, from Mean, RStd, Gamma and Beta. y may be X.
func BatchNormApply(s device.Stream, b BatchNorm, y device.Ptr) {
	b.needAll("BatchNormApply", b.X, b.Mean, b.RStd, b.Gamma, b.Beta, y)
	l := b.launch(batchNormApplyKernel)
	l.Ptr[5] = y
	l.Bytes, l.Flops = bytesOf(2*b.elements()+4*b.C), uint64(4*b.elements())
	queue(s, &l)
}

func batchNormApplyHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l)
	y := device.Float32s(l.Ptr[5], len(b.x))
	b.each(w, func(c int) {
		var gammas, betas [pieceLen]float32
		n := min(b.p, pieceLen)
		vecFill(gammas[:n], b.gamma[c])
		vecFill(betas[:n], b.beta[c])
		b.pieces(c, func(lo, hi int) {
			vecNorm(y[lo:hi], b.x[lo:hi], gammas[:hi-lo], betas[:hi-lo], b.mean[c], b.rstd[c])
		})
	})
}

var batchNormGradKernel = &device.Kernel{Name: "batch_norm_grad", Host: batchNormGradHost}

// BatchNormGrad computes the gradients of X, Gamma and Beta from dy, that of
// y, over the m = N·P elements of each channel:
//
//	dx = gamma·rstd·(dy − Σ dy / m − x̂·Σ dy·x̂ / m);  dgamma = Σ dy·x̂;  dbeta = Σ dy
//
// With fixed, Mean and RStd don't depend on X: dx = gamma·rstd·dy. A
// destination of 0 is not wanted; those with their acc flag are added to. dx
// may be dy when accX is false.
func BatchNormGrad(s device.Stream, b BatchNorm, dx, dgamma, dbeta, dy device.Ptr, fixed, accX, accGamma, accBeta bool) {
	b.needAll("BatchNormGrad", b.X, b.Mean, b.RStd, b.Gamma, dy)
	b.Beta = 0
	l := b.launch(batchNormGradKernel)
	copy(l.Ptr[5:], []device.Ptr{dx, dgamma, dbeta, dy})
	copy(l.Int[3:], []int{flag(fixed), flag(accX), flag(accGamma), flag(accBeta)})
	n := b.elements()
	l.Bytes, l.Flops = bytesOf(2*n+3*b.C), uint64(4*n)
	if dx != 0 {
		l.Bytes += bytesOf(n * (1 + flag(accX)))
		l.Flops += uint64(6 * n)
	}
	queue(s, &l)
}

// batchGrad is a BatchNormGrad on the host.
type batchGrad struct {
	*channels
	dx, dgamma, dbeta, dy   []float32
	fixed                   bool
	accX, accGamma, accBeta bool
}

func batchNormGradHost(l *device.Launch, w *device.Workers) {
	b := loadBatchNorm(l)
	at := func(i, n int) []float32 {
		if l.Ptr[i] == 0 {
			return nil
		}
		return device.Float32s(l.Ptr[i], n)
	}
	g := &batchGrad{b, at(5, len(b.x)), at(6, b.c), at(7, b.c), at(8, len(b.x)),
		l.Int[3] != 0, l.Int[4] != 0, l.Int[5] != 0, l.Int[6] != 0}
	b.each(w, g.channel)
}

// channel computes the gradients of one channel.
func (g *batchGrad) channel(c int) {
	var gammas, buf [pieceLen]float32
	ones, mean, rstd := gammas[:min(g.p, pieceLen)], g.mean[c], g.rstd[c]
	vecFill(ones, 1)
	var sum, sumX float64
	g.pieces(c, func(lo, hi int) {
		s, sx := normSumsOf(g.dy[lo:hi], g.x[lo:hi], ones[:hi-lo], mean, rstd)
		sum, sumX = sum+float64(s), sumX+float64(sx)
	})
	if g.dgamma != nil {
		putStrided(g.dgamma[c:], []float32{float32(sumX)}, 1, g.accGamma)
	}
	if g.dbeta != nil {
		putStrided(g.dbeta[c:], []float32{float32(sum)}, 1, g.accBeta)
	}
	if g.dx == nil {
		return
	}
	factor := float64(g.gamma[c]) / float64(g.n*g.p)
	if g.fixed {
		factor = 0
	}
	vecFill(ones, g.gamma[c])
	g.pieces(c, func(lo, hi int) {
		to := g.dx[lo:hi]
		if g.accX {
			to = buf[:hi-lo]
		}
		vecNormGrad(to, g.dy[lo:hi], g.x[lo:hi], ones[:hi-lo], mean, rstd, float32(sum*factor), float32(sumX*factor))
		if g.accX {
			vecAdd(g.dx[lo:hi], g.dx[lo:hi], to)
		}
	})
}

var inverseDeviationKernel = &device.Kernel{Name: "inverse_deviation", Host: inverseDeviationHost}

// InverseDeviation sets rstd = 1/√(variance + eps) for n elements.
func InverseDeviation(s device.Stream, n int, rstd, variance device.Ptr, eps float32) {
	need("InverseDeviation", n, rstd, variance)
	l := device.Launch{Kernel: inverseDeviationKernel, Bytes: bytesOf(2 * n), Flops: uint64(3 * n)}
	l.Ptr[0], l.Ptr[1] = rstd, variance
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
