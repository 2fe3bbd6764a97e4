package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// Dropout's choices are numbered, not drawn: whether element i is kept follows
// from seed and i alone, so that backward, and a second run of the forward
// pass, find the same ones without a mask in memory. The numbers are those of
// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014), whose state is a counter; each gives two elements 32
// bits.

// counterStep is what SplitMix64 counts by. So the numbers of a part of an array are
// those of another seed.
const counterStep = 0x9e3779b97f4a7c15

// dropout keeps elements with probability 1 − p.
type dropout struct {
	seed  uint64
	below uint32  // an element is dropped whose bits are less
	scale float32 // 1/(1 − p)
}

func newDropout(p float32, seed uint64) dropout {
	return dropout{seed, uint32(float64(p) * (1 << 32)), 1 / (1 - p)}
}

// checkDropout panics unless p is a probability below 1.
func checkDropout(op string, p float32) {
	if !(p >= 0 && p < 1) {
		panic(fmt.Sprintf("kernel.%s: dropout with probability %v; want one in [0, 1)", op, p))
	}
}

// pair is the bits of elements 2i (the lower half) and 2i+1.
func (d *dropout) pair(i uint64) uint64 {
	z := d.seed + (i+1)*counterStep
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// factor is scale, or 0 if bits are less than below. It takes no branch, which
// no processor could predict.
func (d *dropout) factor(bits uint32) float32 {
	less := uint32((int64(bits) - int64(d.below)) >> 63) // all ones, or 0
	return math.Float32frombits(math.Float32bits(d.scale) &^ less)
}

// apply sets dst[i] = src[i]·scale, or 0 where element first+i is dropped.
func (d *dropout) apply(dst, src []float32, first uint64) {
	dst = dst[:len(src)]
	if first%2 == 1 && len(src) > 0 {
		dst[0] = src[0] * d.factor(uint32(d.pair(first/2)>>32))
		dst, src, first = dst[1:], src[1:], first+1
	}
	i := 0
	for ; i+1 < len(src); i += 2 {
		bits := d.pair(first / 2)
		dst[i], dst[i+1] = src[i]*d.factor(uint32(bits)), src[i+1]*d.factor(uint32(bits>>32))
		first += 2
	}
	if i < len(src) {
		dst[i] = src[i] * d.factor(uint32(d.pair(first/2)))
	}
}

var dropoutKernel = &device.Kernel{Name: "dropout", Host: dropoutHost, CUDA: cudaElements(elementwiseCode, "dropout")}

// Dropout sets y = x/(1−p) for the elements that seed keeps, each with
// probability 1 − p, and 0 for the others, or adds that with accumulate; so it
// is its own gradient. The n elements have the numbers from first, which is even, on.
// y may be x when not accumulating.
func Dropout(s device.Stream, first, n int, y, x Array, p float32, seed uint64, accumulate bool) {
	need("Dropout", n, y, x)
	checkDropout("Dropout", p)
	if first < 0 || first%2 != 0 {
		panic(fmt.Sprintf("kernel.Dropout: elements from %d on; want an even number", first))
	}
	seed += uint64(first/2) * counterStep
	l := device.Launch{Kernel: dropoutKernel, Bytes: x.bytes(n) + y.bytes(n*(1+flag(accumulate))), Flops: uint64(n * (1 + flag(accumulate)))}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1], l.Int[2], l.Int[3] = n, flag(accumulate), int(uint32(seed>>32)), int(uint32(seed))
	l.Float[0] = p
	queue(s, &l)
}

func dropoutHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	d := newDropout(l.Float[0], uint64(uint32(l.Int[2]))<<32|uint64(uint32(l.Int[3])))
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbers{}, l.Int[1] != 0, func(dst, x, _ []float32, first int) {
		d.apply(dst, x, uint64(first))
	})
}
