package tensor_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// deep computes a loss through n layers of 256 KiB and gives it with the
// gradient of x.
func deep(rt *tensor.Runtime, x, w *tensor.Tensor, layers int) (all [][]float32) {
	y := x.Retain()
	for range layers {
		h := tensor.Linear(y, w, nil, false)
		t := tensor.Tanh(h)
		h.Release()
		z := tensor.Add(y, t)
		t.Release()
		y.Release()
		y = z
	}
	loss := tensor.Sum(y)
	y.Release()
	defer loss.Release()
	all = append(all, loss.Float32s())
	loss.Backward(1)
	for _, p := range []*tensor.Tensor{x, w} {
		all = append(all, p.Grad().Float32s())
		p.ZeroGrad()
	}
	return all
}

// TestOnline runs a program that needs 30 MiB in 10, with and without a plan,
// and finds the same gradients.
func TestOnline(t *testing.T) {
	big := layers(t, "host:64MiB")
	want := deep(big.rt, big.x, big.w, 40)
	small := layers(t, "host:10MiB")
	mem := small.rt.Allocator()
	var tooMuch *alloc.OutOfMemoryError
	if err := small.rt.Try(func() { deep(small.rt, small.x, small.w, 40) }); !errors.As(err, &tooMuch) {
		t.Fatalf("a plain run in 10 MiB: %v", err)
	}
	small.x.ZeroGrad()
	small.w.ZeroGrad()
	half := &tensor.Schedule{Online: true} // lets every second result of tanh go by plan
	for i := range 40 {
		w := tensor.Wait{Op: "tanh", Reads: []int{1}}
		if i%2 == 0 {
			w.Reads = []int{0, 1}
		}
		half.Waits = append(half.Waits, tensor.Wait{Op: "linear"}, w, tensor.Wait{Op: "add"})
	}
	for name, s := range map[string]*tensor.Schedule{"no plan": {Online: true}, "half a plan": half} {
		before := mem.Stats().Evictions
		small.rt.Follow(s, func() {
			if got := deep(small.rt, small.x, small.w, 40); !same(got, want) {
				t.Errorf("%s: other gradients", name)
			}
		})
		if n := mem.Stats().Evictions - before; n == 0 {
			t.Errorf("%s: nothing was let go", name)
		} else {
			t.Logf("%s: %d times values were let go", name, n)
		}
	}
}

// TestOnlineCostsNoMemory compares peaks where there is room for everything.
func TestOnlineCostsNoMemory(t *testing.T) {
	l := layers(t, "host:64MiB")
	mem := l.rt.Allocator()
	peak := func(s *tensor.Schedule) uint64 {
		mem.ResetPeaks()
		l.rt.Follow(s, func() { deep(l.rt, l.x, l.w, 10) })
		return mem.Stats().PeakLive
	}
	if plain, online := peak(&tensor.Schedule{}), peak(&tensor.Schedule{Online: true}); online > plain {
		t.Errorf("peak %d online, %d plain", online, plain)
	}
}

type layered struct {
	rt   *tensor.Runtime
	x, w *tensor.Tensor
}

// layers gives the operands of deep on a device of its own.
func layers(t *testing.T, spec string) layered {
	t.Helper()
	rt := runtimeOn(t, spec)
	v := make([]float32, 256*256)
	for i := range v {
		v[i] = float32(i%97)/970 - 0.05
	}
	x := rt.FromFloat32s(trace.Parameter, v, 256, 256).RequireGrad()
	slices.Reverse(v)
	w := rt.FromFloat32s(trace.Parameter, v, 256, 256).RequireGrad()
	t.Cleanup(func() { release(x, w) })
	return layered{rt, x, w}
}
