package tensor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/tensor"
)

// TestKept lists what a small graph keeps, and finds its bytes again as what is
// live once every handle but the loss is released.
func TestKept(t *testing.T) {
	rt := runtime(t)
	live := func() uint64 { return rt.Allocator().Stats().Live }
	base := live()
	err := rt.Try(func() {
		x, c := rt.Full(1, 128).RequireGrad(), rt.Full(2, 256, 128)
		y := tensor.Mul(x, c)
		z := tensor.Gelu(y)
		w := tensor.Mul(z, z)
		loss := tensor.Sum(w)
		for _, u := range []*tensor.Tensor{y, z, w, x, c} {
			u.Release()
		}
		var got strings.Builder
		var sum uint64
		for _, k := range loss.Kept() {
			fmt.Fprintln(&got, k.Op, k.How, k.Recipe, k.Shape, k.Bytes)
			sum += k.Bytes
		}
		want := "mul saved  [256 128] 131072\ngelu saved  [256 128] 131072\nmul remade gelu [] 0\nmul remade gelu [] 0\n"
		if got.String() != want {
			t.Errorf("kept\n%s, want\n%s", &got, want)
		}
		if extra := live() - base - 512; extra != sum { // the loss takes 512
			t.Errorf("%d bytes are live for the graph, %d are listed", extra, sum)
		}
		loss.Release()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestChangeInPlaceOfRemadeIsFound changes a value that would be made again.
func TestChangeInPlaceOfRemadeIsFound(t *testing.T) {
	rt := runtime(t)
	err := rt.Try(func() {
		y := tensor.Gelu(rt.Full(2, 3).RequireGrad())
		s := tensor.Sum(tensor.Mul(y, y))
		rt.NoGrad(func() { tensor.AddInPlace(y, y) })
		s.Backward(1)
	})
	if err == nil || !strings.Contains(err.Error(), "mul saved for backward was changed in place") {
		t.Errorf("got error %v", err)
	}
}

// TestKeptUnderSchedule lists values that were let go and sent away.
func TestKeptUnderSchedule(t *testing.T) {
	rt := runtime(t)
	useStore(t, rt)
	x := rt.Full(1, 128).RequireGrad()
	s := &tensor.Schedule{Waits: []tensor.Wait{{Op: "scale", Reads: []int{0}}, {Op: "tanh", Reads: []int{0}, Away: true}, {Op: "exp", Reads: []int{1}}}}
	rt.Follow(s, func() {
		y := tensor.Scale(x, 2)
		z := tensor.Tanh(y)
		w := tensor.Exp(z)
		loss := tensor.Sum(tensor.Mul(w, w))
		var got strings.Builder
		for _, k := range loss.Kept() {
			fmt.Fprintln(&got, k.Op, k.How, k.Recipe, k.Shape, k.Bytes)
		}
		want := "scale saved  [128] 512\ntanh remade scale [128] 0\nexp away  [128] 0\nmul saved  [128] 512\nmul saved  [128] 0\n"
		if got.String() != want {
			t.Errorf("kept\n%s, want\n%s", &got, want)
		}
	})
	rt.Rewind(0)
}
