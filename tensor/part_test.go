package tensor_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestOnGradient: a leaf that is used twice, one inside a checkpoint, and one
// without a gradient: each of the first two is reported once in a backward, when
// its gradient has its final value.
func TestOnGradient(t *testing.T) {
	rt := runtime(t)
	twice, inside, unused := rt.Parameter(3), rt.Parameter(3), rt.Parameter(3)
	defer release(twice, inside, unused)
	for _, p := range []*tensor.Tensor{twice, inside, unused} {
		p.Set([]float32{1, 2, 3})
	}
	var told []string
	seen := map[string][]float32{}
	for name, p := range map[string]*tensor.Tensor{"twice": twice, "inside": inside, "unused": unused} {
		p.OnGradient(func() {
			told = append(told, name)
			seen[name] = p.Grad().Float32s()
		})
	}
	for round := range 3 {
		told = nil
		a := tensor.Mul(twice, twice)
		if round == 1 { // a backward that fails leaves nothing behind
			if err := rt.Try(func() {
				broken := tensor.Together(tensor.Mul(twice, twice), tensor.Collective{Name: "broken", Forward: func(dst, src *tensor.Tensor) {},
					Backward: func(dst, src *tensor.Tensor) { tensor.Fail(errors.New("broken")) }}, 3)
				tensor.Sum(tensor.Mul(tensor.Mul(broken, inside), twice)).Backward(1)
			}); err == nil {
				t.Error("a broken backward did not fail")
			}
			twice.ZeroGrad()
			inside.ZeroGrad()
			told = nil
		}
		b := tensor.Checkpoint(a, func(x *tensor.Tensor) *tensor.Tensor {
			y := tensor.Mul(x, inside)
			defer y.Release()
			return tensor.Mul(y, inside)
		})
		c := tensor.Mul(b, twice)
		sum := tensor.Sum(c) // of twice³·inside²
		sum.Backward(1)
		release(a, b, c, sum)
		if !slices.Equal(told, []string{"inside", "twice"}) {
			t.Errorf("told of %v", told)
		}
		for name, p := range map[string]*tensor.Tensor{"twice": twice, "inside": inside} {
			if got := p.Grad().Float32s(); !slices.Equal(seen[name], got) {
				t.Errorf("%s: the gradient was %v when it was told of, and is %v", name, seen[name], got)
			}
			p.ZeroGrad()
		}
	}
}

// TestPart: a part shares the memory, and has a gradient of its own.
func TestPart(t *testing.T) {
	rt := runtime(t)
	p := rt.Parameter(2, 3)
	p.Set([]float32{0, 1, 2, 3, 4, 5})
	part := p.Part(2, 5, 0)
	if got := part.Float32s(); !slices.Equal(got, []float32{2, 3, 4}) || part.Ptr() != p.Ptr()+8 {
		t.Errorf("the part is %v at %d of %d", got, part.Ptr(), p.Ptr())
	}
	part.Set([]float32{7, 8, 9})
	if got := p.Float32s(); !slices.Equal(got, []float32{0, 1, 7, 8, 9, 5}) {
		t.Errorf("the whole is %v", got)
	}
	for _, g := range [][]float32{{1, 2, 3}, {10, 20, 30}} {
		part.SetGrad(rt.FromFloat32s(trace.Gradient, g, 3))
	}
	if got := part.Grad().Float32s(); !slices.Equal(got, []float32{11, 22, 33}) || p.Grad() != nil {
		t.Errorf("the part's gradient is %v, the whole's %v", got, p.Grad())
	}
	p.NeedGrad()
	if got := p.Grad().Float32s(); !slices.Equal(got, make([]float32, 6)) {
		t.Errorf("a gradient of zeros is %v", got)
	}
	part.ZeroGrad()
	p.ZeroGrad()
	release(part, p)
	for name, f := range map[string]func(){"range": func() { rt.Parameter(4).Part(3, 5, 0) }, "gradient": func() { rt.Parameter(4).SetGrad(rt.Full(0, 5)) }} {
		if err := rt.Try(f); err == nil {
			t.Errorf("a wrong %s was taken", name)
		}
	}
}
