package tensor_test

import (
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

type tensors = []*tensor.Tensor

// operators are the golden cases in use, as functions of their floating-point inputs.
var operators = map[string]func(c *goldenCase, in tensors) *tensor.Tensor{
	"add_broadcast":     func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Add(in[0], in[1]) },
	"mul_broadcast":     func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Mul(in[0], in[1]) },
	"sub":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Sub(in[0], in[1]) },
	"div":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Div(in[0], in[1]) },
	"matmul_2d":         func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.MatMul(in[0], in[1]) },
	"matmul_batched":    func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.MatMul(in[0], in[1]) },
	"matmul_broadcast":  func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.MatMul(in[0], in[1]) },
	"matmul_transposed": matmulTransposed,
	"linear":            func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Linear(in[0], in[1], in[2], true) },
	"relu":              func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Relu(in[0]) },
	"gelu_tanh":         func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Gelu(in[0]) },
	"tanh":              func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Tanh(in[0]) },
	"exp":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Exp(in[0]) },
	"log":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Log(in[0]) },
	"sqrt":              func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Sqrt(in[0]) },
	"pow2":              func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Mul(in[0], in[0]) },
	"softmax":           func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Softmax(in[0]) },
	"cross_entropy":     crossEntropy,
	"layer_norm":        func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.LayerNorm(in[0], in[1], in[2], 1e-5) },
	"embedding":         embedding,
	"sdpa":              func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Attention(in[0], in[1], in[2], false) },
	"sdpa_causal":       func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Attention(in[0], in[1], in[2], true) },
	"sum_dim":           sumDim,
	"mean_all":          func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Mean(in[0]) },
	"permute":           func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Permute(in[0], 2, 0, 1) },
	"slice":             func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Slice(in[0], 1, 1, 5, 2) },
	"cat":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Concat(1, in...) },
	"expand":            func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Expand(in[0], 3, 4, 5) },
}

func matmulTransposed(_ *goldenCase, in tensors) *tensor.Tensor {
	bt := tensor.Transpose(in[1], -1, -2)
	defer bt.Release()
	return tensor.MatMul(in[0], bt)
}

func crossEntropy(c *goldenCase, in tensors) *tensor.Tensor {
	targets := c.rt.FromInt32s(trace.Input, c.values.Int32s("cross_entropy/in1"), 6)
	defer targets.Release()
	return tensor.CrossEntropy(in[0], targets, -100)
}

func embedding(c *goldenCase, in tensors) *tensor.Tensor {
	index := c.rt.FromInt32s(trace.Input, []int32{3, 10, 4, 10, 8, 3, 8, 7, 1, 1, 2, 3, 1, 0, 10}, 3, 5)
	defer index.Release()
	return tensor.Embedding(in[0], index)
}

func sumDim(_ *goldenCase, in tensors) *tensor.Tensor {
	s := tensor.Sum(in[0], 1)
	defer s.Release()
	return tensor.Reshape(s, 3, 5)
}

type goldenCase struct {
	rt     *tensor.Runtime
	values golden.Values
}

// TestGoldenOperators compares each operator and its gradients with PyTorch's
// values, computed in float64.
func TestGoldenOperators(t *testing.T) {
	values := golden.Open(t, "testdata/ops.safetensors")
	for name, op := range operators {
		t.Run(name, func(t *testing.T) {
			c := &goldenCase{runtime(t), values}
			var in tensors
			for i := 0; values.Has(operand(name, "grad_in", i)); i++ {
				in = append(in, c.load(operand(name, "in", i)).RequireGrad())
			}
			out := op(c, in)
			golden.Near(t, "result", out.Float32s(), values.Float32s(operand(name, "out", 0)), 1e-5)
			g := c.load(operand(name, "grad_out", 0))
			product := tensor.Mul(out, g)
			loss := tensor.Sum(product)
			release(product, out, g)
			loss.Backward(1)
			loss.Release()
			for i, x := range in {
				golden.Near(t, operand("gradient of", "in", i), x.Grad().Float32s(), values.Float32s(operand(name, "grad_in", i)), 1e-5)
			}
			release(in...)
		})
	}
}

func operand(name, part string, i int) string { return name + "/" + part + string(rune('0'+i)) }

func (c *goldenCase) load(name string) *tensor.Tensor {
	return c.rt.FromFloat32s(trace.Input, c.values.Float32s(name), c.values.Shape(name)...)
}

func release(ts ...*tensor.Tensor) {
	for _, t := range ts {
		t.Release()
	}
}
