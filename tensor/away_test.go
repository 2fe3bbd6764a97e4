package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// measured is a Store that counts bytes.
type measured struct {
	attic
	bytes uint64
}

func (m *measured) take(size uint64) ([]byte, func(), error) {
	m.bytes += size
	return m.attic.take(size)
}

// TestAwayForms sends a value away in each form and reads it back as half the
// gradient of its square: it is what it was, within the stated bounds, and half
// or a quarter of the bytes are moved.
func TestAwayForms(t *testing.T) {
	const n = 1000
	rt := runtime(t)
	useStore(t, rt)
	side, err := rt.Allocator().Device().NewStream()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(r.NormFloat64())
	}
	x := rt.FromFloat32s(trace.Parameter, want, n).RequireGrad()
	defer x.Release()
	s := &tensor.Schedule{Waits: []tensor.Wait{{Op: "scale", Reads: []int{0}, Away: true}}}
	for _, form := range []struct {
		as    tensor.AwayForm
		bytes uint64
		bound func(i int) float64
	}{
		{tensor.AwayExact, 4 * n, func(int) float64 { return 0 }},
		{tensor.AwayBFloat16, 2 * n, func(i int) float64 { return math.Abs(float64(want[i])) / 256 }},
		{tensor.AwayInt8, n + 4*16, func(i int) float64 { return greatest(want[i/64*64:min(n, i/64*64+64)])/254 + 1e-6 }},
	} {
		s.AwayAs = form.as
		store := &measured{}
		rt.UseStore(tensor.HostStore(store.take), side)
		rt.Follow(s, func() { square(x) })
		differ := 0
		for i, g := range x.Grad().Float32s() {
			e := math.Abs(float64(g)/2 - float64(want[i]))
			if e > form.bound(i) {
				t.Fatalf("as %q: %v is read as %v", form.as, want[i], g/2)
			}
			if e > 0 {
				differ++
			}
		}
		if store.bytes != form.bytes || store.live != 0 || (differ == 0) != (form.as == tensor.AwayExact) {
			t.Errorf("as %q: %d bytes were moved, %d pieces are left, %d numbers differ", form.as, store.bytes, store.live, differ)
		}
		x.ZeroGrad()
	}
	if tensor.AwayForm("int4").Validate() == nil {
		t.Error("int4 is no form")
	}
}

// square computes Σ (1·x)² and its gradient.
func square(x *tensor.Tensor) {
	y := tensor.Scale(x, 1)
	z := tensor.Mul(y, y)
	y.Release()
	loss := tensor.Sum(z)
	z.Release()
	loss.Backward(1)
	loss.Release()
}

func greatest(x []float32) (most float64) {
	for _, v := range x {
		most = max(most, math.Abs(float64(v)))
	}
	return most
}
