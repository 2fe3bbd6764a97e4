package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

// Numbers in 8 bits: blocks of pack8Block elements, each with one float32, the
// scale. A block with the greatest absolute value m is held as round(x·127/m),
// and read as that · m/127 (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", 2022, with linear steps).
//
//	|read − x| ≤ m/254 · (1 + 2⁻¹⁵) + 2⁻¹⁴²
//
// The 2⁻¹⁵ is the rounding of what is read, up to m · 2⁻²⁴, and the last term is
// for numbers of which float32 itself has few bits left. A block that holds an
// infinity or no number is read as no numbers.
//
// In memory the scales come first, then one byte for each element.

// pack8Block is the number of elements that share a scale.
const pack8Block = 64

// Pack8Bytes is the size of n elements packed.
func Pack8Bytes(n int) int { return 4*blocks(n, pack8Block) + n }

var (
	pack8Kernel   = &device.Kernel{Name: "pack8", Host: pack8Host, CUDA: cudaPack8}
	unpack8Kernel = &device.Kernel{Name: "unpack8", Host: unpack8Host, CUDA: cudaElements(pack8Code, "unpack8")}
)

// Pack8 packs n elements of x, float32, into Pack8Bytes(n) bytes at dst.
func Pack8(s device.Stream, n int, dst, x Array) { launchPack8(s, pack8Kernel, n, dst, x) }

// Unpack8 reads into y, float32, the n elements that Pack8 packed at src.
func Unpack8(s device.Stream, n int, y, src Array) { launchPack8(s, unpack8Kernel, n, y, src) }

func launchPack8(s device.Stream, k *device.Kernel, n int, dst, src Array) {
	need(k.Name, n, dst, src)
	l := device.Launch{Kernel: k, Bytes: bytesOf(n) + uint64(Pack8Bytes(n)), Flops: uint64(3 * n)}
	operands(&l, 0, dst, src)
	l.Int[0] = n
	queue(s, &l)
}

// packed gives the scales and the bytes of n elements at p.
func packed(p device.Ptr, n int) (scales []float32, bytes []byte) {
	scaled := blocks(n, pack8Block)
	return device.Float32s(p, scaled), device.Bytes(p+device.Ptr(4*scaled), n)
}

func pack8Host(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	scales, bytes := packed(l.Ptr[0], n)
	x := device.Float32s(l.Ptr[1], n)
	w.For(len(scales), chunk/pack8Block, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			from, to := b*pack8Block, min(n, (b+1)*pack8Block)
			scales[b] = pack8(bytes[from:to], x[from:to])
		}
	})
}

// mostScale is the greatest scale of which 127 are finite.
const mostScale = math.MaxFloat32 / 127 * (1 - 0x1p-23)

// pack8 packs one block and gives its scale.
func pack8(dst []byte, x []float32) (scale float32) {
	var most float32
	for _, v := range x {
		most = max(most, max(v, -v)) // NaN if any is
	}
	scale = min(most/127, mostScale)
	if most-most != 0 || scale == 0 { // ∞ or NaN; or all is 0, or too small
		for i := range dst {
			dst[i] = 1
		}
		return most - most // NaN or 0
	}
	for i, v := range x {
		dst[i] = byte(int8(max(-127, min(127, math.RoundToEven(float64(v)/float64(scale))))))
	}
	return scale
}

func unpack8Host(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	y := device.Float32s(l.Ptr[0], n)
	scales, bytes := packed(l.Ptr[1], n)
	w.For(len(scales), chunk/pack8Block, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			for i := b * pack8Block; i < min(n, (b+1)*pack8Block); i++ {
				y[i] = float32(int8(bytes[i])) * scales[b]
			}
		}
	})
}
