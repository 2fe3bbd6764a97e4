package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// How images are convolved on the host.
//
// A convolution is a product of matrices (Chellapilla, Puri and Simard, "High
// Performance Convolutional Neural Networks for Document Processing", 2006):
// with a column for each pixel of Y, holding the patch of X under it,
//
//	Y = W·patches    dW = dY·patchesᵀ    dX = Wᵀ·dY, each column added to its patch
//
// The matrix of patches is KH·KW times as large as X and is never stored:
// MatMul packs its operands anyway, and patches are packed from where they lie
// in X (see patches). With a stride of 1, dX is a convolution of dY and
// computed as such. With another, a band of columns of Wᵀ·dY at a time is
// computed in scratch memory and added to dX.
//
// Where the images of Y are small, several make one product, since columns of
// a product come by tiles. How many depends on the shape alone, as does the
// order in which patches overlap in dX.
//
// Images of 16 bits become float32 as their patches are packed, weights before.
// What is written with 16 bits gathers in float32 first, a few images (or the
// weight of a group) at a time.

// Conv describes a convolution of N images: X is [N, C, H, W], Weight
// [M, C/Groups, KH, KW] and Y [N, M, OH, OW], all dense. Bias, of M elements,
// may be missing. Strides, padding (zeros on both sides) and dilation are given down
// and across. With ChannelsLast, X is [N, H, W, C], Weight [M, KH, KW, C/Groups]
// and Y [N, OH, OW, M]: GPUs are fast with this order, and hosts slow.
type Conv struct {
	N, C, H, W            int
	M, KH, KW             int
	Groups                int
	Stride, Pad, Dilation [2]int
	ChannelsLast          bool
	X, Weight, Bias, Y    Array
}

var (
	convKernel           = &device.Kernel{Name: "conv", Host: microKernels[0].conv, CUDA: cudaConv("conv", device.ConvolutionY, 2)}
	convGradInputKernel  = &device.Kernel{Name: "conv_grad_input", Host: microKernels[0].convGradInput, CUDA: cudaConv("conv_grad_input", device.ConvolutionX, 0)}
	convGradWeightKernel = &device.Kernel{Name: "conv_grad_weight", Host: microKernels[0].convGradWeight, CUDA: cudaConv("conv_grad_weight", device.ConvolutionWeight, 1)}
)

// Convolve computes Y.
func Convolve(s device.Stream, c Conv) {
	c.check("Convolve")
	c.queue(s, convKernel, [...]Array{c.X, c.Weight, c.Y}, c.Bias, false)
}

// ConvGradInput sets dx to the gradient of X, or adds it with accumulate, from
// that of Y and the weight.
func ConvGradInput(s device.Stream, c Conv, dx, dy Array, accumulate bool) {
	c.check("ConvGradInput")
	c.queue(s, convGradInputKernel, [...]Array{dx, c.Weight, dy}, Array{}, accumulate)
}

// ConvGradWeight sets dw to the gradient of Weight, or adds it with
// accumulate, from that of Y and X.
func ConvGradWeight(s device.Stream, c Conv, dw, dy Array, accumulate bool) {
	c.check("ConvGradWeight")
	c.queue(s, convGradWeightKernel, [...]Array{c.X, dw, dy}, Array{}, accumulate)
}

// queue launches k on an image, a weight and a result (or their gradients).
func (c *Conv) queue(s device.Stream, k *device.Kernel, arrays [3]Array, bias Array, accumulate bool) {
	patch := c.patch()
	images, weights, results := c.N*c.C*c.H*c.W, c.M*patch, c.N*c.M*c.OH()*c.OW()
	need(k.Name, images, arrays[0])
	need(k.Name, weights, arrays[1])
	need(k.Name, results, arrays[2])
	l := device.Launch{Kernel: k, Bytes: arrays[0].bytes(images) + arrays[1].bytes(weights) + arrays[2].bytes(results), Flops: 2 * uint64(results) * uint64(patch)}
	operands(&l, 0, arrays[:]...)
	operands(&l, 3, bias)
	l.Int = [device.MaxInts]int{c.N, c.C, c.H, c.W, c.M, c.KH, c.KW, c.Groups,
		c.Stride[0], c.Stride[1], c.Pad[0], c.Pad[1], c.Dilation[0], c.Dilation[1], flag(accumulate), flag(c.ChannelsLast)}
	queue(s, &l)
}

func loadConv(l *device.Launch) Conv {
	n := &l.Int
	return Conv{N: n[0], C: n[1], H: n[2], W: n[3], M: n[4], KH: n[5], KW: n[6], Groups: n[7],
		Stride: [2]int{n[8], n[9]}, Pad: [2]int{n[10], n[11]}, Dilation: [2]int{n[12], n[13]}, ChannelsLast: n[15] != 0,
		X: operandOf(l, 0), Weight: operandOf(l, 1), Y: operandOf(l, 2), Bias: operandOf(l, 3)}
}

// OH is the height of Y.
func (c *Conv) OH() int { return Windows(c.H, c.KH, c.Stride[0], c.Pad[0], c.Dilation[0]) }

// OW is the width of Y.
func (c *Conv) OW() int { return Windows(c.W, c.KW, c.Stride[1], c.Pad[1], c.Dilation[1]) }

// Windows is the number of places for a kernel along a side of size elements;
// it is 0 or less where the kernel is too large.
func Windows(size, kernel, stride, pad, dilation int) int {
	room := size + 2*pad - dilation*(kernel-1) - 1
	if room < 0 {
		return 0
	}
	return room/stride + 1
}

// patch is the number of elements of a patch, in one group.
func (c *Conv) patch() int { return c.C / c.Groups * c.KH * c.KW }

func (c *Conv) check(op string) {
	bad := c.N < 1 || c.C < 1 || c.M < 1 || c.KH < 1 || c.KW < 1 || c.Groups < 1 || c.C%max(1, c.Groups) != 0 || c.M%max(1, c.Groups) != 0
	for i := range 2 {
		bad = bad || c.Stride[i] < 1 || c.Pad[i] < 0 || c.Dilation[i] < 1
	}
	if bad || c.OH() < 1 || c.OW() < 1 {
		panic(fmt.Sprintf("kernel.%s: %d×%d×%d×%d with %d kernels %d×%d, %d groups, stride %v, padding %v, dilation %v",
			op, c.N, c.C, c.H, c.W, c.M, c.KH, c.KW, c.Groups, c.Stride, c.Pad, c.Dilation))
	}
}
