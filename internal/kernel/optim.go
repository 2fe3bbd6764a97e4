package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

var adamWKernel = &device.Kernel{Name: "adamw", Host: adamWHost, CUDA: cudaUpdates("adamw")}

// AdamW takes one step of Adam with decoupled weight decay (Loshchilov and
// Hutter, «Decoupled Weight Decay Regularization», 2019) for parameters with two
// states, m and v, in place. A gradScale that is not a number leaves all as it is. With
// g ← *gradScale·g (by 1 without gradScale) and t = p.Step:
//
//	w ← w − lr·wd·w;  m ← β1·m + (1−β1)·g;  v ← β2·v + (1−β2)·g²
//	w ← w − lr/(1−β1ᵗ) · m / (√v/√(1−β2ᵗ) + eps)
//
// What is derived from p is computed in float64: with Beta2 0.999, 1−β2 is
// 0.001, not the 0.00099998713 that the nearest float32 would leave.
func AdamW(s device.Stream, ps []Updated, gradScale Array, p AdamWParams) {
	if p.Step < 1 {
		panic(fmt.Sprintf("kernel.AdamW: step %d; the first is 1", p.Step))
	}
	l := device.Launch{Kernel: adamWKernel}
	operands(&l, 0, gradScale)
	t := float64(p.Step)
	l.Float = [device.MaxFloats]float32{
		float32(1 - p.LR*p.WeightDecay),
		float32(p.Beta1), float32(1 - p.Beta1),
		float32(p.Beta2), float32(1 - p.Beta2),
		float32(p.LR / (1 - math.Pow(p.Beta1, t))),
		float32(1 / math.Sqrt(1-math.Pow(p.Beta2, t))),
		float32(p.Eps),
	}
	queueUpdates(s, l, ps, 2, 16)
}

// Updated is a parameter that an update changes: N weights, their gradients, and
// what the rule keeps of them.
type Updated struct {
	N      int
	W, G   Array
	States [3]Array
}

// queueUpdates queues launches like l for all parameters, with so many states
// and floating-point operations a weight.
func queueUpdates(s device.Stream, l device.Launch, ps []Updated, states, flops int) {
	for len(ps) > 0 {
		var some []Updated
		some, ps, l.Members = nextMembers(ps)
		l.Bytes, l.Flops = 0, 0
		for i, p := range some {
			need(l.Kernel.Name, p.N, p.G, p.W)
			need(l.Kernel.Name, p.N, p.States[:states]...)
			to := &l.Members.Of[i]
			to.Len, to.Type = int64(p.N), p.G.Type
			to.Ptr = [device.MaxMemberPtrs]device.Ptr{p.G.Ptr, p.W.Ptr, p.States[0].Ptr, p.States[1].Ptr, p.States[2].Ptr}
			l.Bytes += bytesOf((2+2*states)*p.N) + p.G.bytes(p.N)
			l.Flops += uint64(flops * p.N)
		}
		queue(s, &l)
	}
}

// gradScaleOf is the factor of the gradients, and whether it is a number.
func gradScaleOf(l *device.Launch) (scale float32, ok bool) {
	if l.Ptr[0] == 0 {
		return 1, true
	}
	scale = device.Float32s(l.Ptr[0], 1)[0]
	return scale, scale == scale
}

func adamWHost(l *device.Launch, ws *device.Workers) {
	f := adamFactors{
		decay: l.Float[0],
		beta1: l.Float[1], gain1: l.Float[2],
		beta2: l.Float[3], gain2: l.Float[4],
		step: l.Float[5], correct: l.Float[6], eps: l.Float[7],
	}
	var ok bool
	if f.grad, ok = gradScaleOf(l); !ok {
		return
	}
	for i := range l.Members.Of[:l.Members.N] {
		f.member(&l.Members.Of[i], ws)
	}
}

func (f *adamFactors) member(p *device.Member, ws *device.Workers) {
	g, w, m, v := typedOf(p), floatsOf(p, 1), floatsOf(p, 2), floatsOf(p, 3)
	ws.For(len(w), chunk, func(lo, hi int) {
		var buf [pieceLen]float32
		for ; lo < hi; lo += pieceLen {
			end := min(hi, lo+pieceLen)
			vecAdamW(w[lo:end], g.dense(buf[:], lo, 1, end-lo), m[lo:end], v[lo:end], f)
		}
	})
}
