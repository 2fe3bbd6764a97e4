package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// randomShape gives a shape of up to MaxDims dimensions, sometimes with a long
// one, sometimes with an empty one.
func randomShape(r *rand.Rand, i int) []int {
	shape := make([]int, r.IntN(MaxDims+1))
	for d := range shape {
		shape[d] = 1 + r.IntN(4)
	}
	if len(shape) == 0 {
		return shape
	}
	d := r.IntN(len(shape))
	switch {
	case i%50 == 49:
		shape[d] = 0
	case i%3 == 0:
		shape[d] = 1 + r.IntN(40)
	case i%17 == 0:
		for e := range shape {
			shape[e] = 1 + r.IntN(2)
		}
		shape[d] = pieceLen + r.IntN(3000)
	}
	return shape
}

// randomStrides gives strides of elements that lie apart: the dimensions in a
// random order, with gaps now and then, and with repeats where they may be.
func randomStrides(r *rand.Rand, shape []int, repeats bool) []int {
	strides, next := make([]int, len(shape)), 1
	order := r.Perm(len(shape))
	if r.IntN(2) == 0 {
		for i := range order {
			order[i] = len(shape) - 1 - i
		}
	}
	for _, d := range order {
		if repeats && r.IntN(4) == 0 {
			continue
		}
		strides[d] = next
		next *= max(1, shape[d])
		if r.IntN(6) == 0 {
			next += 1 + r.IntN(3)
		}
	}
	return strides
}

func count(shape []int) int {
	n := 1
	for _, size := range shape {
		n *= size
	}
	return n
}

// offset is where element i of a shape, in row-major order, lies.
func offset(i int, shape, strides []int) int {
	off := 0
	for d := len(shape) - 1; d >= 0; d-- {
		off += i % shape[d] * strides[d]
		i /= shape[d]
	}
	return off
}

// distinct counts the offsets of a shape.
func distinct(shape, strides []int) int {
	seen, n := make([]bool, extent(shape, strides)), 0
	for i := range count(shape) {
		at := offset(i, shape, strides)
		if !seen[at] {
			n++
		}
		seen[at] = true
	}
	return n
}

// extent is one more than the greatest offset, or 0 without elements.
func extent(shape, strides []int) int {
	n := 0
	for i := range count(shape) {
		n = max(n, offset(i, shape, strides)+1)
	}
	return n
}

// TestNestWalk compares the walk over pieces with offsets computed one by one.
func TestNestWalk(t *testing.T) {
	r := seeded(t)
	for i := range trials(300) {
		shape := randomShape(r, i)
		a, b := randomStrides(r, shape, true), randomStrides(r, shape, true)
		n := newNest("test", shape, a, b, -1)
		var l device.Launch
		n.store(&l)
		if *loadNest(&l) != n {
			t.Fatalf("%+v comes back from a launch as %+v", n, *loadNest(&l))
		}
		if n.elements() != count(shape) || n.extent(0) != extent(shape, a) || n.distinct(1) != distinct(shape, b) {
			t.Fatalf("shape %v, strides %v and %v: %d elements, extent %d, %d distinct", shape, a, b, n.elements(), n.extent(0), n.distinct(1))
		}
		element := 0
		for piece := range n.pieces() {
			c := n.at(piece)
			for j := range c.len() {
				offA, offB := c.start(0)+j*n.step(0), c.start(1)+j*n.step(1)
				if offA != offset(element, shape, a) || offB != offset(element, shape, b) {
					t.Fatalf("shape %v, strides %v and %v: element %d at %d and %d", shape, a, b, element, offA, offB)
				}
				element++
			}
			c.next()
			if piece+1 < n.pieces() && c != n.at(piece+1) {
				t.Fatalf("shape %v: next of piece %d is %+v, want %+v", shape, piece, c, n.at(piece+1))
			}
		}
		if element != count(shape) {
			t.Fatalf("shape %v: %d elements walked", shape, element)
		}
	}
}

// TestNestOrder checks that sorting brings the operand's strides into order
// and that merging leaves the rows of dense operands whole.
func TestNestOrder(t *testing.T) {
	r := seeded(t)
	for i := range trials(300) {
		shape := randomShape(r, i)
		n := newNest("test", shape, randomStrides(r, shape, true), randomStrides(r, shape, true), 1)
		for d := 1; d < n.dims; d++ {
			outer, inner := n.stride[1][d-1], n.stride[1][d]
			if outer != 0 && outer < inner || outer > 0 && inner == 0 {
				t.Fatalf("shape %v: strides %v after sorting", shape, n.stride[1][:n.dims])
			}
		}
	}
	n := newNest("test", []int{2, 3, 1, 4}, []int{12, 4, 7, 1}, []int{12, 4, 0, 1}, -1)
	if n.dims != 1 || n.rowLen() != 24 {
		t.Fatalf("dense operands make %+v", n)
	}
}

func TestCopy(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i := range trials(300) {
			shape := randomShape(r, i)
			checkCopy(t, r, shape, randomStrides(r, shape, false), randomStrides(r, shape, true), i%2 == 0)
		}
		for _, accumulate := range []bool{false, true} {
			checkCopy(t, r, []int{chunk + 3}, []int{1}, []int{1}, accumulate)
			checkCopy(t, r, []int{100, 133}, []int{133, 1}, []int{1, 100}, accumulate)
			checkCopy(t, r, []int{2, 2100, 17}, []int{2100 * 17, 17, 1}, []int{2100 * 17, 1, 2100}, accumulate)
			checkCopy(t, r, []int{2, 6, 40, 50}, []int{12000, 2000, 50, 1}, []int{12000, 50, 300, 1}, accumulate)
			checkCopy(t, r, []int{2, 6, 40, 50}, []int{12000, 2000, 50, 1}, []int{12000, 1, 6, 240}, accumulate)
		}
	})
}

func checkCopy(t *testing.T, r *rand.Rand, shape, stridesDst, stridesSrc []int, accumulate bool) {
	t.Helper()
	c := &testCase{t: t}
	src, dst := c.input(randoms(r, extent(shape, stridesSrc))), c.inout(randoms(r, extent(shape, stridesDst)))
	want := wide(dst.before)
	for i := range count(shape) {
		j := offset(i, shape, stridesDst)
		if !accumulate {
			want[j] = 0
		}
		want[j] += src.start(offset(i, shape, stridesSrc))
	}
	c.run(func(s device.Stream) {
		Copy(s, shape, View{dst.ptr(), stridesDst}, View{src.ptr(), stridesSrc}, accumulate)
	})
	c.equal("dst", dst, 1e-7, func(i int) float64 { return want[i] })
	c.cost(count(shape)*(1+flag(accumulate))+distinct(shape, stridesSrc), count(shape)*flag(accumulate))
}
