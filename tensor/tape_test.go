package tensor_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// dual is the oracle of gradients: a matrix of values with their derivatives
// along one direction, in float64.
type dual struct {
	rows, cols int
	v, d       []float64
}

func zip(a, b dual, f func(av, ad, bv, bd float64) (v, d float64)) dual {
	out := dual{a.rows, a.cols, make([]float64, len(a.v)), make([]float64, len(a.v))}
	for i := range a.v {
		out.v[i], out.d[i] = f(a.v[i], a.d[i], b.v[i], b.d[i])
	}
	return out
}

func (a dual) transposed() dual {
	out := dual{a.cols, a.rows, make([]float64, len(a.v)), make([]float64, len(a.v))}
	for i := range a.v {
		j := i%a.cols*a.rows + i/a.cols
		out.v[j], out.d[j] = a.v[i], a.d[i]
	}
	return out
}

// randomStep applies one random operation to values that both sides have.
func randomStep(r *rand.Rand, ts tensors, ds []dual) (*tensor.Tensor, dual) {
	i, j := r.IntN(len(ts)), r.IntN(len(ts))
	a, b, da, db := ts[i], ts[j], ds[i], ds[j]
	if !slices.Equal(a.Shape(), b.Shape()) {
		b, db = a, da
	}
	switch r.IntN(7) {
	case 0:
		return tensor.Add(a, b), zip(da, db, func(av, ad, bv, bd float64) (float64, float64) { return av + bv, ad + bd })
	case 1:
		return tensor.Sub(a, b), zip(da, db, func(av, ad, bv, bd float64) (float64, float64) { return av - bv, ad - bd })
	case 2:
		return tensor.Mul(a, b), zip(da, db, func(av, ad, bv, bd float64) (float64, float64) { return av * bv, ad*bv + av*bd })
	case 3:
		return tensor.Transpose(a, 0, 1), da.transposed()
	case 4:
		return tensor.Scale(a, -0.5), zip(da, da, func(v, d, _, _ float64) (float64, float64) { return -v / 2, -d / 2 })
	case 5:
		return tensor.Reshape(a, a.Len(), 1), dual{len(da.v), 1, da.v, da.d}
	default:
		return tensor.Tanh(a), zip(da, da, func(v, d, _, _ float64) (float64, float64) {
			th := math.Tanh(v)
			return th, d * (1 - th*th)
		})
	}
}

// TestRandomGraphs compares gradients through random graphs, with values that
// are used several times, viewed and dropped at random moments, with
// derivatives along a random direction.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			rt := runtime(t)
			rows, cols := 1+r.IntN(4), 1+r.IntN(5)
			x := make([]float32, rows*cols)
			in := dual{rows, cols, make([]float64, len(x)), make([]float64, len(x))}
			for i := range x {
				x[i] = float32(r.NormFloat64())
				in.v[i], in.d[i] = float64(x[i]), r.NormFloat64()
			}
			leaf := rt.FromFloat32s(trace.Parameter, x, rows, cols).RequireGrad()
			defer leaf.Release()
			ts, ds := tensors{leaf.Retain()}, []dual{in}
			for range 12 {
				y, dy := randomStep(r, ts, ds)
				ts, ds = append(ts, y), append(ds, dy)
				if i := r.IntN(len(ts)); len(ts) > 3 {
					ts[i].Release()
					ts, ds = slices.Delete(ts, i, i+1), slices.Delete(ds, i, i+1)
				}
			}
			last := len(ts) - 1
			loss := tensor.Sum(ts[last])
			want := 0.0
			for _, d := range ds[last].d {
				want += d
			}
			release(ts...)
			if !loss.NeedsGrad() {
				t.Fatal("the result lost its past")
			}
			loss.Backward(1)
			loss.Release()
			got := 0.0
			if g := leaf.Grad(); g != nil {
				for i, v := range g.Float32s() {
					got += float64(v) * in.d[i]
				}
			}
			if math.Abs(got-want) > 1e-3*(1+math.Abs(want)) {
				t.Errorf("derivative %v, want %v", got, want)
			}
		})
	}
}

// network is a small one with every kind of saved value: handles, recipes,
// results. Its parameters are released at the end of the test.
type network struct{ up, down, gamma, beta, bias *tensor.Tensor }

const width = 16

func newNetwork(t *testing.T, rt *tensor.Runtime) *network {
	r := rand.New(rand.NewPCG(7, 7))
	parameter := func(shape ...int) *tensor.Tensor {
		p := rt.Parameter(shape...)
		t.Cleanup(p.Release)
		data := make([]float32, p.Len())
		for i := range data {
			data[i] = float32(r.NormFloat64()) / 4
		}
		if rt.Holds() {
			p.Set(data)
		}
		return p
	}
	return &network{parameter(width, 4*width), parameter(4*width, width), parameter(width), parameter(width), parameter(4 * width)}
}

func (n *network) params() tensors { return tensors{n.up, n.down, n.gamma, n.beta, n.bias} }

func (n *network) block(x *tensor.Tensor) *tensor.Tensor {
	h := tensor.LayerNorm(x, n.gamma, n.beta, 1e-5)
	u := tensor.Linear(h, n.up, n.bias, false)
	h.Release()
	a := tensor.Gelu(u)
	u.Release()
	d := tensor.Linear(a, n.down, nil, false)
	a.Release()
	defer d.Release()
	return tensor.Add(x, d)
}

// step runs four blocks, each through around, and returns the loss.
func (n *network) step(rt *tensor.Runtime, around func(i int, x *tensor.Tensor) *tensor.Tensor) float32 {
	x := rt.Full(0.5, 8, width)
	rows := make([]float32, 8*width)
	for i := range rows {
		rows[i] = float32(i%7) - 3
	}
	if rt.Holds() {
		x.Set(rows)
	}
	for i := range 4 {
		y := around(i, x)
		x.Release()
		x = y
	}
	s := tensor.Mul(x, x)
	x.Release()
	loss := tensor.Mean(s)
	s.Release()
	defer loss.Release()
	v := loss.Float32s()[0]
	loss.Backward(1)
	return v
}

func (n *network) gradients() [][]float32 {
	var out [][]float32
	for _, p := range n.params() {
		out = append(out, p.Grad().Float32s())
		p.ZeroGrad()
	}
	return out
}

// TestCheckpointChangesNothing: with any subset of blocks recomputed, alone,
// in pairs or nested, loss and gradients are those of the plain run, bit for bit.
func TestCheckpointChangesNothing(t *testing.T) {
	rt := runtime(t)
	n := newNetwork(t, rt)
	wantLoss := n.step(rt, func(_ int, x *tensor.Tensor) *tensor.Tensor { return n.block(x) })
	want := n.gradients()
	nested := func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.Checkpoint(x, func(x *tensor.Tensor) *tensor.Tensor {
			mid := tensor.Checkpoint(x, n.block)
			defer mid.Release()
			return tensor.Scale(mid, 1)
		})
	}
	for mask := range 3 * 3 * 3 * 3 {
		loss := n.step(rt, func(i int, x *tensor.Tensor) *tensor.Tensor {
			switch mask / int(math.Pow(3, float64(i))) % 3 {
			case 0:
				return n.block(x)
			case 1:
				return tensor.Checkpoint(x, n.block)
			}
			return nested(x)
		})
		if loss != wantLoss {
			t.Errorf("mask %d: loss %v, want %v", mask, loss, wantLoss)
		}
		for i, g := range n.gradients() {
			if !slices.Equal(g, want[i]) {
				t.Errorf("mask %d: gradient %d differs by %g", mask, i, golden.Difference(g, want[i]))
			}
		}
	}
}

// TestCheckpointOfACheapResult: the input may be a value that others keep by
// its recipe.
func TestCheckpointOfACheapResult(t *testing.T) {
	rt := runtime(t)
	gradient := func(checkpoint bool) []float32 {
		x := rt.FromFloat32s(trace.Input, []float32{0.5, -1, 2}, 3).RequireGrad()
		defer x.Release()
		g := tensor.Gelu(x)
		f := func(z *tensor.Tensor) *tensor.Tensor {
			s := tensor.Mul(z, z)
			defer s.Release()
			return tensor.Exp(s)
		}
		var y *tensor.Tensor
		if checkpoint {
			y = tensor.Checkpoint(g, f)
		} else {
			y = f(g)
		}
		g.Release()
		loss := tensor.Sum(y)
		y.Release()
		loss.Backward(1)
		loss.Release()
		return x.Grad().Float32s()
	}
	if got, want := gradient(true), gradient(false); !slices.Equal(got, want) {
		t.Errorf("gradient %v with a checkpoint, %v without", got, want)
	}
}

// TestSharedPastRunsOnce: a second backward through a part of the graph that
// has run is refused, not ignored.
func TestSharedPastRunsOnce(t *testing.T) {
	rt := runtime(t)
	err := rt.Try(func() {
		h := tensor.Scale(rt.Full(1, 3).RequireGrad(), 2)
		l1, l2 := tensor.Sum(h), tensor.Sum(tensor.Scale(h, 10))
		l1.Backward(1)
		l2.Backward(1)
	})
	if err == nil || !strings.Contains(err.Error(), "a second time") {
		t.Errorf("got error %v", err)
	}
}

// TestFailedOperationHoldsNothing: an operation that fails on a value from
// before lets go of that value's past.
func TestFailedOperationHoldsNothing(t *testing.T) {
	rt := runtime(t)
	x := rt.Full(1, 3).RequireGrad()
	y := tensor.Exp(x)
	if err := rt.Try(func() { tensor.Mul(y, rt.Full(1, 2)) }); err == nil {
		t.Error("no error")
	}
	y.Release()
	x.Release()
}

// TestRecomputeStopsEarly: the second run of a block does not compute its last
// matrix product, whose result nobody saved.
func TestRecomputeStopsEarly(t *testing.T) {
	count := func(around func(n *network, x *tensor.Tensor) *tensor.Tensor) map[string]int {
		launches := map[string]int{}
		rt, _ := nullRuntime(t, 64<<20, func(l *device.Launch) { launches[l.Kernel.Name]++ })
		n := newNetwork(t, rt)
		n.step(rt, func(_ int, x *tensor.Tensor) *tensor.Tensor { return around(n, x) })
		for _, p := range n.params() {
			p.ZeroGrad()
		}
		return launches
	}
	plain := count(func(n *network, x *tensor.Tensor) *tensor.Tensor { return n.block(x) })
	again := count(func(n *network, x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, n.block) })
	if got, want := again["matmul"], plain["matmul"]+4; got != want {
		t.Errorf("%d matrix products with recompute of 4 blocks, want %d: one more for each block", got, want)
	}
}

// nullRuntime gives a runtime on a null device that reports its launches.
func nullRuntime(t *testing.T, capacity uint64, onLaunch func(l *device.Launch)) (*tensor.Runtime, *alloc.Allocator) {
	t.Helper()
	dev, err := device.OpenNull(device.NullOptions{Capacity: capacity, Virtual: true, OnLaunch: onLaunch})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return tensor.New(mem, stream), mem
}

// TestSavedValuesLiveAsLongAsNeeded follows the live bytes through a forward
// and a backward pass.
func TestSavedValuesLiveAsLongAsNeeded(t *testing.T) {
	rt, mem := nullRuntime(t, 1<<30, nil)
	const rows = 64 << 10
	unit := uint64(rows * width * 4)
	n := newNetwork(t, rt)
	base := mem.Stats().Live
	above := func(when string, units uint64) {
		t.Helper()
		got := mem.Stats().Live - base
		if got < units*unit || got > units*unit+unit/2 { // and two numbers a row for each norm
			t.Errorf("%s: %.2f units are live, want %d", when, float64(got)/float64(unit), units)
		}
	}
	x := rt.Empty(tensor.Float32, trace.Activation, rows, width).RequireGrad()
	above("input", 1)
	y := n.block(x)
	above("after the block: input, 4 of the up-projection, result", 6)
	x.Release()
	above("the input is saved", 6)
	z := tensor.Checkpoint(y, n.block)
	above("a checkpoint: its input, which was there, and its result", 7)
	y.Release()
	above("the input of the checkpoint is saved", 7)
	loss := tensor.Mean(z)
	z.Release()
	above("a mean saves nothing", 6)
	loss.Release()
	above("a graph that nobody holds is gone", 0)
}

func TestChangeInPlaceIsFound(t *testing.T) {
	rt := runtime(t)
	err := rt.Try(func() {
		x := rt.Full(2, 3).RequireGrad()
		c := rt.Full(3, 3)
		y := tensor.Mul(x, c)
		s := tensor.Sum(y)
		tensor.AddInPlace(c, c)
		s.Backward(1)
	})
	if err == nil || !strings.Contains(err.Error(), "mul saved for backward was changed in place") {
		t.Errorf("got error %v", err)
	}
}

func TestMisuseIsAnError(t *testing.T) {
	rt := runtime(t)
	for name, f := range map[string]func(){
		"shapes do not broadcast":    func() { tensor.Add(rt.Full(1, 2), rt.Full(1, 3)) },
		"was used after its release": func() { x := rt.Full(1, 2); x.Release(); x.Release() },
		"a second time":              func() { s := tensor.Sum(rt.Full(1, 2).RequireGrad()); s.Backward(1); s.Backward(1) },
		"only a single element":      func() { tensor.Neg(rt.Full(1, 2).RequireGrad()).Backward(1) },
		"its value is gone":          func() { tensor.Exp(tensor.Neg(rt.Full(1, 2).RequireGrad()).Past()) },
		"gradient float32[2] of":     func() { tensor.Backward([]*tensor.Tensor{rt.Full(1, 3)}, []*tensor.Tensor{rt.Full(1, 2)}) },
		"no recorded operation made": func() { tensor.Sum(rt.Full(1, 2)).Backward(1) },
		"MatMul of":                  func() { tensor.MatMul(rt.Full(1, 2, 3), rt.Full(1, 2, 3)) },
		"Reshape of":                 func() { tensor.Reshape(rt.Full(1, 2, 3), 4, -1) },
		"every dimension must stand": func() { tensor.Permute(rt.Full(1, 2, 3), 0, 0) },
		"does not broadcast to":      func() { tensor.AddInPlace(rt.Full(1, 2), rt.Full(1, 4, 2)) },
		"than any memory holds":      func() { rt.Full(1, 1<<31, 1<<31) },
		"Slice [2:5:1]":              func() { tensor.Slice(rt.Full(1, 4), 0, 2, 5, 1) },
		"dimension 2 of a tensor":    func() { tensor.Sum(rt.Full(1, 4, 4), 2) },
		"only a leaf":                func() { tensor.Neg(rt.Full(1, 2).RequireGrad()).RequireGrad() },
		"more than 6 dimensions":     func() { rt.Full(1, 1, 1, 1, 1, 1, 1, 1) },
		"Upload of 4 bytes":          func() { rt.Full(1, 2).Upload(make([]byte, 4)) },
		"SelfAttention of qkv":       func() { tensor.SelfAttention(rt.Full(1, 1, 2, 9), 2, true) },
		"CrossEntropy of logits":     func() { tensor.CrossEntropy(rt.Full(1, 2, 3), rt.Full(1, 2), 0) },
		"AddInPlace to":              func() { tensor.AddInPlace(rt.Full(1, 2).RequireGrad(), rt.Full(1, 2)) },
		"needs a gradient":           func() { tensor.AddInPlace(tensor.Neg(rt.Full(1, 2).RequireGrad()), rt.Full(1, 2)) },
		"numbers are computed with":  func() { tensor.Exp(ints(rt, 1, 2)) },
		"mul of int32[2]":            func() { tensor.Mul(rt.Full(1, 2), ints(rt, 1, 2)) },
		"Concat along":               func() { tensor.Concat(0, rt.Full(1, 2), ints(rt, 1, 2)) },
		"want a dense int32":         func() { tensor.Where(rt.Full(1, 2), rt.Full(1, 2), rt.Full(1, 2)) },
		"Conv2D of float32[1 3 8 8]": func() { tensor.Conv2D(rt.Full(1, 1, 3, 8, 8), rt.Full(1, 4, 2, 3, 3), nil, tensor.ConvParams{}) },
		"Conv2D of float32[1 3 2 8]": func() { tensor.Conv2D(rt.Full(1, 1, 3, 2, 8), rt.Full(1, 4, 3, 3, 3), nil, tensor.ConvParams{}) },
		"BatchNorm of": func() {
			tensor.BatchNorm(rt.Full(1, 2, 3), rt.Full(1, 3), rt.Full(1, 2), tensor.BatchNormParams{Training: true})
		},
		"want 3 channels, got":       func() { tensor.BatchNorm(rt.Full(1, 2, 3), rt.Full(1, 3), rt.Full(1, 3), tensor.BatchNormParams{}) },
		"MaxPool2D of":               func() { tensor.MaxPool2D(rt.Full(1, 1, 1, 4, 4), tensor.PoolParams{Kernel: 2, Padding: 2}) },
		"window is larger":           func() { tensor.AvgPool2D(rt.Full(1, 1, 1, 4, 4), tensor.PoolParams{Kernel: 5}) },
		"want a probability below 1": func() { tensor.Dropout(rt.Full(1, 2), 1) },
		"TopK of":                    func() { tensor.TopK(rt.Full(1, 2), 3, 0) },
		"Gather of":                  func() { tensor.Gather(rt.Full(1, 2, 3), 1, ints(rt, 1, 2)) },
		"IndexAdd of":                func() { tensor.IndexAdd(rt.Full(1, 4, 3), 0, ints(rt, 1, 2), rt.Full(1, 2, 2)) },
		"with key mask int32[2]": func() {
			q := rt.Full(1, 1, 1, 2, 4)
			tensor.AttentionWith(q, q, q, tensor.AttentionOptions{KeyMask: ints(rt, 1, 1)})
		},
		"the second run of the functi": func() { unsteady(rt) },
	} {
		err := rt.Try(f)
		if name == "shapes do not broadcast" {
			name = "do not broadcast"
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want one with %q", err, name)
		}
		if n := rt.Live(); n != 0 {
			t.Fatalf("%q left %d handles", name, n)
		}
	}
}

func ints(rt *tensor.Runtime, v ...int32) *tensor.Tensor {
	return rt.FromInt32s(trace.Input, v, len(v))
}

// unsteady recomputes a function that does something else the second time.
func unsteady(rt *tensor.Runtime) {
	runs := 0
	y := tensor.Checkpoint(rt.Full(1, 2).RequireGrad(), func(x *tensor.Tensor) *tensor.Tensor {
		if runs++; runs > 1 {
			return tensor.Neg(x)
		}
		return tensor.Exp(x)
	})
	tensor.Sum(y).Backward(1)
}

// TestOutOfMemoryLeavesNothing runs a step under every capacity from nothing
// to enough: each failure is a typed error after which nothing is left, and
// the same step then fits where there is room.
func TestOutOfMemoryLeavesNothing(t *testing.T) {
	const rows = 64 << 10
	failed := 0
	for capacity := uint64(4 << 20); ; capacity += 4 << 20 {
		rt, mem := nullRuntime(t, capacity, nil)
		n := newNetwork(t, rt)
		before, live, mark := rt.Live(), mem.Stats().Live, rt.Mark()
		err := rt.Try(func() {
			x := rt.Empty(tensor.Float32, trace.Activation, rows, width)
			for range 3 {
				x = tensor.Checkpoint(x, n.block)
				x = n.block(x)
			}
			tensor.Mean(x).Backward(1)
			rt.Rewind(mark)
		})
		if err == nil {
			break
		}
		failed++
		if !errors.As(err, new(*alloc.OutOfMemoryError)) {
			t.Fatalf("capacity %d: %v", capacity, err)
		}
		for _, p := range n.params() {
			p.ZeroGrad()
		}
		if rt.Live() != before || mem.Stats().Live != live {
			t.Fatalf("capacity %d: %d handles and %d bytes are left, were %d and %d", capacity, rt.Live(), mem.Stats().Live, before, live)
		}
	}
	if failed < 10 {
		t.Errorf("only %d capacities were too small", failed)
	}
}

// TestBackwardInParts cuts a program in two, as stages of a pipeline do: the second
// half begins at a leaf with the first one's result, whose value is let go, and gives
// its gradient back. Two results of the first half have gradients. The gradients are
// those of the whole, to the last bit.
func TestBackwardInParts(t *testing.T) {
	rt := runtime(t)
	a := rt.FromFloat32s(trace.Parameter, []float32{1, -2, 3, 0.5, 2, -1}, 2, 3).RequireGrad()
	b := rt.FromFloat32s(trace.Parameter, []float32{0.3, 1, -1, 2, 0.1, 5}, 2, 3).RequireGrad()
	first := func() (y, loss *tensor.Tensor) {
		c := tensor.Mul(a, b)
		defer c.Release()
		return tensor.Gelu(c), tensor.Sum(c)
	}
	second := func(x *tensor.Tensor) *tensor.Tensor {
		m := tensor.Mul(x, b)
		defer m.Release()
		return tensor.Mean(m)
	}
	gradients := func() [][]float32 {
		defer a.ZeroGrad()
		defer b.ZeroGrad()
		return [][]float32{a.Grad().Float32s(), b.Grad().Float32s()}
	}

	y, part := first()
	loss := second(y)
	sum := tensor.Add(loss, part)
	sum.Backward(0.25)
	want := gradients()
	for _, x := range []*tensor.Tensor{y, part, loss, sum} {
		x.Release()
	}

	y, part = first()
	x := y.Detach().RequireGrad()
	past := y.Past()
	y.Release()
	loss = second(x)
	loss.Backward(0.25)
	g := x.Grad().Retain()
	x.Release()
	seed := rt.Full(0.25)
	tensor.Backward([]*tensor.Tensor{past, part}, []*tensor.Tensor{g, seed})
	got := gradients()
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("gradient %d is %v, want %v", i, got[i], want[i])
		}
	}
	for _, x := range []*tensor.Tensor{past, part, loss, a, b} {
		x.Release()
	}
}
