package tensor_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestBatchNormRelu compares ReLU and a residual in the operation with operations
// of their own: in float32 the result and all gradients have the same bits.
func TestBatchNormRelu(t *testing.T) {
	rt := runtime(t)
	r := rand.New(rand.NewPCG(5, 6))
	x, residual := normals(rt, r, 3, 4, 5, 4).RequireGrad(), normals(rt, r, 3, 4, 5, 4).RequireGrad()
	gamma, beta := normals(rt, r, 4).RequireGrad(), normals(rt, r, 4).RequireGrad()
	mean, variance := normals(rt, r, 4), rt.Full(0.5, 4)
	defer release(x, residual, gamma, beta, mean, variance)
	result := func(f func() *tensor.Tensor) (all [][]float32) {
		y := f()
		s := tensor.Mul(y, y) // so that gradients differ from place to place
		loss := tensor.Sum(s)
		all = append(all, y.Float32s())
		release(y, s)
		loss.Backward(1)
		loss.Release()
		for _, p := range (tensors{x, residual, gamma, beta}) {
			if g := p.Grad(); g != nil {
				all = append(all, g.Float32s())
			}
			p.ZeroGrad()
		}
		return all
	}
	for way := range 16 {
		p := tensor.BatchNormParams{Mean: mean, Var: variance, Eps: 1e-5, Training: way&1 != 0, ChannelsLast: way&2 != 0, Relu: way&4 != 0}
		if way&8 != 0 {
			p.Residual = residual
		}
		got := result(func() *tensor.Tensor { return tensor.BatchNorm(x, gamma, beta, p) })
		plain := p
		plain.Residual, plain.Relu = nil, false
		want := result(func() *tensor.Tensor {
			y := tensor.BatchNorm(x, gamma, beta, plain)
			if p.Residual != nil {
				z := tensor.Add(y, residual)
				y.Release()
				y = z
			}
			if p.Relu {
				z := tensor.Relu(y)
				y.Release()
				y = z
			}
			return y
		})
		if !same(got, want) {
			t.Errorf("%+v: got %v, want %v", p, got, want)
		}
	}
}

// residualChain is blocks whose results are each the residual of the next, with
// a loss and the gradient of what they begin with.
func residualChain(x, w, gamma, beta *tensor.Tensor, blocks int, retain bool) (all [][]float32) {
	y := x.Retain()
	for range blocks {
		c := tensor.Conv2D(y, w, nil, tensor.ConvParams{})
		z := tensor.BatchNorm(c, gamma, beta, tensor.BatchNormParams{Eps: 1e-5, Training: true, Residual: y, Relu: true})
		release(c, y)
		y = z
	}
	loss := tensor.Sum(y)
	y.Release()
	if retain {
		loss.BackwardRetain(1)
		for _, p := range (tensors{x, w, gamma, beta}) {
			p.ZeroGrad()
		}
	}
	loss.Backward(1)
	loss.Release()
	for _, p := range (tensors{x, w, gamma, beta}) {
		if x.Runtime().Holds() {
			all = append(all, p.Grad().Float32s())
		}
		p.ZeroGrad()
	}
	return all
}

func chainOperands(rt *tensor.Runtime, images, side int) tensors {
	r := rand.New(rand.NewPCG(7, 8))
	return tensors{normals(rt, r, images, 4, side, side).RequireGrad(), normals(rt, r, 4, 4, 1, 1).RequireGrad(), normals(rt, r, 4).RequireGrad(), normals(rt, r, 4).RequireGrad()}
}

// TestResidualChain: gradients have the same bits whether results wait, are let
// go and made again, go through backward twice, or are made by a checkpoint.
func TestResidualChain(t *testing.T) {
	rt := runtime(t)
	p := chainOperands(rt, 2, 5)
	defer release(p...)
	const blocks = 12
	run := func(retain bool) [][]float32 { return residualChain(p[0], p[1], p[2], p[3], blocks, retain) }
	want := run(false)
	if got := run(true); !same(got, want) {
		t.Error("gradients differ the second time")
	}
	rec := rt.Record(nil, func() { run(false) })
	for name, s := range map[string]*tensor.Schedule{
		"nothing kept": rec.Keep(func(string) bool { return false }), "segments": rec.Segments(3), "online": {Online: true},
	} {
		rt.Follow(s, func() {
			if got := run(false); !same(got, want) {
				t.Errorf("%s: gradients differ", name)
			}
		})
	}
}

// TestResidualChainMemory: of 12 blocks the 5th and the 10th keep their results,
// beside the convolutions', and every other is made again once for all that read it.
func TestResidualChainMemory(t *testing.T) {
	applied := 0
	var kept func() uint64
	var atBackward uint64
	rt, mem := nullRuntime(t, 1<<30, func(l *device.Launch) {
		switch l.Kernel.Name {
		case "batch_norm_apply":
			applied++
		case "batch_norm_grad":
			if atBackward == 0 {
				atBackward = kept()
			}
		}
	})
	kept = func() uint64 { return mem.Stats().ByPurpose[trace.Activation].Live }
	p := chainOperands(rt, 16, 64)
	defer release(p...)
	unit := uint64(p[0].Bytes())
	residualChain(p[0], p[1], p[2], p[3], 12, false)
	if applied != 12+9 {
		t.Errorf("%d results were made, want 12 and, again, all but the last and the two that are kept", applied)
	}
	// At the first gradient there are 12 results of convolutions and 2 more, the
	// gradients of y, which is also the residual's, and of x, and the 11th residual.
	if most := 17*unit + unit/4; atBackward < 17*unit || atBackward > most {
		t.Errorf("%.2f units are live at the first gradient, want 17", float64(atBackward)/float64(unit))
	}
}

// TestBatchNormHalf compares with operations of their own in bfloat16, which
// round in between.
func TestBatchNormHalf(t *testing.T) {
	rt := runtime(t)
	r := rand.New(rand.NewPCG(9, 10))
	wide, gamma, beta := normals(rt, r, 2, 16, 8, 8), normals(rt, r, 16), normals(rt, r, 16)
	x := wide.To(tensor.BFloat16)
	defer release(wide, gamma, beta, x)
	p := tensor.BatchNormParams{Eps: 1e-5, Training: true}
	plain := tensor.BatchNorm(x, gamma, beta, p)
	sum := tensor.Add(plain, x)
	want := tensor.Relu(sum)
	p.Residual, p.Relu = x, true
	got := tensor.BatchNorm(x, gamma, beta, p)
	defer release(plain, sum, want, got)
	if got.DType() != tensor.BFloat16 {
		t.Fatalf("result is %v", got)
	}
	for i, v := range got.Float32s() {
		w := want.Float32s()[i]
		if d := v - w; d*d > 1e-3 {
			t.Fatalf("element %d is %v, want %v", i, v, w)
		}
	}
}

// TestBatchNormMisuse names what doesn't fit.
func TestBatchNormMisuse(t *testing.T) {
	rt := runtime(t)
	for name, shape := range map[string][]int{"shape": {2, 3, 5}, "type": {2, 3, 4}} {
		err := rt.Try(func() {
			x, c := rt.Full(1, 2, 3, 4), rt.Full(1, 3)
			other := rt.Full(1, shape...)
			if name == "type" {
				other = other.To(tensor.BFloat16)
			}
			tensor.BatchNorm(x, c, c, tensor.BatchNormParams{Training: true, Residual: other})
		})
		if err == nil || !strings.Contains(err.Error(), "with residual") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
