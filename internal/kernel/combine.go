package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// CombineOp names what Combine makes of elements.
type CombineOp int

const (
	CombineSum CombineOp = iota
	CombineMean
	CombineMax // not a number where one is none
)

// MostCombined is how many sources Combine takes.
const MostCombined = 8

var combineKernel = &device.Kernel{Name: "combine", Host: combineHost, CUDA: cudaElements(combineCode, "combine")}

// Combine sets n elements of dst to what op makes of those of all src, in their
// order. All may be of int32, of which there is no mean. dst may be one of src.
func Combine(s device.Stream, op CombineOp, n int, dst Array, src ...Array) {
	need("Combine", n, dst)
	need("Combine", n, src...)
	if op < CombineSum || op > CombineMax || len(src) < 1 || len(src) > MostCombined || op == CombineMean && dst.Type == device.Int32 {
		panic(fmt.Sprintf("kernel.Combine: operation %d of %d arrays of %v", op, len(src), dst.Type))
	}
	l := device.Launch{Kernel: combineKernel, Bytes: dst.bytes(n), Flops: uint64(n * (len(src) - 1 + flag(op == CombineMean)))}
	operands(&l, 0, dst)
	operands(&l, 1, src...)
	for i, a := range src {
		if (a.Type == device.Int32) != (dst.Type == device.Int32) {
			panic(fmt.Sprintf("kernel.Combine: source %d is of %v, the result of %v", i, a.Type, dst.Type))
		}
		l.Bytes += a.bytes(n)
	}
	l.Int[0], l.Int[1], l.Int[2] = n, len(src), int(op)
	queue(s, &l)
}

func combineHost(l *device.Launch, w *device.Workers) {
	n, src, op := l.Int[0], l.Int[1], CombineOp(l.Int[2])
	if l.Type[0] == device.Int32 {
		w.For(n, chunk, func(lo, hi int) { combineInts(l, src, op, lo, hi) })
		return
	}
	w.For(n, chunk, func(lo, hi int) {
		var sum, x [pieceLen]float32
		dst := numbersOf(l, 0, n)
		for ; lo < hi; lo += pieceLen {
			sum, x := sum[:min(pieceLen, hi-lo)], x[:min(pieceLen, hi-lo)]
			for i := range src {
				from := numbersOf(l, 1+i, n)
				if i == 0 {
					from.read(sum, lo, 1)
					continue
				}
				from.read(x, lo, 1)
				combine(op, sum, x)
			}
			if op == CombineMean {
				for i := range sum {
					sum[i] /= float32(src)
				}
			}
			dst.write(lo, 1, sum, false)
		}
	})
}

func combineInts(l *device.Launch, src int, op CombineOp, lo, hi int) {
	for i := lo; i < hi; i++ {
		sum := device.Int32s(l.Ptr[1], hi)[i]
		for k := 1; k < src; k++ {
			if v := device.Int32s(l.Ptr[1+k], hi)[i]; op == CombineMax {
				sum = max(sum, v)
			} else {
				sum += v
			}
		}
		device.Int32s(l.Ptr[0], hi)[i] = sum
	}
}

// combine adds x to sum, or takes the greater.
func combine(op CombineOp, sum, x []float32) {
	if op != CombineMax {
		vecAdd(sum, sum, x)
		return
	}
	for i, v := range x {
		sum[i] = max(sum[i], v)
	}
}
