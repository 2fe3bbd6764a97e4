package kernel

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/device"
)

// TestCombine: sums in the order of the sources, their means, and maxima, of every
// number of sources, also into one of them.
func TestCombine(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, n := range lengths(r) {
			op, sources := CombineOp(i%3), 1+r.IntN(MostCombined)
			c := &testCase{t: t}
			dst := c.output(n)
			src := make([]Array, sources)
			values := make([][]float32, sources)
			for k := range src {
				a := dst
				if k == 0 && i%2 == 0 {
					dst.before = randoms(r, n)
				} else {
					a = c.input(randoms(r, n))
				}
				src[k], values[k] = a.ptr(), a.before
			}
			if n > 3 && op == CombineMax {
				values[sources-1][1], values[0][2] = nan, nan
			}
			c.run(func(s device.Stream) { Combine(s, op, n, dst.ptr(), src...) })
			for j, got := range dst.data {
				if want := combineOracle(op, values, j); math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
					t.Fatalf("%d of %d sources: element %d of %d is %v, want %v", op, sources, j, n, got, want)
				}
			}
			c.cost((sources+1)*n, n*(sources-1+flag(op == CombineMean)))
		}
	})
}

func combineOracle(op CombineOp, values [][]float32, i int) float32 {
	sum := values[0][i]
	for _, v := range values[1:] {
		if op == CombineMax {
			sum = max(sum, v[i])
		} else {
			sum += v[i]
		}
	}
	if op == CombineMean {
		sum /= float32(len(values))
	}
	return sum
}

// TestCombineInts: numbers of 32 bits, of which float32 has no room for all.
func TestCombineInts(t *testing.T) {
	const big = 1<<24 + 1
	for op, want := range map[CombineOp][]int32{CombineSum: {big + 2, -big - 5, 0}, CombineMax: {big, 5, 1}} {
		c := &testCase{t: t}
		a, b, dst := c.indices([]int32{big, -big - 10, -1}), c.indices([]int32{2, 5, 1}), c.indices([]int32{0, 0, 0})
		dst.output = true
		of := func(x *array) Array { return Array{x.ptr().Ptr, device.Int32} }
		c.run(func(s device.Stream) { Combine(s, op, 3, of(dst), of(a), of(b)) })
		if got := unsafe.Slice((*int32)(unsafe.Pointer(&dst.data[0])), 3); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("operation %d: %v, want %v", op, got, want)
		}
	}
}
