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
type across struct {
	dist.Group
	gathers int // so far
}

func (a *across) Sum(t *tensor.Tensor) { a.reduce(dist.Sum, t) }
func (a *across) Max(t *tensor.Tensor) { a.reduce(dist.Max, t) }

// add puts the sum over the devices in x's place.
func (a *across) add(rt *tensor.Runtime, x []float32) {
	t := rt.FromFloat32s(trace.Workspace, x, len(x))
	defer t.Release()
	a.Sum(t)
	copy(x, t.Float32s())
}

func (a *across) reduce(op dist.Op, t *tensor.Tensor) {
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

// rowsOf is this device's rows of the sum over all devices, of which there are some
// more in the whole; allRows is the reverse. A nil g stands for one device.
func rowsOf(x *tensor.Tensor, g *across) *tensor.Tensor {
	if g == nil {
		return x.Retain()
	}
	return tensor.Together(x, tensor.Collective{Name: "reduce_scatter", Forward: g.scatter, Backward: g.gather}, x.Dim(0)/g.Size(), x.Dim(1))
}

func allRows(x *tensor.Tensor, g *across) *tensor.Tensor {
	if g == nil {
		return x.Retain()
	}
	return tensor.Together(x, tensor.Collective{Name: "all_gather", Forward: g.gather, Backward: g.scatter, Again: true}, x.Dim(0)*g.Size(), x.Dim(1))
}

func bufs(t *tensor.Tensor) []dist.Buf {
	return []dist.Buf{{Ptr: t.Ptr(), Len: t.Len(), Type: t.DType(), Unit: 1}}
}

func (a *across) gather(dst, src *tensor.Tensor) {
	a.gathers++
	a.AllGather(dst.Runtime().Stream(), bufs(dst), bufs(src))
}

func (a *across) scatter(dst, src *tensor.Tensor) {
	a.ReduceScatter(dst.Runtime().Stream(), dist.Sum, bufs(dst), bufs(src))
}

// cutNetwork is the loss of a small one whose layers are cut, and its output layer the
// embedding, with logits of so many rows at a time. Two layers read what is gathered.
func cutNetwork(p []*tensor.Tensor, index, targets *tensor.Tensor, part tensor.Part, a *across, again bool, rows int) (loss *tensor.Tensor) {
	words := tensor.EmbeddingPart(p[0], index, part)
	x := rowsOf(words, a)
	words.Release()
	block := func(x *tensor.Tensor) *tensor.Tensor {
		h := tensor.LayerNormLow(x, p[1], p[2], 1e-5)
		defer h.Release()
		whole := allRows(h, a)
		defer whole.Release()
		up := tensor.Linear(whole, p[3], nil, false)
		defer up.Release()
		gate := tensor.Linear(whole, p[3], nil, false)
		defer gate.Release()
		act := tensor.Gelu(up)
		defer act.Release()
		both := tensor.Mul(act, gate)
		defer both.Release()
		sums := tensor.Linear(both, p[4], nil, false)
		defer sums.Release()
		own := rowsOf(sums, a)
		defer own.Release()
		down := tensor.Add(own, p[5])
		defer down.Release()
		return tensor.Add(x, down)
	}
	if plain := block; again {
		block = func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, plain) }
	}
	y := block(x)
	x.Release()
	defer y.Release()
	whole := allRows(y, a)
	defer whole.Release()
	var others tensor.Across
	if a != nil {
		others = a
	}
	whole.Runtime().WithLogitRows(rows, func() {
		loss = tensor.LinearCrossEntropyAcross(whole, p[0], p[6], targets, tensor.CrossEntropyParams{Ignore: -100}, part, others)
	})
	return loss
}

// partial are the parameters with a gradient of the device's own rows.
var partial = []int{1, 2, 5}

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
	run := func(rt *tensor.Runtime, precision tensor.DType, rank, ranks int, a *across, again bool, rows int) (got [][]float32) {
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
		for _, i := range partial {
			if a != nil {
				a.add(rt, got[i+1])
			}
		}
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
					a := &across{Group: g}
					got := run(rt, precision, g.Rank(), ranks, a, again, rows)
					// 2 in forward, 2 in each of two backward passes, 1 in the second run, and 1
					// for both readers of what was not kept.
					if want := map[bool]int{false: 7, true: 8}[again]; a.gathers != want {
						t.Errorf("again %v: %d gathered, want %d", again, a.gathers, want)
					}
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

// TestGatheredIsNotRemade: what one device's schedule has made again takes no other
// device, whatever lies between; what is made of its own rows can be.
func TestGatheredIsNotRemade(t *testing.T) {
	rt := runtime(t)
	double := func(dst, src *tensor.Tensor) {
		for i := range 2 {
			dst.Runtime().Stream().Copy(dst.Ptr()+device.Ptr(i*int(src.Bytes())), src.Ptr(), src.Bytes())
		}
	}
	x, w := random(rt, 1, 3, 4), random(rt, 2, 4, 4)
	defer release(x, w)
	x.RequireGrad()
	r := rt.Record(nil, func() {
		own := tensor.Linear(x, w, nil, false)
		low := tensor.Gelu(own)
		whole := tensor.Together(low, tensor.Collective{Name: "gather", Forward: double, Backward: func(dst, src *tensor.Tensor) {}, Again: true}, 6, 4)
		cut := tensor.Relu(whole)
		up := tensor.Linear(cut, w, nil, false)
		release(own, low, whole, cut, up)
	})
	var remade []bool
	for _, op := range r.Ops {
		if op.Name == "linear" {
			remade = append(remade, op.Remade)
		}
	}
	if !slices.Equal(remade, []bool{true, false}) {
		t.Errorf("products before and behind what is gathered can be made again: %v", remade)
	}
}

// TestDropoutParts: parts of the tokens lose what they lose in the whole, and so do
// their gradients.
func TestDropoutParts(t *testing.T) {
	rt := runtime(t)
	const batch, tokens, width, parts = 3, 8, 6, 4
	x := random(rt, 1, batch, tokens, width)
	defer x.Release()
	// dropped gives the result and the gradient for all tokens or a part of them.
	dropped := func(part tensor.Part) (y, g []float32) {
		from, n := part.First, tokens
		if part.All > 0 {
			n = tokens / parts
		}
		view := tensor.Slice(x, 1, from, from+n, 1)
		defer view.Release()
		own := tensor.Reshape(view, batch, n, width).RequireGrad()
		defer own.Release()
		rt.SetSeed(9)
		d := tensor.DropoutPart(own, 0.4, part)
		defer d.Release()
		sum := tensor.Sum(d)
		defer sum.Release()
		sum.Backward(1)
		defer own.ZeroGrad()
		return d.Float32s(), own.Grad().Float32s()
	}
	wholeY, wholeG := dropped(tensor.Part{})
	for r := range parts {
		n := tokens / parts
		y, g := dropped(tensor.Part{First: r * n, All: tokens})
		for i := range batch {
			lo, hi, at := (i*tokens+r*n)*width, (i*tokens+(r+1)*n)*width, i*n*width
			if !slices.Equal(y[at:at+n*width], wholeY[lo:hi]) || !slices.Equal(g[at:at+n*width], wholeG[lo:hi]) {
				t.Fatalf("part %d of sequence %d is %v, the whole %v", r, i, y[at:at+n*width], wholeY[lo:hi])
			}
		}
	}
	if err := rt.Try(func() { tensor.DropoutPart(x, 0.4, tensor.Part{First: 1, All: tokens}) }); err == nil {
		t.Error("8 tokens from the first on were taken for a part of 8")
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
