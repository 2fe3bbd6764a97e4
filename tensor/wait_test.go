package tensor_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// program computes a loss from parameters by operations of every kind, in
// which values are used several times, seen through views, and dropped out.
func program(rt *tensor.Runtime, p tensors, index *tensor.Tensor) (loss *tensor.Tensor) {
	rt.SetSeed(7)
	var made tensors
	add := func(t *tensor.Tensor) *tensor.Tensor { made = append(made, t); return t }
	defer func() { release(made...) }()
	x := add(tensor.Embedding(p[0], index)) // [2, 4, 12]
	qkv := add(tensor.Linear(x, p[1], p[2], false))
	a := add(tensor.SelfAttentionWith(qkv, 2, tensor.AttentionOptions{Causal: true, Dropout: 0.2}))
	y := add(tensor.Add(x, add(tensor.Dropout(a, 0.3))))
	n := add(tensor.LayerNorm(y, p[3], p[4], 1e-5))
	o := add(tensor.AddLayerNorm(n, a, p[3], p[4], 1e-5, 0.2, tensor.Part{}))
	h := add(tensor.Gelu(add(tensor.LinearJoined(o, tensors{p[5], p[5], p[5]}, tensors{p[3], p[4], p[3]}))))
	left, right := add(tensor.Slice(h, 2, 0, 12, 1)), add(tensor.Slice(h, 2, 12, 36, 2))
	m := add(tensor.Mul(left, add(tensor.Sigmoid(right))))
	t := add(tensor.Reshape(add(tensor.Transpose(m, 1, 2)), 2, 4, 12))
	s := add(tensor.Softmax(add(tensor.MatMul(t, add(tensor.Transpose(y, 1, 2))))))
	u := add(tensor.Concat(2, s, add(tensor.Tanh(s)), add(tensor.Scale(s, 0.5))))
	return tensor.Sum(add(tensor.Mul(u, u)))
}

// parameters are those of program, drawn anew.
func parameters(rt *tensor.Runtime) (p tensors, index *tensor.Tensor) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, shape := range [][]int{{5, 12}, {12, 36}, {36}, {12}, {12}, {12, 12}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		p = append(p, rt.FromFloat32s(trace.Parameter, v, shape...).RequireGrad())
	}
	return p, rt.FromInt32s(trace.Input, []int32{0, 1, 2, 3, 4, 0, 2, 1}, 2, 4)
}

// gradientsOf gives the loss and all gradients of program.
func gradientsOf(rt *tensor.Runtime, p tensors, index *tensor.Tensor) (all [][]float32) {
	return backward(program(rt, p, index), p)
}

// backward gives the loss and all gradients of it, and releases them.
func backward(loss *tensor.Tensor, p tensors) (all [][]float32) {
	all = append(all, loss.Float32s())
	loss.Backward(1)
	loss.Release()
	for _, t := range p {
		all = append(all, t.Grad().Float32s())
		t.ZeroGrad()
	}
	return all
}

// randomSchedule lets values go and come back as it happens, also with numbers
// of reads that are wrong.
func randomSchedule(r *rand.Rand, rec *tensor.Record) *tensor.Schedule {
	s := &tensor.Schedule{}
	for _, op := range rec.Ops {
		if op.Back {
			break
		}
		w := tensor.Wait{Op: op.Name}
		for range r.IntN(4) {
			w.Reads = append(w.Reads, 1+r.IntN(3))
		}
		if len(w.Reads) > 0 && r.IntN(2) == 0 {
			w.Reads[0] = 0
		}
		if w.Away = r.IntN(4) == 0; w.Away {
			for range r.IntN(3) {
				w.Fetch = append(w.Fetch, r.IntN(len(rec.Ops)/2))
			}
		}
		s.Waits = append(s.Waits, w)
	}
	return s
}

// attic is a Store in the program's memory.
type attic struct{ live, taken int }

func (a *attic) take(size uint64) ([]byte, func(), error) {
	a.live++
	a.taken++
	return make([]byte, size), func() { a.live-- }, nil
}

// TestSchedulesChangeNothing compares loss and gradients, bit for bit, under
// random schedules.
func TestSchedulesChangeNothing(t *testing.T) {
	rt := runtime(t)
	p, index := parameters(rt)
	defer release(append(p, index)...)
	store := useStore(t, rt)
	want := gradientsOf(rt, p, index)
	rec := rt.Record(nil, func() {
		if got := gradientsOf(rt, p, index); !same(got, want) {
			t.Error("recording changed the gradients")
		}
	})
	for seed := range uint64(300) {
		s := randomSchedule(rand.New(rand.NewPCG(seed, 9)), rec)
		rt.Follow(s, func() {
			if got := gradientsOf(rt, p, index); !same(got, want) {
				t.Fatalf("seed %d: gradients differ under %+v", seed, s)
			}
		})
	}
	if store.live != 0 || store.taken == 0 {
		t.Errorf("%d of %d pieces of the store were not given back", store.live, store.taken)
	}
}

func useStore(t *testing.T, rt *tensor.Runtime) *attic {
	t.Helper()
	side, err := rt.Allocator().Device().NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := side.Sync(); err != nil {
			t.Error(err)
		}
	})
	store := &attic{}
	rt.UseStore(tensor.HostStore(store.take), side)
	return store
}

func same(a, b [][]float32) bool {
	return slices.EqualFunc(a, b, func(x, y []float32) bool { return slices.Equal(x, y) })
}

// TestRecordBoundsMemory holds the memory of a run against what its record
// says: the peak of a plain run is the record's, within what lies between the
// moments of an operation, and never more.
func TestRecordBoundsMemory(t *testing.T) {
	rt := runtime(t)
	p, index := parameters(rt)
	defer release(append(p, index)...)
	mem := rt.Allocator()
	rec := rt.Record(nil, func() { gradientsOf(rt, p, index) })
	mem.ResetPeaks()
	gradientsOf(rt, p, index)
	peak, model := int64(mem.Stats().PeakLive), peakOf(rec, func(int) bool { return true })
	if peak > model || model > peak*5/4 {
		t.Errorf("peak %d, by the record %d", peak, model)
	}
	mem.ResetPeaks()
	rt.Follow(nothingWaits(rec), func() { gradientsOf(rt, p, index) })
	if again := int64(mem.Stats().PeakLive); again > peak*5/4 {
		t.Errorf("with every value let go the peak is %d, of a plain run %d", again, peak)
	}
}

// TestScheduleSavesMemory runs a chain of 16 operations of which every fourth
// result is kept.
func TestScheduleSavesMemory(t *testing.T) {
	const bytes = 4096
	rt := runtime(t)
	x := rt.Full(1, bytes/4).RequireGrad()
	defer x.Release()
	peak := func(s *tensor.Schedule) (above uint64) {
		mem := rt.Allocator()
		mem.ResetPeaks()
		base := mem.Stats().Live
		rt.Follow(s, func() {
			y := x.Retain()
			for range 16 {
				z := tensor.Tanh(y)
				y.Release()
				y = z
			}
			loss := tensor.Sum(y)
			y.Release()
			loss.Backward(1)
			loss.Release()
		})
		x.ZeroGrad()
		return mem.Stats().PeakLive - base
	}
	s := &tensor.Schedule{}
	for i := range 16 {
		w := tensor.Wait{Op: "tanh", Reads: []int{0, 2}} // one by backward, one to make the next value
		switch i % 4 {
		case 2:
			w.Reads = []int{0, 1}
		case 3:
			w.Reads = []int{2}
		}
		s.Waits = append(s.Waits, w)
	}
	plain, thrifty := peak(&tensor.Schedule{}), peak(s)
	if plain < 16*bytes || thrifty > 10*bytes {
		t.Errorf("peaks of %d values plain, %d thrifty", plain/bytes, thrifty/bytes)
	}
}

// peakOf is the peak by a record when those values wait that keep says.
func peakOf(r *tensor.Record, keep func(value int) bool) (most int64) {
	last := make([]int, len(r.Values))
	for i, v := range r.Values {
		last[i] = v.Freed
	}
	for at, op := range r.Ops {
		for _, v := range op.Reads {
			if keep(v) {
				last[v] = at
			}
		}
	}
	for at, op := range r.Ops {
		sum := r.Start + op.Workspace
		for _, o := range r.Others {
			if o.Made <= at && at <= o.Freed {
				sum += o.Bytes
			}
		}
		for i, v := range r.Values {
			if v.Op <= at && at <= last[i] {
				sum += v.Bytes
			}
		}
		most = max(most, sum)
	}
	return most
}

// nothingWaits lets every value go after forward and makes it for each read.
func nothingWaits(r *tensor.Record) *tensor.Schedule {
	s := &tensor.Schedule{}
	for _, op := range r.Ops {
		if !op.Back {
			s.Waits = append(s.Waits, tensor.Wait{Op: op.Name, Reads: []int{0}})
		}
	}
	return s
}

// TestRecord shows what a record of a small program says.
func TestRecord(t *testing.T) {
	rt := runtime(t)
	x := rt.Full(1, 128).RequireGrad()
	defer x.Release()
	var begun []int
	rec := rt.Record(func(op int) { begun = append(begun, op) }, func() {
		y := tensor.Scale(x, 2)
		z := tensor.Mul(y, y)
		y.Release()
		loss := tensor.Sum(z)
		z.Release()
		loss.Backward(1)
		loss.Release()
	})
	var got strings.Builder
	for i, op := range rec.Ops {
		fmt.Fprintln(&got, i, op.Name, op.Back, op.Node, op.Reads, op.Remade, op.From)
	}
	fmt.Fprintln(&got, rec.Values, begun)
	want := `0 scale false 0 [] true []
1 mul false 1 [] true [0 0]
2 sum false 2 [] true [1]
3 sum true 2 [] false []
4 mul true 1 [0 0] false []
5 scale true 0 [] false []
[{0 512 1 true} {1 512 2 false} {2 512 5 false}] [0 1 2 3 4 5]
`
	if got.String() != want {
		t.Errorf("record\n%s, want\n%s", &got, want)
	}
	x.ZeroGrad()
}

// TestChangeOfWhatIsMadeAgain changes a value in place that another one is to
// be made again from.
func TestChangeOfWhatIsMadeAgain(t *testing.T) {
	rt := runtime(t)
	x := rt.Full(2, 3).RequireGrad()
	defer x.Release()
	err := rt.Try(func() {
		rt.Follow(&tensor.Schedule{Waits: []tensor.Wait{{}, {Op: "mul", Reads: []int{0}}}}, func() {
			y := tensor.Scale(x, 2)
			s := tensor.Sum(tensor.Tanh(tensor.Mul(y, y)))
			rt.NoGrad(func() { tensor.AddInPlace(y, y) })
			s.Backward(1)
		})
	})
	if err == nil || !strings.Contains(err.Error(), "changed in place") {
		t.Errorf("got error %v", err)
	}
	x.ZeroGrad()
}

// full is a Store with no room.
var full = tensor.HostStore(func(uint64) ([]byte, func(), error) { return nil, nil, errors.New("no room") })

// TestFullStore sends values to a store that has no room: they stay.
func TestFullStore(t *testing.T) {
	rt := runtime(t)
	useStore(t, rt)
	p, index := parameters(rt)
	defer release(append(p, index)...)
	want := gradientsOf(rt, p, index)
	rec := rt.Record(nil, func() { gradientsOf(rt, p, index) })
	s := nothingWaits(rec)
	for i := range s.Waits {
		s.Waits[i].Away = true
	}
	rt.UseStore(full, rt.Stream())
	rt.Follow(s, func() {
		if got := gradientsOf(rt, p, index); !same(got, want) {
			t.Error("gradients differ where no value could be sent away")
		}
	})
}

// TestHeld: with any of the results held that have recipes, and with all, loss and
// gradients are the same bits, in float32 and under autocast, also where the input of a
// checkpoint is held; recipes of what is held don't run, unless memory may run out, and
// all memory is given back.
func TestHeld(t *testing.T) {
	for _, precision := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		rt := runtime(t)
		p, index := parameters(rt)
		for i := range p { // casts of parameters have recipes
			w := rt.Parameter(p[i].Shape()...)
			w.Set(p[i].Float32s())
			p[i].Release()
			p[i] = w
		}
		images := random(rt, 5, 2, 12, 3, 3)
		gradients := func() [][]float32 {
			var loss *tensor.Tensor
			rt.Autocast(precision, func() { loss = heldProgram(rt, p, index, images) })
			return backward(loss, p)
		}
		want := gradients()
		live := rt.Allocator().Stats().Live
		rec := rt.Record(nil, func() { gradients() })
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 11))
			s, held := rec.Keep(func(string) bool { return true }), 0
			for _, recipe := range rec.Recipes {
				if seed < 2 || r.IntN(2) == 0 {
					s.Waits[rec.Ops[recipe.Op].Node].Held = true
					held++
				}
			}
			s.Online = seed == 1
			runs := recipes{}
			rt.Observe(&runs)
			rt.Follow(s, func() {
				if !same(gradients(), want) {
					t.Fatalf("%s, seed %d: gradients differ with %d of %d results held", precision, seed, held, len(rec.Recipes))
				}
			})
			rt.Observe(nil)
			if seed == 0 && runs.n > 0 || seed > 0 && runs.n == 0 {
				t.Errorf("%s, seed %d: %d recipes ran with %d of %d results held", precision, seed, runs.n, held, len(rec.Recipes))
			}
			if now := rt.Allocator().Stats().Live; now != live {
				t.Fatalf("%s, seed %d: %d bytes are live, %d were", precision, seed, now, live)
			}
		}
		release(append(p, index, images)...)
	}
}

// recipes counts those that run.
type recipes struct{ n int }

func (r *recipes) Begin(g tensor.Range) {
	if g.Kind == tensor.Recipe {
		r.n++
	}
}

func (r *recipes) End() {}

// heldProgram is program and, of its parameters, a chain of batch normalisations that
// have each other as residuals, with activations between, and a checkpoint of one.
func heldProgram(rt *tensor.Runtime, p tensors, index, images *tensor.Tensor) (loss *tensor.Tensor) {
	var made tensors
	add := func(t *tensor.Tensor) *tensor.Tensor { made = append(made, t); return t }
	defer func() { release(made...) }()
	bn := func(x, residual *tensor.Tensor) *tensor.Tensor {
		return add(tensor.BatchNorm(x, p[3], p[4], tensor.BatchNormParams{Training: true, Eps: 1e-5, Residual: residual, Relu: true}))
	}
	x := bn(add(tensor.Add(images, add(tensor.Reshape(p[4], 12, 1, 1)))), nil)
	for range 7 {
		x = bn(add(tensor.Tanh(x)), x)
	}
	x = bn(add(tensor.ReluOver(tensor.BatchNorm(x, p[3], p[4], tensor.BatchNormParams{Training: true, Eps: 1e-5}))), nil)
	y := add(tensor.Gelu(add(tensor.Transpose(x, 1, 3)))) // [2, 3, 3, 12]
	y = add(tensor.Checkpoint(y, func(y *tensor.Tensor) *tensor.Tensor {
		h := tensor.Tanh(y)
		defer h.Release()
		return tensor.Mul(h, h)
	}))
	z := add(tensor.Linear(add(tensor.Silu(y)), p[5], nil, true))
	return tensor.Add(add(program(rt, p, index)), add(tensor.Sum(add(tensor.Mul(z, z)))))
}
