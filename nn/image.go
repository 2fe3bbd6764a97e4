package nn

import (
	"math"

	"github.com/headroom-go/headroom/tensor"
)

// Conv2D is a convolution of images [B, in, H, W] without bias.
type Conv2D struct {
	Weight *Parameter // [out, in, size, size]

	stride, pad int
	place
}

// Conv2D gives a layer of square kernels with weights from N(0, 2/(out·size²))
// (He et al., "Delving Deep into Rectifiers", 2015) that pads by half a kernel.
func (b *Builder) Conv2D(name string, in, out, size, stride int) *Conv2D {
	std := math.Sqrt(2 / float64(out*size*size))
	return &Conv2D{b.Normal(name+".weight", std, out, in, size, size), stride, size / 2, b.place(name)}
}

// Parameters gives the weight.
func (c *Conv2D) Parameters() []*Parameter { return []*Parameter{c.Weight} }

// Forward gives [B, out, H/stride, W/stride], rounded up.
func (c *Conv2D) Forward(x *tensor.Tensor) *tensor.Tensor {
	return c.call(c, x, func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.Conv2D(x, c.Weight.Tensor, nil, tensor.ConvParams{Stride: c.stride, Padding: c.pad})
	})
}

// BatchNorm normalises the channels of images [B, C, H, W] over the batch
// (Ioffe and Szegedy, 2015), and outside training by what it has seen.
type BatchNorm struct {
	Weight, Bias            *Parameter
	RunningMean, RunningVar *Parameter // buffers
	Momentum, Eps           float32

	mode *Mode
	place
}

// BatchNorm gives a layer with weights of 1 and a bias of 0.
func (b *Builder) BatchNorm(name string, channels int) *BatchNorm {
	return &BatchNorm{
		Weight:      b.Constant(name+".weight", 1, channels),
		Bias:        b.Constant(name+".bias", 0, channels),
		RunningMean: b.Buffer(name+".running_mean", 0, channels),
		RunningVar:  b.Buffer(name+".running_var", 1, channels),
		Momentum:    0.1, Eps: 1e-5, mode: b.Mode, place: b.place(name),
	}
}

// Parameters gives weight and bias.
func (n *BatchNorm) Parameters() []*Parameter { return []*Parameter{n.Weight, n.Bias} }

// Buffers gives the running statistics.
func (n *BatchNorm) Buffers() []*Parameter { return []*Parameter{n.RunningMean, n.RunningVar} }

// Forward keeps the shape of x. In training it moves the running statistics.
func (n *BatchNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	return n.call(n, x, func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.BatchNorm(x, n.Weight.Tensor, n.Bias.Tensor, tensor.BatchNormParams{
			Mean: n.RunningMean.Tensor, Var: n.RunningVar.Tensor, Momentum: n.Momentum, Eps: n.Eps, Training: n.mode.Training})
	})
}
