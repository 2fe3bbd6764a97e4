package kernel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// sink is a stream that keeps a copy of the last launch and runs nothing.
type sink struct {
	device.Stream
	last device.Launch
}

func (s *sink) Launch(l *device.Launch) { s.last = *l }

// Operations on addresses of no memory.
var (
	some, other = Array{Ptr: 512}, Array{Ptr: 1024}
	none        Array

	someConv = Conv{N: 1, C: 2, H: 5, W: 5, M: 2, KH: 3, KW: 3, Groups: 1, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1},
		X: some, Weight: some, Bias: some, Y: other}
	someNorm = BatchNorm{N: 2, C: 3, P: 4, X: some, Mean: some, RStd: some, Gamma: some, Beta: some}
	somePool = Pool{Planes: 2, H: 4, W: 4, OH: 2, OW: 2, X: some, Y: other}
)

// updates is one parameter to update.
func updates(n int, w, g Array, states ...Array) []Updated {
	u := []Updated{{N: n, W: w, G: g}}
	copy(u[0].States[:], states)
	return u
}

// TestQueueingAllocatesNothing queues each operation with addresses of no
// memory; it allocates members, where the operation has them, and no more. Each
// has its kernel in the table.
func TestQueueingAllocatesNothing(t *testing.T) {
	p, q := some, other
	queued := &sink{}
	s := device.Stream(queued)
	for name, f := range map[string]func(){
		"Fill": func() { Fill(s, p, 10, 1) },
		"Copy": func() {
			shape, to, from := [2]int{3, 4}, [2]int{4, 1}, [2]int{1, 3}
			Copy(s, shape[:], View{p, to[:]}, View{q, from[:]}, true)
		},
		"SumTo": func() {
			shape, to, from := [2]int{3, 4}, [2]int{0, 1}, [2]int{1, 3}
			SumTo(s, shape[:], View{p, to[:]}, View{q, from[:]}, true)
		},
		"Unary":     func() { Unary(s, Tanh, 10, p, q) },
		"UnaryGrad": func() { UnaryGrad(s, Tanh, 10, p, q, q, true) },
		"Binary": func() {
			shape, a, b := [2]int{3, 4}, [2]int{4, 1}, [2]int{0, 1}
			Binary(s, Div, shape[:], p, View{p, a[:]}, View{q, b[:]})
		},
		"Scale":     func() { Scale(s, 10, p, q, 2, true) },
		"ScaleBy":   func() { ScaleBy(s, 10, p, q) },
		"BiasGrad":  func() { BiasGrad(s, 3, 4, p, q, true) },
		"LayerNorm": func() { LayerNorm(s, 3, 4, p, p, p, q, q, q, 1e-5) },
		"AddLayerNorm": func() {
			AddLayerNorm(s, AddNorm{Rows: 3, Cols: 4, Y: p, Mean: p, RStd: p, Sum: p, X: q, A: q, Gamma: q, Beta: q, Eps: 1e-5, Dropout: 0.1})
		},
		"LayerNormApply":   func() { LayerNormApply(s, 3, 4, p, p, p, q, q, q) },
		"LayerNormGrad":    func() { LayerNormGrad(s, 3, 4, p, p, p, q, q, q, q, q, true, false, true) },
		"Softmax":          func() { Softmax(s, 3, 4, p, q) },
		"SoftmaxGrad":      func() { SoftmaxGrad(s, 3, 4, p, q, q, true) },
		"CrossEntropy":     func() { CrossEntropy(s, 3, 4, p, p, q, q, CrossEntropyParams{Ignore: -1}) },
		"CrossEntropyGrad": func() { CrossEntropyGrad(s, 3, 4, p, p, q, q, q, CrossEntropyParams{Ignore: -1}, true) },
		"CrossEntropyOver": func() {
			CrossEntropyOver(s, LogitRows{3, 4, 4, 0, 3, LogitPart{}}, p, q, p, q, CrossEntropyParams{Ignore: -1})
		},
		"RowSums":       func() { RowSums(s, LogitRows{3, 4, 4, 0, 3, LogitPart{}}, p, q) },
		"Embedding":     func() { Embedding(s, 3, 4, WholeTable(5), p, q, q) },
		"EmbeddingGrad": func() { EmbeddingGrad(s, 3, 4, WholeTable(5), p, q, q) },
		"AdamW": func() {
			AdamW(s, updates(10, p, p, p, p), q, AdamWParams{LR: 6e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Step: 1234})
		},
		"Pack8":            func() { Pack8(s, 10, p, q) },
		"Unpack8":          func() { Unpack8(s, 10, p, q) },
		"SumSquares":       func() { SumSquares(s, p, true, Sized{q, 10}, Sized{p, 3}) },
		"Convolve":         func() { Convolve(s, someConv) },
		"ConvGradInput":    func() { ConvGradInput(s, someConv, p, q, true) },
		"ConvGradWeight":   func() { ConvGradWeight(s, someConv, p, q, true) },
		"BatchNormStats":   func() { BatchNormStats(s, someNorm, p, p, 0.1, 1e-5) },
		"BatchNormApply":   func() { BatchNormApply(s, someNorm, p) },
		"BatchNormGrad":    func() { BatchNormGrad(s, someNorm, [4]Array{p, p, p, p}, [4]bool{true, false, true}, q, false) },
		"InverseDeviation": func() { InverseDeviation(s, 5, p, q, 1e-5) },
		"MaxPool":          func() { MaxPool(s, somePool) },
		"MaxPoolGrad":      func() { MaxPoolGrad(s, somePool, p, q, true) },
		"AvgPool":          func() { AvgPool(s, somePool) },
		"AvgPoolGrad":      func() { AvgPoolGrad(s, somePool, p, q, true) },
		"LogSoftmax":       func() { LogSoftmax(s, 3, 4, p, q) },
		"LogSoftmaxGrad":   func() { LogSoftmaxGrad(s, 3, 4, p, q, q, true) },
		"Dropout":          func() { Dropout(s, 2, 10, p, q, 0.1, 7, true) },
		"Select":           func() { Select(s, 10, p, q, q, none, 1) },
		"Equal":            func() { Equal(s, 10, p, q, 3) },
		"TopK":             func() { TopK(s, 3, 4, 2, p, p, q) },
		"Gather":           func() { Gather(s, 3, 4, 2, p, q, q) },
		"GatherGrad":       func() { GatherGrad(s, 3, 4, 2, p, q, q) },
		"CumSum":           func() { CumSum(s, 3, 4, p, q, true, true) },
		"Clamp":            func() { Clamp(s, 10, p, q, -1, 1) },
		"ClampGrad":        func() { ClampGrad(s, 10, p, q, q, -1, 1, true) },
		"ClipScale":        func() { ClipScale(s, p, p, q, 1) },
		"PagedWrite":       func() { PagedWrite(s, somePages) },
		"PagedAttention":   func() { PagedAttention(s, somePages) },
	} {
		n := testing.AllocsPerRun(100, f)
		if most := float64(flag(queued.last.Members != nil)); n > most {
			t.Errorf("%s allocates %v times", name, n)
		}
		if !slices.Contains(All(), queued.last.Kernel) {
			t.Errorf("%s: kernel %q is not in the table", name, queued.last.Kernel.Name)
		}
	}
}

// TestMisuse checks that wrong arguments panic and queue nothing.
func TestMisuse(t *testing.T) {
	p := some
	s := &sink{}
	two := []int{2, 2}
	for name, f := range map[string]func(){
		"no address":         func() { Fill(s, none, 1, 0) },
		"negative size":      func() { Fill(s, p, -1, 0) },
		"one address of two": func() { Scale(s, 1, p, none, 1, false) },
		"unknown function":   func() { Unary(s, unaryOps, 1, p, p) },
		"unknown derivative": func() { UnaryGrad(s, -1, 1, p, p, p, false) },
		"unknown operation":  func() { Binary(s, Div+1, two, p, View{p, two}, View{p, two}) },
		"a stride missing":   func() { Binary(s, Add, two, p, View{p, two[:1]}, View{p, two}) },
		"negative stride":    func() { Copy(s, two, View{p, two}, View{p, []int{2, -1}}, false) },
		"negative dimension": func() { Copy(s, []int{2, -2}, View{p, two}, View{p, two}, false) },
		"seven dimensions":   func() { SumTo(s, make([]int, 7), View{p, make([]int, 7)}, View{p, make([]int, 7)}, false) },
		"sum to nowhere":     func() { SumTo(s, []int{0, 2}, View{none, []int{0, 1}}, View{none, []int{2, 1}}, false) },
		"no columns":         func() { Softmax(s, 2, 0, p, p) },
		"negative rows":      func() { CrossEntropy(s, -1, 2, p, p, p, p, CrossEntropyParams{Ignore: -1}) },
		"no loss":            func() { CrossEntropy(s, 0, 2, none, none, none, none, CrossEntropyParams{Ignore: -1}) },
		"rows over rows":     func() { CrossEntropyOver(s, LogitRows{3, 4, 3, 0, 3, LogitPart{}}, p, p, p, p, CrossEntropyParams{}) },
		"rows of no batch":   func() { CrossEntropyOver(s, LogitRows{3, 4, 4, 1, 3, LogitPart{}}, p, p, p, p, CrossEntropyParams{}) },
		"squares of nothing": func() { SumSquares(s, p, false) },
		"gamma missing":      func() { LayerNorm(s, 2, 2, p, p, p, p, none, p, 1e-5) },
		"more than a table":  func() { Embedding(s, 2, 2, Table{3, 1, 3}, p, p, p) },
		"classes of a part": func() {
			CrossEntropyOver(s, LogitRows{3, 4, 4, 0, 3, LogitPart{1, 4, p}}, p, p, p, p, CrossEntropyParams{Ignore: -1})
		},
		"part with smoothing": func() {
			CrossEntropyOver(s, LogitRows{3, 4, 4, 0, 3, LogitPart{0, 9, p}}, p, p, p, p, CrossEntropyParams{Ignore: -1, Smoothing: 0.1})
		},
		"no table":              func() { Embedding(s, 2, 2, WholeTable(5), p, none, p) },
		"step 0":                func() { AdamW(s, updates(1, p, p, p, p), none, AdamWParams{}) },
		"groups that don't fit": func() { c := someConv; c.Groups = 3; Convolve(s, c) },
		"an image too small":    func() { c := someConv; c.H = 2; ConvGradInput(s, c, p, p, false) },
		"no weight":             func() { c := someConv; c.Weight = none; Convolve(s, c) },
		"no channel":            func() { b := someNorm; b.C = 0; BatchNormApply(s, b, p) },
		"too many windows":      func() { b := somePool; b.Kernel, b.Stride = [2]int{3, 3}, [2]int{1, 1}; b.OH = 3; MaxPool(s, b) },
		"dropout of all":        func() { Dropout(s, 0, 1, p, p, 1, 0, false) },
		"dropout from 1 on":     func() { Dropout(s, 1, 1, p, p, 0, 0, false) },
		"more than there are":   func() { TopK(s, 1, 3, 4, p, p, p) },
		"no mask":               func() { Select(s, 1, p, none, p, p, 0) },
		"no norm":               func() { ClipScale(s, p, none, p, 1) },
		"pages of no token":     func() { b := somePages; b.PageTokens = 0; PagedWrite(s, b) },
		"no page table":         func() { b := somePages; b.Table = 0; PagedAttention(s, b) },
	} {
		func() {
			defer func() {
				v := recover()
				if text := fmt.Sprint(v); v == nil || len(text) < 8 || text[:7] != "kernel." {
					t.Errorf("%s: panic with %v", name, v)
				}
			}()
			f()
		}()
		if s.last.Kernel != nil {
			t.Errorf("%s: a launch was queued", name)
		}
	}
}

// TestKernelNames checks that no two kernels have one name.
func TestKernelNames(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range All() {
		if seen[k.Name] || k.Name == "" || k.Host == nil || k.CUDA == nil {
			t.Errorf("kernel %q is there twice, or lacks a name or its code for the host or CUDA", k.Name)
		}
		seen[k.Name] = true
	}
}
