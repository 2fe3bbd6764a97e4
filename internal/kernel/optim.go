package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

var adamWKernel = &device.Kernel{Name: "adamw", Host: adamWHost, CUDA: cudaElements(optimCode, "adamw")}

// AdamW takes one step of Adam with decoupled weight decay (Loshchilov and
// Hutter, «Decoupled Weight Decay Regularization», 2019) for n parameters, in
// place. A gradScale that is not a number leaves all as it is. With
// g ← *gradScale·g (by 1 without gradScale) and t = p.Step:
//
//	w ← w − lr·wd·w;  m ← β1·m + (1−β1)·g;  v ← β2·v + (1−β2)·g²
//	w ← w − lr/(1−β1ᵗ) · m / (√v/√(1−β2ᵗ) + eps)
//
// What is derived from p is computed in float64: with Beta2 0.999, 1−β2 is
// 0.001, not the 0.00099998713 that the nearest float32 would leave.
func AdamW(s device.Stream, n int, w, g, m, v, gradScale Array, p AdamWParams) {
	need("AdamW", n, w, g, m, v)
	if p.Step < 1 {
		panic(fmt.Sprintf("kernel.AdamW: step %d; the first is 1", p.Step))
	}
	l := device.Launch{Kernel: adamWKernel, Bytes: bytesOf(6*n) + g.bytes(n), Flops: uint64(16 * n)}
	operands(&l, 0, w, g, m, v, gradScale)
	l.Int[0] = n
	t := float64(p.Step)
	l.Float = [device.MaxFloats]float32{
		float32(1 - p.LR*p.WeightDecay),
		float32(p.Beta1), float32(1 - p.Beta1),
		float32(p.Beta2), float32(1 - p.Beta2),
		float32(p.LR / (1 - math.Pow(p.Beta1, t))),
		float32(1 / math.Sqrt(1-math.Pow(p.Beta2, t))),
		float32(p.Eps),
	}
	queue(s, &l)
}

func adamWHost(l *device.Launch, ws *device.Workers) {
	n := l.Int[0]
	w, g := device.Float32s(l.Ptr[0], n), numbersOf(l, 1, n)
	m, v := device.Float32s(l.Ptr[2], n), device.Float32s(l.Ptr[3], n)
	f := adamFactors{
		grad: 1, decay: l.Float[0],
		beta1: l.Float[1], gain1: l.Float[2],
		beta2: l.Float[3], gain2: l.Float[4],
		step: l.Float[5], correct: l.Float[6], eps: l.Float[7],
	}
	if l.Ptr[4] != 0 {
		f.grad = device.Float32s(l.Ptr[4], 1)[0]
	}
	if f.grad != f.grad {
		return
	}
	ws.For(n, chunk, func(lo, hi int) {
		var buf [pieceLen]float32
		for ; lo < hi; lo += pieceLen {
			end := min(hi, lo+pieceLen)
			vecAdamW(w[lo:end], g.dense(buf[:], lo, 1, end-lo), m[lo:end], v[lo:end], &f)
		}
	})
}
