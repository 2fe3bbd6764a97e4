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
	g := openGPU()
	if g == nil {
		b.Skip("SKIPPED: the flag -device names no device")
	}
	if g.err != nil {
		b.Fatal(g.err)
	}
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
				for range 3 {
					f()
				}
				wait(b, g)
				b.ResetTimer()
				for range b.N {
					f()
				}
				wait(b, g)
			})
		}
	}
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
