package profile_test

import (
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/profile"
	"github.com/headroom-go/headroom/tensor"
)

// A profile of a product and its gradient.
func Example() {
	dev, _ := device.Open("host:4MiB")
	mem, _ := alloc.New(dev, alloc.Options{})
	stream, _ := dev.NewStream()
	rt := tensor.New(mem, stream)
	x := rt.Full(2, 64, 64).RequireGrad()

	p := profile.Start(rt)
	rt.Range("step", func() {
		rt.Scope(func() []*tensor.Tensor {
			tensor.Mean(tensor.Mul(x, x)).Backward(1)
			return nil
		})
	})
	rows := p.Stop().Operators

	profile.Sort(rows, "name")
	for _, r := range rows {
		if r.Calls > 0 {
			fmt.Println(r.Phase, r.Name, r.Calls, r.Allocated, r.Kept)
		}
	}
	// Output:
	// range backward 1 4 0
	// backward mul 1 49152 0
	// forward mul 1 16384 16384
	// backward scale 1 0 0
	// forward scale 1 4 0
	// range step 1 0 0
	// backward sum 1 16384 0
	// forward sum 1 4 0
}
