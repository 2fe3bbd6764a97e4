package tensor_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestLinearCrossEntropy compares losses and gradients with those of the two
// operations that it is made of. Logits of some rows at a time give the same bits as
// those of all rows on the host; libraries of a GPU's add up products of other sizes
// in other orders.
func TestLinearCrossEntropy(t *testing.T) {
	const rows, in, classes = 3*tensor.LogitRows + 37, 24, 51
	for _, precision := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		r := rand.New(rand.NewPCG(1, 2))
		rt := runtime(t)
		x, w, b := random(rt, 1, rows, in).RequireGrad(), param(rt, 2, classes, in), param(rt, 3, classes)
		labels := make([]int32, rows)
		for i := range labels {
			labels[i] = int32(r.IntN(classes+9)) - 9
			if labels[i] < 0 {
				labels[i] = -1
			}
		}
		targets := rt.FromInt32s(trace.Input, labels, rows)
		p := tensor.CrossEntropyParams{Ignore: -1, Smoothing: 0.1}
		leaves := []*tensor.Tensor{x, w, b}
		inParts := func(rows int) [][]float32 {
			return lossAndGrads(rt, precision, leaves, func() (loss *tensor.Tensor) {
				rt.WithLogitRows(rows, func() { loss = tensor.LinearCrossEntropy(x, w, b, targets, p) })
				return loss
			})
		}
		want := lossAndGrads(rt, precision, leaves, func() *tensor.Tensor {
			y := tensor.Linear(x, w, b, true)
			defer y.Release()
			return tensor.CrossEntropyWith(y, targets, p)
		})
		got := inParts(0)
		tolerance := map[tensor.DType]float64{tensor.Float32: 1e-6, tensor.BFloat16: 2e-2, tensor.Float16: 3e-3}[precision]
		compare := func(got [][]float32) {
			for i := range want {
				most := float64(largest(want[i]))
				for j, v := range want[i] {
					if !(math.Abs(float64(got[i][j]-v)) <= tolerance*most) {
						t.Fatalf("%s: number %d of result %d is %v, want %v", precision, j, i, got[i][j], v)
					}
				}
			}
		}
		compare(got)
		for _, n := range []int{tensor.LogitRows, 2 * tensor.LogitRows} {
			parts := inParts(n)
			compare(parts)
			if devicetest.Chosen() == "" && !slices.EqualFunc(parts, got, slices.Equal[[]float32]) {
				t.Errorf("%s, logits of %d rows at a time: other bits than those of all rows", precision, n)
			}
		}
		release(x, w, b, targets)
	}
}

// TestLogitRows: a part of other rows than a multiple of LogitRows is refused.
func TestLogitRows(t *testing.T) {
	rt := runtime(t)
	for _, n := range []int{-tensor.LogitRows, tensor.LogitRows + 1} {
		if err := rt.Try(func() { rt.WithLogitRows(n, func() {}) }); err == nil {
			t.Errorf("logits of %d rows at a time: no error", n)
		}
	}
}

// lossAndGrads gives the loss and the leaves' gradients of a tenth of it, added
// up over two backward passes through one graph.
func lossAndGrads(rt *tensor.Runtime, precision tensor.DType, leaves []*tensor.Tensor, loss func() *tensor.Tensor) [][]float32 {
	var l *tensor.Tensor
	rt.Autocast(precision, func() { l = loss() })
	l.BackwardRetain(0.1)
	l.Backward(0.1)
	results := [][]float32{l.Float32s()}
	l.Release()
	for _, leaf := range leaves {
		results = append(results, leaf.Grad().Float32s())
		leaf.ZeroGrad()
	}
	return results
}

func largest(x []float32) (most float32) {
	for _, v := range x {
		most = max(most, v, -v)
	}
	return most
}
