package kernel

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// choices gives n indices from −1 to most.
func choices(r *rand.Rand, n, most int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(r.IntN(most+2)) - 1
	}
	return v
}

func (a *array) int32At(i int) int32 { return int32(math.Float32bits(a.data[i])) }

func TestSelect(t *testing.T) {
	r := seeded(t)
	for i, n := range lengths(r) {
		c := &testCase{t: t}
		mask := choices(r, n, 1)
		m, a, b, y := c.indices(mask), c.input(randoms(r, n)), c.input(randoms(r, n)), c.output(n)
		pa, pb := a.ptr(), b.ptr()
		if i%3 == 1 {
			pa = none
		} else if i%3 == 2 {
			pb = none
		}
		c.run(func(s device.Stream) { Select(s, n, y.ptr(), m.ptr(), pa, pb, 7) })
		c.equal("y", y, 0, func(i int) float64 {
			switch {
			case mask[i] != 0 && pa.given():
				return a.start(i)
			case mask[i] == 0 && pb.given():
				return b.start(i)
			}
			return 7
		})
	}
}

func TestEqual(t *testing.T) {
	r := seeded(t)
	for _, n := range lengths(r) {
		c := &testCase{t: t}
		values := choices(r, n, 2)
		x, y := c.indices(values), c.output(n)
		c.run(func(s device.Stream) { Equal(s, n, y.ptr(), x.ptr(), -1) })
		for i, v := range values {
			if got := y.int32At(i); got != int32(flag(v == -1)) {
				t.Fatalf("%d == -1 is %d", v, got)
			}
		}
	}
}

// TestTopK compares with a stable sort.
func TestTopK(t *testing.T) {
	r := seeded(t)
	for range trials(100) {
		rows, cols := 1+r.IntN(10), 1+r.IntN(20)
		k := 1 + r.IntN(cols)
		c := &testCase{t: t}
		values := make([]float32, rows*cols)
		for i := range values {
			values[i] = float32(r.IntN(6)) // ties
			if values[i] == 5 {
				values[i] = nan
			}
		}
		x, y, index := c.input(values), c.output(rows*k), c.output(rows*k)
		c.run(func(s device.Stream) { TopK(s, rows, cols, k, y.ptr(), index.ptr(), x.ptr()) })
		for i := range rows * k {
			row := values[i/k*cols:][:cols]
			order := make([]int32, cols)
			for j := range order {
				order[j] = int32(j)
			}
			slices.SortStableFunc(order, func(a, b int32) int {
				u, v := row[a], row[b]
				switch {
				case u > v || u != u && v == v:
					return -1
				case v > u || v != v && u == u:
					return 1
				}
				return 0
			})
			if got := index.int32At(i); got != order[i%k] || !sameBits(y.data[i:i+1], row[got:got+1]) {
				t.Fatalf("the greatest %d of %v: number %d is element %d, want %d", k, row, i%k, got, order[i%k])
			}
		}
	}
}

func TestGather(t *testing.T) {
	r := seeded(t)
	for range trials(40) {
		rows, cols, k := 1+r.IntN(20), 1+r.IntN(20), r.IntN(20)
		at := choices(r, rows*k, cols)
		inside := func(i int) bool { return at[i] >= 0 && int(at[i]) < cols }
		c := &testCase{t: t}
		x, index, y := c.input(randoms(r, rows*cols)), c.indices(at), c.output(rows*k)
		c.run(func(s device.Stream) { Gather(s, rows, cols, k, y.ptr(), x.ptr(), index.ptr()) })
		c.equal("y", y, 0, func(i int) float64 {
			if !inside(i) {
				return math.NaN()
			}
			return x.start(i/k*cols + int(at[i]))
		})
		c = &testCase{t: t}
		index, dy, dx := c.indices(at), c.input(randoms(r, rows*k)), c.inout(randoms(r, rows*cols))
		c.run(func(s device.Stream) { GatherGrad(s, rows, cols, k, dx.ptr(), dy.ptr(), index.ptr()) })
		want := fromFloats(dx.before)
		for i := range at {
			if inside(i) {
				want[i/k*cols+int(at[i])] += dy.start(i)
			}
		}
		c.near("dx", dx, 1e-6, 1, func(i int) float64 { return want[i] })
	}
}

func TestCumSum(t *testing.T) {
	r := seeded(t)
	for i, shape := range shapes(r) {
		rows, cols, backwards, accumulate := shape[0], shape[1], i%2 == 0, i%3 == 0
		c := &testCase{t: t}
		x, y := c.input(randoms(r, rows*cols)), c.dst(r, rows*cols, accumulate)
		c.run(func(s device.Stream) { CumSum(s, rows, cols, y.ptr(), x.ptr(), backwards, accumulate) })
		c.near("y", y, 1e-6, 1, onto(y, accumulate, byRow(cols, func(r int) []float64 {
			row := x.rowOf(r, cols)
			if backwards {
				slices.Reverse(row)
			}
			for i := 1; i < cols; i++ {
				row[i] += row[i-1]
			}
			if backwards {
				slices.Reverse(row)
			}
			return row
		})))
	}
}

func TestClamp(t *testing.T) {
	r := seeded(t)
	for i, n := range lengths(r) {
		accumulate := i%2 == 0
		c := &testCase{t: t}
		x, y := c.input(randoms(r, n)), c.output(n)
		c.run(func(s device.Stream) { Clamp(s, n, y.ptr(), x.ptr(), -0.5, 1) })
		c.equal("y", y, 0, func(i int) float64 { return math.Min(math.Max(x.start(i), -0.5), 1) })
		c = &testCase{t: t}
		x, dy, dx := c.input(x.before), c.input(randoms(r, n)), c.dst(r, n, accumulate)
		c.run(func(s device.Stream) { ClampGrad(s, n, dx.ptr(), dy.ptr(), x.ptr(), -0.5, 1, accumulate) })
		c.near("dx", dx, 1e-7, 1, onto(dx, accumulate, func(i int) float64 {
			if v := x.start(i); v < -0.5 || v > 1 {
				return 0
			}
			return dy.start(i)
		}))
	}
}

// TestDropout: an element is dropped or scaled; its number alone decides, so
// that a part gets what the whole gets; and the right share is dropped, also of
// neighbours together.
func TestDropout(t *testing.T) {
	const first, n, p = 1_000_002, 200_001, 0.3
	r := seeded(t)
	seed := r.Uint64()
	for _, accumulate := range []bool{false, true} {
		c := &testCase{t: t}
		x, y := c.input(randoms(r, n)), c.dst(r, n, accumulate)
		c.run(func(s device.Stream) { Dropout(s, first, n, y.ptr(), x.ptr(), p, seed, accumulate) })
		kept := make([]float64, n)
		d := newDropout(p, seed)
		for i := range kept {
			one := []float32{1}
			d.apply(one, one, uint64(first+i))
			kept[i] = float64(one[0])
		}
		c.near("y", y, 1e-6, 1, onto(y, accumulate, func(i int) float64 { return kept[i] * x.start(i) }))
		var dropped, both float64
		for i, k := range kept {
			if k != 0 && math.Abs(k-1/(1-p)) > 1e-6 {
				t.Fatalf("factor %v", k)
			}
			if k == 0 {
				dropped++
				if i > 0 && kept[i-1] == 0 {
					both++
				}
			}
		}
		if math.Abs(dropped/n-p) > 0.01 || math.Abs(both/n-p*p) > 0.01 {
			t.Errorf("%v of the elements are dropped, and %v with the one before", dropped/n, both/n)
		}
	}
}

// TestDropoutBits: each bit is set half of the time, and half of the bits
// change with the seed.
func TestDropoutBits(t *testing.T) {
	const n = 20_000
	var set [64]int
	changed := 0
	for i := range uint64(n) {
		a, b := dropout{seed: 1}, dropout{seed: 2}
		changed += bits.OnesCount64(a.pair(i) ^ b.pair(i))
		for j := range set {
			set[j] += int(a.pair(i) >> j & 1)
		}
	}
	for j, c := range set {
		if math.Abs(float64(c)/n-0.5) > 0.02 {
			t.Errorf("bit %d is set %d times of %d", j, c, n)
		}
	}
	if mean := float64(changed) / n; math.Abs(mean-32) > 0.2 {
		t.Errorf("%v bits change with the seed, want 32", mean)
	}
}
