package tensor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

type tensors = []*tensor.Tensor

// operators are the golden cases, as functions of their inputs; those that are
// not float32 are nil. A second result is compared if it is there.
var operators = map[string]func(c *goldenCase, in tensors) *tensor.Tensor{
	"add_broadcast":        two(tensor.Add),
	"mul_broadcast":        two(tensor.Mul),
	"sub":                  two(tensor.Sub),
	"div":                  two(tensor.Div),
	"matmul_2d":            two(tensor.MatMul),
	"matmul_batched":       two(tensor.MatMul),
	"matmul_broadcast":     two(tensor.MatMul),
	"matmul_transposed":    two(matmulTransposed),
	"linear":               func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Linear(in[0], in[1], in[2], true) },
	"relu":                 one(tensor.Relu),
	"gelu_erf":             one(tensor.GeluErf),
	"gelu_tanh":            one(tensor.Gelu),
	"silu":                 one(tensor.Silu),
	"tanh":                 one(tensor.Tanh),
	"sigmoid":              one(tensor.Sigmoid),
	"exp":                  one(tensor.Exp),
	"log":                  one(tensor.Log),
	"sqrt":                 one(tensor.Sqrt),
	"rsqrt":                one(tensor.RSqrt),
	"pow2":                 one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Mul(x, x) }),
	"abs":                  one(tensor.Abs),
	"clamp":                one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Clamp(x, -0.5, 0.7) }),
	"softmax":              one(tensor.Softmax),
	"softmax_dim1":         one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.SoftmaxDim(x, 1) }),
	"log_softmax":          one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.LogSoftmax(x, -1) }),
	"cross_entropy":        crossEntropy(tensor.CrossEntropyParams{Ignore: -100}),
	"cross_entropy_smooth": crossEntropy(tensor.CrossEntropyParams{Ignore: -100, Smoothing: 0.1}),
	"cross_entropy_sum":    crossEntropy(tensor.CrossEntropyParams{Ignore: -100, Sum: true}),
	"mse_loss":             two(tensor.MSE),
	"bce_with_logits":      two(tensor.BCEWithLogits),
	"layer_norm":           func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.LayerNorm(in[0], in[1], in[2], 1e-5) },
	"rms_norm":             two(func(x, gamma *tensor.Tensor) *tensor.Tensor { return tensor.RMSNorm(x, gamma, 1e-6) }),
	"batch_norm_train":     batchNorm(true),
	"batch_norm_eval":      batchNorm(false),
	"embedding":            embedding,
	"conv2d":               conv(tensor.ConvParams{Stride: 1, Padding: 1}),
	"conv2d_stride2":       conv(tensor.ConvParams{Stride: 2, Padding: 3}),
	"conv2d_nopad":         conv(tensor.ConvParams{}),
	"conv2d_groups":        conv(tensor.ConvParams{Groups: 4, Padding: 1}),
	"conv2d_1x1":           conv(tensor.ConvParams{}),
	"conv2d_dilated":       conv(tensor.ConvParams{Dilation: 2}),
	"max_pool2d": one(func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.MaxPool2D(x, tensor.PoolParams{Kernel: 3, Stride: 2, Padding: 1})
	}),
	"avg_pool2d":            one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.AvgPool2D(x, tensor.PoolParams{Kernel: 2}) }),
	"adaptive_avg_pool2d_1": one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.AdaptiveAvgPool2D(x, 1, 1) }),
	"sdpa":                  func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Attention(in[0], in[1], in[2], false) },
	"sdpa_causal":           func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Attention(in[0], in[1], in[2], true) },
	"sdpa_padding_mask":     paddedAttention,
	"sum_dim":               one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Sum(x, 1) }),
	"mean_all":              one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Mean(x) }),
	"max_dim":               one(func(x *tensor.Tensor) *tensor.Tensor { return first(tensor.Max(x, 1)) }),
	"var_unbiased":          one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Var(x, true, 1) }),
	"cumsum":                one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.CumSum(x, 1) }),
	"permute":               one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Permute(x, 2, 0, 1) }),
	"slice":                 one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Slice(x, 1, 1, 5, 2) }),
	"cat":                   func(_ *goldenCase, in tensors) *tensor.Tensor { return tensor.Concat(1, in...) },
	"index_select":          indexed(1, func(in tensors, at *tensor.Tensor) *tensor.Tensor { return tensor.IndexSelect(in[0], 0, at) }),
	"index_add":             indexed(1, func(in tensors, at *tensor.Tensor) *tensor.Tensor { return tensor.IndexAdd(in[0], 0, at, in[2]) }),
	"gather":                indexed(1, func(in tensors, at *tensor.Tensor) *tensor.Tensor { return tensor.Gather(in[0], 1, at) }),
	"where":                 indexed(0, func(in tensors, mask *tensor.Tensor) *tensor.Tensor { return tensor.Where(mask, in[1], in[2]) }),
	"masked_fill":           indexed(1, func(in tensors, mask *tensor.Tensor) *tensor.Tensor { return tensor.MaskedFill(in[0], mask, -1e9) }),
	"expand":                one(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Expand(x, 3, 4, 5) }),
	"topk":                  topK,
}

func one(f func(x *tensor.Tensor) *tensor.Tensor) func(*goldenCase, tensors) *tensor.Tensor {
	return func(_ *goldenCase, in tensors) *tensor.Tensor { return f(in[0]) }
}

func two(f func(a, b *tensor.Tensor) *tensor.Tensor) func(*goldenCase, tensors) *tensor.Tensor {
	return func(_ *goldenCase, in tensors) *tensor.Tensor { return f(in[0], in[1]) }
}

// first releases an index that nobody needs.
func first(values, index *tensor.Tensor) *tensor.Tensor {
	index.Release()
	return values
}

func matmulTransposed(a, b *tensor.Tensor) *tensor.Tensor {
	bt := tensor.Transpose(b, -1, -2)
	defer bt.Release()
	return tensor.MatMul(a, bt)
}

func crossEntropy(p tensor.CrossEntropyParams) func(*goldenCase, tensors) *tensor.Tensor {
	return indexed(1, func(in tensors, targets *tensor.Tensor) *tensor.Tensor {
		return tensor.CrossEntropyWith(in[0], targets, p)
	})
}

// indexed gives f input i, an index or a mask.
func indexed(i int, f func(in tensors, index *tensor.Tensor) *tensor.Tensor) func(*goldenCase, tensors) *tensor.Tensor {
	return func(c *goldenCase, in tensors) *tensor.Tensor {
		name := operand(c.name, "in", i)
		index := c.rt.FromInt32s(trace.Input, c.ints(name), c.values.Shape(name)...)
		defer index.Release()
		return f(in, index)
	}
}

func embedding(c *goldenCase, in tensors) *tensor.Tensor {
	index := c.rt.FromInt32s(trace.Input, []int32{3, 10, 4, 10, 8, 3, 8, 7, 1, 1, 2, 3, 1, 0, 10}, 3, 5)
	defer index.Release()
	return tensor.Embedding(in[0], index)
}

// batchNorm begins with running statistics of 0 and 1; those after it are
// results 1 and 2.
func batchNorm(training bool) func(*goldenCase, tensors) *tensor.Tensor {
	return func(c *goldenCase, in tensors) *tensor.Tensor {
		channels := in[0].Dim(1)
		mean, variance := c.rt.Full(0, channels), c.rt.Full(1, channels)
		defer release(mean, variance)
		y := tensor.BatchNorm(in[0], in[1], in[2], tensor.BatchNormParams{Mean: mean, Var: variance, Momentum: 0.1, Eps: 1e-5, Training: training})
		golden.Near(c.t, "running mean", mean.Float32s(), c.values.Float32s(operand(c.name, "out", 1)), 1e-5)
		golden.Near(c.t, "running variance", variance.Float32s(), c.values.Float32s(operand(c.name, "out", 2)), 1e-5)
		return y
	}
}

func conv(p tensor.ConvParams) func(*goldenCase, tensors) *tensor.Tensor {
	return func(_ *goldenCase, in tensors) *tensor.Tensor {
		return tensor.Conv2D(in[0], in[1], append(in, nil)[2], p)
	}
}

func paddedAttention(c *goldenCase, in tensors) *tensor.Tensor {
	mask := c.rt.FromInt32s(trace.Input, c.ints("sdpa_padding_mask/in3"), 2, 10)
	defer mask.Release()
	return tensor.AttentionWith(in[0], in[1], in[2], tensor.AttentionOptions{KeyMask: mask})
}

func topK(c *goldenCase, in tensors) *tensor.Tensor {
	values, index := tensor.TopK(in[0], 3, 1)
	defer index.Release()
	if got, want := index.Int32s(), c.ints("topk/out1"); !slices.Equal(got, want) {
		c.t.Errorf("indices %v, want %v", got, want)
	}
	return values
}

type goldenCase struct {
	t      *testing.T
	name   string
	rt     *tensor.Runtime
	values golden.Values
}

// ints is a tensor of int64 or bool.
func (c *goldenCase) ints(name string) []int32 {
	info, _ := c.values.File().Lookup(name)
	if info.DType != "BOOL" {
		return c.values.Int32s(name)
	}
	raw := make([]byte, info.Elements())
	if err := c.values.File().ReadBytes(name, raw); err != nil {
		c.t.Fatal(err)
	}
	out := make([]int32, len(raw))
	for i, b := range raw {
		out[i] = int32(b)
	}
	return out
}

// TestGoldenOperators compares each operator and its gradients with PyTorch's
// values, computed in float64.
func TestGoldenOperators(t *testing.T) {
	values := golden.Open(t, "testdata/ops.safetensors")
	for name, op := range operators {
		t.Run(name, func(t *testing.T) {
			c := &goldenCase{t, name, runtime(t), values}
			in := c.inputs()
			defer releaseSome(in)
			out := op(c, in)
			golden.Near(t, "result", out.Float32s(), values.Float32s(operand(name, "out", 0)), 1e-5)
			g := c.rt.FromFloat32s(trace.Input, values.Float32s(operand(name, "grad_out", 0)), out.Shape()...)
			product := tensor.Mul(out, g)
			loss := tensor.Sum(product)
			release(product, out, g)
			loss.Backward(1)
			loss.Release()
			for i, x := range in {
				if want := operand(name, "grad_in", i); values.Has(want) {
					golden.Near(t, operand("gradient of", "in", i), x.Grad().Float32s(), values.Float32s(want), 1e-5)
				}
			}
		})
	}
}

// TestGoldenOperatorsAreAll: every case of the file is tested.
func TestGoldenOperatorsAreAll(t *testing.T) {
	cases := map[string]bool{}
	for _, x := range golden.Open(t, "testdata/ops.safetensors").File().Tensors() {
		name, _, _ := strings.Cut(x.Name, "/")
		cases[name] = true
		if operators[name] == nil {
			t.Errorf("no operator for %s", name)
		}
	}
	if len(cases) != len(operators) {
		t.Errorf("%d cases, %d operators", len(cases), len(operators))
	}
}

// inputs loads the inputs; nil stands for those that are not float32.
func (c *goldenCase) inputs() (in tensors) {
	for i := 0; c.values.Has(operand(c.name, "in", i)); i++ {
		var x *tensor.Tensor
		name := operand(c.name, "in", i)
		if info, _ := c.values.File().Lookup(name); info.DType == safetensors.F32 {
			x = c.rt.FromFloat32s(trace.Input, c.values.Float32s(name), c.values.Shape(name)...)
		}
		if c.values.Has(operand(c.name, "grad_in", i)) {
			x.RequireGrad()
		}
		in = append(in, x)
	}
	return in
}

func releaseSome(ts tensors) {
	for _, t := range ts {
		if t != nil {
			t.Release()
		}
	}
}

func operand(name, part string, i int) string { return name + "/" + part + string(rune('0'+i)) }

func release(ts ...*tensor.Tensor) {
	for _, t := range ts {
		t.Release()
	}
}
