package kernel

import "github.com/headroom-go/headroom/device"

var copyKernel = &device.Kernel{Name: "copy", Host: copyHost, CUDA: cudaNest("copy_f32", 2)}

// Copy sets dst = src over shape, or dst += src with accumulate. The strides
// of dst must not make elements coincide; dst and src don't overlap.
func Copy(s device.Stream, shape []int, dst, src View, accumulate bool) {
	n := newNest("Copy", shape, dst.Strides, src.Strides, 0)
	elements := n.elements()
	need("Copy", elements, dst.Ptr, src.Ptr)
	l := device.Launch{Kernel: copyKernel, Bytes: bytesOf(elements*(1+flag(accumulate)) + n.distinct(1)), Flops: uint64(elements * flag(accumulate))}
	n.store(&l)
	l.Int[nestInts] = flag(accumulate)
	l.Ptr[0], l.Ptr[1] = dst.Ptr, src.Ptr
	queue(s, &l)
}

func copyHost(l *device.Launch, w *device.Workers) {
	n := loadNest(l)
	dst, src := device.Float32s(l.Ptr[0], n.extent(0)), device.Float32s(l.Ptr[1], n.extent(1))
	accumulate := l.Int[nestInts] != 0
	if across := n.across(); across >= 0 && len(dst) > 0 {
		copyTransposed(n, across, dst, src, accumulate, w)
		return
	}
	stepDst, stepSrc := n.step(0), n.step(1)
	w.For(n.pieces(), n.piecesPerChunk(), func(lo, hi int) {
		var buf [pieceLen]float32
		c := n.at(lo)
		for ; lo < hi; lo++ {
			copyPiece(dst[c.start(0):], src[c.start(1):], c.len(), stepDst, stepSrc, accumulate, buf[:])
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

// copyPiece copies n elements, every stepSrc-th to every stepDst-th.
func copyPiece(dst, src []float32, n, stepDst, stepSrc int, accumulate bool, buf []float32) {
	if stepDst == 1 && !accumulate {
		gather(dst[:n], src, 0, stepSrc)
		return
	}
	putStrided(dst, dense(buf, src, 0, stepSrc, n), stepDst, accumulate)
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
func copyTransposed(n *nest, across int, dst, src []float32, accumulate bool, w *device.Workers) {
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
			copyBand(dst[c.start(0):], src[c.start(1):], height, c.len(), n.stride[0][across], n.step(1), accumulate)
			c.next()
		}
	})
}

// copyBand copies height rows of dst, stride elements apart, from as many
// columns of src, whose rows are stepSrc apart.
func copyBand(dst, src []float32, height, length, stride, stepSrc int, accumulate bool) {
	var buf [tile * tile]float32
	for lo := 0; lo < length; lo += tile {
		n := min(tile, length-lo)
		d, s := dst[lo:], src[lo*stepSrc:]
		switch {
		case n < tile || height < tile:
			for j := range height {
				copyPiece(d[j*stride:], s[j:], n, 1, stepSrc, accumulate, buf[:])
			}
		case accumulate:
			vecTranspose(buf[:], tile, s, stepSrc)
			for j := range tile {
				putStrided(d[j*stride:], buf[j*tile:][:tile], 1, true)
			}
		default:
			vecTranspose(d, stride, s, stepSrc)
		}
	}
}
