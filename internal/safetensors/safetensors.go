// Package safetensors reads and writes the safetensors format, in which weights
// are exchanged with PyTorch and others:
//
//	8 bytes   N, the length of the header, little-endian
//	N bytes   the header, a JSON object padded with spaces:
//	          {"__metadata__": {"key": "text", ...},
//	           "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//	the rest  the data, row-major and little-endian; offsets count from here
//
// A file is untrusted. The header is checked in full before anything else is
// read: its length against the file and against a limit of 100 MB, names for
// duplicates, shapes for overflow, the bytes of each tensor against its shape
// and type, and all tensors together against the data, which they must tile
// without hole, overlap or rest. Memory for reading is a small multiple of the
// header, never of a number that a header claims.
package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"
)

const (
	maxHeader   = 100_000_000 // the limit of the format's reference implementation
	maxDims     = 64
	metadataKey = "__metadata__"
)

// DType names the type of a tensor's elements as the header spells it.
type DType string

// The types whose elements this package converts. Tensors of the other types
// of the format are read and written as bytes.
const (
	F16  DType = "F16"
	BF16 DType = "BF16"
	F32  DType = "F32"
	F64  DType = "F64"
	I32  DType = "I32"
	I64  DType = "I64"
)

// Bits is the size of one element, and 0 for a type that the format lacks.
func (d DType) Bits() int {
	switch d {
	case "F4":
		return 4
	case "F6_E2M3", "F6_E3M2":
		return 6
	case "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8
	case "U16", "I16", F16, BF16:
		return 16
	case "U32", I32, F32:
		return 32
	case "U64", I64, F64, "C64":
		return 64
	}
	return 0
}

// Tensor describes one tensor of a file. A scalar has an empty shape.
type Tensor struct {
	Name  string
	DType DType
	Shape []int

	elements int
	begin    int64 // offset in the data
	size     int64 // bytes
}

// Elements is the product of the shape.
func (t Tensor) Elements() int { return t.elements }

// Bytes is the size of the tensor's data.
func (t Tensor) Bytes() int64 { return t.size }

// newTensor checks a description and fills in the counts.
func newTensor(name string, dtype DType, shape []int) (Tensor, error) {
	fail := func(format string, args ...any) (Tensor, error) {
		return Tensor{}, fmt.Errorf("tensor %q: "+format, append([]any{name}, args...)...)
	}
	switch {
	case name == metadataKey:
		return fail("this name is reserved for metadata")
	case !utf8.ValidString(name):
		return fail("the name is not valid UTF-8")
	case dtype.Bits() == 0:
		return fail("unknown type %q", dtype)
	case len(shape) > maxDims:
		return fail("%d dimensions, more than the limit of %d", len(shape), maxDims)
	}
	elements := uint64(1)
	for _, n := range shape {
		if n < 0 {
			return fail("negative dimension in shape %v", shape)
		}
		var over uint64
		if over, elements = bits.Mul64(elements, uint64(n)); over != 0 || elements > math.MaxInt {
			return fail("the product of shape %v overflows", shape)
		}
	}
	over, total := bits.Mul64(elements, uint64(dtype.Bits()))
	if over != 0 || total > math.MaxInt64 {
		return fail("the size of shape %v in %s overflows", shape, dtype)
	}
	if total%8 != 0 {
		return fail("shape %v in %s has %d bits, not a whole number of bytes", shape, dtype, total)
	}
	return Tensor{Name: name, DType: dtype, Shape: shape, elements: int(elements), size: int64(total / 8)}, nil
}
