package kernel

import "github.com/headroom-go/headroom/device"

// cudaConv runs a function of a convolution with a thread for each element of
// operand i, or for the weight, operand 1, a block.
func cudaConv(function string, i int) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		c := loadConv(l)
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

// spread is the grid for n elements that take some time each.
func spread(n int) device.Grid { return device.Grid{X: min(blocks(n, threads), 1<<16), Block: threads} }

// cudaChannels runs a function with a block for each of Int[1] channels.
func cudaChannels(function string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		q.Run(imageCode, function, device.Grid{X: l.Int[1], Block: 512}, l)
	}
}

// cudaPool runs a function with a thread for each window, or for each element
// of the planes.
func cudaPool(function string, elements bool) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		p := loadPool(l)
		x, y := p.planes()
		if elements {
			y = x
		}
		q.Run(imageCode, function, spread(p.Planes*y), l)
	}
}
