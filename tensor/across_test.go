package tensor_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// across is a group as operations take it.
type across struct{ dist.Group }

func (a across) Sum(t *tensor.Tensor) { a.reduce(dist.Sum, t) }
func (a across) Max(t *tensor.Tensor) { a.reduce(dist.Max, t) }

func (a across) reduce(op dist.Op, t *tensor.Tensor) {
	a.AllReduce(t.Runtime().Stream(), op, dist.Buf{Ptr: t.Ptr(), Len: t.Len(), Type: t.DType()})
}

// box is the numbers of a matrix that lie in a box, and their places in the matrix.
type box struct{ rows, cols, row, col, height, width int }

func (b box) of(all []float32) []float32 {
	var some []float32
	for i := range b.height {
		some = append(some, all[(b.row+i)*b.cols+b.col:][:b.width]...)
	}
	return some
}

// boxes are what a rank has of the parameters of the network below. The rows of the
// first and the last, the words, can't be shared out evenly.
func boxes(rank, ranks int) []box {
	h := hidden / ranks
	lo, hi := words-words*(ranks-rank)/ranks, words-words*(ranks-rank-1)/ranks
	return []box{
		{words, in, lo, 0, hi - lo, in},            // embedding
		{1, in, 0, 0, 1, in}, {1, in, 0, 0, 1, in}, // scale and shift of the norm
		{in, hidden, 0, rank * h, in, h}, // up
		{hidden, in, rank * h, 0, h, in}, // down
		{1, in, 0, 0, 1, in},             // its bias
		{1, words, 0, lo, 1, hi - lo},    // bias of the words
	}
}

const tokens, words, in, hidden = 300, 18, 16, 24

// cutNetwork is the loss of a small one whose layers are cut, and its output layer the
// embedding, with logits of so many rows at a time.
func cutNetwork(p []*tensor.Tensor, index, targets *tensor.Tensor, part tensor.Part, a tensor.Across, again bool, rows int) (loss *tensor.Tensor) {
	x := tensor.EmbeddingAcross(p[0], index, part, a)
	block := func(x *tensor.Tensor) *tensor.Tensor {
		h := tensor.LayerNormLow(x, p[1], p[2], 1e-5)
		defer h.Release()
		whole := tensor.IntoParts(h, a)
		defer whole.Release()
		up := tensor.Linear(whole, p[3], nil, false)
		defer up.Release()
		act := tensor.Gelu(up)
		defer act.Release()
		down := tensor.LinearAcross(act, p[4], p[5], false, a)
		defer down.Release()
		return tensor.Add(x, down)
	}
	if plain := block; again {
		block = func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, plain) }
	}
	y := block(x)
	x.Release()
	defer y.Release()
	whole := tensor.IntoParts(y, a)
	defer whole.Release()
	whole.Runtime().WithLogitRows(rows, func() {
		loss = tensor.LinearCrossEntropyAcross(whole, p[0], p[6], targets, tensor.CrossEntropyParams{Ignore: -100}, part, a)
	})
	return loss
}

// TestAcross: the loss and the gradients of a network whose layers are cut among 2
// and 4 devices are those of one, with recompute and logits in parts too.
func TestAcross(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var all [][]float32
	for i, b := range boxes(0, 1) {
		x := make([]float32, b.rows*b.cols)
		for j := range x {
			if x[j] = float32(r.NormFloat64() / 2); i == 1 {
				x[j]++
			}
		}
		all = append(all, x)
	}
	index, targets := make([]int32, tokens), make([]int32, tokens)
	for i := range index {
		index[i], targets[i] = int32(r.IntN(words)), int32(r.IntN(words))
		if i%5 == 0 {
			targets[i] = -100
		}
	}
	// run gives a rank's loss and gradients.
	run := func(rt *tensor.Runtime, precision tensor.DType, rank, ranks int, a tensor.Across, again bool, rows int) (got [][]float32) {
		own := boxes(rank, ranks)
		var p []*tensor.Tensor
		for i, b := range own {
			shape := []int{b.height, b.width}
			if b.rows == 1 {
				shape = shape[1:]
			}
			p = append(p, rt.Parameter(shape...))
			p[i].Set(b.of(all[i]))
		}
		at, to := rt.FromInt32s(trace.Input, index, tokens), rt.FromInt32s(trace.Input, targets, tokens)
		part := tensor.Part{First: own[0].row, All: words}
		got = lossAndGrads(rt, precision, p, func() *tensor.Tensor { return cutNetwork(p, at, to, part, a, again, rows) })
		release(append(p, at, to)...)
		return got
	}
	for _, precision := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		want := run(runtime(t), precision, 0, 1, nil, false, 0)
		for _, ranks := range []int{2, 4} {
			for _, again := range []bool{false, true} {
				eachDevice(t, ranks, func(rt *tensor.Runtime, g dist.Group) {
					rows := 0
					if again {
						rows = tensor.LogitRows
					}
					got := run(rt, precision, g.Rank(), ranks, across{g}, again, rows)
					tolerance := map[tensor.DType]float64{tensor.Float32: 2e-6, tensor.BFloat16: 3e-2}[precision]
					for i := range got {
						w := want[i]
						if i > 0 {
							w = boxes(g.Rank(), ranks)[i-1].of(w)
						}
						for j, v := range w {
							if !(math.Abs(float64(got[i][j]-v)) <= tolerance*float64(largest(want[i]))) {
								t.Errorf("%s, rank %d of %d (again: %v): number %d of result %d is %v, want %v", precision, g.Rank(), ranks, again, j, i, got[i][j], v)
								return
							}
						}
					}
				})
			}
		}
	}
}

// TestAttentionParts: parts of the heads drop other weights.
func TestAttentionParts(t *testing.T) {
	rt := runtime(t)
	qkv := random(rt, 3, 1, 8, 3*4)
	ones := make([]float32, qkv.Len())
	for i := range ones {
		ones[i] = 1 // all weights are alike, and all values 1: the result counts what was kept
	}
	qkv.Set(ones)
	defer qkv.Release()
	kept := func(part int) []float32 {
		rt.SetSeed(7)
		y := tensor.SelfAttentionWith(qkv, 1, tensor.AttentionOptions{Dropout: 0.5, Part: part})
		defer y.Release()
		return y.Float32s()
	}
	if slices.Equal(kept(0), kept(1)) || slices.Equal(kept(1), kept(2)) || !slices.Equal(kept(1), kept(1)) {
		t.Errorf("parts 0, 1 and 2 keep %v, %v and %v", kept(0), kept(1), kept(2))
	}
}

// eachDevice runs f as each of so many ranks with a device of its own.
func eachDevice(t *testing.T, ranks int, f func(rt *tensor.Runtime, g dist.Group)) {
	t.Helper()
	var ended sync.WaitGroup
	for _, g := range dist.Local(ranks, dist.Options{}) {
		dev, err := device.OpenHost(device.HostOptions{Capacity: 16 << 20, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		rt := on(t, dev)
		ended.Go(func() {
			if err := rt.Try(func() { f(rt, g) }); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
				g.Fail(err)
			}
			if err := g.Close(); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
	}
	ended.Wait()
}
