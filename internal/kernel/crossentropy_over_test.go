package kernel

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestCrossEntropyOver compares the middle rows of a batch with what
// CrossEntropy and CrossEntropyGrad make of the whole.
func TestCrossEntropyOver(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, shape := range shapes(r) {
			rows, cols, pad, p := shape[0], shape[1], r.IntN(9), CrossEntropyParams{Ignore: -1, Sum: i%3 == 0}
			if i%2 == 0 {
				p.Smoothing = 0.1
			}
			targets := make([]int32, rows)
			for j := range targets {
				targets[j] = int32(r.IntN(cols+1)) - 1
			}
			logits := randoms(r, rows*cols)
			from := r.IntN(rows + 1)
			want, loss := crossEntropyApart(t, logits, targets, from, cols, p)
			for _, grad := range []bool{false, true} {
				part := LogitRows{rows - from, cols, cols + pad, from, rows, LogitPart{}}
				checkCrossEntropyOver(t, part, logits[from*cols:], targets, p, grad, want, loss)
			}
		}
	})
}

// crossEntropyApart gives the gradient of the rows after from, and their part
// of the loss.
func crossEntropyApart(t *testing.T, logits []float32, targets []int32, from, cols int, p CrossEntropyParams) (grad []float32, loss float64) {
	rows := len(targets)
	c := &testCase{t: t}
	x, index, one, lse := c.input(logits), c.indices(targets), c.output(1), c.output(rows)
	c.run(func(s device.Stream) { CrossEntropy(s, rows, cols, one.ptr(), lse.ptr(), x.ptr(), index.ptr(), p) })
	d := &testCase{t: t}
	x, index, up, held, dx := d.input(logits), d.indices(targets), d.input([]float32{0.7}), d.input(lse.data), d.output(rows*cols)
	d.run(func(s device.Stream) {
		CrossEntropyGrad(s, rows, cols, dx.ptr(), up.ptr(), x.ptr(), held.ptr(), index.ptr(), p, false)
	})
	for r := from; r < rows; r++ {
		top, logSum := logSumExp(logits[r*cols:][:cols])
		loss += float64(p.rowLoss(logits[r*cols:][:cols], targets[r], top, logSum))
	}
	return dx.data[from*cols:], loss / p.divisor(targets)
}

func checkCrossEntropyOver(t *testing.T, r LogitRows, logits []float32, targets []int32, p CrossEntropyParams, grad bool, want []float32, loss float64) {
	t.Helper()
	c := &testCase{t: t}
	padded := make([]float32, r.Rows*r.Stride)
	for i := range padded {
		padded[i] = 5
		if row, col := i/r.Stride, i%r.Stride; col < r.Cols {
			padded[i] = logits[row*r.Cols+col]
		}
	}
	x, index, up, out := c.array(padded, grad), c.indices(targets), c.input([]float32{0.7}), c.output(ceilDiv(r.Rows, PartRows))
	var dloss Array
	if grad {
		dloss = up.ptr()
	}
	c.run(func(s device.Stream) { CrossEntropyOver(s, r, out.ptr(), dloss, x.ptr(), index.ptr(), p) })
	if got := total(out.data); !(math.Abs(got-loss) <= 1e-6*(1+math.Abs(loss))) {
		t.Errorf("%d rows: the losses sum up to %v, want %v", r.Rows, got, loss)
	}
	n, words := r.Rows*r.Cols, r.All+len(out.data)
	if !grad {
		c.cost(n+words, (expFlops+3)*n)
		return
	}
	c.equal("gradient", x, 1e-6, func(i int) float64 {
		if col := i % r.Stride; col < r.Cols {
			return float64(want[i/r.Stride*r.Cols+col])
		}
		return 0
	})
	c.cost(n+words+r.Rows*r.Stride, (2*expFlops+5)*n)
}

func total(x []float32) (sum float64) {
	for _, v := range x {
		sum += float64(v)
	}
	return sum
}

// TestCrossEntropyOfParts cuts the classes of a batch in two, and compares what
// the parts come to with the whole: their losses add up, their gradients lie side
// by side.
func TestCrossEntropyOfParts(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, shape := range shapes(r) {
			rows, cols, p := shape[0], shape[1]+2, CrossEntropyParams{Ignore: -1, Sum: i%2 == 0}
			targets := make([]int32, rows)
			for j := range targets {
				targets[j] = int32(r.IntN(cols+1)) - 1
			}
			logits := randoms(r, rows*cols)
			_, loss := crossEntropyApart(t, logits, targets, 0, cols, p)
			want := crossEntropyGradOracle(logits, targets, cols, p)
			sums := make([]float32, 2*rows)
			for j := range rows {
				top, sum := sumExp(logits[j*cols:][:cols])
				sums[j], sums[rows+j] = float32(top), float32(sum)
			}
			cut := 1 + r.IntN(cols-1)
			got := checkLogitPart(t, 0, cut, cols, logits, sums, want, targets, p) + checkLogitPart(t, cut, cols, cols, logits, sums, want, targets, p)
			if d := got - loss; !(d*d <= 1e-10*(1+loss*loss)) {
				t.Errorf("%d rows of %d classes, cut at %d: the losses sum up to %v, want %v", rows, cols, cut, got, loss)
			}
		}
	})
}

// crossEntropyGradOracle is 0.7 times the gradient of the loss, without smoothing.
func crossEntropyGradOracle(logits []float32, targets []int32, cols int, p CrossEntropyParams) []float64 {
	var grad []float64
	for j, target := range targets {
		for k, y := range softmaxOracle(wide(logits[j*cols:][:cols])) {
			switch {
			case target == p.Ignore:
				y = 0
			case int32(k) == target:
				y--
			}
			grad = append(grad, float64(float32(0.7))*y/p.divisor(targets))
		}
	}
	return grad
}

// checkLogitPart gives the loss of the classes from lo up to but not including hi.
func checkLogitPart(t *testing.T, lo, hi, cols int, logits, sums []float32, want []float64, targets []int32, p CrossEntropyParams) float64 {
	t.Helper()
	rows, n := len(targets), hi-lo
	var mine []float32
	for j := range rows {
		mine = append(mine, logits[j*cols+lo:j*cols+hi]...)
	}
	part := LogitRows{rows, n, n, 0, rows, LogitPart{}}
	c := &testCase{t: t}
	x, tops := c.input(mine), c.output(2*rows)
	c.run(func(s device.Stream) { RowSums(s, part, tops.ptr(), x.ptr()) })
	c.equal("sums", tops, 1e-6, func(i int) float64 {
		top, sum := sumExp(mine[i%rows*n:][:n])
		if i < rows {
			return top
		}
		return sum
	})
	c.cost(rows*n+2*rows, (expFlops+2)*rows*n)
	d := &testCase{t: t}
	x, all, index, up, out := d.inout(mine), d.input(sums), d.indices(targets), d.input([]float32{0.7}), d.output(ceilDiv(rows, PartRows))
	part.Part = LogitPart{lo, cols, all.ptr()}
	d.run(func(s device.Stream) { CrossEntropyOver(s, part, out.ptr(), up.ptr(), x.ptr(), index.ptr(), p) })
	d.equal("gradient", x, 1e-6, func(i int) float64 { return want[i/n*cols+lo+i%n] })
	return total(out.data)
}
