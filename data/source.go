package data

import (
	"fmt"
	"math"
	"math/bits"
)

// Source is a set of samples of one shape, read one by one in any order. What
// it holds may be larger than memory: only Read brings bytes in. The methods may
// be called concurrently.
type Source interface {
	// Len is the number of samples.
	Len() int

	// Shape is that of one sample; a number has an empty shape. Do not change it.
	Shape() []int

	// DType is the type of the elements.
	DType() DType

	// Read fills dst, which has SampleBytes bytes, with sample i: row-major,
	// little-endian. An i outside [0, Len) or another length is misuse and
	// panics; a file that does not read gives an error.
	Read(i int, dst []byte) error
}

// PartReader is a Source that reads a part of a sample without the rest, for
// images larger than memory.
type PartReader interface {
	Source

	// ReadPart fills dst with the bytes of sample i from offset on.
	ReadPart(i, offset int, dst []byte) error
}

// DType is the type of an element, by NumPy's name for it.
type DType string

// The types that sources know. BFloat16 and Float16 are passed on as their bits.
const (
	Bool     DType = "bool"
	Uint8    DType = "uint8"
	Uint16   DType = "uint16"
	Uint32   DType = "uint32"
	Uint64   DType = "uint64"
	Int8     DType = "int8"
	Int16    DType = "int16"
	Int32    DType = "int32"
	Int64    DType = "int64"
	Float16  DType = "float16"
	BFloat16 DType = "bfloat16"
	Float32  DType = "float32"
	Float64  DType = "float64"
)

// Size is the bytes of one element, and 0 for a type that is not in the list.
func (d DType) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, Float16, BFloat16:
		return 2
	case Uint32, Int32, Float32:
		return 4
	case Uint64, Int64, Float64:
		return 8
	}
	return 0
}

// SampleBytes is the size of a sample of s.
func SampleBytes(s Source) int {
	n, err := product(s.Shape(), s.DType().Size())
	if err != nil {
		panic(fmt.Sprintf("data: a source of %s with %v", s.DType(), err))
	}
	return int(n)
}

// product multiplies the sizes of a shape, and size; it refuses what an int
// does not hold, so that a file cannot ask for it.
func product(shape []int, size int) (int64, error) {
	total := uint64(size)
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("a negative size in shape %v", shape)
		}
		over, low := bits.Mul64(total, uint64(n))
		if over != 0 || low > math.MaxInt {
			return 0, fmt.Errorf("shape %v with elements of %d bytes is too large for this platform", shape, size)
		}
		total = low
	}
	return int64(total), nil
}

// checkRead panics unless [offset, offset+n) lies in sample i of s.
func checkRead(s Source, i, offset, n int) {
	if i < 0 || i >= s.Len() {
		panic(fmt.Sprintf("data: sample %d of %d", i, s.Len()))
	}
	if size := SampleBytes(s); offset < 0 || n < 0 || offset > size-n {
		panic(fmt.Sprintf("data: bytes [%d, %d+%d) of a sample of %d", offset, offset, n, size))
	}
}

// checkWhole is checkRead for a whole sample.
func checkWhole(s Source, i int, dst []byte) {
	checkRead(s, i, 0, len(dst))
	if size := SampleBytes(s); len(dst) != size {
		panic(fmt.Sprintf("data: %d bytes for a sample of %d", len(dst), size))
	}
}
