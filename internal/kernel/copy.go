package kernel

import "github.com/headroom-go/headroom/device"

var copyKernel = &device.Kernel{Name: "copy", Host: copyHost, CUDA: cudaNest("copy", 2)}

// Copy sets dst = src over shape, or dst += src with accumulate. The strides
// of dst must not make elements coincide; dst and src don't overlap.
func Copy(s device.Stream, shape []int, dst, src View, accumulate bool) {
	n := newNest("Copy", shape, dst.Strides, src.Strides, 0)
	elements := n.elements()
	need("Copy", elements, dst.Ptr, src.Ptr)
	l := device.Launch{Kernel: copyKernel, Bytes: dst.Ptr.bytes(elements*(1+flag(accumulate))) + src.Ptr.bytes(n.distinct(1)), Flops: uint64(elements * flag(accumulate))}
	n.store(&l)
	l.Int[nestInts] = flag(accumulate)
	operands(&l, 0, dst.Ptr, src.Ptr)
	queue(s, &l)
}

func copyHost(l *device.Launch, w *device.Workers) {
	n := loadNest(l)
	dst, src := numbersOf(l, 0, n.extent(0)), numbersOf(l, 1, n.extent(1))
	accumulate := l.Int[nestInts] != 0
	if across := n.across(); across >= 0 && n.elements() > 0 {
		copyTransposed(n, across, dst, src, accumulate, w)
		return
	}
	stepDst, stepSrc := n.step(0), n.step(1)
	w.For(n.pieces(), n.piecesPerChunk(), func(lo, hi int) {
		var buf [pieceLen]float32
		c := n.at(lo)
		for ; lo < hi; lo++ {
			copyPiece(&dst, &src, c.start(0), c.start(1), c.len(), stepDst, stepSrc, accumulate, buf[:])
			c.next()
		}
	})
}

// across is the dimension outside of the row along which the source is dense
// while the destination is dense along the row, or −1: then a copy by rows
// would touch a cache line of the source for each element.
func (n *nest) across() int {
	if n.step(0) != 1 || n.step(1) <= 1 {
		return -1
	}
	for i := range n.dims - 1 {
		if n.stride[1][i] == 1 {
			return i
		}
	}
	return -1
}

// copyPiece copies n elements, every stepSrc-th from one place on to every
// stepDst-th from another on.
func copyPiece(dst, src *numbers, to, from, n, stepDst, stepSrc int, accumulate bool, buf []float32) {
	switch {
	case stepDst != 1 || accumulate || dst.half() && dst.t != src.t:
		dst.write(to, stepDst, src.dense(buf, from, stepSrc, n), accumulate)
	case !dst.half():
		src.read(dst.f[to:to+n], from, stepSrc)
	default:
		gather(dst.h[to:to+n], src.h, from, stepSrc)
	}
}

// putStrided copies src to every step-th element of dst.
func putStrided(dst, src []float32, step int, accumulate bool) {
	switch {
	case step == 1 && accumulate:
		vecAdd(dst[:len(src)], dst[:len(src)], src)
	case step == 1:
		copy(dst, src)
	case accumulate:
		for i, x := range src {
			dst[i*step] += x
		}
	default:
		for i, x := range src {
			dst[i*step] = x
		}
	}
}

// copyTransposed copies in bands: tile steps along the dimension across times
// a piece of a row, as squares of tile × tile.
func copyTransposed(n *nest, across int, dst, src numbers, accumulate bool, w *device.Workers) {
	bands := *n // the nest with a step for each band in the dimension across
	length := n.size[across]
	bands.size[across] = (length + tile - 1) / tile
	for k := range bands.stride {
		bands.stride[k][across] *= tile
	}
	w.For(bands.pieces(), rowsPerChunk(tile*min(n.rowLen(), pieceLen)), func(lo, hi int) {
		c := bands.at(lo)
		for ; lo < hi; lo++ {
			height := min(tile, length-c.index[across]*tile)
			copyBand(dst.from(c.start(0)), src.from(c.start(1)), height, c.len(), n.stride[0][across], n.step(1), accumulate)
			c.next()
		}
	})
}

// copyBand copies height rows of dst, stride elements apart, from as many
// columns of src, whose rows are stepSrc apart.
func copyBand(dst, src numbers, height, length, stride, stepSrc int, accumulate bool) {
	var from, buf [tile * tile]float32
	for lo := 0; lo < length; lo += tile {
		n := min(tile, length-lo)
		if n < tile || height < tile {
			for j := range height {
				copyPiece(&dst, &src, lo+j*stride, lo*stepSrc+j, n, 1, stepSrc, accumulate, buf[:])
			}
			continue
		}
		square, ld := from[:], tile
		if src.half() {
			for i := range tile {
				src.read(from[i*tile:][:tile], (lo+i)*stepSrc, 1)
			}
		} else {
			square, ld = src.f[lo*stepSrc:], stepSrc
		}
		if !accumulate && !dst.half() {
			vecTranspose(dst.f[lo:], stride, square, ld)
			continue
		}
		vecTranspose(buf[:], tile, square, ld)
		for j := range tile {
			dst.write(lo+j*stride, 1, buf[j*tile:][:tile], accumulate)
		}
	}
}
