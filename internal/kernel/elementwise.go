package kernel

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
)

// Operations that a transcendental function counts for in Launch.Flops: about
// what its vector form executes.
const (
	expFlops  = 12
	logFlops  = 12
	tanhFlops = 16
	geluFlops = 18
)

var fillKernel = &device.Kernel{Name: "fill", Host: fillHost, CUDA: cudaElements(elementwiseCode, "fill_f32")}

// Fill sets n elements of dst to value.
func Fill(s device.Stream, dst device.Ptr, n int, value float32) {
	need("Fill", n, dst)
	l := device.Launch{Kernel: fillKernel, Bytes: bytesOf(n)}
	l.Ptr[0], l.Int[0], l.Float[0] = dst, n, value
	queue(s, &l)
}

func fillHost(l *device.Launch, w *device.Workers) {
	dst := device.Float32s(l.Ptr[0], l.Int[0])
	w.For(len(dst), chunk, func(lo, hi int) {
		vecFill(dst[lo:hi], l.Float[0])
	})
}

var scaleKernel = &device.Kernel{Name: "scale", Host: scaleHost, CUDA: cudaElements(elementwiseCode, "scale_f32")}

// Scale sets y = factor·x, or y += factor·x with accumulate, for n elements. y
// may be x.
func Scale(s device.Stream, n int, y, x device.Ptr, factor float32, accumulate bool) {
	need("Scale", n, y, x)
	l := device.Launch{Kernel: scaleKernel, Bytes: bytesOf(n * (2 + flag(accumulate))), Flops: uint64(n * (1 + flag(accumulate)))}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0], l.Int[1] = n, flag(accumulate)
	l.Float[0] = factor
	queue(s, &l)
}

func scaleHost(l *device.Launch, w *device.Workers) {
	y, x := device.Float32s(l.Ptr[0], l.Int[0]), device.Float32s(l.Ptr[1], l.Int[0])
	f := vecScale
	if l.Int[1] != 0 {
		f = vecAxpy
	}
	w.For(len(y), chunk, func(lo, hi int) {
		f(y[lo:hi], x[lo:hi], l.Float[0])
	})
}

func (op UnaryOp) flops() int {
	switch op {
	case Exp:
		return expFlops
	case Log:
		return logFlops
	case Tanh:
		return tanhFlops
	case GeluTanh:
		return geluFlops
	case GeluErf:
		return expFlops + 2*len(erfcTerms)
	case Silu, Sigmoid:
		return expFlops + 3
	case Softplus:
		return expFlops + logFlops
	}
	return 1
}

func (op UnaryOp) check(name string) {
	if op < Neg || op >= unaryOps {
		panic(fmt.Sprintf("kernel.%s: no operation %d", name, op))
	}
}

var unaryKernel = &device.Kernel{Name: "unary", Host: unaryHost, CUDA: cudaElements(elementwiseCode, "unary_f32")}

// Unary sets y = op(x) for n elements. y may be x.
func Unary(s device.Stream, op UnaryOp, n int, y, x device.Ptr) {
	op.check("Unary")
	need("Unary", n, y, x)
	l := device.Launch{Kernel: unaryKernel, Bytes: bytesOf(2 * n), Flops: uint64(n * op.flops())}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0], l.Int[1] = n, int(op)
	queue(s, &l)
}

func unaryHost(l *device.Launch, w *device.Workers) {
	y, x := device.Float32s(l.Ptr[0], l.Int[0]), device.Float32s(l.Ptr[1], l.Int[0])
	op := UnaryOp(l.Int[1])
	w.For(len(y), chunk, func(lo, hi int) {
		unary(op, y[lo:hi], x[lo:hi])
	})
}

func unary(op UnaryOp, y, x []float32) {
	switch op {
	case Neg:
		vecScale(y, x, -1)
	case Exp:
		expShift(y, x, 0)
	case Log:
		for i, v := range x {
			y[i] = float32(math.Log(float64(v)))
		}
	case Sqrt:
		vecSqrt(y, x)
	case Tanh:
		vecTanh(y, x)
	case Relu:
		vecRelu(y, x)
	case GeluTanh:
		vecGelu(y, x)
	case GeluErf:
		eachShort(y, nil, x, geluErf)
	case Silu:
		eachShort(y, nil, x, silu)
	case Sigmoid:
		eachShort(y, nil, x, sigmoid)
	case Softplus:
		eachShort(y, nil, x, softplus)
	case Abs:
		for i, v := range x {
			y[i] = float32(math.Abs(float64(v)))
		}
	case RSqrt:
		rsqrt(y, x)
	}
}

var unaryGradKernel = &device.Kernel{Name: "unary_grad", Host: unaryGradHost, CUDA: cudaElements(elementwiseCode, "unary_grad_f32")}

// UnaryGrad sets dx = dy·op′(x), or adds that with accumulate, for n elements.
// x is the input of Unary. dx may be dy when not accumulating.
func UnaryGrad(s device.Stream, op UnaryOp, n int, dx, dy, x device.Ptr, accumulate bool) {
	op.check("UnaryGrad")
	need("UnaryGrad", n, dx, dy, x)
	l := device.Launch{Kernel: unaryGradKernel, Bytes: bytesOf(n * (3 + flag(accumulate))), Flops: uint64(n * (2*op.flops() + flag(accumulate)))}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = dx, dy, x
	l.Int[0], l.Int[1], l.Int[2] = n, int(op), flag(accumulate)
	queue(s, &l)
}

func unaryGradHost(l *device.Launch, w *device.Workers) {
	n, op := l.Int[0], UnaryOp(l.Int[1])
	dx, dy, x := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], n), device.Float32s(l.Ptr[2], n)
	w.For(n, chunk, func(lo, hi int) {
		var buf, sum [pieceLen]float32
		for ; lo < hi; lo += pieceLen {
			end := min(hi, lo+pieceLen)
			dst := dx[lo:end]
			if l.Int[2] != 0 {
				unaryGrad(op, sum[:len(dst)], dy[lo:end], x[lo:end], &buf)
				vecAdd(dst, dst, sum[:len(dst)])
				continue
			}
			unaryGrad(op, dst, dy[lo:end], x[lo:end], &buf)
		}
	})
}

func unaryGrad(op UnaryOp, dx, dy, x []float32, buf *[pieceLen]float32) {
	switch op {
	case Neg:
		vecScale(dx, dy, -1)
	case Exp:
		expShift(buf[:len(x)], x, 0)
		vecMul(dx, dy, buf[:len(x)])
	case Log:
		vecDiv(dx, dy, x)
	case Sqrt:
		root := buf[:len(x)]
		vecSqrt(root, x)
		vecAdd(root, root, root)
		vecDiv(dx, dy, root)
	case Tanh:
		vecTanhGrad(dx, dy, x)
	case Relu:
		vecReluGrad(dx, dy, x)
	case GeluTanh:
		vecGeluGrad(dx, dy, x)
	case GeluErf:
		eachShort(dx, dy, x, geluErfGrad)
	case Silu:
		eachShort(dx, dy, x, siluGrad)
	case Sigmoid:
		eachShort(dx, dy, x, sigmoidGrad)
	case Softplus:
		eachShort(dx, dy, x, softplusGrad)
	case Abs:
		absGrad(dx, dy, x)
	case RSqrt:
		rsqrtGrad(dx, dy, x, buf[:len(x)])
	}
}

var binaryKernel = &device.Kernel{Name: "binary", Host: binaryHost, CUDA: cudaNest("binary_f32", 3)}

// Binary sets y = a op b over shape. y is dense; it may be a's or b's memory
// when that is dense and of the same shape.
func Binary(s device.Stream, op BinaryOp, shape []int, y device.Ptr, a, b View) {
	if op < Add || op > Div {
		panic(fmt.Sprintf("kernel.Binary: no operation %d", op))
	}
	n := newNest("Binary", shape, a.Strides, b.Strides, -1)
	elements := n.elements()
	need("Binary", elements, y, a.Ptr, b.Ptr)
	l := device.Launch{Kernel: binaryKernel, Bytes: bytesOf(elements + n.distinct(0) + n.distinct(1)), Flops: uint64(elements)}
	n.store(&l)
	l.Int[nestInts] = int(op)
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = y, a.Ptr, b.Ptr
	queue(s, &l)
}

func binaryHost(l *device.Launch, w *device.Workers) {
	n := loadNest(l)
	y := device.Float32s(l.Ptr[0], n.elements())
	a, b := device.Float32s(l.Ptr[1], n.extent(0)), device.Float32s(l.Ptr[2], n.extent(1))
	op, stepA, stepB := BinaryOp(l.Int[nestInts]), n.step(0), n.step(1)
	w.For(n.pieces(), n.piecesPerChunk(), func(lo, hi int) {
		var bufA, bufB [pieceLen]float32
		c := n.at(lo)
		for ; lo < hi; lo++ {
			dst := y[c.row*n.rowLen()+c.lo:][:c.len()]
			binary(op, dst,
				dense(bufA[:], a, c.start(0), stepA, len(dst)),
				dense(bufB[:], b, c.start(1), stepB, len(dst)))
			c.next()
		}
	})
}

func binary(op BinaryOp, y, a, b []float32) {
	switch op {
	case Add:
		vecAdd(y, a, b)
	case Sub:
		vecSub(y, a, b)
	case Mul:
		vecMul(y, a, b)
	case Div:
		vecDiv(y, a, b)
	}
}
