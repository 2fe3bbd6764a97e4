package tensor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// witness writes down ranges as an indented list.
type witness struct {
	depth int
	lines []string
}

func (w *witness) Begin(r tensor.Range) {
	kind := [...]string{"range", "forward", "backward", "update", "pass", "again"}[r.Kind]
	w.lines = append(w.lines, fmt.Sprintf("%s%s %s", strings.Repeat("  ", w.depth), kind, r.Name))
	w.depth++
}

func (w *witness) End() { w.depth-- }

func expectRanges(t *testing.T, w *witness, want string) {
	t.Helper()
	if got := strings.Join(w.lines, "\n"); got != strings.TrimSpace(want) || w.depth != 0 {
		t.Errorf("at depth %d, the ranges\n%s\nwant\n%s", w.depth, got, want)
	}
}

// TestObserver follows a checkpointed step with an update, and a step that
// fails in the middle of an operation.
func TestObserver(t *testing.T) {
	rt := runtime(t)
	p := rt.Parameter(3)
	p.Set([]float32{1, 2, 3})
	defer p.Release()
	w := &witness{}
	rt.Observe(w)
	err := rt.Try(func() {
		var loss *tensor.Tensor
		rt.Range("forward", func() {
			y := tensor.Checkpoint(p, func(x *tensor.Tensor) *tensor.Tensor {
				return tensor.Exp(tensor.Tanh(x))
			})
			loss = tensor.Sum(y)
		})
		loss.Backward(1)
		states := tensor.NewStates(p, 1)
		tensor.Update(tensor.UpdateMomentum, []tensor.Updated{{Tensor: p, States: states}}, nil, tensor.UpdateParams{LR: 1, Beta1: 0.9, Step: 1})
		rt.Range("broken", func() { tensor.Add(p, rt.Full(1, 2)) })
	})
	if err == nil {
		t.Fatal("the sum of 3 and 2 elements was made")
	}
	p.ZeroGrad()
	rt.Observe(nil)
	tensor.Exp(p).Release()
	expectRanges(t, w, `
range forward
  forward tanh
  forward exp
  forward sum
pass backward
  backward sum
  backward exp
    again second run
      forward tanh
      forward exp
  backward tanh
update momentum
range broken
  forward add`)
}

// TestObserverComesAndGoes: whatever the moment at which an observer is set or
// taken away, it sees an End for each Begin, and none too many.
func TestObserverComesAndGoes(t *testing.T) {
	rt := runtime(t)
	first, second := &witness{}, &witness{}
	rt.Range("unseen", func() {
		rt.Observe(first)
		rt.Range("outer", func() {
			rt.Range("inner", func() { rt.Observe(second) })
			rt.Range("later", func() {})
		})
		rt.Range("last", func() { rt.Observe(nil) })
	})
	expectRanges(t, first, "range outer\n  range inner")
	expectRanges(t, second, "range later\nrange last")
}

// TestOperationsEnd: every operation ends its range, recorded or not: none
// lies inside another one.
func TestOperationsEnd(t *testing.T) {
	rt := runtime(t)
	x := rt.Full(0.5, 2, 4, 4).RequireGrad()
	image, channel := rt.Full(1, 1, 2, 4, 4).RequireGrad(), rt.Full(1, 2)
	square, row := rt.Full(1, 4, 4), rt.Full(1, 4)
	qkv := rt.Full(1, 1, 2, 12).RequireGrad()
	targets := rt.FromInt32s(trace.Input, make([]int32, 8), 2, 4)
	index := rt.FromInt32s(trace.Input, make([]int32, 32), 2, 4, 4)
	all := func() []*tensor.Tensor {
		top, at := tensor.TopK(x, 2, -1)
		return []*tensor.Tensor{top, at, tensor.Add(x, x), tensor.Sub(x, x), tensor.Mul(x, x), tensor.Div(x, x), tensor.Scale(x, 2), tensor.Exp(x), tensor.Gelu(x),
			tensor.Clamp(x, 0, 1), tensor.ReluOver(tensor.Scale(x, 1)), tensor.Sum(x), tensor.Mean(x), tensor.Softmax(x), tensor.LogSoftmax(x, -1), tensor.CumSum(x, -1),
			tensor.LayerNorm(x, row, row, 1e-5), tensor.RMSNorm(x, row, 1e-5), tensor.BatchNorm(image, channel, channel, tensor.BatchNormParams{Training: true}),
			tensor.Linear(x, square, nil, false), tensor.MatMul(x, x), tensor.CrossEntropy(x, targets, -1), tensor.Embedding(square, targets), tensor.Gather(x, -1, index),
			tensor.SelfAttention(qkv, 2, true), tensor.Attention(image, image, image, true), tensor.Dropout(x, 0.5),
			tensor.Reshape(x, -1), tensor.Transpose(x, 0, 1), tensor.Slice(x, 0, 0, 1, 1), tensor.Expand(row, 4, 4), tensor.Concat(0, x, x)}
	}
	for _, noGrad := range []bool{false, true} {
		w := &witness{}
		rt.Observe(w)
		var made []*tensor.Tensor
		if noGrad {
			rt.NoGrad(func() { made = all() })
		} else {
			made = all()
		}
		if w.depth != 0 || len(w.lines) < len(made)-1 || slices.ContainsFunc(w.lines, func(s string) bool { return strings.HasPrefix(s, " ") }) {
			t.Errorf("without gradients %v: depth %d after %d results\n%s", noGrad, w.depth, len(made), strings.Join(w.lines, "\n"))
		}
		release(made...)
		rt.Observe(nil)
	}
	release(x, image, channel, square, row, qkv, targets, index)
}

// BenchmarkObserver is an operation that computes nothing: what it costs to be
// ready for an observer, and to have an idle one.
func BenchmarkObserver(b *testing.B) {
	for name, o := range map[string]tensor.Observer{"without": nil, "with": &idle{}} {
		b.Run(name, func(b *testing.B) {
			rt := runtime(b)
			x := rt.Full(1, 1)
			rt.Observe(o)
			for b.Loop() {
				tensor.Reshape(x, 1, 1).Release()
			}
			rt.Observe(nil)
			x.Release()
		})
	}
}

type idle struct{}

func (*idle) Begin(tensor.Range) {}
func (*idle) End()               {}
