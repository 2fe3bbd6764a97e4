package nn

import (
	"math"
	"slices"

	"github.com/headroom-go/headroom/tensor"
)

// Layers of images take them in the order that the device prefers (see
// tensor.Runtime.ChannelsLast): [B, channels, H, W] or [B, H, W, channels].
// Parameters have one order everywhere.

// Conv2D is a convolution of images without bias.
type Conv2D struct {
	Weight *Parameter // [out, in, size, size]

	stride, pad int
	last        bool // the images' channels lie last
	place
}

// Conv2D gives a layer of square kernels with weights from N(0, 2/(out·size²))
// (He et al., "Delving Deep into Rectifiers", 2015) that pads by half a kernel.
func (b *Builder) Conv2D(name string, in, out, size, stride int) *Conv2D {
	std := math.Sqrt(2 / float64(out*size*size))
	return &Conv2D{b.Normal(name+".weight", std, out, in, size, size), stride, size / 2, b.rt.ChannelsLast(), b.place(name)}
}

// Parameters gives the weight.
func (c *Conv2D) Parameters() []*Parameter { return []*Parameter{c.Weight} }

// Forward gives images of out channels, H/stride high and W/stride wide,
// rounded up.
func (c *Conv2D) Forward(x *tensor.Tensor) *tensor.Tensor {
	return c.call(c, x, func(x *tensor.Tensor) *tensor.Tensor {
		p := tensor.ConvParams{Stride: c.stride, Padding: c.pad, ChannelsLast: c.last}
		if spare := -c.Weight.Dim(1) & (wholeChannels - 1); c.last && spare != 0 {
			x, w := withZeros(x, -1, spare), withZeros(c.Weight.Tensor, 1, spare)
			defer x.Release()
			defer w.Release()
			return tensor.Conv2D(x, w, nil, p)
		}
		return tensor.Conv2D(x, c.Weight.Tensor, nil, p)
	})
}

// wholeChannels is the number of which channels that lie last should be a
// multiple: GPUs load 16 bytes at once, and are many times slower otherwise.
const wholeChannels = 8

// withZeros is x with so many zeros behind its elements along a dimension.
func withZeros(x *tensor.Tensor, dim, spare int) *tensor.Tensor {
	shape := slices.Clone(x.Shape())
	shape[(dim+len(shape))%len(shape)] = spare
	zero := x.Runtime().Full(0, 1)
	defer zero.Release()
	zeros := tensor.Expand(zero, shape...)
	defer zeros.Release()
	return tensor.Concat(dim, x, zeros)
}

// BatchNorm normalises the channels of images over the batch (Ioffe and
// Szegedy, 2015), and outside training by what it has seen.
type BatchNorm struct {
	Weight, Bias            *Parameter
	RunningMean, RunningVar *Parameter // buffers
	Momentum, Eps           float32

	mode *Mode
	last bool // the images' channels lie last
	place
}

// BatchNorm gives a layer with weights of 1 and a bias of 0.
func (b *Builder) BatchNorm(name string, channels int) *BatchNorm {
	return &BatchNorm{
		Weight:      b.Constant(name+".weight", 1, channels),
		Bias:        b.Constant(name+".bias", 0, channels),
		RunningMean: b.Buffer(name+".running_mean", 0, channels),
		RunningVar:  b.Buffer(name+".running_var", 1, channels),
		Momentum:    0.1, Eps: 1e-5, mode: b.Mode, last: b.rt.ChannelsLast(), place: b.place(name),
	}
}

// Parameters gives weight and bias.
func (n *BatchNorm) Parameters() []*Parameter { return []*Parameter{n.Weight, n.Bias} }

// Buffers gives the running statistics.
func (n *BatchNorm) Buffers() []*Parameter { return []*Parameter{n.RunningMean, n.RunningVar} }

// Forward keeps the shape of x. In training it moves the running statistics.
func (n *BatchNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	return n.forward(x, tensor.BatchNormParams{})
}

// Relu is ReLU of what Forward gives, plus the residual unless that is nil.
func (n *BatchNorm) Relu(x, residual *tensor.Tensor) *tensor.Tensor {
	return n.forward(x, tensor.BatchNormParams{Residual: residual, Relu: true})
}

func (n *BatchNorm) forward(x *tensor.Tensor, p tensor.BatchNormParams) *tensor.Tensor {
	return n.call(n, x, func(x *tensor.Tensor) *tensor.Tensor {
		p.Mean, p.Var, p.Momentum, p.Eps = n.RunningMean.Tensor, n.RunningVar.Tensor, n.Momentum, n.Eps
		p.Training, p.ChannelsLast = n.mode.Training, n.last
		return tensor.BatchNorm(x, n.Weight.Tensor, n.Bias.Tensor, p)
	})
}
