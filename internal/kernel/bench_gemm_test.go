package kernel

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// benchFlops measures the launch that f queues, on one thread and on two.
func benchFlops(b *testing.B, name string, f func(s device.Stream)) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("%s/%d", name, workers), func(b *testing.B) {
			s := &inline{w: device.NewWorkers(workers)}
			defer s.w.Close()
			f(s)
			for b.Loop() {
				f(s)
			}
			b.ReportMetric(float64(s.last.Flops)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}

// benchMemory keeps the memory whose addresses it gave away.
type benchMemory struct{ arrays []*array }

func (m *benchMemory) ptr(n int) Array {
	m.arrays = append(m.arrays, memory(n))
	return m.arrays[len(m.arrays)-1].ptr()
}

// BenchmarkMatMul has a cube and the products of GPT-2 (768 wide) for 1024 and
// for 256 tokens: the layers, their gradients (dX with the weight transposed,
// dW with the input transposed) and the logits.
func BenchmarkMatMul(b *testing.B) {
	for _, kn := range microKernels {
		benchGemm(b, kn, "cube", Gemm{M: 1024, N: 1024, K: 1024})
	}
	fast := microKernels[0]
	for _, tokens := range []int{1024, 256} {
		name := func(s string) string { return fmt.Sprintf("%s-%d", s, tokens) }
		benchGemm(b, fast, name("qkv"), Gemm{M: tokens, N: 2304, K: 768})
		benchGemm(b, fast, name("proj"), Gemm{M: tokens, N: 768, K: 768})
		benchGemm(b, fast, name("up"), Gemm{M: tokens, N: 3072, K: 768})
		benchGemm(b, fast, name("down"), Gemm{M: tokens, N: 768, K: 3072})
		benchGemm(b, fast, name("down-dX"), Gemm{M: tokens, N: 3072, K: 768, TransB: true})
		benchGemm(b, fast, name("up-dX"), Gemm{M: tokens, N: 768, K: 3072, TransB: true})
		benchGemm(b, fast, name("up-dW"), Gemm{M: 768, N: 3072, K: tokens, TransA: true, Accumulate: true})
		benchGemm(b, fast, name("logits"), Gemm{M: tokens, N: 50257, K: 768, TransB: true})
		benchGemm(b, fast, name("bytes"), Gemm{M: tokens, N: 256, K: 768, TransB: true})
	}
	benchGemm(b, fast, "batch", Gemm{M: 64, N: 64, K: 64, Batch: 48})
	benchGemm(b, fast, "row", Gemm{M: 1, N: 768, K: 768})
}

func benchGemm(b *testing.B, kn *microKernel, name string, g Gemm) {
	rowsA, colsA, rowsB, colsB := g.stored()
	g.LDA, g.LDB, g.LDC = colsA, colsB, g.N
	g.StrideA, g.StrideB, g.StrideC = rowsA*colsA, rowsB*colsB, g.M*g.N
	n := max(1, g.Batch)
	var mem benchMemory
	g.A, g.B, g.C = mem.ptr(n*g.StrideA), mem.ptr(n*g.StrideB), mem.ptr(n*g.StrideC)
	benchFlops(b, fmt.Sprintf("%s/%s", kn.name, name), func(s device.Stream) { MatMul(using{s, kn.matmulKernel()}, g) })
	runtime.KeepAlive(mem)
}

// BenchmarkAttention has heads as in GPT-2 (12 of 64 elements), read from a
// packed projection.
func BenchmarkAttention(b *testing.B) {
	for _, shape := range []Attention{{Batch: 4, T: 256, Causal: true}, {Batch: 1, T: 1024, Causal: true}, {Batch: 1, T: 1024}} {
		a := shape
		a.S, a.Heads, a.D, a.Scale = a.T, 12, 64, 0.125
		const width = 768
		rows := a.Batch * a.T
		var mem benchMemory
		qkv, dqkv := mem.ptr(3*rows*width), mem.ptr(3*rows*width)
		a.Q, a.K, a.V = qkv, qkv.From(width), qkv.From(2*width)
		a.QStride = [3]int{a.T * 3 * width, a.D, 3 * width}
		a.KStride, a.VStride = a.QStride, a.QStride
		a.O, a.OStride = mem.ptr(rows*width), [3]int{a.T * width, a.D, width}
		a.LSE = mem.ptr(rows * a.Heads)
		g := AttentionGrads{DO: mem.ptr(rows * width), DQ: dqkv, DK: dqkv.From(width), DV: dqkv.From(2 * width), Delta: mem.ptr(rows * a.Heads)}
		name := fmt.Sprintf("%dx%d", a.Batch, a.T)
		if a.Causal {
			name += "-causal"
		}
		benchFlops(b, "Forward/"+name, func(s device.Stream) { AttentionForward(s, a) })
		benchFlops(b, "Backward/"+name, func(s device.Stream) { AttentionBackward(s, a, g) })
		runtime.KeepAlive(mem)
	}
}
