package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// How matrices are multiplied on the host.
//
// The method is that of Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008), in the form of BLIS (Van Zee and van de
// Geijn 2015). From the inside out:
//
//   - A tile of C, 12×32 with AVX-512, is summed in registers over a slice of k
//     (microKernel.tile). Each step takes a column of a strip of op(A) and a row
//     of a strip of op(B). A tile that hangs over the edge of C is computed whole
//     in scratch memory, and what lies inside is added to C.
//   - A task is a rectangle of tiles. It goes over k slice by slice, so that the
//     slices of its strips stay in the caches. Threads share the tasks.
//   - A panel holds strips of op(A) or op(B) packed: dense, in the order in which
//     tiles read them. Packing takes care of transposes and strides (packer).
//     Threads share this work too. Operands that few tiles read stay in place.
//   - A product is done block by block so that both panels fit the last cache.
//
// Each element of C is the sum over slices, in order, of a sum in the order of
// k. Nothing else that varies (tasks, threads, blocks of rows and columns)
// touches the result. Panels are cut at multiples of a slice.

var matmulKernel = &device.Kernel{Name: "matmul", Host: microKernels[0].matmul, CUDA: cudaMatMul}

// MatMul computes the matrix products that g describes. C must not overlap A,
// B or the bias. With K = 0 the products are zero.
//
// The arithmetic is float32 throughout: no element is rounded to less.
func MatMul(s device.Stream, g Gemm) {
	g.Batch = max(1, g.Batch)
	g.check()
	if g.M == 0 || g.N == 0 {
		return
	}
	l := device.Launch{Kernel: matmulKernel, Bytes: g.bytes(), Flops: g.flops()}
	l.Ptr = [device.MaxPtrs]device.Ptr{g.A, g.B, g.C, g.Bias}
	l.Int = [device.MaxInts]int{g.M, g.N, g.K, g.LDA, g.LDB, g.LDC, g.Batch, g.StrideA, g.StrideB, g.StrideC,
		flag(g.TransA), flag(g.TransB), flag(g.Accumulate)}
	queue(s, &l)
}

func loadGemm(l *device.Launch) *Gemm {
	p, n := &l.Ptr, &l.Int
	return &Gemm{A: p[0], B: p[1], C: p[2], Bias: p[3],
		M: n[0], N: n[1], K: n[2], LDA: n[3], LDB: n[4], LDC: n[5], Batch: n[6], StrideA: n[7], StrideB: n[8], StrideC: n[9],
		TransA: n[10] != 0, TransB: n[11] != 0, Accumulate: n[12] != 0}
}

// check panics unless the matrices are what Gemm describes.
func (g *Gemm) check() {
	_, colsA, _, colsB := g.stored()
	switch {
	case g.M < 0 || g.N < 0 || g.K < 0:
		panic(fmt.Sprintf("kernel.MatMul: sizes %d×%d×%d", g.M, g.N, g.K))
	case g.LDA < colsA || g.LDB < colsB || g.LDC < g.N:
		panic(fmt.Sprintf("kernel.MatMul: rows of %d, %d and %d elements lie only %d, %d and %d apart", colsA, colsB, g.N, g.LDA, g.LDB, g.LDC))
	case g.StrideA < 0 || g.StrideB < 0 || g.Batch > 1 && g.StrideC < span(g.M, g.N, g.LDC):
		panic(fmt.Sprintf("kernel.MatMul: %d matrices of C %d×%d lie %d apart (A %d, B %d)", g.Batch, g.M, g.N, g.StrideC, g.StrideA, g.StrideB))
	}
	need("MatMul", g.M*g.N, g.C)
	need("MatMul", g.M*g.N*g.K, g.A, g.B)
}

// stored gives the sizes of A and B as they lie in memory.
func (g *Gemm) stored() (rowsA, colsA, rowsB, colsB int) {
	rowsA, colsA, rowsB, colsB = g.M, g.K, g.K, g.N
	if g.TransA {
		rowsA, colsA = colsA, rowsA
	}
	if g.TransB {
		rowsB, colsB = colsB, rowsB
	}
	return
}

// span is the number of elements from the first to the last of a matrix.
func span(rows, cols, ld int) int {
	if rows == 0 || cols == 0 {
		return 0
	}
	return (rows-1)*ld + cols
}

func (g *Gemm) flops() uint64 {
	return 2 * uint64(g.Batch) * uint64(g.M) * uint64(g.N) * uint64(g.K)
}

func (g *Gemm) bytes() uint64 {
	matrices := func(stride int) int {
		if stride == 0 {
			return 1
		}
		return g.Batch
	}
	n := matrices(g.StrideA)*g.M*g.K + matrices(g.StrideB)*g.K*g.N + g.Batch*g.M*g.N*(1+flag(g.Accumulate))
	if g.Bias != 0 {
		n += g.N
	}
	return bytesOf(n)
}

// matmul computes the products of a batch, small ones several to a thread.
func (kn *microKernel) matmul(l *device.Launch, w *device.Workers) {
	g := loadGemm(l)
	grain := max(1, smallTask/max(1, g.M*g.N*g.K))
	w.For(g.Batch, grain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p := g.product(i)
			if p.start(g); p.k > 0 {
				kn.multiply(p, w)
			}
		}
	})
}

// product gives matrix i of the batch.
func (g *Gemm) product(i int) *product {
	rowsA, colsA, rowsB, colsB := g.stored()
	at := func(p device.Ptr, stride, rows, cols, ld int) []float32 {
		return device.Float32s(p+device.Ptr(4*i*stride), span(rows, cols, ld))
	}
	p := &product{m: g.M, n: g.N, k: g.K, ldc: g.LDC,
		a: operand{data: at(g.A, g.StrideA, rowsA, colsA, g.LDA), outer: g.LDA, inner: 1},
		b: operand{data: at(g.B, g.StrideB, rowsB, colsB, g.LDB), outer: 1, inner: g.LDB},
		c: at(g.C, g.StrideC, g.M, g.N, g.LDC),
	}
	if g.TransA {
		p.a.outer, p.a.inner = 1, g.LDA
	}
	if g.TransB {
		p.b.outer, p.b.inner = g.LDB, 1
	}
	return p
}

// start sets what the sum over k begins with. Tiles add one matrix to their
// sum: C or the bias. Where both are to be added, or where there is no tile
// because k is 0, C takes the bias first.
func (p *product) start(g *Gemm) {
	var bias []float32
	if g.Bias != 0 {
		bias = device.Float32s(g.Bias, g.N)
	}
	if p.k > 0 && !g.Accumulate {
		p.src = bias
		return
	}
	for i := range p.m {
		row := p.c[i*p.ldc:][:p.n]
		if !g.Accumulate {
			clear(row)
		}
		for j, x := range bias {
			row[j] += x
		}
	}
	p.src, p.lds = p.c, p.ldc
}
