package nn

import (
	"slices"

	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/tensor"
)

// Parameter is a leaf tensor with the name that it has in state files.
type Parameter struct {
	Name string
	*tensor.Tensor

	// Whole and At are for a layer that is split over several ranks: the tensor is
	// a box of an array of shape Whole, and begins there at At. Every rank has
	// another box, and the array's name. Nil: the tensor is the array.
	Whole, At []int

	// Parts is for an array that is several side by side in the dimension in which
	// the ranks' tensors lie (queries, keys and values): the tensor is the same box
	// of each, side by side, and At is a place in the first. 0 stands for 1.
	Parts int

	// Expert says that the layer is one expert of several that are spread over
	// ranks: other ranks have other parameters in place of this one.
	Expert bool

	// Partial says that the gradient is of the tokens alone that this rank along tensor
	// has: the sum over these ranks, which have the parameter too, is that of all.
	Partial bool

	// Tied says that the first and the last stage of a pipeline both have the
	// parameter: its gradient is the sum of theirs.
	Tied bool
}

// Piece is what of the array in state files p is.
func (p *Parameter) Piece() safetensors.Piece {
	if p.Whole == nil {
		return safetensors.Box(p.Shape(), nil, p.Shape())
	}
	whole, at, shape := p.Whole, p.At, p.Shape()
	for i, n := range shape {
		if p.Parts > 1 && n < whole[i] { // boxes of several are one, in one dimension more
			whole, at, shape = cutIn(whole, i, p.Parts), slices.Insert(slices.Clone(at), i, 0), cutIn(shape, i, p.Parts)
		}
	}
	return safetensors.Box(whole, at, shape)
}

// cutIn is a shape with dimension i as two, of which the first is n.
func cutIn(shape []int, i, n int) []int {
	shape = slices.Insert(slices.Clone(shape), i, n)
	shape[i+1] /= n
	return shape
}

// Array is the shape of p's array in state files.
func (p *Parameter) Array() []int {
	if p.Whole == nil {
		return p.Shape()
	}
	return p.Whole
}

// Module is a part of a model. Parameters gives each of its parameters, in a
// fixed order; a tied parameter belongs to its first user.
type Module interface {
	Parameters() []*Parameter
}

// parameters gives those of all parts, in order.
func parameters(parts ...Module) []*Parameter {
	var ps []*Parameter
	for _, m := range parts {
		ps = append(ps, m.Parameters()...)
	}
	return ps
}

// Unique leaves out parameters that ps holds a second time: the same, or
// another name of the same tensor.
func Unique(ps []*Parameter) []*Parameter {
	var once []*Parameter
	seen := map[*tensor.Tensor]bool{}
	for _, p := range ps {
		if !seen[p.Tensor] {
			seen[p.Tensor] = true
			once = append(once, p)
		}
	}
	return once
}

// Count is the number of elements of all parameters; those that two names
// share count once, and of one of which this rank has a box all count.
func Count(m Module) int {
	n := 0
	for _, p := range Unique(m.Parameters()) {
		elements := 1
		for _, d := range p.Array() {
			elements *= d
		}
		n += elements
	}
	return n
}

// Release frees the parameters, and the buffers of a module that has some.
func Release(m Module) {
	for _, p := range Unique(State(m)) {
		p.Release()
	}
}

// ZeroGrad frees the gradients.
func ZeroGrad(m Module) {
	for _, p := range m.Parameters() {
		p.ZeroGrad()
	}
}

// Buffered is a module with arrays that belong to its state but are no
// parameters, such as running statistics.
type Buffered interface {
	Module
	Buffers() []*Parameter
}

// State gives what a state file of m holds: its parameters, then its buffers.
func State(m Module) []*Parameter {
	ps := m.Parameters()
	if b, ok := m.(Buffered); ok {
		ps = append(slices.Clip(ps), b.Buffers()...)
	}
	return ps
}
