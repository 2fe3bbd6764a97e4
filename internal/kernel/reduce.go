package kernel

// Sums over dimensions.
//
// Dimensions where the destination's stride is 0 are reduced, the others kept.
// The nest is ordered by the source, so that its row is dense there or as near
// to it as can be. There are two ways to go, by what happens to the row:
//
//	row reduced: each destination element is Σ over pieces of Σ over a piece
//	row kept:    a piece of the destination is Σ over rows, element by element
//
// Each is a list of results (elements, or pieces of destination) of so many
// terms. Where there are few results and many terms, the terms are split into
// a number of parts that depends on the shape alone; the parts' sums go to a
// workspace and are added up in a fixed order at the end.
//
// Precision: a piece's sum runs in float32 in many lanes, the sums of pieces
// in float64; element by element, rows go through a cascade (see columns);
// parts are added in pairs (see foldParts).

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

const (
	maxParts  = 64      // so many parts keep the threads busy
	partTerms = 1 << 14 // a part is at least so many elements
)

var sumKernel = &device.Kernel{Name: "sum", Host: sumHost, CUDA: cudaSum}

// SumTo sets dst = Σ src over the dimensions of shape where dst's stride is 0,
// or adds that with accumulate. In the others, dst's strides must not make
// elements coincide. dst and src don't overlap.
func SumTo(s device.Stream, shape []int, dst, src View, accumulate bool) {
	n := newNest("SumTo", shape, dst.Strides, src.Strides, 1)
	elements, sums := n.elements(), n.along(0)
	need("SumTo", sums, dst.Ptr)
	need("SumTo", elements, src.Ptr)
	l := device.Launch{Kernel: sumKernel, Bytes: src.Ptr.bytes(n.distinct(1)) + dst.Ptr.bytes(sums*(1+flag(accumulate))), Flops: uint64(elements)}
	n.store(&l)
	l.Int[nestInts] = flag(accumulate)
	operands(&l, 0, dst.Ptr, src.Ptr)
	queue(s, &l)
}

// BiasGrad sets db, of cols elements, to the column sums of dy, or adds them
// with accumulate.
func BiasGrad(s device.Stream, rows, cols int, db, dy Array, accumulate bool) {
	needMatrix("BiasGrad", rows, cols, dy)
	shape, to, from := [2]int{rows, cols}, [2]int{0, 1}, [2]int{cols, 1}
	SumTo(s, shape[:], View{db, to[:]}, View{dy, from[:]}, accumulate)
}

func sumHost(l *device.Launch, w *device.Workers) {
	n := loadNest(l)
	j := sumJob{accumulate: l.Int[nestInts] != 0, rowKept: n.step(0) != 0}
	j.split(n)
	j.dst = numbersOf(l, 0, j.results.extent(0))
	j.src = numbersOf(l, 1, n.extent(1))
	j.stepDst, j.stepSrc = j.results.step(0), n.step(1)
	if j.parts > 1 {
		j.work = w.Scratch(j.parts * j.results.elements())
		defer w.Release(j.work)
	}
	w.For(j.results.pieces()*j.parts, j.grain(), j.sum)
	if j.parts > 1 {
		w.For(j.results.pieces(), 1, j.fold)
	}
}

// sumJob is a SumTo on the host.
type sumJob struct {
	results, terms   nest // the kept dimensions and the reduced ones
	rowKept          bool
	parts            int // into which the terms are split
	accumulate       bool
	dst, src         numbers
	stepDst, stepSrc int
	work             []float32 // the parts' sums, one set of results after the other
}

// split sets results, terms and parts. Whichever of the nests lacks the row
// gets a row of one element, so that its pieces are its elements.
func (j *sumJob) split(n *nest) {
	for i := range n.dims {
		to := &j.terms
		if n.stride[0][i] != 0 {
			to = &j.results
		}
		to.push(n.size[i], n.stride[0][i], n.stride[1][i])
	}
	if j.rowKept {
		j.terms.push(1, 0, 0)
	} else {
		j.results.push(1, 1, 0)
	}
	results := max(1, j.results.pieces())
	j.parts = min((maxParts+results-1)/results, j.terms.pieces(), n.elements()/partTerms)
	j.parts = max(1, j.parts)
}

// grain is the number of parts of results that make a chunk.
func (j *sumJob) grain() int {
	pieces := max(1, j.results.pieces()*j.parts)
	return rowsPerChunk(j.results.elements() * j.terms.elements() / pieces)
}

// sum computes parts of results: unit i is part i mod parts of piece i / parts.
func (j *sumJob) sum(lo, hi int) {
	var buf columns
	var out [pieceLen]float32
	terms := j.terms.pieces()
	for ; lo < hi; lo++ {
		c := j.results.at(lo / j.parts)
		part := lo % j.parts
		from, to := part*terms/j.parts, (part+1)*terms/j.parts
		sums := out[:c.len()]
		switch {
		case from == to: // the terms are none
			clear(sums)
		case j.rowKept:
			buf.sum(sums, &j.src, c.start(1), j.stepSrc, &j.terms, from, to)
		default:
			sums[0] = sumPieces(&buf.row, &j.src, c.start(1), &j.terms, from, to)
		}
		if j.parts > 1 {
			copy(j.work[part*j.results.elements()+c.row*j.results.rowLen()+c.lo:], sums)
			continue
		}
		j.dst.write(c.start(0), j.stepDst, sums, j.accumulate)
	}
}

// fold adds up the parts of pieces of results.
func (j *sumJob) fold(lo, hi int) {
	var out [pieceLen]float32
	c := j.results.at(lo)
	for ; lo < hi; lo++ {
		sums := out[:c.len()]
		foldParts(sums, j.work, c.row*j.results.rowLen()+c.lo, j.parts, j.results.elements())
		j.dst.write(c.start(0), j.stepDst, sums, j.accumulate)
		c.next()
	}
}

// foldParts sets dst to the sum of parts slices of work, the first at off, the
// others each stride elements on. It adds them in pairs, then the pairs' sums,
// and so on, in work.
func foldParts(dst, work []float32, off, parts, stride int) {
	part := func(p int) []float32 { return work[off+p*stride:][:len(dst)] }
	if parts == 0 {
		clear(dst)
		return
	}
	for parts > 1 {
		half := (parts + 1) / 2
		for p := range parts - half {
			vecAdd(part(p), part(p), part(p+half))
		}
		parts = half
	}
	copy(dst, part(0))
}

// sumPieces is the sum of the terms' pieces from … to−1; the terms begin at
// element first of src.
func sumPieces(buf *[pieceLen]float32, src *numbers, first int, terms *nest, from, to int) float32 {
	var sum float64
	c := terms.at(from)
	for ; from < to; from++ {
		sum += float64(sumOf(src.dense(buf[:], first+c.start(1), terms.step(1), c.len())))
		c.next()
	}
	return float32(sum)
}

// columns adds rows element by element. Sums of 64 rows go to a second level,
// sums of 64 of those to a third, so that an element of r rows sees about
// 128 + r/4096 roundings in a row instead of r.
type columns struct {
	level [3][pieceLen]float32
	row   [pieceLen]float32
}

// sum sets dst to the sum of the rows from … to−1 of terms, which begin at
// element first of src.
func (b *columns) sum(dst []float32, src *numbers, first, step int, terms *nest, from, to int) {
	n := len(dst)
	l0, l1, l2 := b.level[0][:n], b.level[1][:n], b.level[2][:n]
	clear(l0)
	clear(l1)
	clear(l2)
	c := terms.at(from)
	for row := 1; row <= to-from; row++ {
		vecAdd(l0, l0, src.dense(b.row[:], first+c.start(1), step, n))
		c.next()
		if row%64 == 0 {
			vecAdd(l1, l1, l0)
			clear(l0)
		}
		if row%4096 == 0 {
			vecAdd(l2, l2, l1)
			clear(l1)
		}
	}
	vecAdd(l1, l1, l0)
	vecAdd(dst, l2, l1)
}

var sumSquaresKernel = &device.Kernel{Name: "sum_squares", Host: sumSquaresHost, CUDA: cudaSumSquares}

// Sized is an array with the number of its elements.
type Sized struct {
	Array
	N int
}

// SumSquares sets *sum = Σ x² over all elements of xs, of which there is one at
// least, or adds that with accumulate.
func SumSquares(s device.Stream, sum Array, accumulate bool, xs ...Sized) {
	if len(xs) == 0 {
		panic("kernel.SumSquares of no arrays")
	}
	need("SumSquares", 1, sum)
	l := device.Launch{Kernel: sumSquaresKernel}
	operands(&l, 0, sum)
	for len(xs) > 0 {
		var some []Sized
		some, xs, l.Members = nextMembers(xs)
		l.Int[0], l.Bytes, l.Flops = flag(accumulate), bytesOf(1+flag(accumulate)), 0
		for i, x := range some {
			need("SumSquares", x.N, x.Array)
			to := &l.Members.Of[i]
			to.Ptr[0], to.Type, to.Len = x.Ptr, x.Type, int64(x.N)
			l.Bytes += x.bytes(x.N)
			l.Flops += uint64(2 * x.N)
		}
		queue(s, &l)
		accumulate = true
	}
}

func sumSquaresHost(l *device.Launch, w *device.Workers) {
	sum, total := device.Float32s(l.Ptr[0], 1), 0.0
	for i := range l.Members.Of[:l.Members.N] {
		m := &l.Members.Of[i]
		total += squares(typedOf(m), int(m.Len), w)
	}
	if l.Int[0] != 0 {
		total += float64(sum[0])
	}
	sum[0] = float32(total)
}

// squares is Σ x² of n elements.
func squares(x numbers, n int, w *device.Workers) (total float64) {
	parts := w.Scratch((n + chunk - 1) / chunk)
	defer w.Release(parts)
	w.For(n, chunk, func(lo, hi int) {
		var s float64
		var buf [pieceLen]float32
		for i := lo; i < hi; i += pieceLen {
			s += float64(squaresOf(x.dense(buf[:], i, 1, min(pieceLen, hi-i)), 0))
		}
		parts[lo/chunk] = float32(s)
	})
	for _, p := range parts {
		total += float64(p)
	}
	return total
}

var clipScaleKernel = &device.Kernel{Name: "clip_scale", Host: clipScaleHost, CUDA: cudaClipScale}

// ClipScale turns a sum of squares into the factor that clips a gradient:
// *norm = √*sum and *scale = min(1, limit/(norm + 1e−6)), or 1 with limit ≤ 0.
// A norm of NaN gives a scale of NaN then, an infinite one 0.
func ClipScale(s device.Stream, scale, norm, sum Array, limit float32) {
	need("ClipScale", 1, scale, norm, sum)
	l := device.Launch{Kernel: clipScaleKernel, Bytes: bytesOf(3), Flops: 4}
	operands(&l, 0, scale, norm, sum)
	l.Float[0] = limit
	queue(s, &l)
}

func clipScaleHost(l *device.Launch, w *device.Workers) {
	scale, norm, sum := device.Float32s(l.Ptr[0], 1), device.Float32s(l.Ptr[1], 1), device.Float32s(l.Ptr[2], 1)
	limit := l.Float[0]
	norm[0] = float32(math.Sqrt(float64(sum[0])))
	scale[0] = 1
	if limit > 0 {
		scale[0] = min(1, limit/(norm[0]+1e-6))
	}
}
