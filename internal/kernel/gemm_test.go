package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// using queues launches for another microKernel than the processor's fastest.
type using struct {
	device.Stream
	kernel *device.Kernel
}

func (s using) Launch(l *device.Launch) {
	if _, gpu := s.Stream.(*elsewhere); !gpu {
		l.Kernel = s.kernel
	}
	s.Stream.Launch(l)
}

func (kn *microKernel) matmulKernel() *device.Kernel {
	return &device.Kernel{Name: "matmul", Host: kn.matmul}
}

func TestPlainGoIsThere(t *testing.T) {
	if last := microKernels[len(microKernels)-1]; last != goKernel {
		t.Fatalf("the last micro-kernel is %s, want plain Go", last.name)
	}
}

// gemmCase is a product with its operands in Go memory.
type gemmCase struct {
	Gemm
	a, b, c, bias *array
}

// newGemmCase fills in operands and strides of g with random numbers. gap is
// the greatest distance between the end of a row and the next.
func newGemmCase(t *testing.T, r *rand.Rand, g Gemm, gap int, bias bool) (*testCase, *gemmCase) {
	c := &testCase{t: t}
	x := &gemmCase{Gemm: g}
	batch := max(1, g.Batch)
	rowsA, colsA, rowsB, colsB := g.stored()
	some := func() int { return r.IntN(gap + 1) }
	x.LDA, x.LDB, x.LDC = colsA+some(), colsB+some(), g.N+some()
	x.StrideA = r.IntN(2) * (span(rowsA, colsA, x.LDA) + some())
	x.StrideB = r.IntN(2) * (span(rowsB, colsB, x.LDB) + some())
	x.StrideC = span(g.M, g.N, x.LDC) + some()
	x.a = c.input(randoms(r, (batch-1)*x.StrideA+span(rowsA, colsA, x.LDA)))
	x.b = c.input(randoms(r, (batch-1)*x.StrideB+span(rowsB, colsB, x.LDB)))
	x.c = c.dst(r, (batch-1)*x.StrideC+span(g.M, g.N, x.LDC), g.Accumulate)
	x.A, x.B, x.C = x.a.ptr(), x.b.ptr(), x.c.ptr()
	if bias {
		x.bias = c.input(randoms(r, g.N))
		x.Bias = x.bias.ptr()
	}
	return c, x
}

// want is element (i, j) of matrix l of the batch, from the definition.
func (x *gemmCase) want(l, i, j int) (sum float64) {
	for k := range x.K {
		a, b := i*x.LDA+k, k*x.LDB+j
		if x.TransA {
			a = k*x.LDA + i
		}
		if x.TransB {
			b = j*x.LDB + k
		}
		sum += float64(x.a.before[l*x.StrideA+a]) * float64(x.b.before[l*x.StrideB+b])
	}
	if x.bias != nil {
		sum += float64(x.bias.before[j])
	}
	if x.Accumulate {
		sum += x.c.start(l*x.StrideC + i*x.LDC + j)
	}
	return sum
}

// check runs the case on each of kernels and compares C, the gaps between its
// rows included.
func (x *gemmCase) check(c *testCase, kernels ...*microKernel) {
	c.t.Helper()
	all := fromFloats(x.c.before)
	for l := range max(1, x.Batch) {
		for i := range x.M {
			for j := range x.N {
				all[l*x.StrideC+i*x.LDC+j] = x.want(l, i, j)
			}
		}
	}
	for _, kn := range kernels {
		c.run(func(s device.Stream) { MatMul(using{s, kn.matmulKernel()}, x.Gemm) })
		c.near(fmt.Sprintf("%s %+v", kn.name, x.Gemm), x.c, 3e-6, 1+math.Sqrt(float64(x.K)), func(i int) float64 { return all[i] })
	}
}

func TestMatMulRandomShapes(t *testing.T) {
	r := seeded(t)
	for range 100 {
		g := Gemm{M: 1 + r.IntN(70), N: 1 + r.IntN(110), K: r.IntN(80), Batch: r.IntN(4),
			TransA: r.IntN(2) == 0, TransB: r.IntN(2) == 0, Accumulate: r.IntN(2) == 0}
		c, x := newGemmCase(t, r, g, 5, r.IntN(2) == 0)
		x.check(c, microKernels...)
	}
}

// TestMatMulEdges goes through sizes around those of tiles, slices, tasks and
// operands that stay in place.
func TestMatMulEdges(t *testing.T) {
	shapes := [][3]int{
		{1, 1, 1}, {12, 32, 16}, {13, 33, 17}, {24, 64, 256}, {48, 65, 257}, {49, 64, 100},
		{1, 300, 50}, {300, 1, 50}, {12, 300, 40}, {300, 65, 20}, {150, 150, 1}, {10, 40, 1100},
	}
	r := seeded(t)
	for _, s := range shapes {
		for form := range 4 {
			g := Gemm{M: s[0], N: s[1], K: s[2], TransA: form&1 != 0, TransB: form&2 != 0, Accumulate: r.IntN(2) == 0}
			c, x := newGemmCase(t, r, g, 3, r.IntN(2) == 0)
			x.check(c, microKernels...)
		}
	}
}

// TestMatMulBlocks cuts products into several blocks each way.
func TestMatMulBlocks(t *testing.T) {
	var small []*microKernel
	for _, kn := range microKernels {
		s := *kn
		s.panel = panelSize{k: 256, elements: 1 << 10}
		small = append(small, &s)
	}
	r := seeded(t)
	for _, s := range [][3]int{{50, 70, 100}, {50, 70, 300}, {10, 70, 300}, {50, 10, 300}, {50, 10, 100}} {
		for form := range 8 {
			g := Gemm{M: s[0], N: s[1], K: s[2], TransA: form&1 != 0, TransB: form&2 != 0, Accumulate: form&4 != 0}
			c, x := newGemmCase(t, r, g, 3, form%3 != 0)
			x.check(c, small...)
		}
	}
}

func TestMatMulWithoutK(t *testing.T) {
	r := seeded(t)
	for _, accumulate := range []bool{false, true} {
		for _, bias := range []bool{false, true} {
			c, x := newGemmCase(t, r, Gemm{M: 5, N: 7, Batch: 2, Accumulate: accumulate}, 2, bias)
			x.check(c, microKernels[0])
		}
	}
}

func TestMatMulEmpty(t *testing.T) {
	s := &inline{w: device.NewWorkers(1)}
	defer s.w.Close()
	MatMul(s, Gemm{M: 0, N: 3, K: 2, LDA: 2, LDB: 3, LDC: 3})
	MatMul(s, Gemm{M: 3, N: 0, K: 2, LDA: 2, LDB: 0, LDC: 0})
	if s.launched != 0 {
		t.Fatalf("%d launches for empty products, want 0", s.launched)
	}
}

func TestMatMulCost(t *testing.T) {
	r := seeded(t)
	c, x := newGemmCase(t, r, Gemm{M: 5, N: 7, K: 3, Batch: 4, Accumulate: true}, 0, true)
	x.StrideA, x.StrideB = 0, 0
	x.check(c, microKernels[0])
	c.cost(5*3+3*7+4*5*7*2+7, 2*4*5*7*3)
}

func TestMatMulMisuse(t *testing.T) {
	good := Gemm{M: 2, N: 3, K: 4, A: 512, B: 1024, C: 2048, LDA: 4, LDB: 3, LDC: 3}
	for name, change := range map[string]func(g *Gemm){
		"negative size": func(g *Gemm) { g.K = -1 },
		"short rows":    func(g *Gemm) { g.LDA = 3 },
		"short columns": func(g *Gemm) { g.TransB = true },
		"short C":       func(g *Gemm) { g.LDC = 2 },
		"overlapping C": func(g *Gemm) { g.Batch, g.StrideC = 2, 5 },
		"no A":          func(g *Gemm) { g.A = 0 },
		"no B":          func(g *Gemm) { g.B = 0 },
		"no C":          func(g *Gemm) { g.C = 0 },
	} {
		g := good
		change(&g)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			MatMul(&sink{}, g)
		}()
	}
	MatMul(&sink{}, good)
}

func FuzzMatMul(f *testing.F) {
	f.Add(uint8(12), uint8(32), uint8(16), uint8(0), uint64(1))
	f.Add(uint8(13), uint8(65), uint8(1), uint8(7), uint64(2))
	f.Add(uint8(1), uint8(1), uint8(0), uint8(15), uint64(3))
	f.Fuzz(func(t *testing.T, m, n, k, flags uint8, seed uint64) {
		if m == 0 || n == 0 {
			return
		}
		bit := func(i int) bool { return flags>>i&1 != 0 }
		g := Gemm{M: int(m), N: int(n), K: int(k), Batch: int(flags >> 6), TransA: bit(0), TransB: bit(1), Accumulate: bit(2)}
		c, x := newGemmCase(t, rand.New(rand.NewPCG(seed, 0)), g, int(flags>>4&3), bit(3))
		x.check(c, microKernels...)
	})
}

func TestQueueingProductsAllocatesNothing(t *testing.T) {
	s := device.Stream(&sink{})
	a := Attention{Batch: 1, Heads: 1, T: 2, S: 2, D: 4, Q: 512, K: 512, V: 512, O: 512, LSE: 512,
		QStride: [3]int{8, 8, 4}, KStride: [3]int{8, 8, 4}, VStride: [3]int{8, 8, 4}, OStride: [3]int{8, 8, 4}}
	n := testing.AllocsPerRun(100, func() {
		MatMul(s, Gemm{M: 2, N: 3, K: 4, A: 512, B: 512, C: 512, LDA: 4, LDB: 3, LDC: 3})
		AttentionForward(s, a)
		AttentionBackward(s, a, AttentionGrads{DO: 512, DQ: 512, DK: 512, DV: 512, Delta: 512})
	})
	if n != 0 {
		t.Fatalf("queueing allocates %v times", n)
	}
}
