package kernel

import "github.com/headroom-go/headroom/device"

// Convolutions on the host of images whose channels lie last: sums over rows of
// channels, one tap of the kernel after the other. Models keep images in this
// order where the device prefers it, which the host does not: what is here is
// for programs that do so all the same, and for tests.

// group is the part of a group's channels in a pixel of X.
func (c *Conv) group(pixel []float32, m int) []float32 {
	each := c.C / c.Groups
	return pixel[m/(c.M/c.Groups)*each:][:each]
}

// under is the pixel of X under a tap of the kernel at pixel y of Y; false in
// the padding.
func (c *Conv) under(y, tap int) (x int, ok bool) {
	image, oy, ox := y/(c.OW()*c.OH()), y/c.OW()%c.OH(), y%c.OW()
	h := oy*c.Stride[0] + tap/c.KW*c.Dilation[0] - c.Pad[0]
	v := ox*c.Stride[1] + tap%c.KW*c.Dilation[1] - c.Pad[1]
	return (image*c.H+h)*c.W + v, h >= 0 && v >= 0 && h < c.H && v < c.W
}

// over is the pixel of Y that has pixel x of X under a tap; false where none has.
func (c *Conv) over(x, tap int) (y int, ok bool) {
	image, h, v := x/(c.W*c.H), x/c.W%c.H, x%c.W
	h += c.Pad[0] - tap/c.KW*c.Dilation[0]
	v += c.Pad[1] - tap%c.KW*c.Dilation[1]
	oy, ox := h/c.Stride[0], v/c.Stride[1]
	ok = h >= 0 && v >= 0 && h%c.Stride[0] == 0 && v%c.Stride[1] == 0 && oy < c.OH() && ox < c.OW()
	return (image*c.OH()+oy)*c.OW() + ox, ok
}

// lastConv is a convolution with windows on its operands.
type lastConv struct {
	Conv
	x, weight, y window
	taps, each   int // of a kernel; channels of a group
}

func (c *Conv) lastConv(room *loans) *lastConv {
	taps, each := c.KH*c.KW, c.C/c.Groups
	return &lastConv{*c, room.window(c.X.numbers(c.N*c.H*c.W*c.C), c.C), room.window(c.Weight.numbers(c.M*taps*each), each),
		room.window(c.Y.numbers(c.N*c.OH()*c.OW()*c.M), c.M), taps, each}
}

// row is a tap of kernel m.
func (c *lastConv) row(m, tap int) []float32 { return c.weight.load((m*c.taps+tap)*c.each, c.each) }

// rows shares n rows of results out to threads: f sums row r up in sum, of so
// many elements, which is then written to it or added.
func (c *Conv) rows(w *device.Workers, n, elements int, to numbers, accumulate bool, f func(at *lastConv, r int, sum []float32)) {
	w.For(n, rowsPerChunk(c.patch()*c.M), func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		at, sum := c.lastConv(&room), room.floats(elements)
		for r := lo; r < hi; r++ {
			clear(sum)
			f(at, r, sum)
			to.write(r*elements, 1, sum, accumulate)
		}
	})
}

// sumLast computes Y.
func (c *Conv) sumLast(l *device.Launch, w *device.Workers) {
	bias, free := vector(w, l, 3, c.M)
	defer free()
	pixels := c.N * c.OH() * c.OW()
	c.rows(w, pixels, c.M, c.Y.numbers(pixels*c.M), false, func(at *lastConv, y int, sum []float32) {
		copy(sum, bias)
		for tap := range at.taps {
			if x, ok := c.under(y, tap); ok {
				pixel := at.x.load(x*c.C, c.C)
				for m := range sum {
					sum[m] += dotOf(at.row(m, tap), c.group(pixel, m))
				}
			}
		}
	})
}

// gradInputLast computes dX, which stands in X's place.
func (c *Conv) gradInputLast(l *device.Launch, w *device.Workers) {
	pixels := c.N * c.H * c.W
	c.rows(w, pixels, c.C, c.X.numbers(pixels*c.C), l.Int[14] != 0, func(at *lastConv, x int, sum []float32) {
		for tap := range at.taps {
			if y, ok := c.over(x, tap); ok {
				for m, g := range at.y.load(y*c.M, c.M) {
					vecAxpy(c.group(sum, m), at.row(m, tap), g)
				}
			}
		}
	})
}

// gradWeightLast computes dW, which stands in Weight's place.
func (c *Conv) gradWeightLast(l *device.Launch, w *device.Workers) {
	each, taps := c.C/c.Groups, c.KH*c.KW
	c.rows(w, c.M*taps, each, c.Weight.numbers(c.M*taps*each), l.Int[14] != 0, func(at *lastConv, r int, sum []float32) {
		m, tap := r/taps, r%taps
		for y := range c.N * c.OH() * c.OW() {
			if x, ok := c.under(y, tap); ok {
				vecAxpy(sum, c.group(at.x.load(x*c.C, c.C), m), at.y.at(y*c.M+m))
			}
		}
	})
}
