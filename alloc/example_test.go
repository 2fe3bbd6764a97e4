package alloc_test

import (
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

func Example() {
	dev, err := device.Open("null:16MiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	a, err := alloc.New(dev, alloc.Options{Limit: 8 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	weights, err := a.Alloc(6<<20, trace.Parameter, stream)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = a.Alloc(5<<20, trace.Activation, stream)
	fmt.Println(err)
	weights.Free()
	fmt.Println(a.Stats().Live, a.Stats().Cached, a.Close())
	// Output:
	// out of memory on null:16MiB: 5MiB for activation; 6MiB live (parameter 6MiB), 0B cached in pieces of at most 0B, 0B pending, 6MiB reserved of 8MiB. The limit is too low by 3MiB; the device has 16MiB.
	// 0 6291456 <nil>
}
