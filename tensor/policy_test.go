package tensor_test

import (
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// TestPoliciesChangeNothing compares loss and gradients, bit for bit, under
// rules of every kind.
func TestPoliciesChangeNothing(t *testing.T) {
	rt := runtime(t)
	p, index := parameters(rt)
	defer release(append(p, index)...)
	want := gradientsOf(rt, p, index)
	rec := rt.Record(nil, func() { gradientsOf(rt, p, index) })
	policies := map[string]*tensor.Schedule{
		"products": rec.Keep(func(op string) bool { return op == "linear" || op == "matmul" }),
		"none":     rec.Keep(func(string) bool { return false }),
		"all":      rec.Keep(func(string) bool { return true }),
	}
	for n := range 12 {
		policies[fmt.Sprint("segments ", n)] = rec.Segments(n)
	}
	for name, s := range policies {
		rt.Follow(s, func() {
			if got := gradientsOf(rt, p, index); !same(got, want) {
				t.Errorf("%s: gradients differ", name)
			}
		})
	}
	if again, _, _ := policies["all"].Count(); again != 0 {
		t.Errorf("%d values are made again where all are kept", again)
	}
	if kept := keptOps(policies["products"]); slices.ContainsFunc(kept, func(op string) bool { return op == "softmax" || op == "mul" }) || !slices.Contains(kept, "linear") {
		t.Errorf("kept %v", kept)
	}
}

// keptOps lists the operations whose results are not let go.
func keptOps(s *tensor.Schedule) (ops []string) {
	for _, w := range s.Waits {
		if w.Reads == nil {
			ops = append(ops, w.Op)
		}
	}
	return ops
}

// TestSegmentsOfChain cuts a chain of 16 equal operations: √16 parts keep 3
// results and need at a time those and the ones of one part.
func TestSegmentsOfChain(t *testing.T) {
	rt := runtime(t)
	const bytes = 4096
	x := rt.Full(1, bytes/4).RequireGrad()
	defer x.Release()
	step := func() { chain(x, 16) }
	rec := rt.Record(nil, step)
	x.ZeroGrad()
	s := rec.Segments(4)
	var kept []int
	for i, w := range s.Waits[:15] {
		if w.Reads == nil {
			kept = append(kept, i)
		}
	}
	if len(kept) != 3 {
		t.Errorf("kept %v of the chain", kept)
	}
	mem := rt.Allocator()
	peak := func(f func()) uint64 {
		defer x.ZeroGrad()
		base := mem.Stats().Live
		mem.ResetPeaks()
		f()
		return mem.Stats().PeakLive - base
	}
	plain, thrifty := peak(step), peak(func() { rt.Follow(s, step) })
	if plain < 16*bytes || thrifty > 11*bytes {
		t.Errorf("peaks of %d values plain, %d in segments", plain/bytes, thrifty/bytes)
	}
}

// chain computes n operations on x, one after the other, and gradients.
func chain(x *tensor.Tensor, n int) {
	y := x.Retain()
	for range n {
		z := tensor.Tanh(y)
		y.Release()
		y = z
	}
	loss := tensor.Sum(y)
	y.Release()
	loss.Backward(1)
	loss.Release()
}

// A loop of one's own, without a planner: the first step is recorded, and those
// after it keep matrix products alone.
func ExampleRecord_Keep() {
	dev, err := device.Open("host:16MiB")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	w, x := rt.Full(0.01, 64, 64).RequireGrad(), rt.Full(1, 32, 64)
	step := func() {
		y := x.Retain()
		for range 4 {
			h := tensor.Linear(y, w, nil, false)
			z := tensor.Tanh(h)
			y.Release()
			h.Release()
			y = z
		}
		loss := tensor.Sum(y)
		y.Release()
		loss.Backward(1)
		loss.Release()
		w.ZeroGrad() // where an optimizer would use it
	}
	record := rt.Record(nil, step)
	products := record.Keep(func(op string) bool { return strings.HasPrefix(op, "linear") })
	for _, wait := range products.Waits {
		if wait.Reads != nil {
			fmt.Println(wait.Op, "is made again")
		}
	}
	rt.Follow(products, step) // and so in every step
	w.Release()
	x.Release()
	// Output:
	// tanh is made again
	// tanh is made again
	// tanh is made again
	// tanh is made again
	// sum is made again
}
