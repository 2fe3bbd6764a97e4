package tensor_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/tensor"
)

// TestScope: what f made is gone, what it returns stays, with all that its
// backward needs: the gradients are those of careful releases.
func TestScope(t *testing.T) {
	rt := runtime(t)
	n := newNetwork(t, rt)
	want := n.step(rt, func(_ int, x *tensor.Tensor) *tensor.Tensor { return n.block(x) })
	gradients := n.gradients()
	careless := func(x *tensor.Tensor) *tensor.Tensor {
		return rt.Scope(func() []*tensor.Tensor {
			h := tensor.LayerNorm(x, n.gamma, n.beta, 1e-5)
			return []*tensor.Tensor{tensor.Add(x, tensor.Linear(tensor.Gelu(tensor.Linear(h, n.up, n.bias, false)), n.down, nil, false)), nil}
		})[0]
	}
	for _, block := range []func(*tensor.Tensor) *tensor.Tensor{
		careless,
		func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, careless) },
		func(x *tensor.Tensor) *tensor.Tensor {
			return rt.Scope(func() []*tensor.Tensor { return []*tensor.Tensor{tensor.Checkpoint(x, n.block)} })[0]
		},
	} {
		before := rt.Live()
		rt.Scope(func() []*tensor.Tensor { // the whole step in one, gradients included
			if got := n.step(rt, func(_ int, x *tensor.Tensor) *tensor.Tensor { return block(x) }); got != want {
				t.Errorf("loss %v, want %v", got, want)
			}
			return nil
		})
		if got := rt.Live(); got != before+len(n.params()) {
			t.Errorf("%d handles are live, want %d and the gradients", got, before)
		}
		for i, g := range n.gradients() {
			if !slices.Equal(g, gradients[i]) {
				t.Errorf("gradient %d differs", i)
			}
		}
	}
}

// TestRandomScopes nests scopes that make, keep and release handles at random;
// a set of those that must be live is the oracle.
func TestRandomScopes(t *testing.T) {
	rt := runtime(t)
	r := rand.New(rand.NewPCG(5, 5))
	var run func(depth int) []*tensor.Tensor
	run = func(depth int) []*tensor.Tensor {
		before := rt.Live()
		kept := rt.Scope(func() []*tensor.Tensor {
			var mine []*tensor.Tensor
			for range 1 + r.IntN(6) {
				switch {
				case depth < 4 && r.IntN(3) == 0:
					mine = append(mine, run(depth+1)...)
				case len(mine) > 0 && r.IntN(3) == 0:
					i := r.IntN(len(mine))
					mine[i].Release()
					mine = slices.Delete(mine, i, i+1)
				default:
					mine = append(mine, rt.Full(1, 2))
				}
			}
			return mine[r.IntN(len(mine)+1):]
		})
		if got := rt.Live(); got != before+len(kept) {
			t.Fatalf("%d handles are live after a scope that kept %d, %d before", got, len(kept), before)
		}
		for _, k := range kept {
			if k.Float32s()[0] != 1 {
				t.Fatal("a kept handle lost its value")
			}
		}
		return kept
	}
	for range 50 {
		release(run(0)...)
	}
}

// TestFailedScope: a scope that fails leaves nothing behind under Try.
func TestFailedScope(t *testing.T) {
	rt := runtime(t)
	err := rt.Try(func() {
		rt.Scope(func() []*tensor.Tensor {
			tensor.Add(rt.Full(1, 2), rt.Full(1, 3))
			return nil
		})
	})
	if err == nil || rt.Live() != 0 {
		t.Errorf("error %v with %d handles live", err, rt.Live())
	}
}

// TestBackwardRetain: each backward through a kept graph gives the gradients
// of a single one, bit for bit, also where values are made again by recipe or
// by checkpoints, and the last one, which does not keep it, frees it.
func TestBackwardRetain(t *testing.T) {
	rt := runtime(t)
	n := newNetwork(t, rt)
	nested := func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.Checkpoint(x, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, n.block) })
	}
	loss := func() *tensor.Tensor {
		return rt.Scope(func() []*tensor.Tensor {
			x := rt.Full(0.5, 8, width)
			for _, f := range []func(*tensor.Tensor) *tensor.Tensor{n.block, nested, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, n.block) }, n.block} {
				x = f(x)
			}
			return []*tensor.Tensor{tensor.Mean(tensor.Mul(tensor.Exp(x), tensor.Softmax(x)))}
		})[0]
	}
	before := rt.Live()
	once := loss()
	once.Backward(1)
	once.Release()
	want := n.gradients()
	again := loss()
	graph := rt.Live()
	for i, backward := range []func(float32){again.BackwardRetain, again.BackwardRetain, again.Backward} {
		backward(1)
		for j, g := range n.gradients() {
			if !slices.Equal(g, want[j]) {
				t.Errorf("backward %d: gradient %d differs", i, j)
			}
		}
		if i == 0 && rt.Live() < graph {
			t.Errorf("%d handles of %d are left of a kept graph", rt.Live(), graph)
		}
	}
	if err := rt.Try(func() { again.Backward(1) }); err == nil || !strings.Contains(err.Error(), "a second time") {
		t.Errorf("backward through a freed graph: %v", err)
	}
	again.Release()
	if got := rt.Live(); got != before {
		t.Errorf("%d handles are live, %d before", got, before)
	}
}

// TestRetainedChangeInPlaceIsFound changes a value between two backwards.
func TestRetainedChangeInPlaceIsFound(t *testing.T) {
	rt := runtime(t)
	err := rt.Try(func() {
		x := rt.Full(2, 3).RequireGrad()
		y := rt.Full(3, 3)
		s := tensor.Sum(tensor.Mul(x, y))
		s.BackwardRetain(1)
		tensor.AddInPlace(y, y)
		s.BackwardRetain(1)
	})
	if err == nil || !strings.Contains(err.Error(), "changed in place") {
		t.Errorf("got error %v", err)
	}
}
