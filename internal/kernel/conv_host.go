package kernel

import "github.com/headroom-go/headroom/device"

const (
	productPixels = 512     // columns that a product of small images has
	bandElements  = 1 << 18 // of columns of dX that are held at once
)

// convolution is a Conv on the host. A task is one group of a few images.
type convolution struct {
	*microKernel
	Conv
	w            *device.Workers
	channels     int // of X in a group
	kernels      int // of a group
	patch        int // elements of a patch
	pixels       int // of an image of Y
	images       int // of a product
	accumulate   bool
	x, weight, y numbers
}

func (kn *microKernel) newConvolution(l *device.Launch, w *device.Workers) *convolution {
	c := &convolution{microKernel: kn, Conv: loadConv(l), w: w, accumulate: l.Int[14] != 0}
	c.channels, c.kernels, c.patch = c.C/c.Groups, c.M/c.Groups, c.Conv.patch()
	if c.whole() { // rows of pixels are one
		c.H, c.W = 1, c.H*c.W
	}
	c.pixels = c.OH() * c.OW()
	c.images = min(c.N, max(1, productPixels/c.pixels))
	c.x = c.X.numbers(c.N * c.C * c.H * c.W)
	c.weight = c.Weight.numbers(c.M * c.patch)
	c.y = c.Y.numbers(c.N * c.M * c.pixels)
	return c
}

// whole says whether patches are single pixels, each taken once.
func (c *Conv) whole() bool {
	one := [2]int{1, 1}
	return c.KH == 1 && c.KW == 1 && c.Stride == one && c.Pad == [2]int{}
}

// each calls f for the tasks.
func (c *convolution) each(f func(group, image, images int)) {
	c.w.For(c.Groups*ceilDiv(c.N, c.images), 1, func(lo, _ int) {
		image := lo / c.Groups * c.images
		f(lo%c.Groups, image, min(c.images, c.N-image))
	})
}

// patches is the matrix of the patches of a group, from an image on.
func (c *convolution) patches(group, image int) *patches {
	return &patches{x: c.x.from((image*c.C + group*c.channels) * c.H * c.W), image: c.C * c.H * c.W,
		h: c.H, w: c.W, kh: c.KH, kw: c.KW, oh: c.OH(), ow: c.OW(), stride: c.Stride, pad: c.Pad, dilation: c.Dilation}
}

// results is the part of y from an image and the first kernel of a group on.
func (c *convolution) results(group, image int) numbers {
	return c.y.from((image*c.M + group*c.kernels) * c.pixels)
}

// weights is the weight of a group, kernels × patch, where it is float32.
func (c *convolution) weights(group int) []float32 {
	return c.weight.f[group*c.kernels*c.patch:]
}

// widenWeights makes the weights float32, in scratch memory if need be; free
// gives that back.
func (c *convolution) widenWeights() (free func()) {
	if !c.weight.half() {
		return func() {}
	}
	wide := c.w.Scratch(c.M * c.patch)
	c.weight.read(wide, 0, 1)
	c.weight = floats(wide)
	return func() { c.w.Release(wide) }
}

// compute runs a product, rows × pixels of several images, into the images of
// to, which lie so many elements apart, or adds it to them. Where these are
// not one matrix of float32 it goes by way of scratch memory. bias, of a number
// for each row, may be nil.
func (c *convolution) compute(g *product, to numbers, image, pixels int, bias []float32, accumulate bool) {
	direct := g.n == pixels && !to.half()
	if direct {
		g.c = to.f
	} else {
		g.c = c.w.Scratch(g.m * g.n)
		defer c.w.Release(g.c)
	}
	for i, b := range bias {
		vecFill(g.c[i*g.ldc:][:g.n], b)
	}
	if bias != nil || direct && accumulate {
		g.src, g.lds = g.c, g.ldc
	}
	c.multiply(g, c.w)
	if !direct {
		deal(&to, image, g, pixels, accumulate)
	}
}

func (kn *microKernel) conv(l *device.Launch, w *device.Workers) {
	if c := loadConv(l); c.ChannelsLast {
		c.sumLast(l, w)
		return
	}
	c := kn.newConvolution(l, w)
	defer c.widenWeights()()
	var bias []float32
	if c.Bias.given() {
		b, free := vector(w, l, 3, c.M)
		defer free()
		bias = b
	}
	c.each(func(group, image, images int) {
		g := product{m: c.kernels, n: images * c.pixels, k: c.patch, ldc: images * c.pixels,
			a: operand{data: floats(c.weights(group)), outer: c.patch, inner: 1}, b: c.patches(group, image).byColumn()}
		var part []float32
		if bias != nil {
			part = bias[group*c.kernels:][:c.kernels]
		}
		c.compute(&g, c.results(group, image), c.M*c.pixels, c.pixels, part, false)
	})
}

// deal copies a product, channels × pixels of several images, to the images,
// so many elements apart, or adds it to them.
func deal(to *numbers, image int, g *product, pixels int, accumulate bool) {
	for i := range g.n / pixels {
		for channel := range g.m {
			from := g.c[channel*g.n+i*pixels:][:pixels]
			to.write(i*image+channel*pixels, 1, from, accumulate)
		}
	}
}

func (kn *microKernel) convGradWeight(l *device.Launch, w *device.Workers) {
	if c := loadConv(l); c.ChannelsLast {
		c.gradWeightLast(l, w)
		return
	}
	c := kn.newConvolution(l, w)
	w.For(c.Groups, 1, func(group, _ int) {
		g := product{m: c.kernels, n: c.patch, k: c.N * c.pixels, ldc: c.patch,
			a: planes(c.results(group, 0), c.M, c.pixels).byRow(), b: c.patches(group, 0).byRow()}
		c.compute(&g, c.weight.from(group*c.kernels*c.patch), 0, c.patch, nil, c.accumulate)
	})
}

func (kn *microKernel) convGradInput(l *device.Launch, w *device.Workers) {
	if c := loadConv(l); c.ChannelsLast {
		c.gradInputLast(l, w)
		return
	}
	c := kn.newConvolution(l, w)
	defer c.widenWeights()()
	each := c.bands
	if c.Stride == [2]int{1, 1} {
		each = c.turned
	}
	c.each(each)
}

// turned computes dX of a stride of 1, which is a convolution of dY: an
// element of X is in the patch of a pixel of Y for each place in the kernel,
// which lies as far back in Y as its place in the patch is forward in X.
func (c *convolution) turned(group, image, images int) {
	pixels, taps, dx := c.H*c.W, c.KH*c.KW, c.patches(group, image)
	back := &patches{x: c.results(group, image), image: c.M * c.pixels, h: dx.oh, w: dx.ow, kh: c.KH, kw: c.KW, oh: c.H, ow: c.W,
		stride: c.Stride, pad: [2]int{-c.Pad[0], -c.Pad[1]}, dilation: [2]int{-c.Dilation[0], -c.Dilation[1]}}
	g := product{m: c.channels, n: images * pixels, k: c.kernels * taps,
		a: planes(floats(c.weights(group)), c.channels, taps).byRow(), b: back.byColumn(), ldc: images * pixels}
	if taps == 1 {
		g.a = operand{data: floats(c.weights(group)), outer: 1, inner: c.patch}
	}
	c.compute(&g, dx.x, dx.image, pixels, nil, c.accumulate)
}

// bands computes dX from Wᵀ·dY, so many columns at a time.
func (c *convolution) bands(group, image, images int) {
	to := c.patches(group, image)
	dx, each, size := to.x, to.image, c.channels*c.H*c.W
	if dx.half() {
		wide := c.w.Scratch(images * size)
		defer c.w.Release(wide)
		to.x, to.image = floats(wide), size
	}
	for i := range images {
		if part := to.x.f[i*to.image:][:size]; !c.accumulate {
			clear(part)
		} else if dx.half() {
			dx.read(part, i*each, 1)
		}
	}
	band := max(1, bandElements/c.patch/to.ow) * to.ow
	for q := 0; q < images*c.pixels; q += band {
		c.addBand(to, group, image, q, min(band, images*c.pixels-q))
	}
	for i := 0; i < images && dx.half(); i++ {
		dx.write(i*each, 1, to.x.f[i*size:][:size], false)
	}
}

// addBand adds n columns of Wᵀ·dY, from column q on, to their patches of dX.
func (c *convolution) addBand(to *patches, group, image, q, n int) {
	g := product{m: c.patch, n: n, k: c.kernels, c: c.w.Scratch(c.patch * n), ldc: n,
		a: operand{data: floats(c.weights(group)), outer: 1, inner: c.patch},
		b: planes(c.results(group, image), c.M, c.pixels).byColumn().from(q, 0)}
	defer c.w.Release(g.c)
	c.multiply(&g, c.w)
	taps := c.KH * c.KW
	c.w.For(c.channels, rowsPerChunk(taps*n), func(lo, hi int) {
		to.add(g.c[lo*taps*n:], n, lo*taps, q, (hi-lo)*taps, n)
	})
}
