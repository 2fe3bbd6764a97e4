package nn

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/tensor"
)

// ResNetConfig is the shape of a residual network for images.
type ResNetConfig struct {
	Bottleneck bool   `json:"bottleneck"`   // blocks of 1×1, 3×3 and 1×1 instead of two of 3×3
	Layers     [4]int `json:"layers"`       // blocks of each stage
	Width      int    `json:"width"`        // channels of the first stage; each next has twice as many
	Channels   int    `json:"num_channels"` // of the images
	Classes    int    `json:"num_classes"`

	// SmallImages begins with a 3×3 convolution that keeps the size, and no
	// pooling, as the authors do for CIFAR-10 (§4.2).
	SmallImages bool `json:"small_images,omitempty"`
}

// resNetConfigs are the models known by name, for colour images and 1000
// classes; resnet-mini is for grey ones of 28×28 and 10.
var resNetConfigs = map[string]ResNetConfig{
	"resnet-mini": {false, [4]int{1, 1, 1, 1}, 16, 1, 10, true},
	"resnet18":    {false, [4]int{2, 2, 2, 2}, 64, 3, 1000, false},
	"resnet34":    {false, [4]int{3, 4, 6, 3}, 64, 3, 1000, false},
	"resnet50":    {true, [4]int{3, 4, 6, 3}, 64, 3, 1000, false},
	"resnet101":   {true, [4]int{3, 4, 23, 3}, 64, 3, 1000, false},
	"resnet152":   {true, [4]int{3, 8, 36, 3}, 64, 3, 1000, false},
}

// LookupResNet gives the configuration of a model known by name.
func LookupResNet(name string) (ResNetConfig, error) {
	if c, ok := resNetConfigs[name]; ok {
		return c, nil
	}
	return ResNetConfig{}, fmt.Errorf("unknown model %q: the models are %s", name, strings.Join(ResNetNames(), ", "))
}

// ResNetNames lists the models known by name, the smallest first.
func ResNetNames() []string {
	return slices.SortedFunc(maps.Keys(resNetConfigs), func(a, b string) int {
		return cmp.Or(resNetConfigs[a].Blocks()-resNetConfigs[b].Blocks(), strings.Compare(a, b))
	})
}

// Blocks is the number of blocks of all stages.
func (c ResNetConfig) Blocks() int { return c.Layers[0] + c.Layers[1] + c.Layers[2] + c.Layers[3] }

// Validate says what is wrong with c, if anything.
func (c ResNetConfig) Validate() error {
	all := []size{{"width", c.Width}, {"num_channels", c.Channels}, {"num_classes", c.Classes}}
	for i, n := range c.Layers {
		all = append(all, size{fmt.Sprintf("layers[%d]", i), n})
	}
	return sizes(all...)
}

// expansion is how many times wider than its inside a block's result is.
func (c ResNetConfig) expansion() int {
	if c.Bottleneck {
		return 4
	}
	return 1
}

// ResNet is the network of He et al., "Deep Residual Learning for Image
// Recognition" (2016), with the strides of torchvision's: in a bottleneck the
// 3×3 convolution has it.
type ResNet struct {
	Config ResNetConfig
	Stem   *ConvNorm
	Blocks []*ResNetBlock // of all stages, in order
	Output *Linear
	Hooks  *Hooks
	Mode   *Mode

	// Around, if set, runs each block.
	Around Around
}

// ConvNorm is a convolution and the normalisation that follows it.
type ConvNorm struct {
	Conv *Conv2D
	Norm *BatchNorm
}

// ResNetBlock adds convolutions of its input to it.
type ResNetBlock struct {
	Convs    []*ConvNorm
	Shortcut *ConvNorm // of the input, where the shape changes; else nil

	place
}

// NewResNet makes a model with initial weights drawn from the seed, in
// training mode.
func NewResNet(rt *tensor.Runtime, c ResNetConfig, seed uint64) *ResNet {
	return NewBuilder(rt, seed).ResNet(c)
}

// ResNet makes a model.
func (b *Builder) ResNet(c ResNetConfig) *ResNet {
	r := &ResNet{Config: c, Hooks: b.Hooks, Mode: b.Mode}
	if c.SmallImages {
		r.Stem = b.convNorm("conv1", "bn1", c.Channels, c.Width, 3, 1)
	} else {
		r.Stem = b.convNorm("conv1", "bn1", c.Channels, c.Width, 7, 2)
	}
	in := c.Width
	for stage, blocks := range c.Layers {
		inner := c.Width << stage
		for i := range blocks {
			stride := 1
			if i == 0 && stage > 0 {
				stride = 2
			}
			r.Blocks = append(r.Blocks, b.resNetBlock(fmt.Sprintf("layer%d.%d", stage+1, i), c, in, inner, stride))
			in = inner * c.expansion()
		}
	}
	r.Output = b.Linear("fc", in, c.Classes, 0.01)
	return r
}

func (b *Builder) convNorm(conv, norm string, in, out, size, stride int) *ConvNorm {
	return &ConvNorm{b.Conv2D(conv, in, out, size, stride), b.BatchNorm(norm, out)}
}

func (b *Builder) resNetBlock(name string, c ResNetConfig, in, inner, stride int) *ResNetBlock {
	out := inner * c.expansion()
	r := &ResNetBlock{place: b.place(name)}
	conv := func(in, out, size, stride int) {
		i := len(r.Convs) + 1
		r.Convs = append(r.Convs, b.convNorm(fmt.Sprintf("%s.conv%d", name, i), fmt.Sprintf("%s.bn%d", name, i), in, out, size, stride))
	}
	if c.Bottleneck {
		conv(in, inner, 1, 1)
		conv(inner, inner, 3, stride)
		conv(inner, out, 1, 1)
	} else {
		conv(in, inner, 3, stride)
		conv(inner, out, 3, 1)
	}
	if in != out { // as it is wherever the stride is 2
		r.Shortcut = b.convNorm(name+".downsample.0", name+".downsample.1", in, out, 1, stride)
	}
	return r
}

// parts gives the convolutions with their normalisations, in the order of
// torchvision's state files.
func (r *ResNet) parts() []*ConvNorm {
	all := []*ConvNorm{r.Stem}
	for _, b := range r.Blocks {
		all = append(all, b.parts()...)
	}
	return all
}

func (b *ResNetBlock) parts() []*ConvNorm {
	if b.Shortcut == nil {
		return b.Convs
	}
	return append(slices.Clip(b.Convs), b.Shortcut)
}

// Parameters gives the model's parameters.
func (r *ResNet) Parameters() []*Parameter {
	var ps []*Parameter
	for _, c := range r.parts() {
		ps = append(ps, c.Parameters()...)
	}
	return append(ps, r.Output.Parameters()...)
}

// Buffers gives the running statistics of all normalisations.
func (r *ResNet) Buffers() []*Parameter {
	var ps []*Parameter
	for _, c := range r.parts() {
		ps = append(ps, c.Norm.Buffers()...)
	}
	return ps
}

// Parameters gives those of the convolution and the normalisation.
func (c *ConvNorm) Parameters() []*Parameter { return parameters(c.Conv, c.Norm) }

// Parameters gives the block's parameters.
func (b *ResNetBlock) Parameters() []*Parameter {
	var ps []*Parameter
	for _, c := range b.parts() {
		ps = append(ps, c.Parameters()...)
	}
	return ps
}

// Forward is the convolution, normalised.
func (c *ConvNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	return then(c.Conv.Forward(x), c.Norm.Forward)
}

// Relu is ReLU of what Forward gives, plus the residual unless that is nil.
func (c *ConvNorm) Relu(x, residual *tensor.Tensor) *tensor.Tensor {
	return then(c.Conv.Forward(x), func(x *tensor.Tensor) *tensor.Tensor { return c.Norm.Relu(x, residual) })
}

// Forward gives the logits, [B, classes], of images, float32 [B, channels, H, W].
func (r *ResNet) Forward(images *tensor.Tensor) *tensor.Tensor {
	last := images.Runtime().ChannelsLast()
	x := images.Retain()
	if last {
		x = then(x, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Permute(x, 0, 2, 3, 1) })
	}
	x = then(x, func(x *tensor.Tensor) *tensor.Tensor { return r.Stem.Relu(x, nil) })
	if !r.Config.SmallImages {
		x = then(x, func(x *tensor.Tensor) *tensor.Tensor {
			return tensor.MaxPool2D(x, tensor.PoolParams{Kernel: 3, Stride: 2, Padding: 1, ChannelsLast: last})
		})
	}
	for i, b := range r.Blocks {
		y := r.Around.run(i, x, b.Forward)
		x.Release()
		x = y
	}
	means := then(x, func(x *tensor.Tensor) *tensor.Tensor {
		if last {
			return tensor.Mean(x, 1, 2)
		}
		return tensor.AdaptiveAvgPool2D(x, 1, 1)
	})
	flat := then(means, func(x *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(x, x.Dim(0), -1) })
	return then(flat, r.Output.Forward)
}

// Forward runs the block on images.
func (b *ResNetBlock) Forward(x *tensor.Tensor) *tensor.Tensor { return b.call(b, x, b.forward) }

func (b *ResNetBlock) forward(x *tensor.Tensor) *tensor.Tensor {
	residual, last := b.shortcut(x), len(b.Convs)-1
	defer residual.Release()
	h := x.Retain()
	for _, c := range b.Convs[:last] {
		h = then(h, func(h *tensor.Tensor) *tensor.Tensor { return c.Relu(h, nil) })
	}
	return then(h, func(h *tensor.Tensor) *tensor.Tensor { return b.Convs[last].Relu(h, residual) })
}

func (b *ResNetBlock) shortcut(x *tensor.Tensor) *tensor.Tensor {
	if b.Shortcut == nil {
		return x.Retain()
	}
	return b.Shortcut.Forward(x)
}

// Loss is the mean cross-entropy of the labels, int32 [B], of images.
func (r *ResNet) Loss(images, labels *tensor.Tensor) *tensor.Tensor {
	return then(r.Forward(images), func(logits *tensor.Tensor) *tensor.Tensor {
		return tensor.CrossEntropy(logits, labels, IgnoreTarget)
	})
}
