package kernel

import (
	"fmt"

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

var fillKernel = &device.Kernel{Name: "fill", Host: fillHost, CUDA: cudaElements(elementwiseCode, "fill")}

// Fill sets n elements of dst to value.
func Fill(s device.Stream, dst Array, n int, value float32) {
	need("Fill", n, dst)
	l := device.Launch{Kernel: fillKernel, Bytes: dst.bytes(n)}
	operands(&l, 0, dst)
	l.Int[0], l.Float[0] = n, value
	queue(s, &l)
}

func fillHost(l *device.Launch, w *device.Workers) {
	elementwise(w, l.Int[0], numbersOf(l, 0, l.Int[0]), numbers{}, numbers{}, false, func(dst, _, _ []float32, _ int) {
		vecFill(dst, l.Float[0])
	})
}

var scaleKernel = &device.Kernel{Name: "scale", Host: scaleHost, CUDA: cudaElements(elementwiseCode, "scale")}

// Scale sets y = factor·x, or y += factor·x with accumulate, for n elements. y
// may be x.
func Scale(s device.Stream, n int, y, x Array, factor float32, accumulate bool) {
	need("Scale", n, y, x)
	l := device.Launch{Kernel: scaleKernel, Bytes: x.bytes(n) + y.bytes(n*(1+flag(accumulate))), Flops: uint64(n * (1 + flag(accumulate)))}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1] = n, flag(accumulate)
	l.Float[0] = factor
	queue(s, &l)
}

func scaleHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbers{}, l.Int[1] != 0, func(dst, x, _ []float32, _ int) {
		vecScale(dst, x, l.Float[0])
	})
}

var scaleByKernel = &device.Kernel{Name: "scale_by", Host: scaleByHost, CUDA: cudaElements(elementwiseCode, "scale_by")}

// ScaleBy multiplies n elements of y by *factor, in place. Where that is 1,
// nothing is read or written.
func ScaleBy(s device.Stream, n int, y, factor Array) {
	need("ScaleBy", n, y, factor)
	l := device.Launch{Kernel: scaleByKernel, Bytes: y.bytes(2*n) + factor.bytes(1), Flops: uint64(n)}
	operands(&l, 0, y, factor)
	l.Int[0] = n
	queue(s, &l)
}

func scaleByHost(l *device.Launch, w *device.Workers) {
	y, by := numbersOf(l, 0, l.Int[0]), operandOf(l, 1).numbers(1)
	factor := by.at(0)
	if factor == 1 {
		return
	}
	elementwise(w, l.Int[0], y, y, numbers{}, false, func(dst, x, _ []float32, _ int) { vecScale(dst, x, factor) })
}

// unaryMath is what the host does for a UnaryOp.
type unaryMath struct {
	flops int
	f     func(y, x []float32)
	grad  func(dx, dy, x []float32)
}

var unaryTable = [unaryOps]unaryMath{
	Neg:      {1, negate, func(dx, dy, _ []float32) { negate(dx, dy) }},
	Exp:      {expFlops, exp, expGrad},
	Log:      {logFlops, log, vecDiv},
	Sqrt:     {1, vecSqrt, sqrtGrad},
	Tanh:     {tanhFlops, vecTanh, vecTanhGrad},
	Relu:     {1, vecRelu, vecReluGrad},
	GeluTanh: {geluFlops, vecGelu, vecGeluGrad},
	GeluErf:  {expFlops + 2*len(erfcTerms), short(geluErf), shortGrad(geluErfGrad)},
	Silu:     {expFlops + 3, short(silu), shortGrad(siluGrad)},
	Sigmoid:  {expFlops + 3, short(sigmoid), shortGrad(sigmoidGrad)},
	Softplus: {expFlops + logFlops, softplus, shortGrad(softplusGrad)},
	Abs:      {1, abs, absGrad},
	RSqrt:    {1, rsqrt, rsqrtGrad},
}

func (op UnaryOp) flops() int { return unaryTable[op].flops }

func (op UnaryOp) check(name string) {
	if op < Neg || op >= unaryOps {
		panic(fmt.Sprintf("kernel.%s: no operation %d", name, op))
	}
}

var unaryKernel = &device.Kernel{Name: "unary", Host: unaryHost, CUDA: cudaElements(elementwiseCode, "unary")}

// Unary sets y = op(x) for n elements. y may be x.
func Unary(s device.Stream, op UnaryOp, n int, y, x Array) {
	op.check("Unary")
	need("Unary", n, y, x)
	l := device.Launch{Kernel: unaryKernel, Bytes: x.bytes(n) + y.bytes(n), Flops: uint64(n * op.flops())}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1] = n, int(op)
	queue(s, &l)
}

func unaryHost(l *device.Launch, w *device.Workers) {
	n, f := l.Int[0], unaryTable[l.Int[1]].f
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbers{}, false, func(dst, x, _ []float32, _ int) { f(dst, x) })
}

var unaryGradKernel = &device.Kernel{Name: "unary_grad", Host: unaryGradHost, CUDA: cudaElements(elementwiseCode, "unary_grad")}

// UnaryGrad sets dx = dy·op′(x), or adds that with accumulate, for n elements.
// x is the input of Unary. dx may be dy when not accumulating.
func UnaryGrad(s device.Stream, op UnaryOp, n int, dx, dy, x Array, accumulate bool) {
	op.check("UnaryGrad")
	need("UnaryGrad", n, dx, dy, x)
	l := device.Launch{Kernel: unaryGradKernel, Bytes: x.bytes(n) + dy.bytes(n) + dx.bytes(n*(1+flag(accumulate))),
		Flops: uint64(n * (2*op.flops() + flag(accumulate)))}
	operands(&l, 0, dx, dy, x)
	l.Int[0], l.Int[1], l.Int[2] = n, int(op), flag(accumulate)
	queue(s, &l)
}

func unaryGradHost(l *device.Launch, w *device.Workers) {
	n, grad := l.Int[0], unaryTable[l.Int[1]].grad
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbersOf(l, 2, n), l.Int[2] != 0, func(dst, dy, x []float32, _ int) { grad(dst, dy, x) })
}

var binaryKernel = &device.Kernel{Name: "binary", Host: binaryHost, CUDA: cudaNest("binary", 3)}

// Binary sets y = a op b over shape. y is dense; it may be a's or b's memory
// when that is dense and of the same shape.
func Binary(s device.Stream, op BinaryOp, shape []int, y Array, a, b View) {
	if op < Add || op > Div {
		panic(fmt.Sprintf("kernel.Binary: no operation %d", op))
	}
	n := newNest("Binary", shape, a.Strides, b.Strides, -1)
	elements := n.elements()
	need("Binary", elements, y, a.Ptr, b.Ptr)
	l := device.Launch{Kernel: binaryKernel, Bytes: y.bytes(elements) + a.Ptr.bytes(n.distinct(0)) + b.Ptr.bytes(n.distinct(1)), Flops: uint64(elements)}
	n.store(&l)
	l.Int[nestInts] = int(op)
	operands(&l, 0, y, a.Ptr, b.Ptr)
	queue(s, &l)
}

func binaryHost(l *device.Launch, w *device.Workers) {
	n := loadNest(l)
	y := numbersOf(l, 0, n.elements())
	a, b := numbersOf(l, 1, n.extent(0)), numbersOf(l, 2, n.extent(1))
	op, stepA, stepB := BinaryOp(l.Int[nestInts]), n.step(0), n.step(1)
	w.For(n.pieces(), n.piecesPerChunk(), func(lo, hi int) {
		var bufA, bufB [pieceLen]float32
		room := loans{w: w}
		defer room.release()
		to := room.result(y, pieceLen, false)
		c := n.at(lo)
		for ; lo < hi; lo++ {
			at := c.row*n.rowLen() + c.lo
			dst := to.room(at, c.len())
			binary(op, dst,
				a.dense(bufA[:], c.start(0), stepA, len(dst)),
				b.dense(bufB[:], c.start(1), stepB, len(dst)))
			to.store(at, dst)
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
