package nn_test

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// checkNumerically compares each parameter's gradient with the change of the
// loss along it: where the gradient is g, the loss grows by |g| per unit.
func checkNumerically(t *testing.T, model nn.Module, loss func() *tensor.Tensor) {
	t.Helper()
	l := loss()
	l.Backward(1)
	l.Release()
	for _, p := range model.Parameters() {
		if p.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name)
			continue
		}
		w, g := p.Float32s(), p.Grad().Float32s()
		if norm := length(g); norm > 1e-4 {
			const h = 0.0005
			at := func(step float64) float64 {
				moved := make([]float32, len(w))
				for i := range w {
					moved[i] = w[i] + float32(step*float64(g[i])/norm)
				}
				p.Set(moved)
				return value(loss())
			}
			slope := (at(h) - at(-h)) / (2 * h)
			p.Set(w)
			if math.Abs(slope-norm) > 0.02*norm+1e-3 {
				t.Errorf("%s: the loss grows by %v along a gradient of length %v", p.Name, slope, norm)
			}
		}
	}
	nn.ZeroGrad(model)
}

// value is a loss that nobody needs any longer.
func value(l *tensor.Tensor) float64 {
	defer l.Release()
	return float64(l.Float32s()[0])
}

func length(v []float32) float64 {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum)
}
