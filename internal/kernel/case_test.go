package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
)

// testCase runs one launch on arrays of its own, with 1, 2 and 3 workers. It
// checks that the results are the same bit for bit, that nothing is written
// but outputs, and that one launch was queued, with its cost.
type testCase struct {
	t        *testing.T
	arrays   []*array
	launch   device.Launch
	launches int // how many are queued; 0: one
}

// array is device memory between two guards.
type array struct {
	all    []float32
	data   []float32 // the memory
	before []float32 // what it held before the launch
	output bool
}

const guardLen = 64

var guardBits = math.Float32bits(float32(math.NaN())) ^ 0x1234

func (c *testCase) array(values []float32, output bool) *array {
	a := &array{all: make([]float32, len(values)+2*guardLen), before: values, output: output}
	a.data = a.all[guardLen : guardLen+len(values) : guardLen+len(values)]
	for i := range a.all {
		a.all[i] = math.Float32frombits(guardBits)
	}
	c.arrays = append(c.arrays, a)
	return a
}

// input is an operand that must stay as it is.
func (c *testCase) input(values []float32) *array { return c.array(values, false) }

// inout is an operand that is read and written.
func (c *testCase) inout(values []float32) *array { return c.array(values, true) }

// output is n elements of NaN that must be overwritten.
func (c *testCase) output(n int) *array {
	values := make([]float32, n)
	for i := range values {
		values[i] = nan
	}
	return c.array(values, true)
}

// dst is inout with random content where a kernel accumulates, else an output.
func (c *testCase) dst(r *rand.Rand, n int, accumulate bool) *array {
	if accumulate {
		return c.inout(randoms(r, n))
	}
	return c.output(n)
}

// indices is an input of int32.
func (c *testCase) indices(values []int32) *array {
	bits := make([]float32, len(values))
	for i, v := range values {
		bits[i] = math.Float32frombits(uint32(v))
	}
	return c.input(bits)
}

func (a *array) ptr() Array {
	return Array{Ptr: device.Ptr(uintptr(unsafe.Pointer(&a.all[guardLen])))}
}

// start is what the array held before: the addend where a kernel accumulates.
func (a *array) start(i int) float64 { return float64(a.before[i]) }

// inline is a stream that runs a launch at once.
type inline struct {
	device.Stream
	w        *device.Workers
	launched int
	last     device.Launch
}

func (s *inline) Launch(l *device.Launch) {
	s.launched++
	s.last = *l
	s.last.Kernel.Host(&s.last, s.w)
}

// run queues what f queues.
func (c *testCase) run(f func(s device.Stream)) {
	c.t.Helper()
	results := make([][]float32, len(c.arrays))
	for workers := 1; workers <= 3; workers++ {
		for _, a := range c.arrays {
			copy(a.data, a.before)
		}
		s := &inline{w: device.NewWorkers(workers)}
		f(s)
		s.w.Close()
		if want := max(1, c.launches); s.launched != want {
			c.t.Fatalf("%d launches, want %d", s.launched, want)
		}
		c.launch = s.last
		for i, a := range c.arrays {
			c.checkBounds(i, a)
			if workers > 1 && !sameBits(a.data, results[i]) {
				c.t.Fatalf("array %d differs with %d workers", i, workers)
			}
			results[i] = append([]float32(nil), a.data...)
		}
	}
	c.runGPU(f)
}

// checkBounds checks that nothing was written around an array, nor into an input.
func (c *testCase) checkBounds(i int, a *array) {
	c.t.Helper()
	for j, x := range a.all {
		outside := j < guardLen || j >= guardLen+len(a.data)
		if outside && math.Float32bits(x) != guardBits {
			c.t.Fatalf("array %d of %d elements: element %d was written", i, len(a.data), j-guardLen)
		}
	}
	if !a.output && !sameBits(a.data, a.before) {
		c.t.Fatalf("array %d, an input, was written", i)
	}
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// equal checks that an array holds want(i), within tol times the greatest of
// them. NaN and infinities must be where they are wanted.
func (c *testCase) equal(what string, a *array, tol float64, want func(i int) float64) {
	c.t.Helper()
	c.near(what, a, tol, 0, want)
}

// near is equal with tolerances of tol·scale or more.
func (c *testCase) near(what string, a *array, tol, scale float64, want func(i int) float64) {
	c.t.Helper()
	values := make([]float64, len(a.data))
	for i := range values {
		values[i] = want(i)
		if m := math.Abs(values[i]); m > scale && !math.IsInf(m, 0) {
			scale = m
		}
	}
	for i, w := range values {
		got := float64(a.data[i])
		if got == w || got != got && w != w {
			continue
		}
		if !(math.Abs(got-w) <= tol*scale) {
			c.t.Fatalf("%s: element %d of %d is %v, want %v ± %.1g", what, i, len(values), got, w, tol*scale)
		}
	}
}

// cost checks the traffic, in elements, and the operations of the launch.
func (c *testCase) cost(elements, flops int) {
	c.t.Helper()
	if c.launch.Bytes != uint64(4*elements) || c.launch.Flops != uint64(flops) {
		c.t.Fatalf("cost is %d bytes and %d operations, want %d and %d", c.launch.Bytes, c.launch.Flops, 4*elements, flops)
	}
}

// seeded gives a source of random numbers whose seed is in the test's log.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// trials is a number of random trials: n, or fewer where the race detector or an
// emulated GPU makes each of them slow.
func trials(n int) int {
	if invariant.Slow || openGPU().emulated() {
		return n / 8
	}
	return n
}

// randoms gives n normally distributed numbers.
func randoms(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// lengths are the sizes at which the vector code changes its ways: tails of
// each length, several pieces, several chunks.
func lengths(r *rand.Rand) []int {
	n := []int{0, 1, 7, 8, 16, 17, 31, 64, 100, pieceLen - 1, pieceLen + 1, chunk + 5}
	for range trials(8) {
		n = append(n, 1+r.IntN(300))
	}
	return n
}

// numericGrad is the gradient of f at x by central differences.
func numericGrad(f func(x []float64) float64, x []float64) []float64 {
	const h = 1e-5
	grad := make([]float64, len(x))
	for i, v := range x {
		x[i] = v + h
		up := f(x)
		x[i] = v - h
		grad[i] = (up - f(x)) / (2 * h)
		x[i] = v
	}
	return grad
}

func wide(x []float32) []float64 {
	w := make([]float64, len(x))
	for i, v := range x {
		w[i] = float64(v)
	}
	return w
}
