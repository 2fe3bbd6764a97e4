package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// BenchmarkAttentionGPU has layers of BERT-large (16×512), with and without
// dropout, and of GPT-2 (16×1,024), on the GPU that the flag -device names.
// Operands are random, in 16 bits.
func BenchmarkAttentionGPU(b *testing.B) {
	g := chosenGPU(b)
	for _, x := range []struct {
		name string
		a    Attention
	}{
		{"BERT-large", Attention{Batch: 16, Heads: 16, T: 512}},
		{"BERT-large-dropout", Attention{Batch: 16, Heads: 16, T: 512, Dropout: 0.1}},
		{"GPT-2", Attention{Batch: 16, Heads: 12, T: 1024, Causal: true}},
		{"GPT-2-dropout", Attention{Batch: 16, Heads: 12, T: 1024, Causal: true, Dropout: 0.1}},
		{"128-dropout", Attention{Batch: 4, Heads: 16, T: 1024, D: 128, Dropout: 0.1}},
	} {
		a := x.a
		a.S, a.D, a.Scale, a.Seed = a.T, max(a.D, 64), 0.125, 1
		rows, width := a.Batch*a.T, a.Heads*a.D
		free := g.memory
		array := func(n int, d device.DType) Array {
			p := Array{free, d}
			free += device.Ptr(n * d.Size())
			return p
		}
		qkv, dqkv := array(3*rows*width, device.BFloat16), array(3*rows*width, device.BFloat16)
		a.Q, a.K, a.V = qkv, qkv.From(width), qkv.From(2*width)
		a.QStride = [3]int{a.T * 3 * width, a.D, 3 * width}
		a.KStride, a.VStride = a.QStride, a.QStride
		a.O, a.OStride = array(rows*width, device.BFloat16), [3]int{a.T * width, a.D, width}
		a.LSE = array(rows*a.Heads, device.Float32)
		grads := AttentionGrads{DO: array(rows*width, device.BFloat16), DQ: dqkv, DK: dqkv.From(width), DV: dqkv.From(2 * width), Delta: array(rows*a.Heads, device.Float32)}
		if free > g.memory+gpuMemory {
			b.Fatalf("%s takes %d bytes", x.name, free-g.memory)
		}
		fillRandom(b, g, qkv, 3*rows*width)
		fillRandom(b, g, grads.DO, rows*width)
		for i, f := range []func(){func() { AttentionForward(g.stream, a) }, func() { AttentionBackward(g.stream, a, grads) }} {
			b.Run(fmt.Sprintf("%s/%s", x.name, [...]string{"Forward", "Backward"}[i]), func(b *testing.B) {
				measure(b, g, func(int) { f() })
			})
		}
	}
}

// BenchmarkRowsGPU has the operations on rows of steps of GPT-2 (16×1,024 tokens, 768
// wide; 4×1,024, 1,600 wide; logits of 4,096) and of BERT-large (16×512, 1,024 wide;
// logits of 200). Bytes are those of the arrays of rows, which count as often as they
// must be read or written. Rounds take turns with more arrays than L2 holds.
func BenchmarkRowsGPU(b *testing.B) {
	g := chosenGPU(b)
	const room, least = 1 << 30, 1 << 28
	memory, err := g.Alloc(room)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Free(memory)
	fillRandom(b, g, Array{memory, device.BFloat16}, room/2)
	var v [7]Array
	for i := range v {
		v[i] = Array{g.memory + device.Ptr(i<<18), device.Float32}
		Fill(g.stream, v[i], 1<<16, float32(i%2))
	}
	zeros, ones, sums := v[0], v[1], v[2:]
	for _, op := range []struct {
		name   string
		arrays int // of rows·cols elements of 16 bits
		moves  int // how often one of them is read or written
		shapes [][2]int
		run    func(rows, cols int, a []Array)
	}{
		{"CrossEntropy", 1, 2, [][2]int{{4096, 50264}, {200, 30528}}, func(rows, cols int, a []Array) {
			r := LogitRows{Rows: rows, Cols: cols - 7, Stride: cols, All: rows}
			CrossEntropyOver(g.stream, r, sums[0], ones, a[0], zeros, CrossEntropyParams{Ignore: -1})
		}},
		{"LayerNormGrad", 3, 4, [][2]int{{16384, 768}, {8192, 1024}, {4096, 1600}}, func(rows, cols int, a []Array) {
			LayerNormGrad(g.stream, rows, cols, a[0], sums[0], sums[1], a[1], a[2], zeros, ones, ones, true, true, true)
		}},
		{"LayerNorm", 2, 2, [][2]int{{16384, 768}, {8192, 1024}, {4096, 1600}}, func(rows, cols int, a []Array) {
			LayerNorm(g.stream, rows, cols, a[0], sums[0], sums[1], a[1], ones, zeros, 1e-5)
		}},
		{"AddLayerNorm", 4, 4, [][2]int{{16384, 768}, {8192, 1024}, {4096, 1600}}, func(rows, cols int, a []Array) {
			AddLayerNorm(g.stream, AddNorm{Rows: rows, Cols: cols, Y: a[0], Mean: sums[0], RStd: sums[1], Sum: a[1], X: a[2], A: a[3], Gamma: ones, Beta: zeros, Eps: 1e-5})
		}},
		{"Add", 3, 3, [][2]int{{16384, 768}, {8192, 1024}, {4096, 1600}}, func(rows, cols int, a []Array) {
			shape, dense := []int{rows, cols}, []int{cols, 1}
			Binary(g.stream, Add, shape, a[0], View{a[1], dense}, View{a[2], dense})
		}},
		{"BiasGrad", 1, 1, [][2]int{{16384, 768}, {16384, 3072}, {4096, 1600}, {4096, 6400}}, func(rows, cols int, a []Array) {
			BiasGrad(g.stream, rows, cols, sums[0], a[0], true)
		}},
	} {
		for _, shape := range op.shapes {
			rows, cols := shape[0], shape[1]
			var sets [][]Array
			for free := memory; len(sets) < 2 || free < memory+least; {
				set := make([]Array, op.arrays)
				for i := range set {
					set[i] = Array{free, device.BFloat16}
					free += device.Ptr(2 * rows * cols)
				}
				sets = append(sets, set)
			}
			b.Run(fmt.Sprintf("%s/%dx%d", op.name, rows, cols), func(b *testing.B) {
				b.SetBytes(int64(2 * rows * cols * op.moves))
				measure(b, g, func(i int) { op.run(rows, cols, sets[i%len(sets)]) })
			})
		}
	}
}

// chosenGPU is the GPU that the flag -device names.
func chosenGPU(b *testing.B) *gpu {
	g := openGPU()
	if g == nil {
		b.Skip("SKIPPED: the flag -device names no device")
	}
	if g.err != nil {
		b.Fatal(g.err)
	}
	return g
}

// measure times rounds of f, which queues work, after three for a start.
func measure(b *testing.B, g *gpu, f func(round int)) {
	for i := range 3 {
		f(i)
	}
	wait(b, g)
	b.ResetTimer()
	for i := range b.N {
		f(i)
	}
	wait(b, g)
}

func wait(b *testing.B, g *gpu) {
	if err := g.stream.Sync(); err != nil {
		b.Fatal(err)
	}
}

// fillRandom fills n elements with a normal distribution.
func fillRandom(b *testing.B, g *gpu, to Array, n int) {
	r := rand.New(rand.NewPCG(1, 2))
	some := make([]float32, 1<<20)
	for i := range some {
		some[i] = float32(r.NormFloat64())
	}
	const room = 1 << 22
	for i := 0; i < n; i += len(some) {
		m := min(len(some), n-i)
		g.stream.Upload(g.memory+gpuMemory-room, device.BytesOf(some[:m]))
		Scale(g.stream, m, to.From(i), Array{g.memory + gpuMemory - room, device.Float32}, 1, false)
		wait(b, g)
	}
}
