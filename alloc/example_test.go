package alloc_test

import (
	"context"
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

// open gives an allocator of a device that computes nothing, and a stream.
func open(o alloc.Options) (*alloc.Allocator, device.Stream) {
	dev, err := device.Open("null:64MiB")
	if err != nil {
		panic(err)
	}
	a, err := alloc.New(dev, o)
	if err != nil {
		panic(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		panic(err)
	}
	return a, s
}

// A pool's blocks are freed all at once.
func ExampleAllocator_NewPool() {
	a, stream := open(alloc.Options{})
	pool := a.NewPool(alloc.PoolOptions{})
	for range 3 {
		if _, err := pool.Alloc(2<<20, trace.Workspace, stream); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(pool.Stats().Blocks, "blocks,", a.Stats().Live, "bytes live")
	pool.Destroy()
	freed, _ := a.Trim(0)
	fmt.Println(a.Stats().Live, "bytes live,", freed, "given back")
	// Output:
	// 3 blocks, 6291456 bytes live
	// 0 bytes live, 6291456 given back
}

// An evictor gives up what can be made again before a request fails.
func ExampleAllocator_OnShortage() {
	a, stream := open(alloc.Options{Limit: 8 << 20})
	cache, _ := a.Alloc(6<<20, trace.Activation, stream)
	a.OnShortage(func(need uint64) bool {
		if cache == nil {
			return false
		}
		cache.Free()
		cache = nil
		return true
	})
	_, err := a.Alloc(4<<20, trace.Parameter, stream)
	fmt.Println(err, a.Stats().Evictions)
	// Output: <nil> 1
}

// A plan places all blocks of a program that is known beforehand.
func ExampleMakePlan() {
	program := []alloc.Lifetime{
		{Size: 3 << 20, Start: 0, End: 2},
		{Size: 5 << 20, Start: 1, End: 4},
		{Size: 3 << 20, Start: 2, End: 5},
	}
	plan, err := alloc.MakePlan(context.Background(), program, 2<<20)
	if err != nil {
		fmt.Println(err)
		return
	}
	pages, size := plan.Pages()
	fmt.Println(pages, "pages of", size, "bytes for", plan.Requests(), "requests")

	a, stream := open(alloc.Options{})
	if err := a.Follow(plan); err != nil {
		fmt.Println(err)
		return
	}
	first, _ := a.Alloc(3<<20, trace.Activation, stream)
	second, _ := a.Alloc(5<<20, trace.Activation, stream)
	first.Free()
	third, _ := a.Alloc(3<<20, trace.Activation, stream)
	fmt.Println(a.Stats().Planned, "by the plan,", a.Stats().PeakReserved, "bytes reserved")
	second.Free()
	third.Free()
	// Output:
	// 4 pages of 2097152 bytes for 3 requests
	// 3 by the plan, 8388608 bytes reserved
}

// Compact moves blocks out of pages that are nearly empty.
func ExampleAllocator_Compact() {
	a, stream := open(alloc.Options{})
	var few, others []*alloc.Block
	for i := range 40 {
		b, _ := a.Alloc(512<<10, trace.Other, stream)
		if i%4 == 0 {
			few = append(few, b)
		} else {
			others = append(others, b)
		}
	}
	for _, b := range others {
		b.Free()
	}
	moves := a.Compact(few)
	freed, _ := a.Trim(0)
	fmt.Println(len(moves), "blocks moved,", freed>>20, "MiB given back,", a.Stats().Reserved>>20, "MiB reserved")
	// Output: 7 blocks moved, 14 MiB given back, 6 MiB reserved
}

func ExampleStats_Summary() {
	a, stream := open(alloc.Options{})
	w, _ := a.Alloc(3<<20, trace.Parameter, stream)
	b, _ := a.Alloc(2<<20, trace.Activation, stream)
	b.Free()
	fmt.Println(a.Stats().Summary())
	w.Free()
	// Output:
	//               now  peak
	//         live  3MiB  5MiB
	//    parameter  3MiB  3MiB
	//   activation    0B  2MiB
	//     reserved  6MiB  6MiB
	// 1 live blocks of 3MiB asked for; 0B pending, 3MiB cached
	// allocs_total 2
	// frees_total 1
	// maps_total 3
	// creates_total 3
}
