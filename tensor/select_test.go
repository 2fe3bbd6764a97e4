package tensor_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestAlongAnyDimension: an operation along a dimension is the one along the
// last dimension of the permuted tensor, in values and gradients.
func TestAlongAnyDimension(t *testing.T) {
	rt := runtime(t)
	for name, f := range map[string]func(x *tensor.Tensor, dim int) *tensor.Tensor{
		"softmax":     tensor.SoftmaxDim,
		"log softmax": tensor.LogSoftmax,
		"cumulative":  tensor.CumSum,
		"greatest":    func(x *tensor.Tensor, dim int) *tensor.Tensor { return first(tensor.TopK(x, 2, dim)) },
		"gather": func(x *tensor.Tensor, dim int) *tensor.Tensor {
			shape := slices.Clone(x.Shape())
			shape[(dim+3)%3] = 2
			index := rt.FromInt32s(trace.Input, slices.Repeat([]int32{1}, shape[0]*shape[1]*shape[2]), shape...)
			defer index.Release()
			return tensor.Gather(x, dim, index)
		},
		"select": func(x *tensor.Tensor, dim int) *tensor.Tensor {
			index := ints(rt, 1, 0, 1)
			defer index.Release()
			return tensor.IndexSelect(x, dim, index)
		},
		"add": func(x *tensor.Tensor, dim int) *tensor.Tensor {
			index := ints(rt, 1, 1)
			defer index.Release()
			part := tensor.Slice(x, dim, 0, 2, 1)
			defer part.Release()
			return tensor.IndexAdd(x, dim, index, part)
		},
	} {
		for dim := range 3 {
			values, gradient := alongDimension(rt, func(x *tensor.Tensor) *tensor.Tensor { return f(x, dim) })
			wantValues, wantGradient := alongDimension(rt, func(x *tensor.Tensor) *tensor.Tensor {
				p := tensor.Transpose(x, dim, 2)
				defer p.Release()
				y := f(p, -1)
				defer y.Release()
				return tensor.Transpose(y, dim, 2)
			})
			golden.Near(t, name, values, wantValues, 1e-6)
			golden.Near(t, "gradient of "+name, gradient, wantGradient, 1e-6)
		}
	}
}

// alongDimension gives f of a tensor and the gradient of a sum of its squares.
func alongDimension(rt *tensor.Runtime, f func(x *tensor.Tensor) *tensor.Tensor) (values, gradient []float32) {
	x := normals(rt, rand.New(rand.NewPCG(1, 1)), 3, 4, 5).RequireGrad()
	defer x.Release()
	y := f(x)
	s := tensor.Mul(y, y)
	values = y.Float32s()
	y.Release()
	loss := tensor.Sum(s)
	s.Release()
	loss.Backward(1)
	loss.Release()
	return values, x.Grad().Float32s()
}

// TestIndexValues: the operations that pick elements, on numbers one can see.
func TestIndexValues(t *testing.T) {
	rt := runtime(t)
	x := rt.FromFloat32s(trace.Input, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	row, src := ints(rt, 0, 0), rt.Full(10, 2, 3)
	columns := rt.FromInt32s(trace.Input, []int32{1, 0, 0}, 1, 3)
	mask := tensor.Equal(columns, 0)
	defer release(x, row, src, columns, mask)
	for _, c := range []struct {
		name string
		got  *tensor.Tensor
		want []float32
	}{
		{"select rows", tensor.IndexSelect(x, 0, row), []float32{1, 2, 3, 1, 2, 3}},
		{"select columns", tensor.IndexSelect(x, 1, row), []float32{1, 1, 4, 4}},
		{"add", tensor.IndexAdd(x, 0, row, src), []float32{21, 22, 23, 4, 5, 6}},
		{"gather", tensor.Gather(x, 0, columns), []float32{4, 2, 3}},
		{"fill", tensor.MaskedFill(x, mask, -1), []float32{1, -1, -1, 4, -1, -1}},
		{"where", tensor.Where(mask, src, x), []float32{1, 10, 10, 4, 10, 10}},
		{"sums", tensor.CumSum(x, 0), []float32{1, 2, 3, 5, 7, 9}},
	} {
		if got := c.got.Float32s(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		c.got.Release()
	}
	values, index := tensor.Max(x, 0)
	if got := index.Int32s(); !slices.Equal(got, []int32{1, 1, 1}) {
		t.Errorf("the greatest are in rows %v", got)
	}
	release(values, index)
}
