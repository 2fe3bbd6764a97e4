package device

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// fakeBLAS is a cuBLASLt that computes nothing: its algorithms take set times on
// the streams of a driver in Go memory. It checks how it is used, and its calls
// count among the driver's that fail on demand.
type fakeBLAS struct {
	gpu        *fakeGPU
	algorithms []fakeAlgorithm
	version    uintptr
	objects    map[uintptr]bool
	runs       []blasRun
}

type fakeAlgorithm struct {
	micros    float64 // a run takes; 0: it cannot run
	workspace uint64
}

// blasRun is a run of an algorithm by its number.
type blasRun struct {
	algorithm  int
	d          Ptr
	accumulate bool
}

// fakeHeuristic is cublasLtMatmulHeuristicResult_t.
type fakeHeuristic struct {
	algo      [8]uint64 // its first word holds the number
	workspace uint64
	_         [6]int32
}

func (f *fakeBLAS) call(symbol string, a []uintptr) uintptr {
	g := f.gpu
	g.mu.Lock()
	defer g.mu.Unlock()
	if symbol == "cublasLtGetVersion" {
		return f.version
	}
	if g.calls++; g.calls == g.fail {
		g.failed = symbol
		return 14
	}
	switch symbol {
	case "cublasLtMatmulAlgoGetHeuristic":
		return f.find(a)
	case "cublasLtMatmul":
		return f.matmul(a)
	}
	switch {
	case strings.HasSuffix(symbol, "Create"):
		h := g.take(1)
		f.objects[h] = true
		return put(a[0], h)
	case !f.objects[a[0]]:
		return g.wrong(symbol + " of nothing")
	case strings.HasSuffix(symbol, "Destroy"):
		delete(f.objects, a[0])
	}
	return 0
}

// find gives the algorithms, as many as are asked for.
func (f *fakeBLAS) find(a []uintptr) uintptr {
	n := min(int(a[7]), len(f.algorithms))
	for i, x := range f.algorithms[:n] {
		put(a[8]+uintptr(i)*unsafe.Sizeof(fakeHeuristic{}), fakeHeuristic{algo: [8]uint64{uint64(i)}, workspace: x.workspace})
	}
	return put(a[9], int32(n))
}

// matmul queues a run. What is multiplied with beta is D itself.
func (f *fakeBLAS) matmul(a []uintptr) uintptr {
	h := *(*fakeHeuristic)(Ptr(a[12]).pointer())
	i, s := int(h.algo[0]), f.gpu.streams[a[15]]
	x := f.algorithms[i]
	if !f.objects[a[0]] || !f.objects[a[1]] || a[8] != a[10] || uint64(a[14]) < x.workspace || s == nil {
		return f.gpu.wrong("product without what it needs")
	}
	if x.micros == 0 {
		return 15
	}
	run := blasRun{i, Ptr(a[10]), *(*float32)(Ptr(a[7]).pointer()) == 1}
	f.runs = append(f.runs, run)
	if s.captures { // each algorithm has a kernel for results that it adds to, and one for others
		kernel := uintptr(2 * i)
		if run.accumulate {
			kernel++
		}
		s.captured.functions = append(s.captured.functions, kernel)
	}
	s.push(func() { s.clock += x.micros * 1e-6 })
	return 0
}

// openTuned opens a GPU with algorithms that take so many microseconds, and
// room bytes of workspace beyond what algorithms may have.
func openTuned(t *testing.T, room uint64, micros ...float64) (*CUDADevice, *fakeBLAS) {
	t.Helper()
	g := newFakeGPU()
	f := &fakeBLAS{gpu: g, version: 130200, objects: map[uintptr]bool{}}
	for _, m := range micros {
		f.algorithms = append(f.algorithms, fakeAlgorithm{m, 4096})
	}
	o := fakeOptions(t, g, 1<<30)
	o.blas, o.Workspace = f.call, leastWorkspace+room
	d, err := OpenCUDA(o)
	if err != nil {
		t.Fatal(err)
	}
	checkAtEnd(t, g, d)
	t.Cleanup(func() {
		if err := d.Close(); err != nil || len(f.objects) > 0 {
			t.Errorf("closing: %v; %d descriptors are left", err, len(f.objects))
		}
	})
	return d, f
}

// multiply queues products on a new stream, and gives the runs.
func (f *fakeBLAS) multiply(t *testing.T, d *CUDADevice, products ...Product) []blasRun {
	t.Helper()
	f.runs = nil
	if err := queueProducts(d, products...); err != nil {
		t.Fatal(err)
	}
	return f.runs
}

func queueProducts(d *CUDADevice, products ...Product) error {
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	for _, p := range products {
		s.Launch(&Launch{Kernel: &Kernel{Name: "test", CUDA: func(_ *Launch, q *CUDAQueue) { q.Product(&p) }}})
	}
	return errors.Join(s.Sync(), s.Close())
}

// square is a product of n×n matrices.
func square(n int) Product {
	return Product{M: n, N: n, K: n, Batch: 1, LDA: n, LDB: n, LDD: n, A: 0x10000, B: 0x20000, D: 0x30000}
}

// raced is how many runs of an algorithm a race takes, beside that of the winner.
const raced = 1 + raceRounds*raceRuns

// TestTuneTakesTheFastest: of a product that is new the algorithms are timed,
// once, and the fastest is taken, if it is clearly faster than the first.
func TestTuneTakesTheFastest(t *testing.T) {
	for _, test := range []struct {
		micros []float64
		want   int
	}{
		{[]float64{113, 120, 110, 105.6}, 3},
		{[]float64{100, 99}, 0},
		{[]float64{100, 97.5, 97.9}, 1},
		{[]float64{19, 5}, 0}, // may be the time of queueing
		{[]float64{0, 70, 60}, 2},
		{[]float64{100, 0, 50}, 2},
		{[]float64{100}, 0},
		{[]float64{99, 98, 97, 96, 95, 94, 93, 92, 1}, 7}, // the ninth is not asked for
	} {
		d, f := openTuned(t, 0, test.micros...)
		if err := d.Tune(nil); err != nil {
			t.Fatal(err)
		}
		first, again := f.multiply(t, d, square(1024)), f.multiply(t, d, square(1024), square(1024))
		want := blasRun{test.want, 0x30000, false}
		able := 0
		for _, m := range test.micros[:min(len(test.micros), tunedAlgorithms)] {
			able += flagOf(m > 0)
		}
		if len(first) != able*raced+1 || first[len(first)-1] != want || !slices.Equal(again, []blasRun{want, want}) {
			t.Errorf("%v µs: %d runs, the last of them %+v, and later %+v; want %d and %+v", test.micros, len(first), first[len(first)-1], again, able*raced+1, want)
		}
	}
}

// TestTuneLeavesAlone: without Tune, and for small products, the first algorithm
// is taken, and nothing is timed.
func TestTuneLeavesAlone(t *testing.T) {
	d, f := openTuned(t, 0, 100, 50)
	only := []blasRun{{0, 0x30000, false}}
	if runs := f.multiply(t, d, square(1024)); !slices.Equal(runs, only) || d.Tuned() != nil {
		t.Errorf("without Tune: %+v, %+v", runs, d.Tuned())
	}
	if err := d.Tune(nil); err != nil {
		t.Fatal(err)
	}
	if runs := f.multiply(t, d, square(128)); !slices.Equal(runs, only) || len(d.Tuned().Chosen) > 0 {
		t.Errorf("a small product: %+v, %+v", runs, d.Tuned())
	}
	if runs := f.multiply(t, d, square(1024)); !slices.Equal(runs, only) {
		t.Errorf("a product that is new when measuring is over: %+v", runs)
	}
	plain := OpenFakeCUDA(t, 64<<20, false)
	if err := plain.Tune(nil); err != nil || plain.Tuned() != nil {
		t.Errorf("without the library: %v, %+v", err, plain.Tuned())
	}
}

// TestTuneAccumulates: a product that adds to its result is timed where nobody
// needs that, or not at all.
func TestTuneAccumulates(t *testing.T) {
	p := square(1024)
	p.Accumulate = true
	for _, test := range []struct {
		room  uint64
		timed bool
	}{{0, false}, {4 << 20, false}, {4<<20 + 256, true}, {8 << 20, true}} {
		d, f := openTuned(t, test.room, 100, 50)
		if err := d.Tune(nil); err != nil {
			t.Fatal(err)
		}
		runs := f.multiply(t, d, p)
		last := len(runs) - 1
		if want := (blasRun{flagOf(test.timed), p.D, true}); runs[last] != want || (last > 0) != test.timed {
			t.Errorf("with %d bytes: %d runs, the last of them %+v; want %+v", test.room, last+1, runs[last], want)
		}
		start := Ptr(d.work.ptr) + Ptr(d.blas.workspace)
		for _, r := range runs[:last] {
			if r.d < start || r.d+4<<20 > Ptr(d.work.ptr)+Ptr(d.work.size)-asideBytes || r.d%256 != 0 {
				t.Fatalf("with %d bytes: a trial at %#x, of a workspace from %#x on", test.room, r.d, start)
			}
		}
		if runs := f.multiply(t, d, square(1024)); len(runs) != 1 || runs[0].algorithm != flagOf(test.timed) {
			t.Errorf("the algorithm changed: %+v", runs)
		}
	}
}

// TestTunedIsKept: what was chosen on one device is taken on another one of its
// kind, and measured anew on others.
func TestTunedIsKept(t *testing.T) {
	d, f := openTuned(t, 0, 100, 50, 70)
	if err := d.Tune(nil); err != nil {
		t.Fatal(err)
	}
	f.multiply(t, d, square(1024))
	text, err := json.Marshal(d.Tuned())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		change func(*Tuning)
		want   int
		timed  bool
	}{
		{func(*Tuning) {}, 1, false},
		{func(k *Tuning) { k.Library++ }, 2, true},
		{func(k *Tuning) { k.Model = "other" }, 2, true},
		{func(k *Tuning) { k.Chosen = nil }, 0, false},
		{func(k *Tuning) { k.Chosen[0].Algorithm = 5 }, 0, false}, // which there is not
	} {
		known := new(Tuning)
		if err := errors.Join(json.Unmarshal(text, known), known.Validate()); err != nil {
			t.Fatal(err)
		}
		test.change(known)
		other, g := openTuned(t, 0, 100, 90, 40)
		if g.multiply(t, other, square(1024)); g.runs[0].algorithm != 0 {
			t.Error("an algorithm was chosen without Tune")
		}
		if err := other.Tune(known); err != nil {
			t.Fatal(err)
		}
		runs := g.multiply(t, other, square(1024))
		if last := len(runs) - 1; runs[last].algorithm != test.want || (last > 0) != test.timed {
			t.Errorf("known %+v: %d runs, the last of algorithm %d; want %d", known, last+1, runs[last].algorithm, test.want)
		}
		if !test.timed && !reflect.DeepEqual(other.Tuned(), known) {
			t.Errorf("knows %+v, was told %+v", other.Tuned(), known)
		}
	}
}

// TestAccumulatingGraphs: a graph of products is not changed to one of such that
// add to what is there.
func TestAccumulatingGraphs(t *testing.T) {
	d, f := openTuned(t, 0, 100)
	f.gpu.fast = true // so that all is captured
	p := square(64)
	sum := p
	sum.Accumulate = true
	f.multiply(t, d, append(slices.Repeat([]Product{p}, 2*batchLaunches), slices.Repeat([]Product{sum}, batchLaunches)...)...)
}

// TestTuneForgetsGraphs: graphs are known by the addresses of plans, which end.
func TestTuneForgetsGraphs(t *testing.T) {
	d, f := openTuned(t, 0, 100)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p := square(64)
	for range batchLaunches + 1 { // a graph, and one in the making
		s.Launch(&Launch{Kernel: &Kernel{Name: "test", CUDA: func(_ *Launch, q *CUDAQueue) { q.Product(&p) }}})
	}
	if n := len(f.gpu.execs); n != 1 {
		t.Fatalf("%d graphs are kept before, want 1", n)
	}
	if err := d.Tune(nil); err != nil || len(f.gpu.execs) > 0 {
		t.Errorf("%d graphs are kept after: %v", len(f.gpu.execs), err)
	}
	if err := s.Sync(); err != nil || len(f.runs) != batchLaunches+1 {
		t.Errorf("%d products ran: %v", len(f.runs), err)
	}
}

// TestTuningValidates: a file may hold anything.
func TestTuningValidates(t *testing.T) {
	for _, test := range []struct {
		tuning *Tuning
		want   string // "": it may be
	}{
		{nil, ""},
		{&Tuning{Chosen: []TunedProduct{{cuda.Product{M: 2, N: 3, K: 4}, 7}}}, ""},
		{&Tuning{Chosen: []TunedProduct{{cuda.Product{M: 2, N: 3, K: 4}, 8}}}, "algorithm 8 for a product of 2×3×4: they are numbered from 0 to 7"},
		{&Tuning{Chosen: []TunedProduct{{cuda.Product{}, -1}}}, "algorithm -1"},
		{&Tuning{Chosen: make([]TunedProduct, maxTuned+1)}, "at most 1024"},
	} {
		if err := test.tuning.Validate(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.tuning, err, test.want)
		}
	}
}

// TestTunerOf: it is found behind what shares a GPU.
func TestTunerOf(t *testing.T) {
	d := OpenFakeSharedCUDA(t, 64<<20)
	if TunerOf(d) == nil || TunerOf(struct{ Device }{d}) != nil {
		t.Error("a shared GPU is no Tuner, or what hides one is")
	}
}

// TestTuneFailures lets every call to the driver and the library fail once while
// products are timed. The failure shows, but for that of an algorithm that is
// only tried, and everything is given back.
func TestTuneFailures(t *testing.T) {
	calls := map[string]int{}
	for nth, failed := 1, true; failed; nth++ {
		g := newFakeGPU()
		f := &fakeBLAS{gpu: g, version: 130200, objects: map[uintptr]bool{}, algorithms: []fakeAlgorithm{{100, 0}, {50, 4096}}}
		g.fail = nth
		err := useTuned(t, f)
		failed = g.failed != ""
		calls[g.failed]++
		if len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, fails: misuse %q", nth, g.failed, g.broken)
		}
		harmless := harmless[g.failed] || strings.HasPrefix(g.failed, "cublasLt")
		if failed && (err == nil || !strings.Contains(err.Error(), g.failed)) && !harmless || !failed && err != nil {
			t.Fatalf("call %d, of %s, fails: the program gets %v", nth, g.failed, err)
		}
		if last := len(f.runs) - 1; err == nil && failed && last >= 0 && f.runs[last].d != 0x30000 {
			t.Fatalf("call %d, of %s, fails: the last run was %+v", nth, g.failed, f.runs[last])
		}
	}
	if calls["cuEventElapsedTime"] != 2*raceRounds || calls["cublasLtMatmul"] != 2*raced+1 {
		t.Errorf("failed calls were %v", calls)
	}
}

func useTuned(t *testing.T, f *fakeBLAS) error {
	driver, err := cuda.FakeDriver(f.gpu.call)
	if err != nil {
		return err
	}
	d, err := OpenCUDA(CUDAOptions{Budget: 64 << 20, Workspace: 1 << 20, driver: driver, blas: f.call})
	if err != nil {
		return err
	}
	if d.blas.blas == nil { // the library did not start
		return d.Close()
	}
	return errors.Join(d.Tune(nil), queueProducts(d, square(1024)), d.Close())
}

// TestFastest: nothing that runs is no reason to choose.
func TestFastest(t *testing.T) {
	if i := fastest([]float64{math.Inf(1), math.Inf(1)}); i != 0 {
		t.Errorf("chose %d of algorithms that can't run", i)
	}
}
