package tensor_test

import (
	"testing"

	"github.com/headroom-go/headroom/tensor"
)

// TestAddLayerNorm compares with the operations one by one: in each precision, with
// dropout, of the tokens of a part, and of operands of two types. Of 16 bits the
// sum is rounded once here and twice there.
func TestAddLayerNorm(t *testing.T) {
	oneByOne := func(x, a, gamma, beta *tensor.Tensor, eps, p float32, part tensor.Part) *tensor.Tensor {
		d := tensor.DropoutPart(a, p, part)
		sum := tensor.Add(x, d)
		defer release(d, sum)
		return tensor.LayerNormLow(sum, gamma, beta, eps)
	}
	type operation func(x, a, gamma, beta *tensor.Tensor, eps, p float32, part tensor.Part) *tensor.Tensor
	for d, tolerance := range map[tensor.DType]float64{tensor.Float32: 1e-6, tensor.BFloat16: 1e-2, tensor.Float16: 2e-3} {
		for _, c := range []struct {
			p    float32
			part tensor.Part
			low  bool // a has 16 bits
		}{{}, {p: 0.3, low: true}, {p: 0.3, part: tensor.Part{First: 5, All: 20}}, {low: true}} {
			rt := runtime(t)
			in := tensors{param(rt, 1, 3, 5, 24), param(rt, 2, 3, 5, 24), param(rt, 3, 24), param(rt, 4, 24)}
			results := func(f operation) (all [][]float32) {
				rt.SetSeed(11)
				var y *tensor.Tensor
				rt.Autocast(d, func() {
					a := in[1].Retain()
					if c.low {
						a.Release()
						a = in[1].To(d)
					}
					y = f(in[0], a, in[2], in[3], 1e-5, c.p, c.part)
					a.Release()
				})
				if y.DType() != d {
					t.Errorf("%s: the result is %v", d, y)
				}
				seed := random(rt, 5, y.Shape()...)
				tensor.Backward(tensors{y}, tensors{seed.To(d)})
				all = append(all, y.Float32s())
				release(y, seed)
				for _, p := range in {
					all = append(all, p.Grad().Float32s())
					p.ZeroGrad()
				}
				return all
			}
			got, want := results(tensor.AddLayerNorm), results(oneByOne)
			for i := range want {
				if e := relative(got[i], want[i]); !(e <= tolerance) {
					t.Errorf("%s, %+v: value %d is %.2g off", d, c, i, e)
				}
			}
			for what, f := range map[string]func(){
				"probability": func() { tensor.AddLayerNorm(in[0], in[1], in[2], in[3], 1e-5, 1, tensor.Part{}) },
				"shapes":      func() { tensor.AddLayerNorm(in[0], in[2], in[2], in[3], 1e-5, 0, tensor.Part{}) },
				"part":        func() { tensor.AddLayerNorm(in[0], in[1], in[2], in[3], 1e-5, 0, tensor.Part{First: 18, All: 20}) },
			} {
				if rt.Try(f) == nil {
					t.Errorf("%s: no error", what)
				}
			}
			release(in...)
		}
	}
}
