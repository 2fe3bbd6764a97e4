package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

func TestSumTo(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i := range trials(300) {
			shape := randomShape(r, i)
			checkSumTo(t, r, shape, randomReduction(r, shape), randomStrides(r, shape, true), i%2 == 0)
		}
		for _, accumulate := range []bool{false, true} {
			checkSumTo(t, r, []int{70000}, []int{0}, []int{1}, accumulate)                // everything
			checkSumTo(t, r, []int{2000, 33}, []int{0, 1}, []int{33, 1}, accumulate)      // columns, split into parts
			checkSumTo(t, r, []int{20, 5000}, []int{0, 1}, []int{5000, 1}, accumulate)    // columns of several pieces
			checkSumTo(t, r, []int{2000, 33}, []int{1, 0}, []int{33, 1}, accumulate)      // rows
			checkSumTo(t, r, []int{3, 20000}, []int{1, 0}, []int{20000, 1}, accumulate)   // rows, split into parts
			checkSumTo(t, r, []int{100, 200}, []int{0, 1}, []int{1, 100}, accumulate)     // columns of a transposed matrix
			checkSumTo(t, r, []int{64, 16, 49}, []int{0, 1, 0}, []int{784, 49, 1}, false) // channels
			checkSumTo(t, r, []int{0, 7}, []int{0, 1}, []int{7, 1}, accumulate)           // nothing
			checkSumTo(t, r, []int{7, 0}, []int{0, 1}, []int{0, 1}, accumulate)
		}
	})
}

// randomReduction gives strides of a destination with some dimensions reduced.
func randomReduction(r *rand.Rand, shape []int) []int {
	strides := randomStrides(r, shape, false)
	for d := range strides {
		if r.IntN(2) == 0 {
			strides[d] = 0
		}
	}
	return strides
}

func checkSumTo(t *testing.T, r *rand.Rand, shape, stridesDst, stridesSrc []int, accumulate bool) {
	t.Helper()
	c := &testCase{t: t}
	kept := append([]int(nil), shape...)
	for d, stride := range stridesDst {
		if stride == 0 {
			kept[d] = 1
		}
	}
	src, dst := c.input(randoms(r, extent(shape, stridesSrc))), c.inout(randoms(r, extent(kept, stridesDst)))
	want := wide(dst.before)
	for i := range count(kept) {
		if !accumulate {
			want[offset(i, kept, stridesDst)] = 0
		}
	}
	for i := range count(shape) {
		want[offset(i, shape, stridesDst)] += src.start(offset(i, shape, stridesSrc))
	}
	c.run(func(s device.Stream) {
		SumTo(s, shape, View{dst.ptr(), stridesDst}, View{src.ptr(), stridesSrc}, accumulate)
	})
	c.near("dst", dst, 2e-6, float64(count(shape)/max(1, count(kept))), func(i int) float64 { return want[i] })
	c.cost(distinct(shape, stridesSrc)+distinct(kept, stridesDst)*(1+flag(accumulate)), count(shape))
}

// TestSumPrecision adds up numbers of one sign, whose rounding errors would
// grow with their number in a plain loop.
func TestSumPrecision(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		const rows, cols = 50_000, 2
		values := make([]float32, rows*cols)
		for i := range values {
			values[i] = 0.1
		}
		c := &testCase{t: t}
		src, dst := c.input(values), c.output(cols)
		c.run(func(s device.Stream) { BiasGrad(s, rows, cols, dst.ptr(), src.ptr(), false) })
		c.equal("db", dst, 1e-6, func(int) float64 { return rows * float64(float32(0.1)) })
		c = &testCase{t: t}
		src, dst = c.input(values), c.output(1)
		c.run(func(s device.Stream) { SumSquares(s, dst.ptr(), false, Sized{src.ptr(), rows * cols}) })
		c.equal("sum", dst, 1e-6, func(int) float64 { return rows * cols * math.Pow(float64(float32(0.1)), 2) })
	})
}

func TestBiasGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, cols := range []int{1, 7, 64, 100, 2100} {
			rows, accumulate := 1+r.IntN(200), i%2 == 0
			c := &testCase{t: t}
			dy, db := c.input(randoms(r, rows*cols)), c.dst(r, cols, accumulate)
			c.run(func(s device.Stream) { BiasGrad(s, rows, cols, db.ptr(), dy.ptr(), accumulate) })
			c.near("db", db, 1e-6, math.Sqrt(float64(rows)), func(j int) float64 {
				sum := 0.0
				if accumulate {
					sum = db.start(j)
				}
				for i := range rows {
					sum += dy.start(i*cols + j)
				}
				return sum
			})
			c.cost(rows*cols+cols*(1+flag(accumulate)), rows*cols)
		}
	})
}

// TestSumSquaresOfMany sums more arrays than one launch has room for.
func TestSumSquaresOfMany(t *testing.T) {
	r := seeded(t)
	c := &testCase{t: t, launches: 2}
	var xs []Sized
	total := 0.0
	for i := range device.MaxMembers + 6 {
		x := c.input(randoms(r, []int{0, 5, cudaSquareChunk + 9}[min(2, i%7)]))
		for _, v := range x.before {
			total += float64(v) * float64(v)
		}
		xs = append(xs, Sized{x.ptr(), len(x.data)})
	}
	sum := c.output(1)
	c.run(func(s device.Stream) { SumSquares(s, sum.ptr(), false, xs...) })
	c.equal("sum", sum, 1e-6, func(int) float64 { return total })
}

func TestSumSquaresAndClip(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, n := range lengths(r) {
			accumulate := i%2 == 0
			c := &testCase{t: t}
			x, y, sum := c.input(randoms(r, n)), c.input(randoms(r, 1+n/3)), c.output(1)
			if accumulate {
				sum.before[0] = 3
			}
			c.run(func(s device.Stream) {
				SumSquares(s, sum.ptr(), accumulate, Sized{x.ptr(), n}, Sized{y.ptr(), 1 + n/3})
			})
			c.equal("sum", sum, 1e-6, func(int) float64 {
				total := 0.0
				if accumulate {
					total = 3
				}
				for _, v := range append(slices.Clone(x.before), y.before...) {
					total += float64(v) * float64(v)
				}
				return total
			})
			c.cost(n+1+n/3+1+flag(accumulate), 2*(n+1+n/3))
		}
	})
	inf := float32(math.Inf(1))
	for _, v := range []struct{ sum, limit, norm, scale float32 }{
		{16, 1, 4, 0.24999994}, {16, 5, 4, 1}, {16, 0, 4, 1}, {16, -1, 4, 1}, {0, 1, 0, 1},
		{nan, 1, nan, nan}, {nan, 0, nan, 1}, {inf, 1, inf, 0},
	} {
		c := &testCase{t: t}
		sum, norm, scale := c.input([]float32{v.sum}), c.output(1), c.output(1)
		c.run(func(s device.Stream) { ClipScale(s, scale.ptr(), norm.ptr(), sum.ptr(), v.limit) })
		c.equal("norm", norm, 0, func(int) float64 { return float64(v.norm) })
		c.equal("scale", scale, 1e-7, func(int) float64 { return float64(v.scale) })
	}
}
