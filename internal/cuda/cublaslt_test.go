package cuda

import (
	"strings"
	"testing"
	"unsafe"
)

// fakeBLAS is a cuBLASLt with so many algorithms for every product. It fails
// the nth call on demand.
type fakeBLAS struct {
	algorithms  int
	calls, fail int
	failed      string
	objects     map[uintptr]bool
	last        uintptr
	asked       int // how many algorithms
	ran         int // the last one that ran
	workspace   uintptr
	broken      []string
}

func (f *fakeBLAS) call(symbol string, a []uintptr) uintptr {
	if f.calls++; f.calls == f.fail {
		f.failed = symbol
		return 14
	}
	switch symbol {
	case "cublasLtMatmulAlgoGetHeuristic":
		f.asked = int(a[7])
		n := min(f.asked, f.algorithms)
		for i := range n {
			*at[heuristic](a[8] + uintptr(i)*unsafe.Sizeof(heuristic{})) = heuristic{algo: [8]uint64{uint64(i)}, workspace: uint64(100 * i)}
		}
		*at[int32](a[9]) = int32(n)
		return 0
	case "cublasLtMatmul":
		f.ran, f.workspace = int(at[heuristic](a[12]).algo[0]), a[14]
		return 0
	}
	switch {
	case strings.HasSuffix(symbol, "Create"):
		f.last++
		f.objects[f.last] = true
		*at[uintptr](a[0]) = f.last
	case !f.objects[a[0]]:
		f.broken = append(f.broken, symbol)
	case strings.HasSuffix(symbol, "Destroy"):
		delete(f.objects, a[0])
	}
	return 0
}

var anyProduct = Product{M: 2, N: 3, K: 4, Batch: 5, Bias: true, LDA: 2, LDB: 4, LDD: 2}

// TestPlanChooses: of the algorithms that there are the first runs, until
// another one is chosen.
func TestPlanChooses(t *testing.T) {
	for _, test := range []struct{ there, most, want int }{{3, 8, 3}, {9, 8, 8}, {9, 1, 1}} {
		f := &fakeBLAS{algorithms: test.there, objects: map[uintptr]bool{}}
		c, _ := fakeContext(t)
		b, err := FakeBLAS(c, f.call)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := b.Plan(&anyProduct, 1000, test.most)
		if err != nil || f.asked != test.most || plan.Algorithms() != test.want {
			t.Fatalf("of %d algorithms, asked for %d: %v", test.there, test.most, err)
		}
		for i := range plan.Algorithms() {
			if i > 0 { // else it is chosen already
				plan.Choose(i)
			}
			if err := plan.Run(9, 1, 2, 3, 4, false, 5); err != nil || f.ran != i || f.workspace != uintptr(100*i) {
				t.Errorf("algorithm %d is chosen: %d ran with %d bytes: %v", i, f.ran, f.workspace, err)
			}
		}
		if err := plan.Close(); err != nil || len(f.broken) > 0 || len(f.objects) > 1 || b.Close() != nil {
			t.Errorf("closing: %v; misuse %q; %d objects are left", err, f.broken, len(f.objects))
		}
	}
}

// TestPlanFailures lets each call fail in turn, and the library know no
// algorithm: nothing is left.
func TestPlanFailures(t *testing.T) {
	for nth, failed := 2, true; failed; nth++ { // the first starts the library
		f := &fakeBLAS{algorithms: 1, objects: map[uintptr]bool{}, fail: nth}
		c, _ := fakeContext(t)
		b, err := FakeBLAS(c, f.call)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := b.Plan(&anyProduct, 1000, 8)
		if err == nil {
			err = plan.Close()
		}
		failed = f.failed != ""
		left := 1 // the library
		if strings.HasSuffix(f.failed, "Destroy") {
			left = 2
		}
		if (err != nil) != (failed && f.failed != "cublasLtMatmulPreferenceDestroy") || len(f.objects) != left || len(f.broken) > 0 {
			t.Errorf("call %d, of %s, fails: %v; misuse %q; %d objects are left", nth, f.failed, err, f.broken, len(f.objects))
		}
	}
	f := &fakeBLAS{objects: map[uintptr]bool{}}
	c, _ := fakeContext(t)
	b, err := FakeBLAS(c, f.call)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Plan(&anyProduct, 1000, 8); err == nil || !strings.Contains(err.Error(), "no algorithm") || len(f.objects) != 1 {
		t.Errorf("without an algorithm: %v; %d objects are left", err, len(f.objects))
	}
}
