package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

// gpu is the device that the flag -device names, with memory for the arrays of
// a test. All cases are tried there, too, where the kernel has a version for it.
type gpu struct {
	device.Device
	stream device.Stream
	memory device.Ptr
	err    error
	runs   int
}

const gpuMemory = 256 << 20

var openGPU = sync.OnceValue(func() *gpu {
	if devicetest.Chosen() == "" {
		return nil
	}
	g := &gpu{}
	if g.Device, g.err = device.Open(devicetest.Chosen()); g.err != nil {
		return g
	}
	if g.memory, g.err = g.Alloc(gpuMemory); g.err == nil {
		g.stream, g.err = g.NewStream()
	}
	return g
})

// emulated says whether the GPU is that of cuda/emulate.
func (g *gpu) emulated() bool { return g != nil && g.err == nil && g.Info().Model == "emulated" }

// elsewhere is a stream that takes addresses of Go memory to the GPU's.
type elsewhere struct {
	device.Stream
	next    device.Ptr // free memory of the GPU
	moved   []move
	lacking bool // the kernel can't be tried so
}

// move is a piece of Go memory with its place on the GPU.
type move struct {
	data  []byte
	place device.Ptr
}

func (m *move) start() device.Ptr {
	return device.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(m.data))))
}

// add gives data a place.
func (s *elsewhere) add(data []byte) {
	s.moved = append(s.moved, move{data, s.next})
	s.next += device.Ptr(len(data)+511) &^ 511
}

func (s *elsewhere) Launch(l *device.Launch) {
	if l.Kernel == pagedWriteKernel || l.Kernel == pagedAttentionKernel { // their tables hold addresses of Go memory
		s.lacking = true
		return
	}
	there := *l
	s.move(there.Ptr[:])
	if l.Members != nil {
		members := *l.Members
		for i := range members.Of {
			s.move(members.Of[i].Ptr[:])
		}
		there.Members = &members
	}
	s.Stream.Launch(&there)
}

func (s *elsewhere) move(ptrs []device.Ptr) {
	for i, p := range ptrs {
		for _, m := range s.moved {
			if at := m.start(); p >= at && p < at+device.Ptr(len(m.data)) {
				ptrs[i] = m.place + (p - at)
			}
		}
	}
}

func (s *elsewhere) upload() {
	for _, m := range s.moved {
		s.Stream.Upload(m.place, m.data)
	}
}

func (s *elsewhere) download() error {
	for _, m := range s.moved {
		s.Stream.Download(m.data, m.place)
	}
	return s.Stream.Sync()
}

// runGPU runs f twice on the GPU, and puts the results in place of the host's.
// Every second case has its arrays at addresses that are multiples of 4 only.
func (c *testCase) runGPU(f func(s device.Stream)) {
	c.t.Helper()
	g := openGPU()
	if g == nil {
		return
	}
	if g.err != nil {
		c.t.Fatal(g.err)
	}
	g.runs++
	s := &elsewhere{Stream: g.stream, next: g.memory + device.Ptr(4*(g.runs%2))}
	for _, a := range c.arrays {
		s.add(device.BytesOf(a.all))
	}
	if s.next > g.memory+gpuMemory {
		c.t.Fatal("the arrays are too large for the GPU's test memory")
	}
	host := make([][]float32, len(c.arrays))
	for i, a := range c.arrays {
		host[i] = slices.Clone(a.data)
	}
	var first [][]float32
	for range 2 {
		for _, a := range c.arrays {
			copy(a.data, a.before)
		}
		s.upload()
		f(s)
		if err := s.download(); err != nil {
			c.t.Fatal(err)
		}
		if s.lacking {
			for i, a := range c.arrays {
				copy(a.data, host[i])
			}
			return
		}
		for i, a := range c.arrays {
			c.checkBounds(i, a)
			if first != nil && !sameBits(a.data, first[i]) {
				c.t.Fatalf("array %d differs when the GPU does it again", i)
			}
		}
		first = nil
		for _, a := range c.arrays {
			first = append(first, slices.Clone(a.data))
		}
	}
}

// TestHalfOperandsGPU compares operations on operands of random types with the
// host's.
func TestHalfOperandsGPU(t *testing.T) {
	g := openGPU()
	if g == nil {
		t.Skip("the flag -device names no device")
	}
	if g.err != nil {
		t.Fatal(g.err)
	}
	r := seeded(t)
	host := &inline{w: device.NewWorkers(2)}
	defer host.w.Close()
	var tables keeper
	ops := append(halfOps(&tables), packedOps(&tables)...)
	mask := tables.int32s(slices.Repeat([]int32{1, 1, 0, 1, 1, 1, 1, 0, 1, 1}, 60)...)
	for _, d := range []int{8, 40, 64, 104, 128} {
		for _, causal := range []bool{false, true} {
			ops = append(ops,
				attentionOp(Attention{Batch: 2, Heads: 3, T: 200, S: 200, D: d, Causal: causal, Scale: 0.2}, causal),
				attentionOp(Attention{Batch: 2, Heads: 2, T: 70, S: 130, D: d, Causal: causal, Scale: 0.1, Dropout: 0.2, Seed: 5}, !causal),
				attentionOp(Attention{Batch: 2, Heads: 1, T: 133, S: 65, D: d, Causal: causal, Scale: 0.2}, !causal),
				attentionOp(Attention{Batch: 2, Heads: 2, T: 100, S: 150, D: d, Causal: causal, Scale: 0.2, KeyMask: mask}, causal))
		}
	}
	compareGPU(t, g, r, host, &tables, ops)
}

// TestAttentionByHeads: launches take no more heads than a grid has rows, and all of
// them once.
func TestAttentionByHeads(t *testing.T) {
	a, l, next := Attention{Batch: 3, Heads: 50000}, device.Launch{}, 0
	a.byHeads(&l, mostHeads, func(heads int) {
		if l.Int[21] != next || heads < 1 || heads > mostHeads {
			t.Errorf("%d heads from %d on, want those from %d on", heads, l.Int[21], next)
		}
		next += heads
	})
	if next != 150000 {
		t.Errorf("%d heads of 150000", next)
	}
}

// TestLibrariesGPU compares what libraries compute where they are found, that
// is the shapes of models with all operands of one type, with the host's.
func TestLibrariesGPU(t *testing.T) {
	g := openGPU()
	if g == nil {
		t.Skip("the flag -device names no device")
	}
	if g.err != nil {
		t.Fatal(g.err)
	}
	host := &inline{w: device.NewWorkers(2)}
	defer host.w.Close()
	var tables keeper
	mask := slices.Repeat([]int32{1}, 3*200)
	for i := range 200 {
		mask[i], mask[200+i], mask[400+i] = int32(flag(i < 77)), 0, int32(flag(i%3 > 0)) // the second has no keys
	}
	masks := tables.int32s(mask...)
	one, two := [2]int{1, 1}, [2]int{2, 2}
	var ops []halfOp
	for _, acc := range []bool{false, true} {
		for _, d := range []int{40, 64, 128} {
			ops = append(ops,
				packedOp(Attention{Batch: 3, Heads: 3, T: 200, S: 200, D: d, Causal: true, Scale: 0.1}, acc),
				packedOp(Attention{Batch: 3, Heads: 3, T: 200, S: 200, D: d, Scale: 0.1, KeyMask: masks}, acc),
				packedOp(Attention{Batch: 2, Heads: 2, T: 256, S: 256, D: d, Scale: 0.1}, acc))
		}
		ops = append(ops,
			packedOp(Attention{Batch: 2, Heads: 3, T: 256, S: 256, D: 64, Scale: 0.1, Dropout: 0.1, Seed: 7}, acc),
			packedOp(Attention{Batch: 3, Heads: 2, T: 200, S: 200, D: 64, Scale: 0.1, KeyMask: masks, Dropout: 0.3, Seed: 1 << 40}, acc))
		for _, c := range []Conv{
			{N: 5, C: 16, H: 14, W: 14, M: 32, KH: 3, KW: 3, Groups: 1, Stride: one, Pad: one, Dilation: one},
			{N: 5, C: 32, H: 15, W: 14, M: 16, KH: 1, KW: 1, Groups: 1, Stride: one, Dilation: one},
			{N: 5, C: 32, H: 14, W: 14, M: 64, KH: 1, KW: 1, Groups: 1, Stride: two, Dilation: one},
			{N: 3, C: 3, H: 32, W: 32, M: 64, KH: 7, KW: 7, Groups: 1, Stride: two, Pad: [2]int{3, 3}, Dilation: one},
			{N: 3, C: 32, H: 9, W: 9, M: 32, KH: 3, KW: 3, Groups: 4, Stride: one, Pad: one, Dilation: two},
		} {
			ops = append(append(ops, convOps(c, acc)...), floatWeightOp(c, acc))
		}
	}
	compareGPU(t, g, seeded(t), host, &tables, ops)
	at := Array{g.memory, device.BFloat16}
	a := Attention{Batch: 1, Heads: 2, T: 128, S: 128, D: 64, Scale: 1, Q: at, K: at, V: at, O: at.From(1 << 20), LSE: at.From(2 << 20)}
	a.QStride = [3]int{2 * 128 * 64, 128 * 64, 64}
	a.KStride, a.VStride, a.OStride = a.QStride, a.QStride, a.QStride
	l := device.Launch{Kernel: &device.Kernel{Name: "fused", CUDA: func(l *device.Launch, q *device.CUDAQueue) {
		t.Log("attention is a library's: ", loadAttention(l).fused(l, q, nil))
		l.Float[1] = 0.1
		t.Log("with dropout: ", loadAttention(l).fused(l, q, nil))
	}}}
	a.store(&l)
	g.stream.Launch(&l)
	if err := g.stream.Sync(); err != nil {
		t.Fatal(err)
	}
}

// compareGPU runs operations on operands of one type, then of random types, on
// the GPU and on the host.
func compareGPU(t *testing.T, g *gpu, r *rand.Rand, host *inline, tables *keeper, ops []halfOp) {
	for _, op := range ops {
		for trial := range 6 {
			g.runs++
			s := &elsewhere{Stream: g.stream, next: g.memory + device.Ptr(512*(g.runs%2))}
			for _, table := range tables.held {
				s.add(device.BytesOf(table.([]int32)))
			}
			var mem keeper
			var here, there []Array
			for _, n := range op.free {
				kind := []device.DType{device.BFloat16, device.Float16, device.Float32}[min(trial, 2)]
				if trial > 2 {
					kind = []device.DType{device.Float32, device.BFloat16, device.Float16}[r.IntN(3)]
				}
				values := rounded(kind, randoms(r, n))
				a, _ := mem.arrayOf(kind, values)
				b, _ := mem.arrayOf(kind, values)
				here, there = append(here, a), append(there, b)
				s.add(device.Bytes(b.Ptr, n*kind.Size()))
			}
			wide := [2][]Array{}
			for _, n := range op.wide {
				v := positive(r, n)
				for k := range wide {
					a, _ := mem.arrayOf(device.Float32, v)
					wide[k] = append(wide[k], a)
				}
				s.add(device.Bytes(wide[1][len(wide[1])-1].Ptr, 4*n))
			}
			op.run(host, here, wide[0])
			s.upload()
			op.run(s, there, wide[1])
			if err := s.download(); err != nil {
				t.Fatal(op.name, err)
			}
			if s.lacking {
				break
			}
			for i, n := range op.free {
				alike(t, fmt.Sprintf("%s: operand %d of %v", op.name, i, there[i].Type), there[i], here[i], n)
			}
			for i, n := range op.wide {
				alike(t, fmt.Sprintf("%s: float32 operand %d", op.name, i), wide[1][i], wide[0][i], n)
			}
			runtime.KeepAlive(&mem)
		}
	}
	runtime.KeepAlive(tables)
}

// packedOps are operations on rows of whole packs, for which there are functions
// of their own on GPUs.
func packedOps(tables *keeper) (ops []halfOp) {
	const rows = 150
	targets, tokens := make([]int32, rows+3), make([]int32, 9000)
	for i := range tokens {
		tokens[i] = int32(i * i % 7)
	}
	for i := range targets {
		targets[i] = int32(i*i%300) - 1
	}
	classes, index := tables.int32s(targets...), tables.int32s(tokens...)
	for _, cols := range []int{64, 768, 1000, 1600, 4088} {
		n := rows * cols
		for _, acc := range []bool{false, true} {
			ops = append(ops, halfOp{fmt.Sprint("LayerNormGrad of ", cols), []int{n, n}, []int{n, cols, cols, rows, rows, cols}, func(s device.Stream, f, w []Array) {
				LayerNormGrad(s, rows, cols, w[0], w[1], w[2], f[0], f[1], w[3], w[4], w[5], acc, acc, acc)
			}}, halfOp{fmt.Sprint("LayerNormGrad of one type, of ", cols), []int{n, n, n}, []int{cols, cols, rows, rows, cols}, func(s device.Stream, f, w []Array) {
				LayerNormGrad(s, rows, cols, f[0], w[0], w[1], f[1], f[2], w[2], w[3], w[4], acc, acc, acc)
			}})
		}
		ops = append(ops, halfOp{fmt.Sprint("LayerNormGrad of parameters, of ", cols), []int{n}, []int{n, cols, cols, rows, cols}, func(s device.Stream, f, w []Array) {
			LayerNormGrad(s, rows, cols, none, w[1], w[2], w[0], f[0], none, w[3], w[4], false, false, true)
		}}, halfOp{fmt.Sprint("LayerNorm of ", cols), []int{n, n}, []int{cols, cols, rows, rows}, func(s device.Stream, f, w []Array) {
			LayerNorm(s, rows, cols, f[0], w[2], w[3], f[1], w[0], w[1], 1e-5)
		}}, halfOp{fmt.Sprint("AddLayerNorm of ", cols), []int{n, n, n, n}, []int{cols, cols, rows, rows}, func(s device.Stream, f, w []Array) {
			AddLayerNorm(s, AddNorm{Rows: rows, Cols: cols, Y: f[0], Mean: w[2], RStd: w[3], Sum: f[1], X: f[2], A: f[3], Gamma: w[0], Beta: w[1],
				Eps: 1e-5, Dropout: 0.4, Seed: 9, Tokens: 30, First: 30, Whole: 90})
		}}, halfOp{fmt.Sprint("AddLayerNorm of the sum alone, of ", cols), []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) {
			AddLayerNorm(s, AddNorm{Rows: rows, Cols: cols, Sum: f[0], X: f[1], A: f[2]})
		}}, halfOp{fmt.Sprint("LayerNormApply of ", cols), []int{n, n}, []int{cols, rows, rows}, func(s device.Stream, f, w []Array) {
			LayerNormApply(s, rows, cols, f[0], f[1], w[1], w[2], w[0], none)
		}}, halfOp{fmt.Sprint("BiasGrad of ", cols), []int{cols, n}, nil, func(s device.Stream, f, _ []Array) { BiasGrad(s, rows, cols, f[0], f[1], true) }})
	}
	for _, smoothing := range []float32{0, 0.1} {
		p := CrossEntropyParams{Ignore: -1, Smoothing: smoothing}
		// The last are too long for a block to hold one.
		for _, r := range []LogitRows{{rows, 333, 352, 2, rows + 3, LogitPart{}}, {rows, 5001, 5008, 0, rows + 3, LogitPart{}}, {3, 60001, 60008, 5, rows + 3, LogitPart{}}} {
			ops = append(ops, halfOp{fmt.Sprint("CrossEntropyOver of ", r), []int{r.Rows * r.Stride}, []int{1, 1}, func(s device.Stream, f, w []Array) {
				CrossEntropyOver(s, r, w[0], w[1], f[0], classes, p)
			}}, halfOp{fmt.Sprint("CrossEntropyOver without a gradient of ", r), []int{r.Rows * r.Stride}, []int{1}, func(s device.Stream, f, w []Array) {
				CrossEntropyOver(s, r, w[0], none, f[0], classes, p)
			}})
			if smoothing == 0 {
				ops = append(ops, halfOp{fmt.Sprint("RowSums of ", r), []int{r.Rows * r.Stride}, []int{2 * r.Rows}, func(s device.Stream, f, w []Array) {
					RowSums(s, r, w[0], f[0])
				}}, halfOp{fmt.Sprint("CrossEntropyOver of a part of ", r), []int{r.Rows * r.Stride}, []int{1, 1, 2 * r.Rows}, func(s device.Stream, f, w []Array) {
					r.Part = LogitPart{3, r.Cols + 5, w[2]}
					CrossEntropyOver(s, r, w[0], w[1], f[0], classes, p)
				}})
			}
		}
	}
	ops = append(ops, channelOps()...)
	pool := Pool{Planes: 3, H: 9, W: 10, OH: 5, OW: 5, Channels: 16, Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Pad: [2]int{1, 1}}
	x, y := pool.planes()
	ops = append(ops, halfOp{"MaxPool of packs", []int{3 * y, 3 * x}, nil, func(s device.Stream, f, _ []Array) {
		p := pool
		p.Y, p.X = f[0], f[1]
		MaxPool(s, p)
	}}, halfOp{"MaxPoolGrad of packs", []int{3 * x, 3 * y, 3 * x}, nil, func(s device.Stream, f, _ []Array) {
		p := pool
		p.X = f[2]
		MaxPoolGrad(s, p, f[0], f[1], true)
	}}, halfOp{"Binary in packs", []int{8000, 8000, 800}, nil, func(s device.Stream, f, _ []Array) {
		shape, dense, row := []int{10, 800}, []int{800, 1}, []int{0, 1}
		Binary(s, Sub, shape, f[0], View{f[1], dense}, View{f[2], row})
		Binary(s, Div, shape, f[0], View{f[0], dense}, View{f[1], dense})
	}}, halfOp{"Dropout in packs", []int{8000, 8000}, nil, func(s device.Stream, f, _ []Array) { Dropout(s, 4, 8000, f[0], f[1], 0.3, 7, true) }})
	return append(ops, halfOp{"EmbeddingGrad of many", []int{20 * 264, 9000 * 264}, nil, func(s device.Stream, f, _ []Array) {
		EmbeddingGrad(s, 9000, 264, WholeTable(20), f[0], f[1], index)
	}}, halfOp{"UnaryGrad in packs", []int{8000, 8000, 8000}, nil, func(s device.Stream, f, _ []Array) {
		UnaryGrad(s, GeluTanh, 8000, f[0], f[1], f[2], true)
		UnaryGrad(s, GeluErf, 8000, f[0], f[1], f[2], true)
	}}, halfOp{"Unary in packs", []int{8000, 8000}, nil, func(s device.Stream, f, _ []Array) { Unary(s, GeluTanh, 8000, f[0], f[1]) }})
}

// channelOps normalise rows of channels: fewer than a thread loads at once, and
// more, in all the ways in which y may follow from z.
func channelOps() (ops []halfOp) {
	for _, size := range []BatchNorm{{N: 300, C: 72, P: 1}, {N: 140, C: 8, P: 1}} {
		ops = append(ops, halfOp{"BatchNormStats of rows", []int{size.elements()}, []int{size.C, size.C}, func(s device.Stream, f, w []Array) {
			b := size
			b.X, b.Mean, b.RStd = f[0], w[0], w[1]
			BatchNormStats(s, b, none, none, 0.1, 1e-5)
		}})
		for way := range 4 {
			n, c := size.elements(), size.C
			norm := func(x, residual Array, w []Array) BatchNorm {
				b := size
				b.X, b.Gamma, b.Beta, b.Mean, b.RStd, b.Relu = x, w[0], w[1], w[2], w[3], way&1 != 0
				if way&2 != 0 {
					b.Residual = residual
				}
				return b
			}
			ops = append(ops, halfOp{fmt.Sprint("BatchNormApply of rows, way ", way), []int{n, n, n}, []int{c, c, c, c}, func(s device.Stream, f, w []Array) {
				BatchNormApply(s, norm(f[1], f[2], w), f[0])
			}})
			for _, acc := range [][4]bool{{}, {true}, {false, true, true, true}} {
				ops = append(ops, halfOp{fmt.Sprint("BatchNormGrad of rows, way ", way, ", adding ", acc), []int{n, n, n, n, n}, []int{c, c, c, c, c, c}, func(s device.Stream, f, w []Array) {
					BatchNormGrad(s, norm(f[2], f[3], w), [4]Array{f[0], w[4], w[5], f[1]}, acc, f[4], false)
				}})
			}
			ops = append(ops, halfOp{fmt.Sprint("BatchNormGrad of rows over dy, way ", way), []int{n, n, n, n}, []int{c, c, c, c}, func(s device.Stream, f, w []Array) {
				BatchNormGrad(s, norm(f[1], f[2], w), [4]Array{f[0], none, none, f[3]}, [4]bool{}, f[3], false)
			}}, halfOp{fmt.Sprint("BatchNormGrad of rows alone, way ", way), []int{n, n, n}, []int{c, c, c, c}, func(s device.Stream, f, w []Array) {
				BatchNormGrad(s, norm(f[0], f[1], w), [4]Array{f[2]}, [4]bool{}, f[2], true)
			}})
		}
	}
	return ops
}

// alike compares arrays of one type, relative to their greatest element: they
// may differ by their last digit, and by what rounding operands in between
// (a bias, probabilities) may do.
func alike(t *testing.T, what string, got, want Array, n int) {
	t.Helper()
	tolerance := map[device.DType]float64{device.Float32: 6e-3, device.BFloat16: 1e-2, device.Float16: 6e-3}[got.Type]
	a, b := make([]float32, n), make([]float32, n)
	x, y := got.numbers(n), want.numbers(n)
	x.read(a, 0, 1)
	y.read(b, 0, 1)
	most := 0.0
	for _, v := range b {
		if m := math.Abs(float64(v)); m > most && !math.IsInf(m, 0) {
			most = m
		}
	}
	for i := range b {
		if a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i]) && !(math.Abs(float64(a[i]-b[i])) <= tolerance*most) {
			t.Errorf("%s: element %d of %d is %v, the host's %v", what, i, n, a[i], b[i])
			return
		}
	}
}
