package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestPagedSelfAttention sends two texts through attention in pieces and
// compares with SelfAttention of each as a whole, in the second of two layers.
func TestPagedSelfAttention(t *testing.T) {
	rt := runtime(t)
	r := rand.New(rand.NewPCG(1, 2))
	l := tensor.PageLayout{Layers: 2, Heads: 3, D: 5, Tokens: 4}
	const tokens, width = 11, 15
	var text [2][]float32
	var want [2][]float32
	var pages [2][]device.Ptr
	for i := range text {
		for range tokens * 3 * width {
			text[i] = append(text[i], float32(r.NormFloat64()))
		}
		x := rt.FromFloat32s(trace.Input, text[i], 1, tokens, 3*width)
		y := tensor.SelfAttention(x, l.Heads, true)
		want[i] = y.Float32s()
		x.Release()
		y.Release()
		for range 3 {
			b := pageOf(t, rt, l)
			defer b.Free()
			pages[i] = append(pages[i], b.Ptr())
		}
	}
	for _, piece := range [][2][2]int{{{0, 6}, {0, 1}}, {{6, 7}, {1, 11}}, {{7, 11}, {11, 11}}} {
		var rows []float32
		var texts []tensor.PagedText
		for i, p := range piece {
			rows = append(rows, text[i][p[0]*3*width:p[1]*3*width]...)
			texts = append(texts, tensor.PagedText{Start: p[0], Rows: p[1] - p[0], Pages: pages[i]})
		}
		b := rt.PagedBatch(l, texts)
		x := rt.FromFloat32s(trace.Input, rows, len(rows)/(3*width), 3*width)
		y := b.SelfAttention(1, x)
		got := y.Float32s()
		for i, p := range piece {
			for j, w := range want[i][p[0]*width : p[1]*width] {
				if math.Abs(float64(got[j]-w)) > 1e-6 {
					t.Fatalf("text %d, rows %v: element %d is %v, want %v", i, p, j, got[j], w)
				}
			}
			got = got[(p[1]-p[0])*width:]
		}
		x.Release()
		y.Release()
		b.Release()
	}
}

func pageOf(t *testing.T, rt *tensor.Runtime, l tensor.PageLayout) *alloc.Block {
	t.Helper()
	b, err := rt.Allocator().Alloc(l.Bytes(), trace.Activation, rt.Stream())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPagedMisuse gives too few pages, rows of another width, and rows that
// want a gradient.
func TestPagedMisuse(t *testing.T) {
	rt := runtime(t)
	l := tensor.PageLayout{Layers: 1, Heads: 1, D: 2, Tokens: 4}
	page := pageOf(t, rt, l)
	defer page.Free()
	texts := []tensor.PagedText{{Start: 2, Rows: 2, Pages: []device.Ptr{page.Ptr()}}}
	for name, f := range map[string]func(){
		"too few pages":   func() { rt.PagedBatch(l, []tensor.PagedText{{Start: 3, Rows: 2, Pages: texts[0].Pages}}) },
		"other width":     func() { rt.PagedBatch(l, texts).SelfAttention(0, rt.Full(0, 2, 5)) },
		"no such layer":   func() { rt.PagedBatch(l, texts).SelfAttention(1, rt.Full(0, 2, 6)) },
		"gradient wanted": func() { rt.PagedBatch(l, texts).SelfAttention(0, rt.Full(0, 2, 6).RequireGrad()) },
	} {
		if rt.Try(f) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
