package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Dropout sets elements of x to 0 with probability p and divides the others by
// 1 − p. Which ones follows from the runtime's seed and the number of random
// operations since (Runtime.SetSeed); backward makes the same choices again,
// so that no mask is kept. With p 0 it gives x.
func Dropout(x *Tensor, p float32) *Tensor { return DropoutPart(x, p, Part{}) }

// DropoutPart is Dropout of an x, [batch, tokens, ...], that is a part of the tokens
// of a whole, which loses what the whole would there. What a token has must be an
// even number of elements.
func DropoutPart(x *Tensor, p float32, part Part) *Tensor {
	checkDropout(x, p, part)
	if p == 0 {
		return x.Retain()
	}
	rt := x.rt
	n := rt.node("dropout", x)
	n.remake(func(in []*Tensor) *Tensor { return DropoutPart(in[0], p, part) }, x)
	seed := rt.draw()
	d := x.contiguous()
	defer d.Release()
	y := rt.Empty(x.dtype, trace.Activation, x.shape...)
	dropout(y, d, p, seed, part, false)
	return n.bind(y, func(g *Tensor) {
		dst, acc := n.over(0, g)
		dropout(dst, g, p, seed, part, acc)
	})
}

func checkDropout(x *Tensor, p float32, part Part) {
	if !(p >= 0 && p < 1) {
		fail("Dropout of %v with %v: want a probability below 1", x, p)
	}
	if part.All > 0 && (len(x.shape) < 2 || part.First < 0 || part.First+x.shape[1] > part.All || numel(x.shape[2:])%2 != 0) {
		fail("Dropout of %v as part %+v of the tokens: want [batch, tokens, ...] of an even number of elements", x, part)
	}
}

// dropout computes one outside any record: of a part sequence by sequence, each with
// the numbers that it has in the whole.
func dropout(y, x *Tensor, p float32, seed uint64, part Part, accumulate bool) {
	if part.All == 0 {
		kernel.Dropout(x.rt.stream, 0, x.Len(), y.ptr(), x.ptr(), p, seed, accumulate)
		return
	}
	token := numel(x.shape[2:])
	n := x.shape[1] * token
	for i := range x.shape[0] {
		first := (i*part.All + part.First) * token
		kernel.Dropout(x.rt.stream, first, n, y.ptr().From(i*n), x.ptr().From(i*n), p, seed, accumulate)
	}
}
