package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

var selectKernel = &device.Kernel{Name: "select", Host: selectHost, CUDA: cudaElements(elementwiseCode, "select_f32")}

// Select sets y to a where mask, of int32, is not 0, and to b elsewhere, for n
// elements. An operand a or b of 0 stands for value. y may be a or b.
func Select(s device.Stream, n int, y, mask, a, b device.Ptr, value float32) {
	need("Select", n, y, mask)
	l := device.Launch{Kernel: selectKernel, Bytes: bytesOf(n * (2 + flag(a != 0) + flag(b != 0)))}
	l.Ptr[0], l.Ptr[1], l.Ptr[2], l.Ptr[3] = y, mask, a, b
	l.Int[0] = n
	l.Float[0] = value
	queue(s, &l)
}

func selectHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	y, mask := device.Float32s(l.Ptr[0], n), device.Int32s(l.Ptr[1], n)
	var from [2][]float32 // where the mask is 0, and where it is not
	for i := range from {
		if p := l.Ptr[3-i]; p != 0 {
			from[i] = device.Float32s(p, n)
		}
	}
	w.For(n, chunk, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if src := from[flag(mask[i] != 0)]; src != nil {
				y[i] = src[i]
			} else {
				y[i] = l.Float[0]
			}
		}
	})
}

var equalKernel = &device.Kernel{Name: "equal", Host: equalHost, CUDA: cudaElements(elementwiseCode, "equal_i32")}

// Equal sets y, of int32, to 1 where x, of int32, is value, and to 0
// elsewhere, for n elements.
func Equal(s device.Stream, n int, y, x device.Ptr, value int32) {
	need("Equal", n, y, x)
	l := device.Launch{Kernel: equalKernel, Bytes: bytesOf(2 * n), Flops: uint64(n)}
	l.Ptr[0], l.Ptr[1] = y, x
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

var topKKernel = &device.Kernel{Name: "top_k", Host: topKHost, CUDA: cudaWarps(reduceCode, "top_k_f32")}

// TopK sets each row of y to the k greatest elements of that row of x
// (rows × cols), the greatest first, and index, of int32, to their columns.
// NaN is greater than all; of equals the first comes first.
func TopK(s device.Stream, rows, cols, k int, y, index, x device.Ptr) {
	needMatrix("TopK", rows, cols, y, index, x)
	if k < 1 || k > cols {
		panic(fmt.Sprintf("kernel.TopK: the %d greatest of %d", k, cols))
	}
	l := device.Launch{Kernel: topKKernel, Bytes: bytesOf(rows * (cols + 2*k)), Flops: uint64(rows * cols)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = y, index, x
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, k
	queue(s, &l)
}

func topKHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	y, index := device.Float32s(l.Ptr[0], rows*k), device.Int32s(l.Ptr[1], rows*k)
	x := device.Float32s(l.Ptr[2], rows*cols)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			topK(y[r*k:][:k], index[r*k:][:k], x[r*cols:][:cols])
		}
	})
}

// topK keeps the greatest so far in order, in index.
func topK(y []float32, index []int32, x []float32) {
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
		y[i] = x[c]
	}
}

var (
	gatherKernel     = &device.Kernel{Name: "gather", Host: gatherHost, CUDA: cudaTable(indexCode, "gather_f32", 2)}
	gatherGradKernel = &device.Kernel{Name: "gather_grad", Host: gatherGradHost, CUDA: cudaElements(indexCode, "gather_grad_f32")}
)

// Gather sets element j of each row of y (rows × k) to the element of that row
// of x (rows × cols) in column index[j]. index, of int32, is rows × k; one out
// of range gives NaN.
func Gather(s device.Stream, rows, cols, k int, y, x, index device.Ptr) {
	queueGather(s, gatherKernel, rows, cols, k, y, x, index)
}

// GatherGrad adds element j of each row of dy (rows × k) to the element of
// that row of dx (rows × cols) in column index[j], in this order. An index out
// of range is passed over.
func GatherGrad(s device.Stream, rows, cols, k int, dx, dy, index device.Ptr) {
	queueGather(s, gatherGradKernel, rows, cols, k, dx, dy, index)
}

func queueGather(s device.Stream, kernel *device.Kernel, rows, cols, k int, to, from, index device.Ptr) {
	needMatrix(kernel.Name, rows, cols, to, from, index)
	need(kernel.Name, k)
	l := device.Launch{Kernel: kernel, Bytes: bytesOf(rows * k * 3)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = to, from, index
	l.Int[0], l.Int[1], l.Int[2] = rows, cols, k
	queue(s, &l)
}

func gatherHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	y, x, index := device.Float32s(l.Ptr[0], rows*k), device.Float32s(l.Ptr[1], rows*cols), device.Int32s(l.Ptr[2], rows*k)
	w.For(rows, rowsPerChunk(k), func(lo, hi int) {
		for i := lo * k; i < hi*k; i++ {
			y[i] = nan
			if c := int(index[i]); c >= 0 && c < cols {
				y[i] = x[i/k*cols+c]
			}
		}
	})
}

func gatherGradHost(l *device.Launch, w *device.Workers) {
	rows, cols, k := l.Int[0], l.Int[1], l.Int[2]
	dx, dy, index := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[1], rows*k), device.Int32s(l.Ptr[2], rows*k)
	w.For(rows, rowsPerChunk(k), func(lo, hi int) {
		for i := lo * k; i < hi*k; i++ {
			if c := int(index[i]); c >= 0 && c < cols {
				dx[i/k*cols+c] += dy[i]
			}
		}
	})
}

var cumSumKernel = &device.Kernel{Name: "cum_sum", Host: cumSumHost, CUDA: cudaWarps(reduceCode, "cum_sum_f32")}

// CumSum sets each element of y to the sum of the elements of its row of x
// (rows × cols) up to it, or from it on with backwards, or adds that with
// accumulate. y may be x when not accumulating.
func CumSum(s device.Stream, rows, cols int, y, x device.Ptr, backwards, accumulate bool) {
	needMatrix("CumSum", rows, cols, y, x)
	n := rows * cols
	l := device.Launch{Kernel: cumSumKernel, Bytes: bytesOf(n * (2 + flag(accumulate))), Flops: uint64(n * (1 + flag(accumulate)))}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0], l.Int[1], l.Int[2], l.Int[3] = rows, cols, flag(backwards), flag(accumulate)
	queue(s, &l)
}

func cumSumHost(l *device.Launch, w *device.Workers) {
	rows, cols := l.Int[0], l.Int[1]
	y, x := device.Float32s(l.Ptr[0], rows*cols), device.Float32s(l.Ptr[1], rows*cols)
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			var sum float64
			for i := range cols {
				at := r*cols + i
				if l.Int[2] != 0 {
					at = r*cols + cols - 1 - i
				}
				sum += float64(x[at])
				putStrided(y[at:], []float32{float32(sum)}, 1, l.Int[3] != 0)
			}
		}
	})
}

var (
	clampKernel     = &device.Kernel{Name: "clamp", Host: clampHost, CUDA: cudaElements(elementwiseCode, "clamp_f32")}
	clampGradKernel = &device.Kernel{Name: "clamp_grad", Host: clampGradHost, CUDA: cudaElements(elementwiseCode, "clamp_grad_f32")}
)

// Clamp sets y = min(max(x, least), most) for n elements. y may be x.
func Clamp(s device.Stream, n int, y, x device.Ptr, least, most float32) {
	need("Clamp", n, y, x)
	l := device.Launch{Kernel: clampKernel, Bytes: bytesOf(2 * n), Flops: uint64(2 * n)}
	l.Ptr[0], l.Ptr[1] = y, x
	l.Int[0] = n
	l.Float[0], l.Float[1] = least, most
	queue(s, &l)
}

func clampHost(l *device.Launch, w *device.Workers) {
	y, x := device.Float32s(l.Ptr[0], l.Int[0]), device.Float32s(l.Ptr[1], l.Int[0])
	w.For(len(y), chunk, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			y[i] = min(max(x[i], l.Float[0]), l.Float[1])
		}
	})
}

// ClampGrad sets dx to dy where x is in [least, most], and to 0 elsewhere, or
// adds that with accumulate. dx may be dy when not accumulating.
func ClampGrad(s device.Stream, n int, dx, dy, x device.Ptr, least, most float32, accumulate bool) {
	need("ClampGrad", n, dx, dy, x)
	l := device.Launch{Kernel: clampGradKernel, Bytes: bytesOf(n * (3 + flag(accumulate))), Flops: uint64(2 * n)}
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = dx, dy, x
	l.Int[0], l.Int[1] = n, flag(accumulate)
	l.Float[0], l.Float[1] = least, most
	queue(s, &l)
}

func clampGradHost(l *device.Launch, w *device.Workers) {
	n := l.Int[0]
	dx, dy, x := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], n), device.Float32s(l.Ptr[2], n)
	w.For(n, chunk, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			var g float32
			if x[i] >= l.Float[0] && x[i] <= l.Float[1] {
				g = dy[i]
			}
			if l.Int[1] != 0 {
				g += dx[i]
			}
			dx[i] = g
		}
	})
}
