package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// LinearJoined is Linear of x with several weights, [out, in] each, and their biases,
// [out], with the results side by side: [..., in] to [..., sum of outs]. It computes in
// x's type, under Autocast in that. So that it is one product, and x's gradient
// another, the weights lie in one array for the time of each. It saves x if a
// weight's gradient is wanted, and the weights if x's is.
func LinearJoined(x *Tensor, ws, biases []*Tensor) *Tensor {
	j := joinedSizes(x, ws, biases)
	rt := x.rt
	defer rt.lower(&x)()
	inputs := slices.Concat([]*Tensor{x}, ws, biases)
	j.n = rt.node("linear", inputs...)
	j.n.remake(func(in []*Tensor) *Tensor { return LinearJoined(in[0], in[1:1+len(ws)], in[1+len(ws):]) }, inputs...)
	if j.n != nil {
		j.x = j.n.saveIf(j.wantsWeights(), x)
		for _, w := range ws {
			j.ws = append(j.ws, j.n.saveIf(j.n.wants(0), w))
		}
	}
	y := rt.Empty(x.dtype, trace.Activation, append(slices.Clone(x.shape[:len(x.shape)-1]), j.out)...)
	d, w, bias := x.contiguous(), stacked(x.dtype, ws), stacked(Float32, biases)
	defer releaseAll(d, w, bias)
	kernel.MatMul(rt.stream, kernel.Gemm{M: j.rows, N: j.out, K: j.in, A: d.ptr(), LDA: j.in, B: w.ptr(), LDB: j.in, TransB: true,
		Bias: bias.ptr(), C: y.ptr(), LDC: j.out})
	return j.n.bind(y, j.backward)
}

// joined is a recorded LinearJoined. Its inputs are x, the weights and the biases.
type joined struct {
	n             *node
	rows, in, out int   // of the products; out of all weights
	outs          []int // of each
	x             *saved
	ws            []*saved
}

func joinedSizes(x *Tensor, ws, biases []*Tensor) *joined {
	if len(ws) == 0 || len(biases) != len(ws) || len(x.shape) == 0 {
		fail("LinearJoined of %v with %d weights and %d biases", x, len(ws), len(biases))
	}
	j := &joined{in: x.Dim(-1), rows: numel(x.shape[:len(x.shape)-1])}
	for i, w := range ws {
		_, out := linearSizes(x, w, biases[i], true)
		j.outs = append(j.outs, out)
		j.out += out
	}
	return j
}

// stacked gives arrays that differ in their first dimension alone below each other, in
// type d.
func stacked(d DType, parts []*Tensor) *Tensor {
	shape := slices.Clone(parts[0].shape)
	for _, p := range parts[1:] {
		shape[0] += p.shape[0]
	}
	all := parts[0].rt.Empty(d, trace.Workspace, shape...)
	at, step := 0, []int{1}
	for _, p := range parts {
		kernel.Copy(all.rt.stream, []int{p.Len()}, kernel.View{Ptr: all.ptr().From(at), Strides: step}, kernel.View{Ptr: p.ptr(), Strides: step}, false)
		at += p.Len()
	}
	return all
}

func (j *joined) wantsWeights() bool { return j.wantsSome(1) }

// wantsSome says whether a gradient is wanted of the weights, or of the biases, of which
// the first is an input of that number.
func (j *joined) wantsSome(first int) bool {
	return slices.ContainsFunc(j.n.inputs[first:first+len(j.outs)], func(e edge) bool { return e.to != nil })
}

func (j *joined) backward(g *Tensor) {
	j.biasGrads(g)
	j.weightGrads(g)
	if !j.n.wants(0) {
		return
	}
	ws := make([]*Tensor, len(j.ws))
	for i, s := range j.ws {
		ws[i] = s.take()
	}
	w := stacked(g.dtype, ws)
	defer releaseAll(append(ws, w)...)
	dst, acc := j.n.into(0)
	kernel.MatMul(g.rt.stream, kernel.Gemm{M: j.rows, N: j.in, K: j.out, A: g.ptr(), LDA: j.out, B: w.ptr(), LDB: j.in,
		C: dst.ptr(), LDC: j.in, Accumulate: acc})
}

// biasGrads goes over g once for all biases.
func (j *joined) biasGrads(g *Tensor) {
	first := 1 + len(j.outs)
	if !j.wantsSome(first) {
		return
	}
	sums := g.rt.Empty(Float32, trace.Workspace, j.out)
	defer sums.Release()
	kernel.BiasGrad(g.rt.stream, j.rows, j.out, sums.ptr(), g.ptr(), false)
	at := 0
	for i, out := range j.outs {
		if j.n.wants(first + i) {
			dst, acc := j.n.into(first + i)
			kernel.Scale(g.rt.stream, out, dst.ptr(), sums.ptr().From(at), 1, acc)
		}
		at += out
	}
}

// weightGrads reads each weight's part of g where it lies.
func (j *joined) weightGrads(g *Tensor) {
	if !j.wantsWeights() {
		return
	}
	x := j.x.take()
	defer x.Release()
	at := 0
	for i, out := range j.outs {
		if j.n.wants(1 + i) {
			first := at
			j.n.weightGrad(1+i, x.contiguous(), g, func(to *slot, x, g *Tensor) {
				dst, acc := to.target()
				kernel.MatMul(x.rt.stream, kernel.Gemm{M: out, N: j.in, K: j.rows, A: g.ptr().From(first), LDA: j.out, TransA: true,
					B: x.ptr(), LDB: j.in, C: dst.ptr(), LDC: j.in, Accumulate: acc})
			})
		}
		at += out
	}
}
