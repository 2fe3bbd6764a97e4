package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

func (kn *microKernel) attentionKernel(backward bool) *device.Kernel {
	if backward {
		return &device.Kernel{Name: "attention_backward", Host: kn.attentionBackward}
	}
	return &device.Kernel{Name: "attention_forward", Host: kn.attentionForward}
}

// oracle is attention of one head by its definition, in float64. Rows are
// given by functions.
type oracle struct {
	T, S, D    int
	causal     bool
	scale      float64
	q, k, v    func(row, d int) float64
	p          [][]float64
	lse        []float64
	o          [][]float64
	dq, dk, dv [][]float64
	delta      []float64
}

func matrix(rows, cols int) [][]float64 {
	m := make([][]float64, rows)
	for i := range m {
		m[i] = make([]float64, cols)
	}
	return m
}

func (x *oracle) sees(t, s int) bool { return !x.causal || s <= t+x.S-x.T }

func (x *oracle) forward() {
	x.p, x.lse, x.o = matrix(x.T, x.S), make([]float64, x.T), matrix(x.T, x.D)
	for t := range x.T {
		greatest, sum := math.Inf(-1), 0.0
		for s := range x.S {
			x.p[t][s] = math.Inf(-1)
			if x.sees(t, s) {
				x.p[t][s] = 0
				for d := range x.D {
					x.p[t][s] += x.scale * x.q(t, d) * x.k(s, d)
				}
			}
			greatest = max(greatest, x.p[t][s])
		}
		for s := range x.S {
			x.p[t][s] = math.Exp(x.p[t][s] - max(greatest, -math.MaxFloat64))
			sum += x.p[t][s]
		}
		x.lse[t] = greatest + math.Log(sum)
		for s := range x.S {
			if sum > 0 {
				x.p[t][s] /= sum
			}
			for d := range x.D {
				x.o[t][d] += x.p[t][s] * x.v(s, d)
			}
		}
	}
}

func (x *oracle) backward(do func(row, d int) float64) {
	x.dq, x.dk, x.dv, x.delta = matrix(x.T, x.D), matrix(x.S, x.D), matrix(x.S, x.D), make([]float64, x.T)
	for t := range x.T {
		for d := range x.D {
			x.delta[t] += do(t, d) * x.o[t][d]
		}
		for s := range x.S {
			dp := 0.0
			for d := range x.D {
				dp += do(t, d) * x.v(s, d)
				x.dv[s][d] += x.p[t][s] * do(t, d)
			}
			ds := x.scale * x.p[t][s] * (dp - x.delta[t])
			for d := range x.D {
				x.dq[t][d] += ds * x.k(s, d)
				x.dk[s][d] += ds * x.q(t, d)
			}
		}
	}
}

// TestAttentionOracle compares the gradients of the oracle with differences of
// its forward pass.
func TestAttentionOracle(t *testing.T) {
	const T, S, D = 4, 5, 3
	r := seeded(t)
	in := [3][]float64{make([]float64, T*D), make([]float64, S*D), make([]float64, S*D)}
	weight := make([]float64, T*D)
	for _, v := range [][]float64{in[0], in[1], in[2], weight} {
		for i := range v {
			v[i] = r.NormFloat64()
		}
	}
	at := func(v []float64) func(row, d int) float64 {
		return func(row, d int) float64 { return v[row*D+d] }
	}
	x := &oracle{T: T, S: S, D: D, causal: true, scale: 0.7, q: at(in[0]), k: at(in[1]), v: at(in[2])}
	loss := func() (sum float64) {
		x.forward()
		for i, w := range weight {
			sum += w * x.o[i/D][i%D]
		}
		return sum
	}
	loss()
	x.backward(at(weight))
	for n, grad := range [][][]float64{x.dq, x.dk, x.dv} {
		for i := range in[n] {
			const h = 1e-5
			v := in[n][i]
			in[n][i] = v + h
			up := loss()
			in[n][i] = v - h
			down := loss()
			in[n][i] = v
			if want := (up - down) / (2 * h); math.Abs(grad[i/D][i%D]-want) > 1e-8 {
				t.Errorf("gradient %d, element %d is %v, want %v", n, i, grad[i/D][i%D], want)
			}
		}
	}
}

// attentionCase is an attention with its operands in Go memory.
type attentionCase struct {
	Attention
	AttentionGrads
	q, k, v, o, lse       *array
	do, dq, dk, dv, delta *array
}

// strides lays out Batch×Heads×rows×D in one of two orders, with gaps.
func (a *Attention) strides(r *rand.Rand, rows, gap int) (stride [3]int, size int) {
	if r.IntN(2) == 0 {
		stride[2] = a.D + r.IntN(gap+1)
		stride[1] = stride[2]*max(1, rows) + r.IntN(gap+1)
		stride[0] = stride[1]*a.Heads + r.IntN(gap+1)
	} else {
		stride[1] = a.D + r.IntN(gap+1)
		stride[2] = stride[1]*a.Heads + r.IntN(gap+1)
		stride[0] = stride[2]*max(1, rows) + r.IntN(gap+1)
	}
	if rows == 0 {
		return stride, 0
	}
	return stride, (a.Batch-1)*stride[0] + (a.Heads-1)*stride[1] + (rows-1)*stride[2] + a.D
}

func index(a *Attention, stride [3]int, head, row, d int) int {
	return head/a.Heads*stride[0] + head%a.Heads*stride[1] + row*stride[2] + d
}

// newAttentionCase lays out the operands of a at random, with gaps.
func newAttentionCase(t *testing.T, r *rand.Rand, a Attention, gap int) (*testCase, *attentionCase) {
	c := &testCase{t: t}
	x := &attentionCase{Attention: a}
	var n [4]int
	x.QStride, n[0] = a.strides(r, a.T, gap)
	x.KStride, n[1] = a.strides(r, a.S, gap)
	x.VStride, n[2] = a.strides(r, a.S, gap)
	x.OStride, n[3] = a.strides(r, a.T, gap)
	x.q, x.k, x.v = c.input(randoms(r, n[0])), c.input(randoms(r, n[1])), c.input(randoms(r, n[2]))
	x.o, x.lse = c.output(n[3]), c.output(a.Batch*a.Heads*a.T)
	x.addresses()
	return c, x
}

func (x *attentionCase) addresses() {
	x.Q, x.K, x.V, x.O, x.LSE = x.q.ptr(), x.k.ptr(), x.v.ptr(), x.o.ptr(), x.lse.ptr()
}

func (x *attentionCase) forward(c *testCase, kn *microKernel) {
	c.t.Helper()
	c.run(func(s device.Stream) { AttentionForward(using{s, kn.attentionKernel(false)}, x.Attention) })
	o, lse := fromFloats(x.o.before), make([]float64, len(x.lse.data))
	x.eachHead(func(head int, y *oracle) {
		copy(lse[head*x.T:], y.lse)
		putHead(o, &x.Attention, x.OStride, head, y.o)
	})
	what := fmt.Sprintf("%s %+v", kn.name, x.Attention)
	c.near("O of "+what, x.o, 1e-6, 5, func(i int) float64 { return o[i] })
	c.near("LSE of "+what, x.lse, 1e-6, 5, func(i int) float64 { return lse[i] })
}

// backward runs the backward pass of x, whose forward pass is done.
func (x *attentionCase) backward(t *testing.T, kn *microKernel, r *rand.Rand, accumulate bool) {
	t.Helper()
	c := &testCase{t: t}
	for _, a := range []**array{&x.q, &x.k, &x.v, &x.o, &x.lse} {
		*a = c.input(append([]float32(nil), (*a).data...))
	}
	x.addresses()
	x.do = c.input(randoms(r, len(x.o.data)))
	x.dq, x.dk, x.dv = c.dst(r, len(x.q.data), accumulate), c.dst(r, len(x.k.data), accumulate), c.dst(r, len(x.v.data), accumulate)
	x.delta = c.output(len(x.lse.data))
	g := AttentionGrads{DO: x.do.ptr(), DQ: x.dq.ptr(), DK: x.dk.ptr(), DV: x.dv.ptr(), Delta: x.delta.ptr(), Accumulate: accumulate}
	c.run(func(s device.Stream) { AttentionBackward(using{s, kn.attentionKernel(true)}, x.Attention, g) })

	want := [4][]float64{fromFloats(x.dq.before), fromFloats(x.dk.before), fromFloats(x.dv.before), make([]float64, len(x.delta.data))}
	x.eachHead(func(head int, y *oracle) {
		y.backward(func(row, d int) float64 { return float64(x.do.before[index(&x.Attention, x.OStride, head, row, d)]) })
		copy(want[3][head*x.T:], y.delta)
		for i, stride := range [][3]int{x.QStride, x.KStride, x.VStride} {
			m := [][][]float64{y.dq, y.dk, y.dv}[i]
			if accumulate {
				m = plus(want[i], &x.Attention, stride, head, m)
			}
			putHead(want[i], &x.Attention, stride, head, m)
		}
	})
	for i, got := range []*array{x.dq, x.dk, x.dv, x.delta} {
		c.near(fmt.Sprintf("gradient %d of %s %+v", i, kn.name, x.Attention), got, 2e-6, 8, func(j int) float64 { return want[i][j] })
	}
}

// eachHead calls f with the oracle of each head, its forward pass done.
func (x *attentionCase) eachHead(f func(head int, y *oracle)) {
	a := &x.Attention
	for head := range a.Batch * a.Heads {
		at := func(v *array, stride [3]int) func(row, d int) float64 {
			return func(row, d int) float64 { return float64(v.before[index(a, stride, head, row, d)]) }
		}
		y := &oracle{T: a.T, S: a.S, D: a.D, causal: a.Causal, scale: float64(a.Scale),
			q: at(x.q, a.QStride), k: at(x.k, a.KStride), v: at(x.v, a.VStride)}
		y.forward()
		f(head, y)
	}
}

func fromFloats(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

// putHead writes the rows of one head.
func putHead(dst []float64, a *Attention, stride [3]int, head int, m [][]float64) {
	for row := range m {
		for d, v := range m[row] {
			dst[index(a, stride, head, row, d)] = v
		}
	}
}

// plus is m added to what dst holds for one head.
func plus(dst []float64, a *Attention, stride [3]int, head int, m [][]float64) [][]float64 {
	for row := range m {
		for d := range m[row] {
			m[row][d] += dst[index(a, stride, head, row, d)]
		}
	}
	return m
}

func TestAttentionRandomShapes(t *testing.T) {
	eachMicroKernel(t, func(t *testing.T, kn *microKernel) {
		r := seeded(t)
		for i := range 40 {
			a := Attention{Batch: 1 + r.IntN(2), Heads: 1 + r.IntN(3), T: 1 + r.IntN(40), S: 1 + r.IntN(40), D: 1 + r.IntN(40),
				Causal: i%2 == 0, Scale: float32(r.Float64())}
			c, x := newAttentionCase(t, r, a, 5)
			x.forward(c, kn)
			x.backward(t, kn, r, r.IntN(2) == 0)
		}
	})
}

// TestAttentionBlocks has more queries and keys than a block of either.
func TestAttentionBlocks(t *testing.T) {
	shapes := []Attention{
		{T: 130, S: 300, D: 64}, {T: 130, S: 300, D: 64, Causal: true}, {T: 300, S: 300, D: 32, Causal: true},
		{T: 300, S: 40, D: 20, Causal: true}, {T: 400, S: 520, D: 8, Causal: true}, {T: 1, S: 600, D: 100, Causal: true},
		{T: 97, S: 257, D: 33}, {T: 400, S: 1, D: 4, Causal: true},
	}
	eachMicroKernel(t, func(t *testing.T, kn *microKernel) {
		r := seeded(t)
		for i, a := range shapes {
			a.Batch, a.Heads, a.Scale = 1, 1+i%2, float32(1/math.Sqrt(float64(a.D)))
			c, x := newAttentionCase(t, r, a, 3)
			x.forward(c, kn)
			x.backward(t, kn, r, i%2 == 0)
		}
	})
}

// TestAttentionWithoutKeys has no key at all.
func TestAttentionWithoutKeys(t *testing.T) {
	r := seeded(t)
	c, x := newAttentionCase(t, r, Attention{Batch: 1, Heads: 2, T: 14, S: 0, D: 3, Scale: 1}, 0)
	x.forward(c, microKernels[0])
	x.backward(t, microKernels[0], r, false)
}

// TestAttentionScores has scores far from zero, the greatest in the first or
// in the last block of keys, and scores of −Inf, for some keys or for all.
func TestAttentionScores(t *testing.T) {
	r := seeded(t)
	const T, S, D = 2, 300, 4
	for _, peak := range []int{0, S - 1, -1} {
		c, x := newAttentionCase(t, r, Attention{Batch: 1, Heads: 1, T: T, S: S, D: D, Scale: 0.5}, 0)
		for i := range x.q.before {
			x.q.before[i] = []float32{1, 0, 0, 0}[i%D]
		}
		for i := range x.k.before {
			s := i / D
			x.k.before[i] = []float32{float32(-200 * (s - peak) * (s - peak)), 0, 0, 0}[i%D]
			if i%D == 0 && (peak < 0 || s == 100) {
				x.k.before[i] = float32(math.Inf(-1))
			}
		}
		x.forward(c, microKernels[0])
	}
}

// TestAttentionPacked reads Q, K and V from one projection [Batch, T, 3, Heads,
// D] and writes the gradients to one of the same layout.
func TestAttentionPacked(t *testing.T) {
	r := seeded(t)
	const batch, heads, T, D = 2, 3, 50, 16
	const row = 3 * heads * D
	a := Attention{Batch: batch, Heads: heads, T: T, S: T, D: D, Causal: true, Scale: 0.25}
	dense := a
	dense.QStride = [3]int{T * heads * D, D, heads * D}
	values := randoms(r, batch*T*row)
	part := func(n int) []float32 {
		v := make([]float32, 0, batch*T*heads*D)
		for i := range batch * T {
			v = append(v, values[i*row+n*heads*D:][:heads*D]...)
		}
		return v
	}
	run := func(packed bool) (o, grads []float32) {
		c := &testCase{t: t}
		x := a
		var q, k, v, dq, dk, dv *array
		stride := dense.QStride
		if packed {
			stride = [3]int{T * row, D, row}
			q, dq = c.input(values), c.output(len(values))
			x.Q, x.K, x.V = q.ptr(), q.ptr()+4*heads*D, q.ptr()+8*heads*D
		} else {
			q, k, v = c.input(part(0)), c.input(part(1)), c.input(part(2))
			dq, dk, dv = c.output(len(q.before)), c.output(len(q.before)), c.output(len(q.before))
			x.Q, x.K, x.V = q.ptr(), k.ptr(), v.ptr()
		}
		out, lse := c.output(batch*T*heads*D), c.output(batch*heads*T)
		x.O, x.LSE = out.ptr(), lse.ptr()
		x.QStride, x.KStride, x.VStride, x.OStride = stride, stride, stride, dense.QStride
		c.run(func(s device.Stream) { AttentionForward(s, x) })
		o = append(o, out.data...)

		b := &testCase{t: t}
		do, delta := b.input(part(0)), b.output(batch*heads*T)
		g := AttentionGrads{DO: do.ptr(), DQ: dq.ptr(), Delta: delta.ptr()}
		if packed {
			g.DK, g.DV = dq.ptr()+4*heads*D, dq.ptr()+8*heads*D
		} else {
			g.DK, g.DV = dk.ptr(), dv.ptr()
		}
		b.run(func(s device.Stream) { AttentionBackward(s, x, g) })
		if packed {
			return o, dq.data
		}
		for i := range batch * T {
			for _, m := range []*array{dq, dk, dv} {
				grads = append(grads, m.data[i*heads*D:][:heads*D]...)
			}
		}
		return o, grads
	}
	o, grads := run(false)
	packedO, packedGrads := run(true)
	if !sameBits(o, packedO) || !sameBits(grads, packedGrads) {
		t.Fatal("a packed projection gives other results than separate operands")
	}
}

func TestAttentionCost(t *testing.T) {
	r := seeded(t)
	for _, a := range []Attention{{T: 5, S: 7, D: 4}, {T: 5, S: 7, D: 4, Causal: true}, {T: 7, S: 5, D: 4, Causal: true}} {
		a.Batch, a.Heads, a.Scale = 2, 3, 1
		pairs := 0
		for q := range a.T {
			for k := range a.S {
				if !a.Causal || k <= q+a.S-a.T {
					pairs++
				}
			}
		}
		_ = r
		s := &sink{}
		a.Q, a.K, a.V, a.O, a.LSE = 512, 512, 512, 512, 512
		a.QStride, a.KStride, a.VStride, a.OStride = [3]int{84, 28, 4}, [3]int{84, 28, 4}, [3]int{84, 28, 4}, [3]int{84, 28, 4}
		AttentionForward(s, a)
		rows, keys := 6*a.T, 6*a.S
		if want := uint64(4 * 6 * pairs * a.D); s.last.Flops != want {
			t.Errorf("%+v: forward takes %d operations, want %d", a, s.last.Flops, want)
		}
		if want := uint64(4 * (2*rows*a.D + rows + 2*keys*a.D)); s.last.Bytes != want {
			t.Errorf("%+v: forward moves %d bytes, want %d", a, s.last.Bytes, want)
		}
		AttentionBackward(s, a, AttentionGrads{512, 512, 512, 512, 512, true})
		if want := uint64(10*6*pairs*a.D + 2*rows*a.D); s.last.Flops != want {
			t.Errorf("%+v: backward takes %d operations, want %d", a, s.last.Flops, want)
		}
		if want := uint64(4 * (rows*(5*a.D+2) + keys*6*a.D)); s.last.Bytes != want {
			t.Errorf("%+v: backward moves %d bytes, want %d", a, s.last.Bytes, want)
		}
	}
}
