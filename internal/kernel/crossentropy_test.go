package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

func TestCrossEntropy(t *testing.T) {
	const ignore = -100
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, shape := range shapes(r) {
			rows, cols, accumulate := shape[0], shape[1], i%2 == 0
			logits, targets := randoms(r, rows*cols), make([]int32, rows)
			for j := range targets {
				targets[j] = int32(r.IntN(cols))
				if r.IntN(4) == 0 {
					targets[j] = ignore
				}
			}
			lse := checkCrossEntropy(t, logits, targets, cols, ignore)
			checkCrossEntropyGrad(t, r, logits, targets, lse, cols, ignore, accumulate)
		}
	})
}

// checkCrossEntropy returns lse.
func checkCrossEntropy(t *testing.T, logits []float32, targets []int32, cols int, ignore int32) []float32 {
	t.Helper()
	rows := len(targets)
	c := &testCase{t: t}
	x, index, loss, lse := c.input(logits), c.indices(targets), c.output(1), c.output(rows)
	c.run(func(s device.Stream) {
		CrossEntropy(s, rows, cols, loss.ptr(), lse.ptr(), x.ptr(), index.ptr(), CrossEntropyParams{Ignore: ignore})
	})
	var sum, n float64
	c.near("lse", lse, 3e-7, 1, func(i int) float64 {
		row := x.rowOf(i, cols)
		p := softmaxOracle(row)
		if targets[i] != ignore {
			sum -= math.Log(p[targets[i]])
			n++
		}
		return row[0] - math.Log(p[0])
	})
	c.near("loss", loss, 5e-7, 1, func(int) float64 { return sum / math.Max(n, 1) })
	c.cost(rows*cols+2*rows+1, (expFlops+3)*rows*cols)
	return lse.data
}

func checkCrossEntropyGrad(t *testing.T, r *rand.Rand, logits []float32, targets []int32, lses []float32, cols int, ignore int32, accumulate bool) {
	t.Helper()
	rows, n := len(targets), len(logits)
	const dloss = 0.7
	for _, inPlace := range []bool{false, true} {
		c := &testCase{t: t}
		x, index, lse, up := c.array(logits, inPlace), c.indices(targets), c.input(lses), c.input([]float32{dloss})
		dx, acc := x, false
		if !inPlace {
			acc = accumulate
			dx = c.dst(r, n, acc)
		}
		c.run(func(s device.Stream) {
			CrossEntropyGrad(s, rows, cols, dx.ptr(), up.ptr(), x.ptr(), lse.ptr(), index.ptr(), CrossEntropyParams{Ignore: ignore}, acc)
		})
		scale := float64(float32(dloss)) / (&CrossEntropyParams{Ignore: ignore}).divisor(targets)
		c.equal("dlogits", dx, 1e-6, onto(dx, acc, byRow(cols, func(r int) []float64 {
			grad := make([]float64, cols)
			if targets[r] == ignore {
				return grad
			}
			for j, p := range softmaxOracle(x.rowOf(r, cols)) {
				grad[j] = p * scale
			}
			grad[targets[r]] -= scale
			return grad
		})))
		c.cost(n*(2+flag(acc))+2*rows+1, (expFlops+2+flag(acc))*n)
	}
}

// TestCrossEntropySmoothing compares smoothed losses, means and sums, with
// their definition, and their gradients with differences.
func TestCrossEntropySmoothing(t *testing.T) {
	r := seeded(t)
	for i, shape := range shapes(r) {
		rows, cols := shape[0], shape[1]
		p := CrossEntropyParams{Ignore: -1, Smoothing: 0.3, Sum: i%2 == 0}
		targets := make([]int32, rows)
		for j := range targets {
			targets[j] = int32(r.IntN(cols+1)) - 1
		}
		c := &testCase{t: t}
		x, index, loss, lse := c.input(randoms(r, rows*cols)), c.indices(targets), c.output(1), c.output(rows)
		c.run(func(s device.Stream) { CrossEntropy(s, rows, cols, loss.ptr(), lse.ptr(), x.ptr(), index.ptr(), p) })
		sum, counted := 0.0, 0.0
		grad := make([]float64, rows*cols)
		for r, target := range targets {
			if target < 0 {
				continue
			}
			counted++
			for j, q := range softmaxOracle(x.rowOf(r, cols)) {
				want := 0.3 / float64(cols)
				if j == int(target) {
					want += 0.7
				}
				sum -= want * math.Log(q)
				grad[r*cols+j] = q - want
			}
		}
		if p.Sum {
			counted = 1
		}
		counted = math.Max(counted, 1)
		c.near("loss", loss, 1e-6, 1, func(int) float64 { return sum / counted })

		d := &testCase{t: t}
		x, index, up, held := d.input(x.before), d.indices(targets), d.input([]float32{2}), d.input(append([]float32(nil), lse.data...))
		dx := d.dst(r, rows*cols, i%3 == 0)
		d.run(func(s device.Stream) {
			CrossEntropyGrad(s, rows, cols, dx.ptr(), up.ptr(), x.ptr(), held.ptr(), index.ptr(), p, i%3 == 0)
		})
		d.near("dlogits", dx, 1e-6, 1, onto(dx, i%3 == 0, func(i int) float64 { return 2 / counted * grad[i] }))
	}
}

func TestCrossEntropySpecial(t *testing.T) {
	logits := []float32{1, 2, 3, 4, negInf, 0, 1000, 1000, 5, 5, 5, 5}
	for _, v := range []struct {
		name    string
		targets []int32
		loss    float64
	}{
		{"all ignored", []int32{-1, -1, -1}, 0},
		{"an ignored index that is a column", []int32{1, 1, 1}, 0},
		{"too great", []int32{-1, 0, 4}, math.NaN()},
		{"negative", []int32{-2, 0, 0}, math.NaN()},
		{"great logits", []int32{-1, 2, -1}, math.Log(2)},
		{"impossible", []int32{-1, 0, -1}, math.Inf(1)},
	} {
		ignore := int32(-1)
		if v.name == "an ignored index that is a column" {
			ignore = 1
		}
		c := &testCase{t: t}
		x, index, loss, lse := c.input(logits), c.indices(v.targets), c.output(1), c.output(3)
		c.run(func(s device.Stream) {
			CrossEntropy(s, 3, 4, loss.ptr(), lse.ptr(), x.ptr(), index.ptr(), CrossEntropyParams{Ignore: ignore})
		})
		c.equal(v.name, loss, 1e-6, func(int) float64 { return v.loss })

		up, dx := c.input([]float32{1}), c.output(12)
		lse.output, loss.output = false, false
		lse.before, loss.before = append([]float32(nil), lse.data...), append([]float32(nil), loss.data...)
		c.run(func(s device.Stream) {
			CrossEntropyGrad(s, 3, 4, dx.ptr(), up.ptr(), x.ptr(), lse.ptr(), index.ptr(), CrossEntropyParams{Ignore: ignore}, false)
		})
		for r, target := range v.targets {
			outside := target != ignore && (target < 0 || target >= 4)
			if got := dx.data[4*r]; (got != got) != outside {
				t.Errorf("%s: gradient of row %d begins with %v", v.name, r, got)
			}
			if target == ignore && !sameBits(dx.data[4*r:4*r+4], make([]float32, 4)) {
				t.Errorf("%s: gradient of ignored row %d is %v", v.name, r, dx.data[4*r:4*r+4])
			}
		}
	}
}
