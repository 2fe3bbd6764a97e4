package tensor_test

import (
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestLinearJoined compares with the layers one by one, their results put together: in
// each precision, of weights of which some want no gradient, of an input that
// wants none, with gradients of weights put off, and added to others.
func TestLinearJoined(t *testing.T) {
	oneByOne := func(x *tensor.Tensor, ws, biases tensors) *tensor.Tensor {
		var parts tensors
		defer func() { release(parts...) }()
		for i, w := range ws {
			parts = append(parts, tensor.Linear(x, w, biases[i], true))
		}
		return tensor.Concat(-1, parts...)
	}
	for d, tolerance := range map[tensor.DType]float64{tensor.Float32: 1e-6, tensor.BFloat16: 8e-3, tensor.Float16: 1e-3} {
		for without := range 4 { // which input wants no gradient; 3: each does
			rt := runtime(t)
			inputs := tensors{random(rt, 1, 3, 5, 16)}
			for i, out := range []int{8, 24, 8} {
				inputs = append(inputs, random(rt, uint64(2+i), out, 16), random(rt, uint64(5+i), out))
			}
			for i, in := range inputs {
				if i != without {
					in.RequireGrad()
				}
			}
			ws, biases := tensors{inputs[1], inputs[3], inputs[5]}, tensors{inputs[2], inputs[4], inputs[6]}
			results := func(f func(x *tensor.Tensor, ws, biases tensors) *tensor.Tensor) (all [][]float32) {
				for _, later := range []bool{false, true, true} {
					var y *tensor.Tensor
					rt.Autocast(d, func() { y = f(inputs[0], ws, biases) })
					all = append(all, y.Float32s())
					seed := random(rt, 9, y.Shape()...)
					if later {
						tensor.BackwardDeferring(tensors{y}, tensors{seed.To(y.DType())}).Run()
					} else {
						tensor.Backward(tensors{y}, tensors{seed.To(y.DType())})
					}
					release(y, seed)
					for _, in := range inputs {
						if g := in.Grad(); g != nil {
							all = append(all, g.Float32s())
						}
					}
				}
				for _, in := range inputs {
					in.ZeroGrad()
				}
				return all
			}
			got, want := results(tensor.LinearJoined), results(oneByOne)
			for i := range want {
				if e := relative(got[i], want[i]); len(got) != len(want) || !(e <= tolerance) {
					t.Errorf("%s, without the gradient of %d: %d of %d values is %.2g off", d, without, i, len(want), e)
				}
			}
			release(inputs...)
		}
	}
}

// TestLinearJoinedPlaces: the result of a layer lies where it does if the others have
// other weights, to the last bit.
func TestLinearJoinedPlaces(t *testing.T) {
	rt := runtime(t)
	x := rt.FromFloat32s(trace.Input, []float32{1, 2, 3, 4}, 2, 2)
	unit, twice := rt.FromFloat32s(trace.Input, []float32{1, 0, 0, 1}, 2, 2), rt.FromFloat32s(trace.Input, []float32{2, 2}, 1, 2)
	b1, b2 := rt.FromFloat32s(trace.Input, []float32{0, 10}, 2), rt.FromFloat32s(trace.Input, []float32{100}, 1)
	y := tensor.LinearJoined(x, tensors{unit, twice}, tensors{b1, b2})
	defer release(x, unit, twice, b1, b2, y)
	if want := []float32{1, 12, 106, 3, 14, 114}; !same([][]float32{y.Float32s()}, [][]float32{want}) {
		t.Errorf("%v, want %v", y.Float32s(), want)
	}
	for what, f := range map[string]func(){
		"no weights":     func() { tensor.LinearJoined(x, nil, nil) },
		"a bias too few": func() { tensor.LinearJoined(x, tensors{unit, twice}, tensors{b1}) },
		"another width":  func() { tensor.LinearJoined(x, tensors{b1}, tensors{b1}) },
	} {
		if rt.Try(f) == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
