package kernel

// The loop nests of strided operations.
//
// An operation over a shape has two operands with a stride for each dimension.
// newNest drops the dimensions of size 1, orders the others as the operation
// wants them, and merges neighbours that both operands cross with one stride,
// so that a dense operand of any shape comes down to a single row. Outermost
// first, the dimensions that are left are at least one; the last is the row,
// and a row is cut into pieces of at most pieceLen elements:
//
//	elements = rows × rowLen;  pieces = rows × ⌈rowLen / pieceLen⌉
//
// Pieces are numbered in the order of the nest. A chunk of them is walked with
// a cursor, which holds where the operands' elements lie.

import (
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
)

// pieceLen is the number of elements that buffers of a row's piece have.
const pieceLen = 2048

// nest is a loop nest over two operands.
type nest struct {
	dims   int
	size   [MaxDims]int
	stride [2][MaxDims]int
}

// newNest builds the nest of a shape whose operands have strides a and b.
// With order 0 or 1, dimensions are sorted by that operand's stride, the
// greatest outermost and those of stride 0 outside of them; with order −1 they
// stay as they are.
func newNest(op string, shape, a, b []int, order int) nest {
	if len(shape) > MaxDims || len(a) != len(shape) || len(b) != len(shape) {
		badNest(op, shape, a, b)
	}
	var n nest
	for i, size := range shape {
		if size < 0 || a[i] < 0 || b[i] < 0 {
			badNest(op, shape, a, b)
		}
		if size != 1 {
			n.push(size, a[i], b[i])
		}
	}
	if order >= 0 {
		n.sort(order)
	}
	n.merge()
	if n.dims == 0 {
		n.push(1, 1, 1)
	}
	return n
}

// badNest panics. It copies its arguments, so that those of newNest may lie on
// the stack.
func badNest(op string, shape, a, b []int) {
	panic(fmt.Sprintf("kernel.%s: shape %v with strides %v and %v; want at most %d dimensions, a stride for each, no negative number",
		op, slices.Clone(shape), slices.Clone(a), slices.Clone(b), MaxDims))
}

func (n *nest) push(size, a, b int) {
	n.size[n.dims], n.stride[0][n.dims], n.stride[1][n.dims] = size, a, b
	n.dims++
}

// sort orders the dimensions by the stride of an operand.
func (n *nest) sort(operand int) {
	key := &n.stride[operand]
	outside := func(i, j int) bool { // dimension i belongs outside of j
		return key[j] != 0 && (key[i] == 0 || key[i] > key[j])
	}
	for i := 1; i < n.dims; i++ {
		for j := i; j > 0 && outside(j, j-1); j-- {
			n.swap(j, j-1)
		}
	}
}

func (n *nest) swap(i, j int) {
	n.size[i], n.size[j] = n.size[j], n.size[i]
	for k := range n.stride {
		s := &n.stride[k]
		s[i], s[j] = s[j], s[i]
	}
}

// merge joins each dimension with its outer neighbour where both operands
// cross the two with one stride.
func (n *nest) merge() {
	old := *n
	n.dims = 0
	for i := range old.dims {
		size, a, b := old.size[i], old.stride[0][i], old.stride[1][i]
		last := n.dims - 1
		if last >= 0 && n.stride[0][last] == a*size && n.stride[1][last] == b*size {
			n.size[last] *= size
			n.stride[0][last], n.stride[1][last] = a, b
			continue
		}
		n.push(size, a, b)
	}
}

// elements is the number of elements of the nest.
func (n *nest) elements() int { return n.rows() * n.rowLen() }

// rows is the number of rows.
func (n *nest) rows() int {
	rows := 1
	for _, size := range n.size[:n.dims-1] {
		rows *= size
	}
	return rows
}

// rowLen is the length of a row.
func (n *nest) rowLen() int { return n.size[n.dims-1] }

// step is the stride of an operand within a row.
func (n *nest) step(operand int) int { return n.stride[operand][n.dims-1] }

// perRow is the number of pieces of a row.
func (n *nest) perRow() int { return (n.rowLen() + pieceLen - 1) / pieceLen }

// pieces is the number of pieces of all rows.
func (n *nest) pieces() int { return n.rows() * n.perRow() }

// piecesPerChunk is the number of pieces that make a chunk.
func (n *nest) piecesPerChunk() int { return rowsPerChunk(min(n.rowLen(), pieceLen)) }

// extent is the number of elements from an operand's first to its last.
func (n *nest) extent(operand int) int {
	if n.elements() == 0 {
		return 0
	}
	extent := 1
	for i, size := range n.size[:n.dims] {
		extent += (size - 1) * n.stride[operand][i]
	}
	return extent
}

// distinct is the number of an operand's elements, repeated ones counted once.
func (n *nest) distinct(operand int) int {
	if n.elements() == 0 {
		return 0
	}
	return n.along(operand)
}

// along is the number of elements of the dimensions that an operand moves along.
func (n *nest) along(operand int) int {
	count := 1
	for i, size := range n.size[:n.dims] {
		if n.stride[operand][i] != 0 {
			count *= size
		}
	}
	return count
}

// A nest as launch arguments: dimensions, sizes, strides.
const nestInts = 1 + 3*MaxDims

func (n *nest) store(l *device.Launch) {
	l.Int[0] = n.dims
	copy(l.Int[1:], n.size[:])
	copy(l.Int[1+MaxDims:], n.stride[0][:])
	copy(l.Int[1+2*MaxDims:], n.stride[1][:])
}

func loadNest(l *device.Launch) *nest {
	n := &nest{dims: l.Int[0]}
	copy(n.size[:], l.Int[1:])
	copy(n.stride[0][:], l.Int[1+MaxDims:])
	copy(n.stride[1][:], l.Int[1+2*MaxDims:])
	return n
}

// cursor is a place in a nest: a piece of a row. Declare it before the loop
// that moves it: the variable of a loop is copied in each iteration.
type cursor struct {
	nest  *nest
	index [MaxDims]int // of the dimensions outside of the row
	off   [2]int       // the operands' offsets of the row's first element
	row   int
	lo    int // the piece's first element within the row
}

// at gives the cursor of a piece.
func (n *nest) at(piece int) cursor {
	per := n.perRow()
	c := cursor{nest: n, row: piece / per, lo: piece % per * pieceLen}
	row := c.row
	for i := n.dims - 2; i >= 0; i-- {
		c.index[i] = row % n.size[i]
		row /= n.size[i]
		c.off[0] += c.index[i] * n.stride[0][i]
		c.off[1] += c.index[i] * n.stride[1][i]
	}
	return c
}

// len is the number of elements of the piece.
func (c *cursor) len() int { return min(pieceLen, c.nest.rowLen()-c.lo) }

// start is the offset of an operand's first element of the piece.
func (c *cursor) start(operand int) int { return c.off[operand] + c.lo*c.nest.step(operand) }

// next goes to the piece that follows.
func (c *cursor) next() {
	n := c.nest
	if c.lo += pieceLen; c.lo < n.rowLen() {
		return
	}
	c.lo = 0
	c.row++
	for i := n.dims - 2; i >= 0; i-- {
		c.off[0] += n.stride[0][i]
		c.off[1] += n.stride[1][i]
		if c.index[i]++; c.index[i] < n.size[i] {
			return
		}
		c.index[i] = 0
		c.off[0] -= n.size[i] * n.stride[0][i]
		c.off[1] -= n.size[i] * n.stride[1][i]
	}
}

// gather sets dst to every stride-th element of src from off on.
func gather[T float32 | uint16](dst, src []T, off, stride int) {
	switch stride {
	case 0:
		x := src[off]
		for i := range dst {
			dst[i] = x
		}
	case 1:
		copy(dst, src[off:])
	default:
		src = src[off : off+(len(dst)-1)*stride+1]
		for i := range dst {
			dst[i] = src[i*stride]
		}
	}
}
