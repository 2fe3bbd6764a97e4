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
	hidden     func(s int) bool       // by the mask
	keep       func(t, s int) float64 // the factor of dropout
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

func (x *oracle) sees(t, s int) bool {
	return (!x.causal || s <= t+x.S-x.T) && (x.hidden == nil || !x.hidden(s))
}

// kept is the factor of a probability.
func (x *oracle) kept(t, s int) float64 {
	if x.keep == nil {
		return 1
	}
	return x.keep(t, s)
}

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
				x.o[t][d] += x.kept(t, s) * x.p[t][s] * x.v(s, d)
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
				dp += x.kept(t, s) * do(t, d) * x.v(s, d)
				x.dv[s][d] += x.kept(t, s) * x.p[t][s] * do(t, d)
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
	part            int // elements from Q to K and from K to V in one array; 0 if they have an array each
	q, k, v, o, lse *array
	mask            []int32 // KeyMask; nil for none
	maskArray       *array
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

// newAttentionCase lays out the operands of a at random, with gaps.
func newAttentionCase(t *testing.T, r *rand.Rand, a Attention, gap int) (*testCase, *attentionCase) {
	c := &testCase{t: t}
	x := &attentionCase{Attention: a}
	var n [4]int
	x.QStride, n[0] = a.strides(r, a.T, gap)
	x.KStride, n[1] = a.strides(r, a.S, gap)
	x.VStride, n[2] = a.strides(r, a.S, gap)
	x.OStride, n[3] = a.strides(r, a.T, gap)
	x.operands(c, r, n[0], n[1], n[2], n[3])
	return c, x
}

// newPackedCase reads Q, K and V from one projection [Batch, T, 3, Heads, D].
func newPackedCase(t *testing.T, r *rand.Rand, a Attention) (*testCase, *attentionCase) {
	c := &testCase{t: t}
	x := &attentionCase{Attention: a, part: a.Heads * a.D}
	row := 3 * x.part
	x.QStride = [3]int{a.T * row, a.D, row}
	x.KStride, x.VStride = x.QStride, x.QStride
	x.OStride = [3]int{a.T * x.part, a.D, x.part}
	x.operands(c, r, a.Batch*a.T*row, 0, 0, a.Batch*a.T*x.part)
	return c, x
}

// operands makes arrays of these sizes.
func (x *attentionCase) operands(c *testCase, r *rand.Rand, q, k, v, o int) {
	sizes := []int{q, k, v}
	x.q, x.k, x.v = x.three(func(i int) *array { return c.input(randoms(r, sizes[i])) })
	x.o, x.lse = c.output(o), c.output(x.Batch*x.Heads*x.T)
	x.addresses()
}

// three makes an array for each of Q, K and V, or one for all.
func (x *attentionCase) three(array func(i int) *array) (q, k, v *array) {
	q = array(0)
	if x.part > 0 {
		return q, q.from(x.part), q.from(2 * x.part)
	}
	return q, array(1), array(2)
}

// from is the part of an array from element i on.
func (a *array) from(i int) *array {
	return &array{all: a.all[i:], data: a.data[i:], before: a.before[i:], output: a.output}
}

func (x *attentionCase) addresses() {
	if x.maskArray != nil {
		x.KeyMask = x.maskArray.ptr()
	}
	x.Q, x.K, x.V, x.O, x.LSE = x.q.ptr(), x.k.ptr(), x.v.ptr(), x.o.ptr(), x.lse.ptr()
}

// check runs both passes on each micro-kernel.
func (x *attentionCase) check(c *testCase, r *rand.Rand, accumulate bool) {
	c.t.Helper()
	heads := x.forward(c)
	x.backward(c.t, r, heads, accumulate)
}

// forward runs the forward pass and gives the oracle of each head.
func (x *attentionCase) forward(c *testCase) (heads []*oracle) {
	c.t.Helper()
	heads = x.oracles()
	o, lse := fromFloats(x.o.before), make([]float64, len(x.lse.data))
	for i, y := range heads {
		copy(lse[i*x.T:], y.lse)
		x.put(o, x.OStride, i, y.o, false)
	}
	for _, kn := range microKernels {
		c.run(func(s device.Stream) { AttentionForward(using{s, kn.attentionKernel(false)}, x.Attention) })
		what := fmt.Sprintf("%s %+v", kn.name, x.Attention)
		c.near("O of "+what, x.o, 2e-6, 5, func(i int) float64 { return o[i] })
		c.near("LSE of "+what, x.lse, 2e-6, 5, func(i int) float64 { return lse[i] })
	}
	return heads
}

// backward runs the backward pass after the forward pass.
func (x *attentionCase) backward(t *testing.T, r *rand.Rand, heads []*oracle, accumulate bool) {
	t.Helper()
	c := &testCase{t: t}
	again := func(a *array) *array { return c.input(append([]float32(nil), a.data...)) }
	old := []*array{x.q, x.k, x.v}
	x.q, x.k, x.v = x.three(func(i int) *array { return again(old[i]) })
	x.o, x.lse = again(x.o), again(x.lse)
	if x.mask != nil {
		x.maskArray = c.indices(x.mask)
	}
	x.addresses()
	do, delta := c.input(randoms(r, len(x.o.data))), c.output(len(x.lse.data))
	dq, dk, dv := x.three(func(i int) *array { return c.dst(r, len(old[i].data), accumulate) })
	g := AttentionGrads{DO: do.ptr(), DQ: dq.ptr(), DK: dk.ptr(), DV: dv.ptr(), Delta: delta.ptr(), Accumulate: accumulate}

	grads := []*array{dq, dk, dv, delta}
	var want [4][]float64
	for i := range want {
		want[i] = fromFloats(grads[i].before)
		if x.part > 0 && i > 0 && i < 3 {
			want[i] = want[0][i*x.part:]
		}
	}
	for i, y := range heads {
		y.backward(func(row, d int) float64 { return float64(do.before[x.index(x.OStride, i, row, d)]) })
		x.put(want[0], x.QStride, i, y.dq, accumulate)
		x.put(want[1], x.KStride, i, y.dk, accumulate)
		x.put(want[2], x.VStride, i, y.dv, accumulate)
		copy(want[3][i*x.T:], y.delta)
	}
	for _, kn := range microKernels {
		c.run(func(s device.Stream) { AttentionBackward(using{s, kn.attentionKernel(true)}, x.Attention, g) })
		for i, got := range grads {
			c.near(fmt.Sprintf("gradient %d of %s %+v", i, kn.name, x.Attention), got, 1e-5, 8, func(j int) float64 { return want[i][j] })
		}
	}
}

// oracles gives the oracle of each head, its forward pass done.
func (x *attentionCase) oracles() (heads []*oracle) {
	for head := range x.Batch * x.Heads {
		at := func(v *array, stride [3]int) func(row, d int) float64 {
			return func(row, d int) float64 { return float64(v.before[x.index(stride, head, row, d)]) }
		}
		y := &oracle{T: x.T, S: x.S, D: x.D, causal: x.Causal, scale: float64(x.Scale),
			q: at(x.q, x.QStride), k: at(x.k, x.KStride), v: at(x.v, x.VStride)}
		if x.mask != nil {
			y.hidden = func(s int) bool { return x.mask[head/x.Heads*x.S+s] == 0 }
		}
		if x.Dropout > 0 {
			y.keep = func(t, s int) float64 {
				d, one := newDropout(x.Dropout, x.Seed), []float32{1}
				d.apply(one, one, uint64((head*x.T+t)*x.S+s))
				return float64(one[0])
			}
		}
		y.forward()
		heads = append(heads, y)
	}
	return heads
}

// index is where element d of a row of a head lies.
func (a *Attention) index(stride [3]int, head, row, d int) int {
	return head/a.Heads*stride[0] + head%a.Heads*stride[1] + row*stride[2] + d
}

// put writes or adds the rows of a head to where they lie.
func (a *Attention) put(dst []float64, stride [3]int, head int, rows [][]float64, add bool) {
	for row := range rows {
		for d, v := range rows[row] {
			i := a.index(stride, head, row, d)
			if add {
				v += dst[i]
			}
			dst[i] = v
		}
	}
}

func fromFloats(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

func TestAttentionRandomShapes(t *testing.T) {
	r := seeded(t)
	for i := range trials(40) {
		a := Attention{Batch: 1 + r.IntN(2), Heads: 1 + r.IntN(3), T: 1 + r.IntN(30), S: 1 + r.IntN(40), D: 1 + r.IntN(40),
			Causal: i%2 == 0, Scale: r.Float32()}
		c, x := newAttentionCase(t, r, a, 5)
		x.check(c, r, r.IntN(2) == 0)
	}
}

// TestAttentionBlocks has more queries and keys than a block of either.
func TestAttentionBlocks(t *testing.T) {
	shapes := []Attention{
		{T: 70, S: 300, D: 16}, {T: 130, S: 300, D: 16, Causal: true}, {T: 300, S: 300, D: 5, Causal: true},
		{T: 300, S: 40, D: 20, Causal: true}, {T: 400, S: 520, D: 2, Causal: true}, {T: 1, S: 600, D: 100, Causal: true},
		{T: 97, S: 257, D: 33}, {T: 400, S: 1, D: 4, Causal: true}, {T: 24, S: 64, D: 64, Causal: true},
	}
	r := seeded(t)
	for i, a := range shapes {
		a.Batch, a.Heads, a.Scale = 1, 1, float32(1/math.Sqrt(float64(a.D)))
		c, x := newAttentionCase(t, r, a, 3)
		x.check(c, r, i%2 == 0)
	}
}

// TestAttentionMaskAndDropout hides some keys, or all those of one sequence,
// and drops some probabilities, within and beyond a block.
func TestAttentionMaskAndDropout(t *testing.T) {
	r := seeded(t)
	for i := range trials(24) {
		a := Attention{Batch: 1 + r.IntN(3), Heads: 1 + r.IntN(2), T: 1 + r.IntN(30), S: 1 + r.IntN(40), D: 1 + r.IntN(20),
			Causal: i%2 == 0, Scale: r.Float32()}
		if i%8 == 0 {
			a.T, a.S = 110, 300
		}
		if i%3 > 0 {
			a.Dropout, a.Seed = 0.4, r.Uint64()
		}
		c, x := newAttentionCase(t, r, a, 3)
		if i%3 < 2 {
			x.mask = make([]int32, a.Batch*a.S)
			for j := range x.mask {
				x.mask[j] = int32(r.IntN(3)) * int32(j/a.S) // nobody sees the first sequence's keys
			}
			x.maskArray = c.indices(x.mask)
			x.addresses()
		}
		x.check(c, r, r.IntN(2) == 0)
	}
}

// TestAttentionWithoutKeys has no key at all.
func TestAttentionWithoutKeys(t *testing.T) {
	r := seeded(t)
	c, x := newAttentionCase(t, r, Attention{Batch: 1, Heads: 2, T: 14, S: 0, D: 3, Scale: 1}, 0)
	x.check(c, r, false)
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
		x.forward(c)
	}
}

func TestAttentionPacked(t *testing.T) {
	r := seeded(t)
	for _, accumulate := range []bool{false, true} {
		c, x := newPackedCase(t, r, Attention{Batch: 2, Heads: 3, T: 50, S: 50, D: 16, Causal: true, Scale: 0.25})
		x.check(c, r, accumulate)
	}
}

func TestAttentionCost(t *testing.T) {
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
		s := &sink{}
		a.Q, a.K, a.V, a.O, a.LSE = some, some, some, some, some
		a.QStride, a.KStride, a.VStride, a.OStride = [3]int{84, 28, 4}, [3]int{84, 28, 4}, [3]int{84, 28, 4}, [3]int{84, 28, 4}
		AttentionForward(s, a)
		rows, keys := 6*a.T, 6*a.S
		if want := uint64(4 * 6 * pairs * a.D); s.last.Flops != want {
			t.Errorf("%+v: forward takes %d operations, want %d", a, s.last.Flops, want)
		}
		if want := uint64(4 * (2*rows*a.D + rows + 2*keys*a.D)); s.last.Bytes != want {
			t.Errorf("%+v: forward moves %d bytes, want %d", a, s.last.Bytes, want)
		}
		AttentionBackward(s, a, AttentionGrads{some, some, some, some, some, true})
		if want := uint64(10*6*pairs*a.D + 2*rows*a.D); s.last.Flops != want {
			t.Errorf("%+v: backward takes %d operations, want %d", a, s.last.Flops, want)
		}
		if want := uint64(4 * (rows*(5*a.D+2) + keys*6*a.D)); s.last.Bytes != want {
			t.Errorf("%+v: backward moves %d bytes, want %d", a, s.last.Bytes, want)
		}
	}
}
