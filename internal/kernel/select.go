package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

var selectKernel = &device.Kernel{Name: "select", Host: selectHost, CUDA: cudaElements(elementwiseCode, "select")}

// Select sets y to a where mask, of int32, is not 0, and to b elsewhere, for n
// elements. An missing operand a or b stands for value. y may be a or b.
func Select(s device.Stream, n int, y, mask, a, b Array, value float32) {
	need("Select", n, y, mask)
	l := device.Launch{Kernel: selectKernel, Bytes: y.bytes(n) + mask.bytes(n) + a.bytes(n*flag(a.given())) + b.bytes(n*flag(b.given()))}
	operands(&l, 0, y, mask, a, b)
	l.Int[0] = n
	l.Float[0] = value
	queue(s, &l)
}

func selectHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	mask := device.Int32s(l.Ptr[1], n)
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 3, n), numbersOf(l, 2, n), false, func(y, no, yes []float32, first int) {
		from := [2][]float32{no, yes}
		for i := range y {
			if src := from[flag(mask[first+i] != 0)]; src != nil {
				y[i] = src[i]
			} else {
				y[i] = l.Float[0]
			}
		}
	})
}

var equalKernel = &device.Kernel{Name: "equal", Host: equalHost, CUDA: cudaElements(elementwiseCode, "equal")}

// Equal sets y, of int32, to 1 where x, of int32, is value, and to 0
// elsewhere, for n elements.
func Equal(s device.Stream, n int, y, x Array, value int32) {
	need("Equal", n, y, x)
	l := device.Launch{Kernel: equalKernel, Bytes: bytesOf(2 * n), Flops: uint64(n)}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1] = n, int(value)
	queue(s, &l)
}

func equalHost(l *device.Launch, w *device.Workers) {
	y, x := device.Int32s(l.Ptr[0], l.Int[0]), device.Int32s(l.Ptr[1], l.Int[0])
	w.For(len(y), chunk, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			y[i] = int32(flag(int(x[i]) == l.Int[1]))
		}
	})
}

var topKKernel = &device.Kernel{Name: "top_k", Host: topKHost, CUDA: cudaWarps(reduceCode, "top_k")}

// TopK sets each row of y to the k greatest elements of that row of x
// (rows × cols), the greatest first, and index, of int32, to their columns.
// NaN is greater than all; of equals the first comes first.
func TopK(s device.Stream, rows, cols, k int, y, index, x Array) {
	needMatrix("TopK", rows, cols, y, index, x)
	if k < 1 || k > cols {
		panic(fmt.Sprintf("kernel.TopK: the %d greatest of %d", k, cols))
	}
	l := device.Launch{Kernel: topKKernel, Bytes: x.bytes(rows*cols) + y.bytes(rows*k) + index.bytes(rows*k), Flops: uint64(rows * cols)}
	operands(&l, 0, y, index, x)
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, k
	queue(s, &l)
}

func topKHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	y, index := numbersOf(l, 0, rows*k), device.Int32s(l.Ptr[1], rows*k)
	eachRow(w, rows, cols, numbers{}, numbersOf(l, 2, rows*cols), numbers{}, false, func(r int, _, x, _ []float32) {
		topK(&y, r*k, index[r*k:][:k], x)
	})
}

// topK keeps the greatest so far in order, in index, and writes them to y from
// element first on.
func topK(y *numbers, first int, index []int32, x []float32) {
	greater := func(a, b float32) bool { return a > b || a != a && b == b }
	n := 0
	for i, v := range x {
		if n == len(index) && !greater(v, x[index[n-1]]) {
			continue
		}
		n = min(n+1, len(index))
		at := n - 1
		for ; at > 0 && greater(v, x[index[at-1]]); at-- {
			index[at] = index[at-1]
		}
		index[at] = int32(i)
	}
	for i, c := range index {
		y.write(first+i, 1, x[c:c+1], false)
	}
}

var (
	gatherKernel     = &device.Kernel{Name: "gather", Host: gatherHost, CUDA: cudaTable(indexCode, "gather", 2)}
	gatherGradKernel = &device.Kernel{Name: "gather_grad", Host: gatherGradHost, CUDA: cudaElements(indexCode, "gather_grad")}
)

// Gather sets element j of each row of y (rows × k) to the element of that row
// of x (rows × cols) in column index[j]. index, of int32, is rows × k; one out
// of range gives NaN.
func Gather(s device.Stream, rows, cols, k int, y, x, index Array) {
	queueGather(s, gatherKernel, rows, cols, k, y, x, index)
}

// GatherGrad adds element j of each row of dy (rows × k) to the element of
// that row of dx (rows × cols) in column index[j], in this order. An index out
// of range is passed over.
func GatherGrad(s device.Stream, rows, cols, k int, dx, dy, index Array) {
	queueGather(s, gatherGradKernel, rows, cols, k, dx, dy, index)
}

func queueGather(s device.Stream, kernel *device.Kernel, rows, cols, k int, to, from, index Array) {
	needMatrix(kernel.Name, rows, cols, to, from, index)
	need(kernel.Name, k)
	l := device.Launch{Kernel: kernel, Bytes: to.bytes(rows*k) + from.bytes(rows*k) + index.bytes(rows*k)}
	operands(&l, 0, to, from, index)
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, k
	queue(s, &l)
}

func gatherHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	y, x, index := numbersOf(l, 0, rows*k), numbersOf(l, 1, rows*cols), device.Int32s(l.Ptr[2], rows*k)
	w.For(rows, rowsPerChunk(k), func(lo, hi int) {
		for i := lo * k; i < hi*k; i++ {
			v := nan
			if c := int(index[i]); c >= 0 && c < cols {
				v = x.at(i/k*cols + c)
			}
			y.write(i, 1, []float32{v}, false)
		}
	})
}

func gatherGradHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	dx, dy, index := numbersOf(l, 0, rows*cols), numbersOf(l, 1, rows*k), device.Int32s(l.Ptr[2], rows*k)
	w.For(rows, rowsPerChunk(k), func(lo, hi int) {
		for i := lo * k; i < hi*k; i++ {
			if c := int(index[i]); c >= 0 && c < cols {
				dx.write(i/k*cols+c, 1, []float32{dy.at(i)}, true)
			}
		}
	})
}

var cumSumKernel = &device.Kernel{Name: "cum_sum", Host: cumSumHost, CUDA: cudaWarps(reduceCode, "cum_sum")}

// CumSum sets each element of y to the sum of the elements of its row of x
// (rows × cols) up to it, or from it on with backwards, or adds that with
// accumulate. y may be x when not accumulating.
func CumSum(s device.Stream, rows, cols int, y, x Array, backwards, accumulate bool) {
	needMatrix("CumSum", rows, cols, y, x)
	n := rows * cols
	l := device.Launch{Kernel: cumSumKernel, Bytes: x.bytes(n) + y.bytes(n*(1+flag(accumulate))), Flops: uint64(n * (1 + flag(accumulate)))}
	operands(&l, 0, y, x)
	l.Int[0], l.Int[1], l.Int[2], l.Int[3] = rows, cols, flag(backwards), flag(accumulate)
	queue(s, &l)
}

func cumSumHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	y, x := numbersOf(l, 0, rows*cols), numbersOf(l, 1, rows*cols)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			var sum float64
			for i := range cols {
				at := r*cols + i
				if l.Int[2] != 0 {
					at = r*cols + cols - 1 - i
				}
				sum += float64(x.at(at))
				y.write(at, 1, []float32{float32(sum)}, l.Int[3] != 0)
			}
		}
	})
}

var (
	clampKernel     = &device.Kernel{Name: "clamp", Host: clampHost, CUDA: cudaElements(elementwiseCode, "clamp")}
	clampGradKernel = &device.Kernel{Name: "clamp_grad", Host: clampGradHost, CUDA: cudaElements(elementwiseCode, "clamp_grad")}
)

// Clamp sets y = min(max(x, least), most) for n elements. y may be x.
func Clamp(s device.Stream, n int, y, x Array, least, most float32) {
	need("Clamp", n, y, x)
	l := device.Launch{Kernel: clampKernel, Bytes: x.bytes(n) + y.bytes(n), Flops: uint64(2 * n)}
	operands(&l, 0, y, x)
	l.Int[0] = n
	l.Float[0], l.Float[1] = least, most
	queue(s, &l)
}

func clampHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbers{}, false, func(y, x, _ []float32, _ int) {
		for i, v := range x {
			y[i] = min(max(v, l.Float[0]), l.Float[1])
		}
	})
}

// ClampGrad sets dx to dy where x is in [least, most], and to 0 elsewhere, or
// adds that with accumulate. dx may be dy when not accumulating.
func ClampGrad(s device.Stream, n int, dx, dy, x Array, least, most float32, accumulate bool) {
	need("ClampGrad", n, dx, dy, x)
	l := device.Launch{Kernel: clampGradKernel, Bytes: dy.bytes(n) + x.bytes(n) + dx.bytes(n*(1+flag(accumulate))), Flops: uint64(2 * n)}
	operands(&l, 0, dx, dy, x)
	l.Int[0], l.Int[1] = n, flag(accumulate)
	l.Float[0], l.Float[1] = least, most
	queue(s, &l)
}

func clampGradHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	elementwise(w, n, numbersOf(l, 0, n), numbersOf(l, 1, n), numbersOf(l, 2, n), l.Int[1] != 0, func(dx, dy, x []float32, _ int) {
		for i, v := range x {
			g := dy[i]
			if !(v >= l.Float[0] && v <= l.Float[1]) {
				g = 0
			}
			dx[i] = g
		}
	})
}
