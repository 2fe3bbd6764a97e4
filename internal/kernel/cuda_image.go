package kernel

import "github.com/headroom-go/headroom/device"

// cudaConv computes a part of a convolution by cuDNN, or where that can't by a
// function with a thread for each element of operand i, or for the weight,
// operand 1, a block.
func cudaConv(function string, part device.ConvolutionPart, i int) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		c := loadConv(l)
		if q.Convolution(c.convolution(l, q, part)) {
			return
		}
		g := device.Grid{X: c.M * c.patch(), Block: threads}
		switch i {
		case 0:
			g = spread(c.N * c.C * c.H * c.W)
		case 2:
			g = spread(c.N * c.M * c.OH() * c.OW())
		}
		q.Run(imageCode, function, g, l)
	}
}

// convolution describes it to the device.
func (c *Conv) convolution(l *device.Launch, q *device.CUDAQueue, part device.ConvolutionPart) *device.Convolution {
	accumulate := l.Int[14] != 0
	return &device.Convolution{
		Part: part, N: c.N, C: c.C, H: c.H, W: c.W, M: c.M, KH: c.KH, KW: c.KW, OH: c.OH(), OW: c.OW(), Groups: c.Groups,
		Stride: c.Stride, Pad: c.Pad, Dilation: c.Dilation, ChannelsLast: c.ChannelsLast,
		X: c.X.Ptr, Weight: c.Weight.Ptr, Y: c.Y.Ptr, Bias: c.Bias.Ptr,
		TypeX: c.X.Type, TypeWeight: c.Weight.Type, TypeY: c.Y.Type, TypeBias: c.Bias.Type, Accumulate: accumulate,
		Add: func(sum device.Ptr, first bool) {
			n := c.M * c.patch()
			add := device.Launch{Kernel: l.Kernel}
			operands(&add, 0, c.Weight, Array{sum, c.X.Type})
			add.Int[0], add.Int[1], add.Float[0] = n, flag(accumulate || !first), 1
			q.Run(elementwiseCode, "scale", sweep(n), &add)
		},
	}
}

// spread is the grid for n elements that take some time each.
func spread(n int) device.Grid { return device.Grid{X: min(blocks(n, threads), 1<<16), Block: threads} }

// cudaChannels runs a function with a block for each of Int[1] channels. Where
// a channel's elements are not neighbours, Int[2] being 1, it runs others, which
// go by rows of channels.
func cudaChannels(function string, byRows ...string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		if l.Int[2] == 1 {
			cudaChannelRows(l, q, byRows)
			return
		}
		q.Run(imageCode, function, device.Grid{X: l.Int[1], Block: 512}, l)
	}
}

// channelRows cuts rows of channels into parts: so that there are about so many
// blocks, each with a multiple of the rows that its threads load at once.
func channelRows(rows, channels, most int) (parts, each int) {
	const step = 128
	each = step * blocks(rows, step*max(1, most/blocks(channels, 64)))
	return blocks(rows, each), each
}

// Blocks of channels.cu: those that sum leave sums to be folded, the others have
// more, so that they end together.
const (
	channelSums   = 2048
	channelBlocks = 4096
)

// cudaChannelRows runs functions of channels.cu one after the other: those that
// fold with a block for 8 channels, the others with one for 64 of each part.
func cudaChannelRows(l *device.Launch, q *device.CUDAQueue, functions []string) {
	rows, channels := l.Int[0], l.Int[1]
	sums, _ := channelRows(rows, channels, channelSums)
	l.Int[13] = sums
	l.Ptr[9] = q.Workspace(4 * 2 * channels * (sums + 1))
	for _, f := range functions {
		most := channelSums
		if f == "channel_apply" || f == "channel_grad" {
			most = channelBlocks
		}
		l.Int[7], l.Int[12] = channelRows(rows, channels, most)
		g := device.Grid{X: blocks(channels, 64), Y: l.Int[7], Block: threads}
		if f == "channel_stats" || f == "channel_grad_fold" {
			g = device.Grid{X: blocks(channels, 8), Block: 1024}
		}
		if f == "channel_grad" {
			if l.Ptr[5] == 0 {
				return
			}
			takeMasked(l)
		}
		l.Int[8] = channelWay(l, f)
		q.Run(channelsCode, f, g, l)
	}
}

// takeMasked lets what follows read the gradient of z where it is, if it is
// anywhere.
func takeMasked(l *device.Launch) {
	if l.Int[11] != 0 {
		l.Ptr[8], l.Type[8] = l.Ptr[11], l.Type[11]
		l.Ptr[10], l.Int[9] = 0, 0
	}
}

// channelWay is how a function of channels.cu takes the operands: its Way.
func channelWay(l *device.Launch, function string) int {
	if l.Int[1]%packLen != 0 || !aligned(l.Ptr[:9]...) || !aligned(l.Ptr[10:]...) {
		return 0
	}
	images := []int{0, 5, 8, 10, 11}
	if function == "channel_sums" {
		images = images[:1]
	}
	for _, i := range images {
		if l.Ptr[i] != 0 && l.Type[i] != device.BFloat16 {
			return 1
		}
	}
	relu, residual, adds := l.Int[9] != 0, l.Ptr[10] != 0, l.Int[4] != 0 || l.Int[10] != 0
	switch {
	case adds || residual && !relu:
		return 1
	case residual:
		return 4
	case relu:
		return 3
	}
	return 2
}

// cudaPool runs a function with a thread for each window, or for each element
// of the planes; of channels that lie last, for eight at a time.
func cudaPool(function string, elements bool) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		p := loadPool(l)
		x, y := p.planes()
		if elements {
			y = x
		}
		q.Run(imageCode, function, p.spread(l, y), l)
	}
}

// spread is the grid for planes of n elements. It tells the function how many
// channels make a pack.
func (p *Pool) spread(l *device.Launch, n int) device.Grid {
	l.Int[13] = 1
	if p.Channels%packLen == 0 && aligned(l.Ptr[:4]...) && p.Planes*n/packLen < 1<<31 {
		l.Int[13] = packLen
	}
	return spread(p.Planes * n / l.Int[13])
}

// cudaMaxPoolGrad finds the greatest elements first, of as many planes at a
// time as the workspace has room for, and then lets each element of X look for
// itself. A plane with too many windows goes without.
func cudaMaxPoolGrad(l *device.Launch, q *device.CUDAQueue) {
	p := loadPool(l)
	x, y := p.planes()
	each := q.WorkspaceBytes() / 4 / y
	if each == 0 {
		q.Run(imageCode, "max_pool_grad", p.spread(l, x), l)
		return
	}
	part := *l
	part.Ptr[3] = q.Workspace(q.WorkspaceBytes())
	for first, planes := 0, p.Planes; first < planes; first += each {
		p.Planes = min(each, planes-first)
		part.Int[0] = p.Planes
		q.Run(imageCode, "max_pool_places", p.spread(&part, y), &part)
		q.Run(imageCode, "max_pool_grad", p.spread(&part, x), &part)
		for i, elements := range [...]int{x, x, y} {
			part.Ptr[i] += device.Ptr(p.Planes * elements * l.Type[i].Size())
		}
	}
}
