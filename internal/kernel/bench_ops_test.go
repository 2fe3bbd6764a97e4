package kernel

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// The operations of a GPT-2 block (768 wide, 4096 tokens) on one thread and on
// two. Compare GB/s with that of Copy, which is the floor: all but the ones
// with exp and tanh should be near it.

const (
	benchRows, benchCols = 4096, 768
	benchN               = benchRows * benchCols
	benchVocab           = 50304
)

// benchmark measures the launch that f queues. n is the number of elements.
func benchmark(b *testing.B, name string, n int, f func(s device.Stream)) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("%s/%d", name, workers), func(b *testing.B) {
			s := &inline{w: device.NewWorkers(workers)}
			defer s.w.Close()
			f(s)
			for b.Loop() {
				f(s)
			}
			b.SetBytes(int64(s.last.Bytes))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/element")
		})
	}
}

// memory gives n numbers between −2 and 2.
func memory(n int) *array {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i%401)/100 - 2
	}
	c := &testCase{}
	a := c.array(v, true)
	copy(a.data, v)
	return a
}

func BenchmarkElementwise(b *testing.B) {
	x, y, z, bias := memory(benchN), memory(benchN), memory(benchN), memory(benchCols)
	shape, dense, row := []int{benchRows, benchCols}, []int{benchCols, 1}, []int{0, 1}
	benchmark(b, "Copy", benchN, func(s device.Stream) {
		Copy(s, shape, View{y.ptr(), dense}, View{x.ptr(), dense}, false)
	})
	benchmark(b, "Fill", benchN, func(s device.Stream) { Fill(s, y.ptr(), benchN, 0) })
	benchmark(b, "Add", benchN, func(s device.Stream) {
		Binary(s, Add, shape, z.ptr(), View{x.ptr(), dense}, View{y.ptr(), dense})
	})
	benchmark(b, "AddBias", benchN, func(s device.Stream) {
		Binary(s, Add, shape, z.ptr(), View{x.ptr(), dense}, View{bias.ptr(), row})
	})
	benchmark(b, "AddInPlace", benchN, func(s device.Stream) { Scale(s, benchN, y.ptr(), x.ptr(), 1, true) })
	benchmark(b, "SubColumn", benchN, func(s device.Stream) {
		Binary(s, Sub, shape, z.ptr(), View{x.ptr(), dense}, View{y.ptr(), []int{1, 0}})
	})
	for op, name := range []string{"Neg", "Exp", "Log", "Sqrt", "Tanh", "Relu", "Gelu", "GeluErf", "Silu", "Sigmoid"} {
		benchmark(b, name, benchN, func(s device.Stream) { Unary(s, UnaryOp(op), benchN, y.ptr(), x.ptr()) })
	}
	benchmark(b, "Dropout", benchN, func(s device.Stream) { Dropout(s, 0, benchN, y.ptr(), x.ptr(), 0.1, 7, false) })
	benchmark(b, "GeluErfGrad", benchN, func(s device.Stream) {
		UnaryGrad(s, GeluErf, benchN, z.ptr(), y.ptr(), x.ptr(), false)
	})
	benchmark(b, "ExpInPlaceCached", 4096, func(s device.Stream) { Unary(s, Exp, 4096, y.ptr(), x.ptr()) })
	benchmark(b, "GeluCached", 4096, func(s device.Stream) { Unary(s, GeluTanh, 4096, y.ptr(), x.ptr()) })
	benchmark(b, "GeluGrad", benchN, func(s device.Stream) {
		UnaryGrad(s, GeluTanh, benchN, z.ptr(), y.ptr(), x.ptr(), false)
	})
	benchmark(b, "GeluGradAccumulate", benchN, func(s device.Stream) {
		UnaryGrad(s, GeluTanh, benchN, z.ptr(), y.ptr(), x.ptr(), true)
	})
}

func BenchmarkTranspose(b *testing.B) {
	x, y := memory(benchN), memory(benchN)
	for _, shape := range [][]int{{benchCols, benchRows}, {1500, 2000}, {8, 12, 512, 64}} {
		to, from := make([]int, len(shape)), make([]int, len(shape))
		n := 1
		for d := len(shape) - 1; d >= 0; d-- {
			to[d] = n
			n *= shape[d]
		}
		if len(shape) == 2 {
			from[0], from[1] = 1, shape[0]
		} else { // heads out of a packed projection
			from = []int{512 * 12 * 64, 64, 12 * 64, 1}
		}
		benchmark(b, fmt.Sprint(shape), n, func(s device.Stream) {
			Copy(s, shape, View{y.ptr(), to}, View{x.ptr(), from}, false)
		})
	}
}

func BenchmarkReduce(b *testing.B) {
	x, y := memory(benchN), memory(benchN)
	shape, dense := []int{benchRows, benchCols}, []int{benchCols, 1}
	benchmark(b, "Columns", benchN, func(s device.Stream) { BiasGrad(s, benchRows, benchCols, y.ptr(), x.ptr(), false) })
	benchmark(b, "Rows", benchN, func(s device.Stream) {
		SumTo(s, shape, View{y.ptr(), []int{1, 0}}, View{x.ptr(), dense}, false)
	})
	benchmark(b, "All", benchN, func(s device.Stream) {
		SumTo(s, shape, View{y.ptr(), []int{0, 0}}, View{x.ptr(), dense}, false)
	})
	benchmark(b, "SumSquares", benchN, func(s device.Stream) { SumSquares(s, y.ptr(), false, Sized{x.ptr(), benchN}) })
}

func BenchmarkRows(b *testing.B) {
	x, y, z := memory(benchN), memory(benchN), memory(benchN)
	mean, rstd, gamma, beta := memory(benchRows), memory(benchRows), memory(benchCols), memory(benchCols)
	dgamma, dbeta := memory(benchCols), memory(benchCols)
	benchmark(b, "LayerNorm", benchN, func(s device.Stream) {
		LayerNorm(s, benchRows, benchCols, y.ptr(), mean.ptr(), rstd.ptr(), x.ptr(), gamma.ptr(), beta.ptr(), 1e-5)
	})
	benchmark(b, "LayerNormApply", benchN, func(s device.Stream) {
		LayerNormApply(s, benchRows, benchCols, y.ptr(), x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), beta.ptr())
	})
	benchmark(b, "LayerNormGrad", benchN, func(s device.Stream) {
		LayerNormGrad(s, benchRows, benchCols, z.ptr(), dgamma.ptr(), dbeta.ptr(), y.ptr(), x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), false, false, false)
	})
	benchmark(b, "LayerNormGradAccumulate", benchN, func(s device.Stream) {
		LayerNormGrad(s, benchRows, benchCols, z.ptr(), dgamma.ptr(), dbeta.ptr(), y.ptr(), x.ptr(), mean.ptr(), rstd.ptr(), gamma.ptr(), true, false, false)
	})
	benchmark(b, "Softmax", benchN, func(s device.Stream) { Softmax(s, benchRows, benchCols, y.ptr(), x.ptr()) })
	benchmark(b, "SoftmaxGrad", benchN, func(s device.Stream) { SoftmaxGrad(s, benchRows, benchCols, z.ptr(), x.ptr(), y.ptr(), false) })
}

func BenchmarkCrossEntropy(b *testing.B) {
	const rows, n = 256, 256 * benchVocab
	logits, lse, one := memory(n), memory(rows), memory(2)
	targets := (&testCase{}).indices(make([]int32, rows))
	benchmark(b, "Forward", n, func(s device.Stream) {
		CrossEntropy(s, rows, benchVocab, one.ptr(), lse.ptr(), logits.ptr(), targets.ptr(), CrossEntropyParams{Ignore: -1})
	})
	out := memory(n)
	benchmark(b, "Grad", n, func(s device.Stream) {
		CrossEntropyGrad(s, rows, benchVocab, out.ptr(), one.ptr(), logits.ptr(), lse.ptr(), targets.ptr(), CrossEntropyParams{Ignore: -1}, false)
	})
}

func BenchmarkEmbedding(b *testing.B) {
	w, y := memory(benchVocab*benchCols), memory(benchN)
	values := make([]int32, benchRows)
	for i := range values {
		values[i] = int32(i * 7919 % benchVocab)
	}
	c := &testCase{}
	index := c.indices(values)
	copy(index.data, index.before)
	benchmark(b, "Forward", benchN, func(s device.Stream) {
		Embedding(s, benchRows, benchCols, WholeTable(benchVocab), y.ptr(), w.ptr(), index.ptr())
	})
	benchmark(b, "Grad", benchN, func(s device.Stream) {
		EmbeddingGrad(s, benchRows, benchCols, WholeTable(benchVocab), w.ptr(), y.ptr(), index.ptr())
	})
}

func BenchmarkAdamW(b *testing.B) {
	w, g, m, v := memory(4*benchN), memory(4*benchN), memory(4*benchN), memory(4*benchN)
	for i := range v.data {
		v.data[i] = 1
	}
	p := AdamWParams{LR: 1e-9, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, Step: 1}
	benchmark(b, "AdamW", 4*benchN, func(s device.Stream) {
		AdamW(s, updates(4*benchN, w.ptr(), g.ptr(), m.ptr(), v.ptr()), none, p)
	})
}

// BenchmarkImages normalises and pools 16 images of 64 channels of 32×32.
func BenchmarkImages(b *testing.B) {
	const planes, side = 16 * 64, 32
	const n = planes * side * side
	x, y, z, c := memory(n), memory(n), memory(n), memory(64)
	norm := BatchNorm{N: 16, C: 64, P: side * side, X: x.ptr(), Mean: c.ptr(), RStd: c.ptr(), Gamma: c.ptr(), Beta: c.ptr()}
	benchmark(b, "BatchNormApply", n, func(s device.Stream) { BatchNormApply(s, norm, y.ptr()) })
	benchmark(b, "BatchNormGrad", n, func(s device.Stream) {
		BatchNormGrad(s, norm, [4]Array{z.ptr()}, [4]bool{}, y.ptr(), false)
	})
	norm.Relu = true
	benchmark(b, "BatchNormApply with ReLU", n, func(s device.Stream) { BatchNormApply(s, norm, y.ptr()) })
	benchmark(b, "BatchNormGrad with ReLU", n, func(s device.Stream) {
		BatchNormGrad(s, norm, [4]Array{z.ptr()}, [4]bool{}, y.ptr(), false)
	})
	p := Pool{Planes: planes, H: side, W: side, OH: side / 2, OW: side / 2, Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Pad: [2]int{1, 1},
		X: x.ptr(), Y: y.ptr()}
	benchmark(b, "MaxPool", n, func(s device.Stream) { MaxPool(s, p) })
	benchmark(b, "MaxPoolGrad", n, func(s device.Stream) { MaxPoolGrad(s, p, z.ptr(), y.ptr(), false) })
	benchmark(b, "AvgPool", n, func(s device.Stream) { AvgPool(s, p) })
	runtime.KeepAlive([]*array{x, y, z, c})
}
