package tensor

import (
	"math"
	"slices"
)

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func denseStrides(shape []int) []int {
	if len(shape) > MaxDims {
		fail("shape %v has more than %d dimensions", shape, MaxDims)
	}
	s := make([]int, len(shape))
	const most = math.MaxInt / 64 // elements; keeps the bytes from overflowing
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] < 0 {
			fail("shape %v has a negative dimension", shape)
		}
		s[i] = step
		if shape[i] > 0 && step > most/shape[i] {
			fail("shape %v has more elements than any memory holds", shape)
		}
		step *= shape[i]
	}
	return s
}

// axis turns a dimension that may count from the last into an index.
func axis(i, dims int) int {
	j := i
	if j < 0 {
		j += dims
	}
	if j < 0 || j >= dims {
		fail("dimension %d of a tensor with %d dimensions", i, dims)
	}
	return j
}

// broadcast is the shape that a and b have together: dimensions are matched
// from the last, and a 1 stretches.
func broadcast(a, b []int) []int {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i := range b {
		j := len(a) - len(b) + i
		switch {
		case out[j] == b[i] || b[i] == 1:
		case out[j] == 1:
			out[j] = b[i]
		default:
			fail("shapes %v and %v do not broadcast: dimension %d is %d against %d", a, b, j, out[j], b[i])
		}
	}
	return out
}

// broadcastStrides is t's strides in an iteration over shape.
func broadcastStrides(t *Tensor, shape []int) []int {
	out := make([]int, len(shape))
	lead := len(shape) - len(t.shape)
	for i, d := range t.shape {
		if d != 1 || shape[lead+i] == 1 {
			out[lead+i] = t.strides[i]
		}
	}
	return out
}
