package tensor_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestDeferredChangesNothing: gradients of which some are put off are those of
// Backward, bit for bit, under a Record, in mixed precision, and of two programs on
// their way at once under random schedules.
func TestDeferredChangesNothing(t *testing.T) {
	rt := runtime(t)
	p, index := parameters(rt)
	defer release(append(p, index)...)
	store := useStore(t, rt)
	back := func(loss *tensor.Tensor) *tensor.Deferred {
		defer loss.Release()
		return tensor.BackwardDeferring([]*tensor.Tensor{loss}, []*tensor.Tensor{rt.Full(1)})
	}
	deferred := func() *tensor.Deferred { return back(program(rt, p, index)) }
	gradients := func() (all [][]float32) {
		for _, t := range p {
			all = append(all, t.Grad().Float32s())
			t.ZeroGrad()
		}
		return all
	}
	want := gradientsOf(rt, p, index)[1:]
	check := func(way string, want [][]float32) {
		t.Helper()
		if got := gradients(); !same(got, want) {
			t.Fatalf("%s: gradients differ", way)
		}
	}
	rec := rt.Record(nil, func() { deferred().Run() })
	check("recorded", want)
	deferred().Run()
	deferred().Run()
	twice := gradients()
	for seed := range uint64(100) {
		var losses [2]*tensor.Tensor
		var later [2]*tensor.Deferred
		var parts [2]func(func())
		for i := range parts {
			s := randomSchedule(rand.New(rand.NewPCG(seed, uint64(i))), rec)
			s.Online = seed%3 == 0
			part, end := rt.Following(s)
			defer end()
			parts[i] = part
		}
		for _, pass := range []func(i int){
			func(i int) { losses[i] = program(rt, p, index) },
			func(i int) { later[i] = back(losses[i]) },
			func(i int) { later[i].Run() },
		} {
			for i, part := range parts {
				part(func() { pass(i) })
			}
		}
		check("two at once", twice)
	}
	rt.Autocast(tensor.BFloat16, func() { want = gradientsOf(rt, p, index)[1:] })
	rt.Autocast(tensor.BFloat16, func() { deferred().Run() })
	check("in mixed precision", want)
	if store.live != 0 {
		t.Errorf("%d pieces of the store were not given back", store.live)
	}
}

// TestDeferredMemory: what is kept for gradients of weights is the inputs of products
// and the gradients of their results, with and without recompute, and gradients are
// reported when nothing is left to come.
func TestDeferredMemory(t *testing.T) {
	const blocks = 3
	rt := runtime(t)
	n := newNetwork(t, rt)
	told := map[string]int{}
	for name, p := range map[string]*tensor.Tensor{"up": n.up, "down": n.down, "gamma": n.gamma, "beta": n.beta, "bias": n.bias} {
		p.OnGradient(func() { told[name]++ })
	}
	live := func() int { return int(rt.Allocator().Stats().Live) }
	for _, block := range []func(x *tensor.Tensor) *tensor.Tensor{n.block, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, n.block) }} {
		clear(told)
		before := live()
		x := rt.FromFloat32s(trace.Input, slices.Repeat([]float32{1, 2, 3, 4}, 2*width), 8, width)
		for range blocks {
			y := block(x)
			x.Release()
			x = y
		}
		d := tensor.BackwardDeferring([]*tensor.Tensor{x}, []*tensor.Tensor{rt.Full(1, 8, width)})
		x.Release()
		gradients := 512 * 3 // of gamma, beta and bias, in blocks of the allocator
		const row = 4 * 8 * width
		if got, want := live()-before-gradients, blocks*(row+4*row+4*row+row); got != want {
			t.Errorf("%d bytes wait for the gradients of weights, want %d", got, want)
		}
		if told["up"]+told["down"] > 0 || told["gamma"]*told["beta"]*told["bias"] != 1 {
			t.Errorf("in backward %v were told of", told)
		}
		if !n.up.Awaited() || n.gamma.Awaited() {
			t.Error("backward did not say whose gradients are complete")
		}
		d.Run()
		if told["up"]*told["down"] != 1 || n.up.Awaited() {
			t.Errorf("behind it %v were told of", told)
		}
		n.gradients()
		if got := live(); got != before {
			t.Errorf("%d bytes are left", got-before)
		}
	}
}

// TestDeferredRecord: the record of a program knows how long a value lives that
// waits for the gradient of a weight, whether a product read it or a checkpoint.
func TestDeferredRecord(t *testing.T) {
	rt := runtime(t)
	n := newNetwork(t, rt)
	product := func(x *tensor.Tensor) *tensor.Tensor { return tensor.Linear(x, n.up, nil, false) }
	for name, f := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"plain":      product,
		"checkpoint": func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, product) },
	} {
		x := rt.Full(1, 8, width).RequireGrad()
		r := rt.Record(nil, func() {
			a := tensor.Scale(x, 2)
			y := f(a)
			a.Release()
			d := tensor.BackwardDeferring([]*tensor.Tensor{y}, []*tensor.Tensor{rt.Full(1, 8, 4*width)})
			y.Release()
			d.Run()
		})
		last := len(r.Ops) - 1
		value := slices.IndexFunc(r.Values, func(v tensor.RecordedValue) bool { return r.Ops[v.Op].Name == "scale" })
		held := r.Values[value].Freed == last || slices.ContainsFunc(r.Others, func(o tensor.RecordedOther) bool {
			return o.Freed == last && o.Bytes == r.Values[value].Bytes && slices.Contains(r.Ops[o.Made-1].Reads, value)
		})
		if op := r.Ops[last]; !held || op.Name != "linear" || !op.Back {
			t.Errorf("%s: %+v", name, r)
		}
		x.ZeroGrad()
		n.up.ZeroGrad()
		x.Release()
	}
}

// TestDeferredRewinds: a failure gives back what was put off, and nothing waits for it.
func TestDeferredRewinds(t *testing.T) {
	rt := runtime(t)
	n := newNetwork(t, rt)
	before := rt.Live()
	if err := rt.Try(func() {
		x := rt.FromFloat32s(trace.Input, make([]float32, 8*width), 8, width)
		tensor.BackwardDeferring([]*tensor.Tensor{n.block(x)}, []*tensor.Tensor{rt.Full(1, 8, width)})
		rt.Full(0, 1<<40)
	}); err == nil || rt.Live() != before || n.up.Awaited() || n.down.Awaited() {
		t.Errorf("error %v, %d handles more; up is waited for: %v, down: %v", err, rt.Live()-before, n.up.Awaited(), n.down.Awaited())
	}
}
