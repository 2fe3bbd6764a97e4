package kernel

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

// gpu is the device that the flag -device names, with memory for the arrays of
// a test. All cases are tried there, too, where the kernel has a version for it.
type gpu struct {
	device.Device
	stream device.Stream
	memory device.Ptr
	err    error
	runs   int
}

const gpuMemory = 256 << 20

var openGPU = sync.OnceValue(func() *gpu {
	if devicetest.Chosen() == "" {
		return nil
	}
	g := &gpu{}
	if g.Device, g.err = device.Open(devicetest.Chosen()); g.err != nil {
		return g
	}
	if g.memory, g.err = g.Alloc(gpuMemory); g.err == nil {
		g.stream, g.err = g.NewStream()
	}
	return g
})

// elsewhere is a stream that takes addresses of arrays to the GPU's memory.
type elsewhere struct {
	device.Stream
	arrays  []*array
	places  []device.Ptr
	lacking bool // the kernel has no version
}

func (s *elsewhere) Launch(l *device.Launch) {
	if l.Kernel.CUDA == nil {
		s.lacking = true
		return
	}
	moved := *l
	for i, p := range l.Ptr {
		for j, a := range s.arrays {
			start := device.Ptr(uintptr(unsafe.Pointer(&a.all[0])))
			if p >= start && p < start+device.Ptr(4*len(a.all)) {
				moved.Ptr[i] = s.places[j] + (p - start)
			}
		}
	}
	s.Stream.Launch(&moved)
}

// runGPU runs f twice on the GPU, and puts the results in place of the host's.
// Every second case has its arrays at addresses that are multiples of 4 only.
func (c *testCase) runGPU(f func(s device.Stream)) {
	c.t.Helper()
	g := openGPU()
	if g == nil {
		return
	}
	if g.err != nil {
		c.t.Fatal(g.err)
	}
	g.runs++
	s := &elsewhere{Stream: g.stream, arrays: c.arrays}
	next := g.memory + device.Ptr(4*(g.runs%2))
	for _, a := range c.arrays {
		s.places = append(s.places, next)
		next += device.Ptr(4*len(a.all)+511) &^ 511
	}
	if next > g.memory+gpuMemory {
		c.t.Fatal("the arrays are too large for the GPU's test memory")
	}
	host := make([][]float32, len(c.arrays))
	for i, a := range c.arrays {
		host[i] = slices.Clone(a.data)
	}
	var first [][]float32
	for range 2 {
		for i, a := range c.arrays {
			copy(a.data, a.before)
			g.stream.Upload(s.places[i], device.BytesOf(a.all))
		}
		f(s)
		for i, a := range c.arrays {
			g.stream.Download(device.BytesOf(a.all), s.places[i])
		}
		if err := g.stream.Sync(); err != nil {
			c.t.Fatal(err)
		}
		if s.lacking {
			for i, a := range c.arrays {
				copy(a.data, host[i])
			}
			return
		}
		for i, a := range c.arrays {
			c.checkBounds(i, a)
			if first != nil && !sameBits(a.data, first[i]) {
				c.t.Fatalf("array %d differs when the GPU does it again", i)
			}
		}
		first = nil
		for _, a := range c.arrays {
			first = append(first, slices.Clone(a.data))
		}
	}
}
