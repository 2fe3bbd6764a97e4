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

// TestQueueingAllocatesNothing queues each operation with addresses of no
// memory. Each has its kernel in the table.
func TestQueueingAllocatesNothing(t *testing.T) {
	const p, q = device.Ptr(512), device.Ptr(1024)
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
		"Scale":            func() { Scale(s, 10, p, q, 2, true) },
		"BiasGrad":         func() { BiasGrad(s, 3, 4, p, q, true) },
		"LayerNorm":        func() { LayerNorm(s, 3, 4, p, p, p, q, q, q, 1e-5) },
		"LayerNormApply":   func() { LayerNormApply(s, 3, 4, p, p, p, q, q, q) },
		"LayerNormGrad":    func() { LayerNormGrad(s, 3, 4, p, p, p, q, q, q, q, q, true, false, true) },
		"Softmax":          func() { Softmax(s, 3, 4, p, q) },
		"SoftmaxGrad":      func() { SoftmaxGrad(s, 3, 4, p, q, q, true) },
		"CrossEntropy":     func() { CrossEntropy(s, 3, 4, p, p, q, q, -1) },
		"CrossEntropyGrad": func() { CrossEntropyGrad(s, 3, 4, p, p, q, q, q, -1, true) },
		"Embedding":        func() { Embedding(s, 3, 4, 5, p, q, q) },
		"EmbeddingGrad":    func() { EmbeddingGrad(s, 3, 4, 5, p, q, q) },
		"AdamW": func() {
			AdamW(s, 10, p, p, p, p, q, AdamWParams{LR: 6e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Step: 1234})
		},
		"SumSquares": func() { SumSquares(s, 10, p, q, true) },
		"ClipScale":  func() { ClipScale(s, p, p, q, 1) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
		if !slices.Contains(All(), queued.last.Kernel) {
			t.Errorf("%s: kernel %q is not in the table", name, queued.last.Kernel.Name)
		}
	}
}

// TestMisuse checks that wrong arguments panic and queue nothing.
func TestMisuse(t *testing.T) {
	const p = device.Ptr(512)
	s := &sink{}
	two := []int{2, 2}
	for name, f := range map[string]func(){
		"no address":         func() { Fill(s, 0, 1, 0) },
		"negative size":      func() { Fill(s, p, -1, 0) },
		"one address of two": func() { Scale(s, 1, p, 0, 1, false) },
		"unknown function":   func() { Unary(s, GeluTanh+1, 1, p, p) },
		"unknown derivative": func() { UnaryGrad(s, -1, 1, p, p, p, false) },
		"unknown operation":  func() { Binary(s, Div+1, two, p, View{p, two}, View{p, two}) },
		"a stride missing":   func() { Binary(s, Add, two, p, View{p, two[:1]}, View{p, two}) },
		"negative stride":    func() { Copy(s, two, View{p, two}, View{p, []int{2, -1}}, false) },
		"negative dimension": func() { Copy(s, []int{2, -2}, View{p, two}, View{p, two}, false) },
		"seven dimensions":   func() { SumTo(s, make([]int, 7), View{p, make([]int, 7)}, View{p, make([]int, 7)}, false) },
		"sum to nowhere":     func() { SumTo(s, []int{0, 2}, View{0, []int{0, 1}}, View{0, []int{2, 1}}, false) },
		"no columns":         func() { Softmax(s, 2, 0, p, p) },
		"negative rows":      func() { CrossEntropy(s, -1, 2, p, p, p, p, -1) },
		"no loss":            func() { CrossEntropy(s, 0, 2, 0, 0, 0, 0, -1) },
		"gamma missing":      func() { LayerNorm(s, 2, 2, p, p, p, p, 0, p, 1e-5) },
		"no table":           func() { Embedding(s, 2, 2, 5, p, 0, p) },
		"step 0":             func() { AdamW(s, 1, p, p, p, p, 0, AdamWParams{}) },
		"no norm":            func() { ClipScale(s, p, 0, p, 1) },
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
		if seen[k.Name] || k.Name == "" || k.Host == nil {
			t.Errorf("kernel %q is there twice, or lacks a name or its code", k.Name)
		}
		seen[k.Name] = true
	}
}
