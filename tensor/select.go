package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// indices panics unless t is int32 and dense.
func indices(op string, t *Tensor) {
	if t.dtype != Int32 || !t.dense() {
		fail("%s with index or mask %v: want a dense int32", op, t)
	}
}

// Where is a where mask, int32, is not 0, and b elsewhere, all broadcast. It
// saves the mask.
func Where(mask, a, b *Tensor) *Tensor {
	indices("Where", mask)
	shape := broadcast(mask.shape, broadcast(a.shape, b.shape))
	n := a.rt.node("where", a, b)
	n.remake(func(in []*Tensor) *Tensor { return choose(in[0], in[1], in[2], 0, shape) }, mask, a, b)
	var s *saved
	if n != nil {
		s = n.save(mask)
	}
	return n.bind(choose(mask, a, b, 0, shape), func(g *Tensor) {
		mask := s.take()
		defer mask.Release()
		n.contribute(0, func() *Tensor { return choose(mask, g, nil, 0, shape) })
		n.contribute(1, func() *Tensor { return choose(mask, nil, g, 0, shape) })
	})
}

// MaskedFill is value where mask, int32 and broadcast to x, is not 0, and x
// elsewhere. It saves the mask.
func MaskedFill(x, mask *Tensor, value float32) *Tensor {
	indices("MaskedFill", mask)
	if !slices.Equal(broadcast(mask.shape, x.shape), x.shape) {
		fail("MaskedFill of %v with mask %v, which does not broadcast to it", x, mask)
	}
	n := x.rt.node("masked_fill", x)
	n.remake(func(in []*Tensor) *Tensor { return choose(in[0], nil, in[1], value, in[1].shape) }, mask, x)
	var s *saved
	if n != nil {
		s = n.save(mask)
	}
	return n.bind(choose(mask, nil, x, value, x.shape), func(g *Tensor) {
		mask := s.take()
		defer mask.Release()
		n.contribute(0, func() *Tensor { return choose(mask, nil, g, 0, g.shape) })
	})
}

// choose computes a selection of shape outside any record; an operand of nil
// stands for value.
func choose(mask, a, b *Tensor, value float32, shape []int) *Tensor {
	out := mask.rt.Empty(promote(a, b), trace.Activation, shape...)
	m, da, db := spread(mask, shape), spread(a, shape), spread(b, shape)
	defer releaseAll(m, da, db)
	kernel.Select(mask.rt.stream, out.Len(), out.ptr(), m.ptr(), address(da), address(db), value)
	return out
}

// spread gives t broadcast to shape, dense; nil for nil.
func spread(t *Tensor, shape []int) *Tensor {
	if t == nil {
		return nil
	}
	v := t.view(shape, broadcastStrides(t, shape), t.offset)
	defer v.Release()
	return v.contiguous()
}

// Equal is 1 where t, int32, is value, and 0 elsewhere: an int32 mask.
func Equal(t *Tensor, value int32) *Tensor {
	indices("Equal", t)
	out := t.rt.Empty(Int32, trace.Activation, t.shape...)
	kernel.Equal(t.rt.stream, t.Len(), out.ptr(), t.ptr(), value)
	return out
}

// TopK is the k greatest elements along a dimension, the greatest first, and
// their indices, int32. It saves the indices.
func TopK(x *Tensor, k, dim int) (values, index *Tensor) {
	if d := x.Dim(dim); k < 1 || k > d || x.Len() == 0 {
		fail("TopK of %v: the %d greatest of dimension %d", x, k, dim)
	}
	values = overLast(x, dim, func(x *Tensor) *Tensor {
		v, i := topK(x, k)
		index = i
		return v
	})
	if axis(dim, len(x.shape)) < len(x.shape)-1 {
		t := Transpose(index, dim, -1)
		index.Release()
		index = t.contiguous()
		t.Release()
	}
	return values, index
}

func topK(x *Tensor, k int) (values, index *Tensor) {
	rt, cols := x.rt, x.Dim(-1)
	n := rt.node("top_k", x)
	d := x.contiguous()
	defer d.Release()
	shape := append(slices.Clone(x.shape[:len(x.shape)-1]), k)
	rows := x.Len() / cols
	values, index = rt.Empty(x.dtype, trace.Activation, shape...), rt.Empty(Int32, trace.Activation, shape...)
	kernel.TopK(rt.stream, rows, cols, k, values.ptr(), index.ptr(), d.ptr())
	if n == nil {
		return n.bind(values, nil), index
	}
	s := n.save(index)
	return n.bind(values, func(g *Tensor) { n.gatherGrad(s, g, rows, cols, k) }), index
}

// Max is the greatest element along a dimension, which keeps a size of 1, and
// its index. It saves the index.
func Max(x *Tensor, dim int) (values, index *Tensor) { return TopK(x, 1, dim) }

// Gather is the elements of x at index, int32, along a dimension; the shapes
// are the same in the others. An index out of range gives NaN. It saves the index.
func Gather(x *Tensor, dim int, index *Tensor) *Tensor {
	indices("Gather", index)
	dim = axis(dim, len(x.shape))
	like := slices.Clone(index.shape)
	if len(like) == len(x.shape) {
		like[dim] = x.shape[dim]
	}
	if !slices.Equal(like, x.shape) || x.Len() == 0 {
		fail("Gather of %v along dimension %d at %v", x, dim, index)
	}
	turned := Transpose(index, dim, -1)
	defer turned.Release()
	at := turned.contiguous()
	defer at.Release()
	return overLast(x, dim, func(x *Tensor) *Tensor { return gather(x, at) })
}

func gather(x, index *Tensor) *Tensor {
	rt, cols, k := x.rt, x.Dim(-1), index.Dim(-1)
	n := rt.node("gather", x)
	n.remake(func(in []*Tensor) *Tensor { return gather(in[0], in[1]) }, x, index)
	var s *saved
	if n != nil {
		s = n.save(index)
	}
	d := x.contiguous()
	defer d.Release()
	rows := x.Len() / cols
	y := rt.Empty(x.dtype, trace.Activation, index.shape...)
	kernel.Gather(rt.stream, rows, cols, k, y.ptr(), d.ptr(), index.ptr())
	return n.bind(y, func(g *Tensor) { n.gatherGrad(s, g, rows, cols, k) })
}

// gatherGrad adds g to the gradient of input 0, rows × cols, at the saved columns.
func (n *node) gatherGrad(s *saved, g *Tensor, rows, cols, k int) {
	index := s.take()
	defer index.Release()
	dst := n.intoZeros(0)
	kernel.GatherGrad(g.rt.stream, rows, cols, k, dst.ptr(), g.ptr(), index.ptr())
}

// intoZeros is into for what adds to a part of the gradient: where nothing was
// collected yet, zeros.
func (n *node) intoZeros(i int) *Tensor {
	dst, acc := n.into(i)
	if !acc {
		kernel.Fill(dst.rt.stream, dst.ptr(), dst.Len(), 0)
	}
	return dst
}

// IndexSelect is the slices of x along a dimension at index, int32 of one
// dimension. An index out of range gives NaN. It saves the index.
func IndexSelect(x *Tensor, dim int, index *Tensor) *Tensor {
	oneDimension("IndexSelect", x, index)
	rows := asRows(x, dim)
	defer rows.Release()
	return fromRows(Embedding(rows, index), x, dim)
}

// IndexAdd is x with slice i of src added to its slice index[i] along a
// dimension, for all i in order. Indices out of range are passed over. It
// saves the index.
func IndexAdd(x *Tensor, dim int, index, src *Tensor) *Tensor {
	oneDimension("IndexAdd", x, index)
	dim = axis(dim, len(x.shape))
	like := slices.Clone(x.shape)
	like[dim] = index.Len()
	if !slices.Equal(like, src.shape) {
		fail("IndexAdd of %v to %v along dimension %d at %v", src, x, dim, index)
	}
	to, from := asRows(x, dim), asRows(src, dim)
	defer releaseAll(to, from)
	return fromRows(indexAdd(to, index, from), x, dim)
}

func oneDimension(op string, x, index *Tensor) {
	indices(op, index)
	if len(index.shape) != 1 || x.Len() == 0 {
		fail("%s of %v at %v: want indices of one dimension, and elements", op, x, index)
	}
}

func indexAdd(x, index, src *Tensor) *Tensor {
	rt, rows, width := x.rt, x.shape[0], x.shape[1]
	n := rt.node("index_add", x, src)
	n.remake(func(in []*Tensor) *Tensor { return indexAdd(in[0], in[1], in[2]) }, x, index, src)
	var s *saved
	if n != nil {
		s = n.save(index)
	}
	y := x.copyDense()
	d := src.contiguous()
	defer d.Release()
	kernel.EmbeddingGrad(rt.stream, index.Len(), width, kernel.WholeTable(rows), y.ptr(), d.ptr(), index.ptr())
	return n.bind(y, func(g *Tensor) {
		index := s.take()
		defer index.Release()
		n.contribute(1, func() *Tensor {
			d := rt.Empty(g.dtype, trace.Activation, index.Len(), width)
			kernel.Embedding(rt.stream, index.Len(), width, kernel.WholeTable(rows), d.ptr(), g.ptr(), index.ptr())
			return d
		})
		n.pass(0, g)
	})
}

// asRows gives x as a matrix [size of dim, rest].
func asRows(x *Tensor, dim int) *Tensor {
	front := Transpose(x, 0, dim)
	defer front.Release()
	return Reshape(front, front.shape[0], x.Len()/front.shape[0])
}

// fromRows gives y, a matrix [n, rest] that it takes over, the shape of x with
// n for dim.
func fromRows(y, x *Tensor, dim int) *Tensor {
	defer y.Release()
	shape := slices.Clone(x.shape)
	dim = axis(dim, len(shape))
	shape[dim] = shape[0]
	shape[0] = y.shape[0]
	back := Reshape(y, shape...)
	defer back.Release()
	return Transpose(back, 0, dim)
}

// Int32s waits and returns the elements of t, int32, in row-major order.
func (t *Tensor) Int32s() []int32 {
	indices("Int32s", t)
	out := make([]int32, t.Len())
	t.Download(device.BytesOf(out))
	t.rt.mustSync()
	return out
}
