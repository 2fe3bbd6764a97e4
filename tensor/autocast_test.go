package tensor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// random gives a float32 tensor of normally distributed numbers.
func random(rt *tensor.Runtime, seed uint64, shape ...int) *tensor.Tensor {
	return rt.FromFloat32s(trace.Input, numbers(seed, size(shape)), shape...)
}

// param is a parameter with such content.
func param(rt *tensor.Runtime, seed uint64, shape ...int) *tensor.Tensor {
	p := rt.Parameter(shape...)
	p.Set(numbers(seed, p.Len()))
	return p
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func numbers(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 0))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// TestTo casts to 16 bits and back: what a type holds stays, the gradient of
// the cast value has its type and that of the leaf its own.
func TestTo(t *testing.T) {
	rt := runtime(t)
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		x := rt.FromFloat32s(trace.Input, []float32{1, -0.5, 1.0009765625 + 1./4096, 3}, 2, 2).RequireGrad()
		turned := tensor.Transpose(x, 0, 1)
		h := turned.To(d)
		if h.DType() != d || h.Bytes() != 8 || !slices.Equal(h.Shape(), []int{2, 2}) {
			t.Errorf("cast to %s gives %v of %d bytes", d, h, h.Bytes())
		}
		third := map[tensor.DType]float32{tensor.BFloat16: 1, tensor.Float16: 1.0009765625}[d]
		if got := h.Float32s(); !slices.Equal(got, []float32{1, third, -0.5, 3}) {
			t.Errorf("cast to %s gives %v", d, got)
		}
		s := tensor.Mul(h, h)
		sum := tensor.Sum(s)
		if s.DType() != d || sum.DType() != d {
			t.Errorf("square and sum of %v are %v and %v", h, s, sum)
		}
		sum.Backward(1)
		if g := x.Grad(); g.DType() != tensor.Float32 || !slices.Equal(g.Float32s(), []float32{2, -1, 2 * third, 6}) {
			t.Errorf("gradient through %s is %v: %v", d, g, g.Float32s())
		}
		same := h.To(d)
		back := h.To(tensor.Float32)
		if !slices.Equal(back.Float32s(), h.Float32s()) {
			t.Errorf("%v back in float32 is %v", h.Float32s(), back.Float32s())
		}
		leaf := h.Detach().RequireGrad()
		scaled := tensor.Scale(leaf, 3)
		total := tensor.Sum(scaled)
		total.Backward(1)
		if leaf.Grad().DType() != d {
			t.Errorf("the gradient of a leaf of %s is %v", d, leaf.Grad())
		}
		leaf.ZeroGrad()
		x.ZeroGrad()
		release(x, turned, h, s, sum, same, back, leaf, scaled, total)
	}
}

func TestToMisuse(t *testing.T) {
	rt := runtime(t)
	for name, f := range map[string]func(){
		"To of indices":     func() { rt.FromInt32s(trace.Input, []int32{1}, 1).To(tensor.Float16) },
		"To indices":        func() { rt.Full(1, 2).To(tensor.Int32) },
		"autocast to int32": func() { rt.Autocast(tensor.Int32, func() {}) },
		"gradient of int32": func() { rt.FromInt32s(trace.Input, []int32{1}, 1).RequireGrad() },
		"state of a 16-bit": func() {
			tensor.Update(tensor.UpdateSGD, []tensor.Updated{{Tensor: rt.Empty(tensor.Float16, trace.Parameter, 2)}}, nil, tensor.UpdateParams{})
		},
		"cat of two kinds":   func() { tensor.Concat(0, rt.Full(1, 2), rt.FromInt32s(trace.Input, []int32{1}, 1)) },
		"too long a content": func() { rt.Empty(tensor.BFloat16, trace.Input, 2).Set(make([]float32, 3)) },
	} {
		if rt.Try(f) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestAutocastLists checks the type of each operation's result and the bytes
// that it keeps for backward, of inputs with 1024 elements in float32.
func TestAutocastLists(t *testing.T) {
	const bf16, f32 = tensor.BFloat16, tensor.Float32
	for _, c := range []struct {
		name   string
		result tensor.DType
		kept   uint64
		f      func(x, w *tensor.Tensor) *tensor.Tensor
	}{
		{"linear", bf16, 2048, func(x, w *tensor.Tensor) *tensor.Tensor { return tensor.Linear(x, w, nil, true) }},
		{"matmul", bf16, 2048, func(x, w *tensor.Tensor) *tensor.Tensor { return tensor.MatMul(x, w) }},
		{"attention", bf16, 4 * 2048, func(x, w *tensor.Tensor) *tensor.Tensor { // and 512 for the row sums
			q := tensor.Reshape(x, 1, 1, 32, 32)
			defer q.Release()
			y := tensor.Attention(q, q, q, true)
			return y
		}},
		{"add", f32, 0, func(x, w *tensor.Tensor) *tensor.Tensor { return tensor.Add(x, w) }},
		{"gelu", f32, 4096, func(x, w *tensor.Tensor) *tensor.Tensor { return tensor.Gelu(x) }},
		{"gelu of a product", bf16, 2 * 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			h := tensor.MatMul(x, w)
			defer h.Release()
			return tensor.Gelu(h)
		}},
		{"softmax of a product", f32, 2048 + 4096, func(x, w *tensor.Tensor) *tensor.Tensor {
			h := tensor.MatMul(x, w)
			defer h.Release()
			return tensor.Softmax(h)
		}},
		{"exp of a product", f32, 2 * 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			h := tensor.MatMul(x, w)
			defer h.Release()
			return tensor.Exp(h)
		}},
		{"sum of a product", f32, 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			h := tensor.MatMul(x, w)
			defer h.Release()
			return tensor.Sum(h, 0)
		}},
		{"a product and more", f32, 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			h := tensor.MatMul(x, w)
			defer h.Release()
			return tensor.Add(h, x)
		}},
		{"layer norm", f32, 2048, func(x, w *tensor.Tensor) *tensor.Tensor { // and 512 twice
			g := param(x.Runtime(), 1, 32)
			defer g.Release()
			return tensor.LayerNorm(x, g, g, 1e-5)
		}},
		{"linear of a layer norm", bf16, 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			g := param(x.Runtime(), 1, 32)
			defer g.Release()
			h := tensor.LayerNorm(x, g, g, 1e-5)
			defer h.Release()
			return tensor.Linear(h, w, nil, false)
		}},
		{"linear, first without gradients", bf16, 2048, func(x, w *tensor.Tensor) *tensor.Tensor {
			x.Runtime().NoGrad(func() { tensor.Linear(x, w, nil, false).Release() })
			return tensor.Linear(x, w, nil, false)
		}},
		{"mse", f32, 4096, func(x, w *tensor.Tensor) *tensor.Tensor { return tensor.MSE(x, w) }},
	} {
		rt := runtime(t)
		x, w := random(rt, 1, 32, 32), param(rt, 2, 32, 32)
		x.RequireGrad()
		var y *tensor.Tensor
		rt.Autocast(tensor.BFloat16, func() { y = c.f(x, w) })
		var kept uint64
		for _, k := range y.Kept() {
			if k.Bytes > 512 {
				kept += k.Bytes
			}
		}
		for _, k := range y.Kept() {
			if size(k.Shape) == 1024 && k.How == tensor.Saved && k.Bytes == 4096 && c.kept < 4096 {
				t.Errorf("%s keeps float32: %+v", c.name, k)
			}
		}
		if y.DType() != c.result || kept != c.kept {
			t.Errorf("%s: result %v, %d bytes kept; want %s and %d", c.name, y, kept, c.result, c.kept)
		}
		release(x, w, y)
	}
}

// TestAutocastGradients compares the gradients of a small network with those
// of float32, and checks that a parameter's is collected in float32: it has
// digits that bfloat16 has not.
func TestAutocastGradients(t *testing.T) {
	rt := runtime(t)
	var want [2][]float32
	for i, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		x, w, g := random(rt, 1, 40, 24), param(rt, 2, 24, 24), param(rt, 3, 24)
		for range 2 { // the second time it is added to
			loss := mixedNetwork(rt, d, x, w, g)
			loss.Backward(1)
			loss.Release()
		}
		if p := w.Grad(); p.DType() != tensor.Float32 {
			t.Errorf("the gradient of a parameter under %s is %v", d, p)
		}
		got := [2][]float32{w.Grad().Float32s(), g.Grad().Float32s()}
		if i == 0 {
			want = got
		}
		for k := range got {
			if e := relative(got[k], want[k]); e > 0.02 {
				t.Errorf("gradient %d under %s is off by %.3g", k, d, e)
			}
		}
		if fine := countFine(got[0], d); i > 0 && fine < 400 {
			t.Errorf("under %s only %d of 576 elements have digits beyond %s", d, fine, d)
		}
		release(x, w, g)
	}
}

// mixedNetwork is a loss that uses w twice.
func mixedNetwork(rt *tensor.Runtime, d tensor.DType, x, w, g *tensor.Tensor) (loss *tensor.Tensor) {
	rt.Autocast(d, func() {
		n := tensor.LayerNorm(x, g, g, 1e-5)
		h := tensor.Linear(n, w, g, true)
		a := tensor.Gelu(h)
		y := tensor.Linear(a, w, nil, false)
		r := tensor.Add(x, y)
		s := tensor.Mul(r, r)
		loss = tensor.Mean(s)
		release(n, h, a, y, r, s)
	})
	return loss
}

func relative(got, want []float32) float64 {
	var diff, sum float64
	for i, w := range want {
		diff += math.Pow(float64(got[i]-w), 2)
		sum += float64(w) * float64(w)
	}
	return math.Sqrt(diff / sum)
}

// countFine counts numbers that type d does not hold.
func countFine(x []float32, d tensor.DType) int {
	low := map[tensor.DType]uint32{tensor.BFloat16: 0xffff, tensor.Float16: 0x1fff}[d]
	n := 0
	for _, v := range x {
		if math.Float32bits(v)&low != 0 {
			n++
		}
	}
	return n
}

// TestAutocastCopies checks that a parameter is cast once in a region, anew
// after it has changed, and that the copy is gone when the region has ended,
// while backward makes it again.
func TestAutocastCopies(t *testing.T) {
	rt := runtime(t)
	live := func() uint64 { return rt.Allocator().Stats().Live }
	x, w := random(rt, 1, 1, 128), param(rt, 2, 128, 128)
	x.RequireGrad()
	base := live()
	var after, loss *tensor.Tensor
	rt.Autocast(tensor.BFloat16, func() {
		before := tensor.Linear(x, w, nil, true)
		rt.Autocast(tensor.Float32, func() { tensor.Linear(x, w, nil, true).Release() })
		rt.Autocast(tensor.BFloat16, func() { tensor.Linear(x, w, nil, true).Release() })
		if got := live() - base; got < 128*128*2 || got > 128*128*2+4096 {
			t.Errorf("%d bytes live in a region, want one copy of %d", got, 128*128*2)
		}
		w.Set(make([]float32, w.Len()))
		after = tensor.Linear(x, w, nil, true)
		loss = tensor.Sum(after)
		before.Release()
	})
	if got := live() - base; got > 4096 {
		t.Errorf("%d bytes live after the region", got)
	}
	if slices.Max(after.Float32s()) != 0 {
		t.Errorf("a product with the changed parameter is %v", after.Float32s())
	}
	loss.Backward(1)
	if slices.Max(x.Grad().Float32s()) != 0 {
		t.Errorf("gradient by the changed parameter %v", x.Grad().Float32s())
	}
	release(x, w, after, loss)
}

// TestAutocastChange finds a parameter that changed between use and backward.
func TestAutocastChange(t *testing.T) {
	rt := runtime(t)
	x, w := random(rt, 1, 4, 4), param(rt, 2, 4, 4)
	x.RequireGrad()
	err := rt.Try(func() {
		var s *tensor.Tensor
		rt.Autocast(tensor.Float16, func() { s = tensor.Sum(tensor.MatMul(x, w)) })
		w.Set(numbers(3, 16))
		s.Backward(1)
	})
	if err == nil {
		t.Error("no error")
	}
	release(x, w)
}

// TestAutocastAfterFailure goes on in a region after a failure there, whose
// clean-up took the casts made since.
func TestAutocastAfterFailure(t *testing.T) {
	rt := runtime(t)
	x, w := random(rt, 1, 4, 4), param(rt, 2, 4, 4)
	rt.Autocast(tensor.BFloat16, func() {
		if rt.Try(func() {
			tensor.MatMul(x, w)
			tensor.MatMul(x, rt.Full(1, 5, 5))
		}) == nil {
			t.Error("no error")
		}
		tensor.MatMul(x, w).Release()
	})
	if err := rt.Try(func() { rt.Autocast(tensor.BFloat16, func() { tensor.MatMul(x, rt.Full(1, 5, 5)) }) }); err == nil {
		t.Error("no error")
	}
	y := tensor.MatMul(x, w)
	if y.DType() != tensor.Float32 {
		t.Errorf("after a region that failed a product is %v", y)
	}
	release(x, w, y)
}

// TestAutocastCheckpoint checks that the second run of a checkpoint computes
// as the first did, although the region has ended: loss and gradients are the
// same bit for bit as without, also with a part that is kept in float32.
func TestAutocastCheckpoint(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		var results []string
		for _, around := range []func(x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor{
			func(x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor { return f(x) },
			tensor.Checkpoint,
			func(x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
				return tensor.Checkpoint(x, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, f) })
			},
		} {
			rt := runtime(t)
			x, w, g := random(rt, 1, 8, 16), param(rt, 2, 16, 16), param(rt, 3, 16)
			x.RequireGrad()
			var loss *tensor.Tensor
			rt.Autocast(d, func() {
				y := around(x, func(x *tensor.Tensor) *tensor.Tensor { return mixedBlock(rt, x, w, g) })
				z := around(y, func(x *tensor.Tensor) *tensor.Tensor { return mixedBlock(rt, x, w, g) })
				loss = tensor.Sum(z)
				release(y, z)
			})
			loss.Backward(1)
			results = append(results, fmt.Sprint(loss.Float32s(), x.Grad().Float32s(), w.Grad().Float32s(), g.Grad().Float32s()))
			release(loss, x, w, g)
		}
		for i, r := range results[1:] {
			if r != results[0] {
				t.Errorf("%s, %d checkpoints: results differ:\n%.200s\n%.200s", d, i+1, r, results[0])
			}
		}
	}
}

// mixedBlock has operations of all lists.
func mixedBlock(rt *tensor.Runtime, x, w, g *tensor.Tensor) (y *tensor.Tensor) {
	n := tensor.LayerNorm(x, g, g, 1e-5)
	h := tensor.Linear(n, w, g, true)
	a := tensor.Gelu(h)
	var p *tensor.Tensor
	rt.Autocast(tensor.Float32, func() { p = tensor.MatMul(a, w) })
	s := tensor.Softmax(p)
	q := tensor.MatMul(s, w)
	y = tensor.Add(x, q)
	release(n, h, a, p, s, q)
	return y
}

// TestTrainsInHalf takes gradients of each kind of operation in both types,
// with everything of 16 bits: each agrees with that of float32.
func TestTrainsInHalf(t *testing.T) {
	index := []int32{2, 0, 1, 2, 1, 0, 1, 2}
	for name, f := range map[string]func(x, y *tensor.Tensor) *tensor.Tensor{
		"div": func(x, y *tensor.Tensor) *tensor.Tensor {
			e := tensor.Exp(y)
			defer e.Release()
			return tensor.Div(x, e)
		},
		"sub": func(x, y *tensor.Tensor) *tensor.Tensor { return tensor.Sub(x, y) },
		"where": func(x, y *tensor.Tensor) *tensor.Tensor {
			m := x.Runtime().FromInt32s(0, index, 8)
			defer m.Release()
			return tensor.Where(m, x, y)
		},
		"concat": func(x, y *tensor.Tensor) *tensor.Tensor { return tensor.Concat(1, x, y) },
		"slice":  func(x, y *tensor.Tensor) *tensor.Tensor { return tensor.Slice(x, 1, 1, 6, 2) },
		"var":    func(x, y *tensor.Tensor) *tensor.Tensor { return tensor.Var(x, true, 1) },
		"rms norm": func(x, y *tensor.Tensor) *tensor.Tensor {
			g := tensor.Slice(y, 0, 0, 1, 1)
			defer g.Release()
			v := tensor.Reshape(g, -1)
			defer v.Release()
			return tensor.RMSNorm(x, v, 1e-5)
		},
		"cumsum": func(x, y *tensor.Tensor) *tensor.Tensor { return tensor.CumSum(x, 0) },
		"embedding": func(x, y *tensor.Tensor) *tensor.Tensor {
			i := x.Runtime().FromInt32s(0, index, 8)
			defer i.Release()
			return tensor.Embedding(x, i)
		},
		"index add": func(x, y *tensor.Tensor) *tensor.Tensor {
			i := x.Runtime().FromInt32s(0, index, 8)
			defer i.Release()
			return tensor.IndexAdd(x, 0, i, y)
		},
		"gather": func(x, y *tensor.Tensor) *tensor.Tensor {
			i := x.Runtime().FromInt32s(0, index, 8, 1)
			defer i.Release()
			return tensor.Gather(x, 1, i)
		},
		"max": func(x, y *tensor.Tensor) *tensor.Tensor { v, i := tensor.Max(x, 1); i.Release(); return v },
		"conv": func(x, y *tensor.Tensor) *tensor.Tensor {
			a, w := tensor.Reshape(x, 1, 1, 8, 8), tensor.Slice(y, 0, 0, 1, 1)
			v := tensor.Reshape(w, 2, 1, 2, 2)
			defer release(a, w, v)
			return tensor.Conv2D(a, v, nil, tensor.ConvParams{Padding: 1})
		},
		"pool": func(x, y *tensor.Tensor) *tensor.Tensor {
			a := tensor.Reshape(x, 1, 1, 8, 8)
			b := tensor.AvgPool2D(a, tensor.PoolParams{Kernel: 2})
			defer release(a, b)
			return tensor.MaxPool2D(b, tensor.PoolParams{Kernel: 2})
		},
		"attention": func(x, y *tensor.Tensor) *tensor.Tensor {
			a, b := tensor.Reshape(x, 1, 1, 8, 8), tensor.Reshape(y, 1, 1, 8, 8)
			defer release(a, b)
			return tensor.Attention(a, b, a, true)
		},
		"cross entropy": func(x, y *tensor.Tensor) *tensor.Tensor {
			i := x.Runtime().FromInt32s(0, index, 8)
			defer i.Release()
			return tensor.CrossEntropy(x, i, -1)
		},
	} {
		t.Run(name, func(t *testing.T) { trainInHalf(t, f) })
	}
}

func trainInHalf(t *testing.T, f func(x, y *tensor.Tensor) *tensor.Tensor) {
	rt := runtime(t)
	var want [3][]float32
	for i, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		a, b := random(rt, 5, 8, 8), random(rt, 6, 8, 8)
		x, y := a.To(d).RequireGrad(), b.To(d).RequireGrad()
		out := f(x, y)
		wide := out.To(tensor.Float32)
		square := tensor.Mul(wide, wide)
		loss := tensor.Sum(square)
		loss.Backward(1)
		got := [3][]float32{out.Float32s(), x.Grad().Float32s()}
		if y.Grad() != nil {
			got[2] = y.Grad().Float32s()
		}
		if i == 0 {
			want = got
		}
		for k := range got {
			if e := relative(got[k], want[k]); len(want[k]) > 0 && !(e < 0.03) {
				t.Errorf("in %s: value %d is off by %.3g", d, k, e)
			}
		}
		if x.Grad().DType() != d {
			t.Errorf("the gradient of %v is %v", x, x.Grad())
		}
		release(a, b, out, wide, square, loss, x, y)
	}
}

// TestAutocastUnderSchedules compares loss and gradients under autocast, bit
// for bit, with those under random schedules, which make values again and
// fetch them: of parameters, whose casts are kept, and of other leaves.
func TestAutocastUnderSchedules(t *testing.T) {
	for _, parameter := range []bool{false, true} {
		rt := runtime(t)
		p, index := parameters(rt)
		for i := 0; parameter && i < len(p); i++ {
			w := rt.Parameter(p[i].Shape()...)
			w.Set(p[i].Float32s())
			p[i].Release()
			p[i] = w
		}
		store := useStore(t, rt)
		gradients := func() (all [][]float32) {
			var loss *tensor.Tensor
			rt.Autocast(tensor.BFloat16, func() { loss = program(rt, p, index) })
			loss.Backward(1)
			all = append(all, loss.Float32s())
			loss.Release()
			for _, w := range p {
				all = append(all, w.Grad().Float32s())
				w.ZeroGrad()
			}
			return all
		}
		want := gradients()
		rec := rt.Record(nil, func() {
			if !same(gradients(), want) {
				t.Error("recording changed the gradients")
			}
		})
		for seed := range uint64(60) {
			s := randomSchedule(rand.New(rand.NewPCG(seed, 9)), rec)
			rt.Follow(s, func() {
				if !same(gradients(), want) {
					t.Fatalf("seed %d: gradients differ under %+v", seed, s)
				}
			})
		}
		if store.live != 0 || store.taken == 0 {
			t.Errorf("%d of %d pieces of the store were not given back", store.live, store.taken)
		}
		release(append(p, index)...)
	}
}

// TestLayerNormLow: its result and its gradients are, bit for bit but for rounding on a
// GPU, those of a LayerNorm whose result is cast.
func TestLayerNormLow(t *testing.T) {
	for _, precision := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		rt := runtime(t)
		x, gamma, beta := param(rt, 1, 5, 24), param(rt, 2, 24), param(rt, 3, 24)
		w := random(rt, 4, 24, 24)
		results := func(norm func(x, gamma, beta *tensor.Tensor, eps float32) *tensor.Tensor) (all []float32) {
			var loss *tensor.Tensor
			rt.Autocast(precision, func() {
				y := norm(x, gamma, beta, 1e-5)
				z := tensor.Linear(y, w, nil, false)
				square := tensor.Mul(z, z)
				loss = tensor.Sum(square)
				all = z.Float32s()
				release(y, z, square)
			})
			defer loss.Release()
			loss.Backward(1)
			for _, p := range []*tensor.Tensor{x, gamma, beta} {
				all = append(all, p.Grad().Float32s()...)
				p.ZeroGrad()
			}
			return all
		}
		far := 0.0
		if rt.Allocator().Device().Info().Kind == device.CUDA { // which adds up in an order of its own for each type of the operands
			far = 1e-5
		}
		near := func(a, b float32) bool { return math.Abs(float64(a-b)) <= far*max(1, math.Abs(float64(a))) }
		if low, cast := results(tensor.LayerNormLow), results(tensor.LayerNorm); !slices.EqualFunc(low, cast, near) {
			t.Errorf("%s: %v, cast %v", precision, low, cast)
		}
		release(x, gamma, beta, w)
	}
}
