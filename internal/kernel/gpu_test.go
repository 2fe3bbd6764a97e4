package kernel

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
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

// elsewhere is a stream that takes addresses of Go memory to the GPU's.
type elsewhere struct {
	device.Stream
	next    device.Ptr // free memory of the GPU
	moved   []move
	lacking bool // the kernel can't be tried so
}

// move is a piece of Go memory with its place on the GPU.
type move struct {
	data  []byte
	place device.Ptr
}

func (m *move) start() device.Ptr {
	return device.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(m.data))))
}

// add gives data a place.
func (s *elsewhere) add(data []byte) {
	s.moved = append(s.moved, move{data, s.next})
	s.next += device.Ptr(len(data)+511) &^ 511
}

func (s *elsewhere) Launch(l *device.Launch) {
	if l.Kernel == pagedWriteKernel || l.Kernel == pagedAttentionKernel { // their tables hold addresses of Go memory
		s.lacking = true
		return
	}
	there := *l
	for i, p := range l.Ptr {
		for _, m := range s.moved {
			if at := m.start(); p >= at && p < at+device.Ptr(len(m.data)) {
				there.Ptr[i] = m.place + (p - at)
			}
		}
	}
	s.Stream.Launch(&there)
}

func (s *elsewhere) upload() {
	for _, m := range s.moved {
		s.Stream.Upload(m.place, m.data)
	}
}

func (s *elsewhere) download() error {
	for _, m := range s.moved {
		s.Stream.Download(m.data, m.place)
	}
	return s.Stream.Sync()
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
	s := &elsewhere{Stream: g.stream, next: g.memory + device.Ptr(4*(g.runs%2))}
	for _, a := range c.arrays {
		s.add(device.BytesOf(a.all))
	}
	if s.next > g.memory+gpuMemory {
		c.t.Fatal("the arrays are too large for the GPU's test memory")
	}
	host := make([][]float32, len(c.arrays))
	for i, a := range c.arrays {
		host[i] = slices.Clone(a.data)
	}
	var first [][]float32
	for range 2 {
		for _, a := range c.arrays {
			copy(a.data, a.before)
		}
		s.upload()
		f(s)
		if err := s.download(); err != nil {
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

// TestHalfOperandsGPU compares operations on operands of random types with the
// host's.
func TestHalfOperandsGPU(t *testing.T) {
	g := openGPU()
	if g == nil {
		t.Skip("the flag -device names no device")
	}
	if g.err != nil {
		t.Fatal(g.err)
	}
	r := seeded(t)
	host := &inline{w: device.NewWorkers(2)}
	defer host.w.Close()
	var tables keeper
	ops := halfOps(&tables)
	mask := tables.int32s(slices.Repeat([]int32{1, 1, 0, 1, 1, 1, 1, 0, 1, 1}, 60)...)
	for _, d := range []int{8, 40, 64, 104, 128} {
		for _, causal := range []bool{false, true} {
			ops = append(ops,
				attentionOp(Attention{Batch: 2, Heads: 3, T: 200, S: 200, D: d, Causal: causal, Scale: 0.2}, causal),
				attentionOp(Attention{Batch: 2, Heads: 2, T: 70, S: 130, D: d, Causal: causal, Scale: 0.1, Dropout: 0.2, Seed: 5}, !causal),
				attentionOp(Attention{Batch: 2, Heads: 1, T: 133, S: 65, D: d, Causal: causal, Scale: 0.2}, !causal),
				attentionOp(Attention{Batch: 2, Heads: 2, T: 100, S: 150, D: d, Causal: causal, Scale: 0.2, KeyMask: mask}, causal))
		}
	}
	for _, op := range ops {
		for trial := range 6 {
			g.runs++
			s := &elsewhere{Stream: g.stream, next: g.memory + device.Ptr(512*(g.runs%2))}
			for _, table := range tables.held {
				s.add(device.BytesOf(table.([]int32)))
			}
			var mem keeper
			var here, there []Array
			for _, n := range op.free {
				kind := []device.DType{device.BFloat16, device.Float16, device.Float32}[min(trial, 2)]
				if trial > 2 {
					kind = []device.DType{device.Float32, device.BFloat16, device.Float16}[r.IntN(3)]
				}
				values := rounded(kind, randoms(r, n))
				a, _ := mem.arrayOf(kind, values)
				b, _ := mem.arrayOf(kind, values)
				here, there = append(here, a), append(there, b)
				s.add(device.Bytes(b.Ptr, n*kind.Size()))
			}
			wide := [2][]Array{}
			for _, n := range op.wide {
				v := positive(r, n)
				for k := range wide {
					a, _ := mem.arrayOf(device.Float32, v)
					wide[k] = append(wide[k], a)
				}
				s.add(device.Bytes(wide[1][len(wide[1])-1].Ptr, 4*n))
			}
			op.run(host, here, wide[0])
			s.upload()
			op.run(s, there, wide[1])
			if err := s.download(); err != nil {
				t.Fatal(op.name, err)
			}
			if s.lacking {
				break
			}
			for i, n := range op.free {
				alike(t, fmt.Sprintf("%s: operand %d of %v", op.name, i, there[i].Type), there[i], here[i], n)
			}
			for i, n := range op.wide {
				alike(t, fmt.Sprintf("%s: float32 operand %d", op.name, i), wide[1][i], wide[0][i], n)
			}
			runtime.KeepAlive(&mem)
		}
	}
	runtime.KeepAlive(&tables)
}

// alike compares arrays of one type, relative to their greatest element: they
// may differ by their last digit, and by what rounding operands in between
// (a bias, probabilities) may do.
func alike(t *testing.T, what string, got, want Array, n int) {
	t.Helper()
	tolerance := map[device.DType]float64{device.Float32: 6e-3, device.BFloat16: 1e-2, device.Float16: 6e-3}[got.Type]
	a, b := make([]float32, n), make([]float32, n)
	x, y := got.numbers(n), want.numbers(n)
	x.read(a, 0, 1)
	y.read(b, 0, 1)
	most := 0.0
	for _, v := range b {
		if m := math.Abs(float64(v)); m > most && !math.IsInf(m, 0) {
			most = m
		}
	}
	for i := range b {
		if a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i]) && !(math.Abs(float64(a[i]-b[i])) <= tolerance*most) {
			t.Errorf("%s: element %d of %d is %v, the host's %v", what, i, n, a[i], b[i])
			return
		}
	}
}
