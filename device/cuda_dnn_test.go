package device

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// fakeDNN is a cuDNN that computes nothing: its one engine needs as much
// workspace as need says for the sizes of a graph's first tensor, and what its
// plans are run on is kept. Package cuda tests what graphs are made of.
type fakeDNN struct {
	need    func(size []int64) int
	version uintptr
	objects map[uintptr]*dnnObject
	last    uintptr
	first   []int64 // sizes of the first tensor of the last graph
	runs    []dnnRun
	queue   *CUDAQueue // that runs are on
	broken  []string
}

type dnnObject struct {
	values map[uintptr][]int64
	size   []int64 // of the first tensor of a plan's graph
}

// dnnRun is a run with its graph's first sizes, its addresses and the workspace.
type dnnRun struct {
	size []int64
	at   []Ptr
	work Ptr

	captured bool
}

func (f *fakeDNN) call(symbol string, a []uintptr) uintptr {
	switch symbol {
	case "cudnnCreate":
		return put(a[0], uintptr(7))
	case "cudnnGetVersion":
		return f.version
	case "cudnnBackendCreateDescriptor":
		f.last++
		f.objects[f.last] = &dnnObject{values: map[uintptr][]int64{}, size: f.first}
		return put(a[1], uint64(f.last))
	case "cudnnBackendDestroyDescriptor":
		if f.objects[a[0]] == nil {
			f.broken = append(f.broken, "end of no descriptor")
		}
		delete(f.objects, a[0])
	case "cudnnBackendSetAttribute":
		if a[2] == 3 || a[2] == 6 { // whole numbers and addresses
			f.objects[a[0]].values[a[1]] = slices.Clone(unsafe.Slice((*int64)(Ptr(a[4]).pointer()), a[3]))
		}
	case "cudnnBackendFinalize":
		if v := f.objects[a[0]].values; len(v[906]) > 0 && v[906][0] == 1 {
			f.first = v[902]
		}
	case "cudnnBackendGetAttribute":
		return f.get(a)
	case "cudnnBackendExecute":
		v := f.objects[a[2]].values
		run := dnnRun{size: f.objects[a[1]].size, captured: f.queue.stream.batch.capturing}
		for _, p := range v[1001] {
			run.at = append(run.at, Ptr(p))
		}
		if len(v[1003]) > 0 {
			run.work = Ptr(v[1003][0])
		}
		f.runs = append(f.runs, run)
	}
	return 0
}

func (f *fakeDNN) get(a []uintptr) uintptr {
	put(a[4], int64(1))
	switch a[1] {
	case 1303:
		put(a[5], int32(0)) // tensor cores
	case 402:
		put(a[5], int64(f.need(f.objects[a[0]].size)))
	}
	return 0
}

// onDNN calls use on the queue of a device with a cuDNN and room bytes for it.
func onDNN(t *testing.T, f *fakeDNN, room uint64, use func(q *CUDAQueue)) {
	t.Helper()
	f.objects = map[uintptr]*dnnObject{}
	driver, err := cuda.FakeDriver(newFakeGPU().call)
	if err != nil {
		t.Fatal(err)
	}
	d, err := OpenCUDA(CUDAOptions{Budget: 1 << 30, Workspace: room + asideBytes, driver: driver, dnn: f.call})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s.Launch(&Launch{Kernel: &Kernel{Name: "test", CUDA: func(_ *Launch, q *CUDAQueue) { f.queue = q; use(q) }}})
	if err := errors.Join(s.Close(), d.Close()); err != nil || len(f.objects) > 0 || len(f.broken) > 0 {
		t.Errorf("closing: %v; %d descriptors are left; misuse %q", err, len(f.objects), f.broken)
	}
}

// images needs so many bytes for each image.
func images(bytes int) func(size []int64) int {
	return func(size []int64) int { return bytes * int(size[0]) }
}

// tenImages is a convolution whose images have 64 elements of X and 128 of Y.
func tenImages(part ConvolutionPart) *Convolution {
	return &Convolution{Part: part, N: 10, C: 4, H: 4, W: 4, M: 8, KH: 1, KW: 1, OH: 4, OW: 4, Groups: 1, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1},
		X: 0x10000, Weight: 0x20000, Y: 0x30000, TypeX: BFloat16, TypeWeight: BFloat16, TypeY: BFloat16}
}

// TestConvolutionParts: images are taken in even parts that fit.
func TestConvolutionParts(t *testing.T) {
	for _, test := range []struct {
		room  uint64
		parts []int // images
	}{{10000, []int{10}}, {9999, []int{5, 5}}, {3000, []int{3, 3, 3, 1}}, {1000, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, {999, nil}} {
		f := &fakeDNN{need: images(1000)}
		onDNN(t, f, test.room, func(q *CUDAQueue) {
			if did := q.Convolution(tenImages(ConvolutionY)); did != (test.parts != nil) {
				t.Errorf("in %d bytes: %v", test.room, did)
			}
		})
		first := 0
		for i, n := range test.parts {
			want := []Ptr{0x10000 + Ptr(first*64*2), 0x20000, 0x30000 + Ptr(first*128*2)}
			if i >= len(f.runs) || int(f.runs[i].size[0]) != n || !slices.Equal(f.runs[i].at, want) {
				t.Fatalf("in %d bytes: runs %v; want number %d to be of %d images at %#x", test.room, f.runs, i, n, want)
			}
			first += n
		}
	}
}

// TestFirstRunIsDirect: kernels of a plan are loaded when it first runs, which may not
// be captured, also that of a last part whose plan was made before many others ran.
func TestFirstRunIsDirect(t *testing.T) {
	f := &fakeDNN{need: images(1000)}
	onDNN(t, f, 2000, func(q *CUDAQueue) {
		c := tenImages(ConvolutionY)
		c.N = 4*directLaunches + 1
		q.Convolution(c)
	})
	known := map[int64]bool{}
	captured := 0
	for i, r := range f.runs {
		if r.captured {
			captured++
		}
		if r.captured && !known[r.size[0]] {
			t.Errorf("run %d, the first of %d images, was captured", i, r.size[0])
		}
		known[r.size[0]] = true
	}
	if len(known) != 2 || captured == 0 {
		t.Errorf("%d sizes, %d of %d runs were captured", len(known), captured, len(f.runs))
	}
}

// TestConvolutionWeight: gradients of weights are added up by the library where
// it can, and by Add where images are in parts or the weight has another type.
func TestConvolutionWeight(t *testing.T) {
	for _, test := range []struct {
		room uint64
		kind DType
		sums int // calls of Add
	}{{20000, BFloat16, 0}, {20000, Float32, 1}, {6000, BFloat16, 2}, {6000, Float32, 2}} {
		f := &fakeDNN{need: images(1000)}
		var sums []Ptr
		var work Ptr
		onDNN(t, f, test.room, func(q *CUDAQueue) {
			c := tenImages(ConvolutionWeight)
			c.TypeWeight, c.Accumulate = test.kind, true
			c.Add = func(sum Ptr, first bool) {
				if first != (len(sums) == 0) {
					t.Errorf("sum %d is the first: %v", len(sums), first)
				}
				sums = append(sums, sum)
			}
			if !q.Convolution(c) {
				t.Error("nothing was done")
			}
			work = q.Workspace(0)
		})
		if len(sums) != test.sums || len(f.runs) != max(1, test.sums) {
			t.Errorf("%+v: %d sums of %d runs", test, len(sums), len(f.runs))
		}
		for i, sum := range sums {
			used := Ptr(1000 * f.runs[i].size[0])
			if f.runs[i].at[1] != sum || sum < work+used || sum+8*4*2 > work+Ptr(test.room) || f.runs[i].work != work {
				t.Errorf("%+v: a sum at %#x, where run %d has written to %#x and worked from %#x to %#x", test, sum, i, f.runs[i].at[1], work, work+used)
			}
		}
		if test.sums == 0 && f.runs[0].at[1] != 0x20000 {
			t.Errorf("%+v: the gradient is written to %#x", test, f.runs[0].at[1])
		}
	}
}

// TestConvolutionRefused: what the library can't do is left to others.
func TestConvolutionRefused(t *testing.T) {
	for name, change := range map[string]func(c *Convolution){
		"types":           func(c *Convolution) { c.TypeWeight = Float32 },
		"type of results": func(c *Convolution) { c.TypeY = Float16 },
		"type of bias":    func(c *Convolution) { c.Bias, c.TypeBias = 0x40000, Float32 },
	} {
		f := &fakeDNN{need: images(0)}
		onDNN(t, f, 1<<20, func(q *CUDAQueue) {
			c := tenImages(ConvolutionY)
			change(c)
			if q.Convolution(c) || len(f.runs) > 0 {
				t.Errorf("%s: runs %v", name, f.runs)
			}
		})
	}
	d := OpenFakeCUDA(t, 0, false)
	s, err := newCUDAStream(d, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.queue.Convolution(tenImages(ConvolutionY)) || s.queue.Attention(Attention{}, BFloat16) {
		t.Error("something is done without a library")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAttentionParts: the heads are taken in even parts that fit, of whole
// batches where one does.
func TestAttentionParts(t *testing.T) {
	a := Attention{Batch: 4, Heads: 3, T: 2, S: 2, D: 8, Masked: true, Q: [3]int{1000, 100, 8}, K: [3]int{2000, 200, 8}, V: [3]int{3000, 300, 8}, O: [3]int{4000, 400, 8}}
	for _, test := range []struct {
		room         uint64
		batch, heads int
		runs         int
	}{{12000, 4, 3, 1}, {11999, 2, 3, 2}, {3000, 1, 3, 4}, {2000, 1, 2, 8}, {1000, 1, 1, 12}, {999, 0, 0, 0}} {
		f := &fakeDNN{version: OldestDNNAttention, need: func(size []int64) int { return 1000 * int(size[0]*size[1]) }}
		onDNN(t, f, test.room, func(q *CUDAQueue) {
			if did := q.AttentionGrad(a, BFloat16, 1<<20, 2<<20, 3<<20, 4<<20, 5<<20, 6<<20, 7<<20, 8<<20, 9<<20, 10<<20, 11<<20); did != (test.runs > 0) {
				t.Errorf("in %d bytes: %v", test.room, did)
			}
		})
		if len(f.runs) != test.runs {
			t.Fatalf("in %d bytes: %d runs, want %d", test.room, len(f.runs), test.runs)
		}
		var got, want []string
		for _, r := range f.runs {
			got = append(got, fmt.Sprintf("%d %d %#x", r.size[0], r.size[1], r.at[:11]))
		}
		for i := 0; i < 4 && test.batch > 0; i += test.batch {
			for j := 0; j < 3; j += test.heads {
				q, k, v, o, l := Ptr(2*(1000*i+100*j)), Ptr(2*(2000*i+200*j)), Ptr(2*(3000*i+300*j)), Ptr(2*(4000*i+400*j)), Ptr(4*2*(3*i+j))
				at := []Ptr{1<<20 + q, 2<<20 + k, 3<<20 + v, 4<<20 + o, 5<<20 + l, 6<<20 + o, 7<<20 + q, 8<<20 + k, 9<<20 + v, 10<<20 + l, 11<<20 + Ptr(4*2*i)}
				want = append(want, fmt.Sprintf("%d %d %#x", min(test.batch, 4-i), min(test.heads, 3-j), at))
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("in %d bytes:\n%q\nwant\n%q", test.room, got, want)
		}
	}
}

// TestOldAttention: an old library's attention is not used.
func TestOldAttention(t *testing.T) {
	f := &fakeDNN{version: OldestDNNAttention - 1, need: images(0)}
	onDNN(t, f, 1<<20, func(q *CUDAQueue) {
		if q.Attention(Attention{Batch: 1, Heads: 1, T: 64, S: 64, D: 64}, BFloat16, 1, 2, 3, 4, 5) {
			t.Error("it is used")
		}
	})
}

// TestWorkspace: it follows the budget.
func TestWorkspace(t *testing.T) {
	for budget, want := range map[uint64]uint64{64 << 20: 32 << 20, 4 << 30: 128 << 20, 80 << 30: 256 << 20} {
		driver, err := cuda.FakeDriver(newFakeGPU().call)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenCUDA(CUDAOptions{Budget: budget, driver: driver})
		if err != nil {
			t.Fatal(err)
		}
		if got := budget - d.Info().Capacity; got != want {
			t.Errorf("of a budget of %d, the workspace is %d, want %d", budget, got, want)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
