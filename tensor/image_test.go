package tensor_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// normals is a leaf with normally distributed numbers.
func normals(rt *tensor.Runtime, r *rand.Rand, shape ...int) *tensor.Tensor {
	t := rt.Empty(tensor.Float32, trace.Parameter, shape...)
	if !rt.Holds() {
		return t
	}
	data := make([]float32, t.Len())
	for i := range data {
		data[i] = float32(r.NormFloat64())
	}
	t.Set(data)
	return t
}

// imageBlock is a residual block with all that makes random choices or keeps
// running statistics.
type imageBlock struct{ w1, w2, gamma, beta, mean, variance *tensor.Tensor }

func newImageBlock(t *testing.T, rt *tensor.Runtime, channels int) *imageBlock {
	r := rand.New(rand.NewPCG(3, 4))
	b := &imageBlock{normals(rt, r, channels, channels, 3, 3), normals(rt, r, channels, channels, 1, 1), normals(rt, r, channels),
		normals(rt, r, channels), rt.Full(0, channels), rt.Full(1, channels)}
	t.Cleanup(func() { release(b.w1, b.w2, b.gamma, b.beta, b.mean, b.variance) })
	for _, p := range b.params() {
		p.RequireGrad()
	}
	return b
}

func (b *imageBlock) params() tensors { return tensors{b.w1, b.w2, b.gamma, b.beta} }

func (b *imageBlock) normRelu(x *tensor.Tensor) *tensor.Tensor {
	return tensor.ReluOver(tensor.BatchNorm(x, b.gamma, b.beta,
		tensor.BatchNormParams{Mean: b.mean, Var: b.variance, Momentum: 0.1, Eps: 1e-5, Training: true}))
}

// run is conv, norm, relu, conv, norm, relu, without the residual.
func (b *imageBlock) run(x *tensor.Tensor) *tensor.Tensor {
	c1 := tensor.Conv2D(x, b.w1, nil, tensor.ConvParams{Padding: 1})
	a1 := b.normRelu(c1)
	c1.Release()
	c2 := tensor.Conv2D(a1, b.w2, nil, tensor.ConvParams{})
	a1.Release()
	a2 := b.normRelu(c2)
	c2.Release()
	return a2
}

func (b *imageBlock) dropping(x *tensor.Tensor) *tensor.Tensor {
	dx := tensor.Dropout(x, 0.3) // before what is saved
	y := b.run(dx)
	dx.Release()
	d := tensor.Dropout(y, 0.3)
	y.Release()
	s := tensor.Add(d, x)
	d.Release()
	defer s.Release()
	return tensor.Scale(s, 0.5)
}

// TestCheckpointRepeatsChoices: the second run drops the same elements and
// leaves the running statistics alone, so that nothing differs from a plain
// run.
func TestCheckpointRepeatsChoices(t *testing.T) {
	rt := runtime(t)
	b := newImageBlock(t, rt, 4)
	x := normals(rt, rand.New(rand.NewPCG(1, 2)), 2, 4, 6, 6)
	defer x.Release()
	result := func(around func(x *tensor.Tensor) *tensor.Tensor) (out [][]float32) {
		rt.SetSeed(77)
		b.mean.Set(make([]float32, 4))
		y1 := around(x)
		y2 := around(y1)
		y1.Release()
		s := tensor.Mul(y2, y2)
		y2.Release()
		loss := tensor.Sum(s)
		s.Release()
		out = append(out, loss.Float32s())
		loss.Backward(1)
		loss.Release()
		for _, p := range b.params() {
			out = append(out, p.Grad().Float32s())
			p.ZeroGrad()
		}
		next := tensor.Dropout(x, 0.5) // the choices go on alike
		defer next.Release()
		return append(out, b.mean.Float32s(), next.Float32s())
	}
	want := result(b.dropping)
	got := result(func(x *tensor.Tensor) *tensor.Tensor { return tensor.Checkpoint(x, b.dropping) })
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("value %d is %v with checkpoints, %v without", i, got[i], want[i])
		}
	}
}

// TestNormsAndActivationsAreNotSaved: of conv, norm, relu twice only the
// input and the results of the convolutions are kept.
func TestNormsAndActivationsAreNotSaved(t *testing.T) {
	convolutions := 0
	rt, mem := nullRuntime(t, 1<<30, func(l *device.Launch) {
		if l.Kernel.Name == "conv" {
			convolutions++
		}
	})
	b := newImageBlock(t, rt, 16)
	base := mem.Stats().Live
	const images, side = 8, 64
	unit := uint64(images * 16 * side * side * 4)
	x := rt.Empty(tensor.Float32, trace.Activation, images, 16, side, side)
	y := b.run(x)
	x.Release()
	p := tensor.MaxPool2D(y, tensor.PoolParams{Kernel: 2})
	y.Release()
	got := mem.Stats().Live - base
	if want := 3*unit + unit/4; got < want || got > want+unit/20 {
		t.Errorf("%.2f units are live, want 3.25: the input, two results and the pool's", float64(got)/float64(unit))
	}
	loss := tensor.Sum(p)
	p.Release()
	loss.Backward(1)
	loss.Release()
	for _, p := range b.params() {
		p.ZeroGrad()
	}
	if convolutions != 2 {
		t.Errorf("%d convolutions forward, want 2: none is made again", convolutions)
	}
}

// TestImagesOutOfMemory runs blocks under every capacity from nothing to
// enough: each failure leaves nothing behind.
func TestImagesOutOfMemory(t *testing.T) {
	failed := 0
	for capacity := uint64(4 << 20); ; capacity += 2 << 20 {
		rt, mem := nullRuntime(t, capacity, nil)
		b := newImageBlock(t, rt, 16)
		before, live, mark := rt.Live(), mem.Stats().Live, rt.Mark()
		err := rt.Try(func() {
			x := normals(rt, nil, 4, 16, 64, 64)
			x = tensor.Checkpoint(x, b.dropping)
			x = tensor.MaxPool2D(b.dropping(x), tensor.PoolParams{Kernel: 2})
			x = tensor.AdaptiveAvgPool2D(x, 1, 1)
			tensor.Sum(x).Backward(1)
			rt.Rewind(mark)
		})
		if err == nil {
			break
		}
		failed++
		if !errors.As(err, new(*alloc.OutOfMemoryError)) {
			t.Fatalf("capacity %d: %v", capacity, err)
		}
		for _, p := range b.params() {
			p.ZeroGrad()
		}
		if rt.Live() != before || mem.Stats().Live != live {
			t.Fatalf("capacity %d: %d handles and %d bytes are left, were %d and %d", capacity, rt.Live(), mem.Stats().Live, before, live)
		}
	}
	if failed < 4 {
		t.Errorf("only %d capacities were too small", failed)
	}
}

// TestReluOver gives what Relu gives, where it writes over its input and where
// it can't.
func TestReluOver(t *testing.T) {
	rt := runtime(t)
	gradient := func(relu func(x *tensor.Tensor) *tensor.Tensor, make func(x *tensor.Tensor) *tensor.Tensor) (y, g []float32) {
		x := rt.FromFloat32s(trace.Input, []float32{0.5, -1, 2, -3}, 4).RequireGrad()
		defer x.Release()
		a := relu(make(x))
		s := tensor.Mul(a, a)
		y = a.Float32s()
		a.Release()
		loss := tensor.Sum(s)
		s.Release()
		loss.Backward(1)
		loss.Release()
		return y, x.Grad().Float32s()
	}
	for name, f := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"made again": tensor.Silu, "saved": tensor.Tanh, "with a second handle": (*tensor.Tensor).Retain,
	} {
		y, g := gradient(tensor.ReluOver, f)
		wantY, wantG := gradient(func(x *tensor.Tensor) *tensor.Tensor { defer x.Release(); return tensor.Relu(x) }, f)
		if !slices.Equal(y, wantY) || !slices.Equal(g, wantG) {
			t.Errorf("%s: result %v and gradient %v, want %v and %v", name, y, g, wantY, wantG)
		}
	}
}
