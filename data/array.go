package data

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Array is a Source over elements that lie in a file, sample after sample, as
// the formats of numbers store them. It is a PartReader.
type Array struct {
	pieces []piece // in order; all but those of chunked formats have one
	n      int
	stride int64 // bytes from one sample to the next
	shape  []int
	dtype  DType
	big    bool // big-endian in the file
	closer io.Closer
}

// piece is a run of samples.
type piece struct {
	r      io.ReaderAt
	offset int64 // of its first byte
	first  int   // its first sample
}

// newArray describes shape[0] samples of shape[1:] from offset on, and checks
// that they lie within size bytes.
func newArray(r io.ReaderAt, size, offset int64, dtype DType, shape []int) (*Array, error) {
	if len(shape) == 0 {
		return nil, errors.New("a single number is no set of samples: the first dimension counts them")
	}
	if dtype.Size() == 0 {
		return nil, fmt.Errorf("type %q is not supported", dtype)
	}
	stride, err := sampleStride(shape[1:], dtype)
	if err != nil {
		return nil, err
	}
	total, err := product(shape, dtype.Size())
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > size || total > size-offset {
		return nil, fmt.Errorf("shape %v of %s needs %d bytes from offset %d on, the file has %d: is it truncated?", shape, dtype, total, offset, size)
	}
	return &Array{pieces: []piece{{r, offset, 0}}, n: shape[0], stride: stride, shape: slices.Clone(shape[1:]), dtype: dtype}, nil
}

// sampleStride is the bytes of a sample, which must have some.
func sampleStride(shape []int, dtype DType) (int64, error) {
	stride, err := product(shape, dtype.Size())
	if err == nil && stride == 0 {
		err = fmt.Errorf("samples of shape %v have no elements", shape)
	}
	return stride, err
}

// Len is the number of samples.
func (a *Array) Len() int { return a.n }

// Shape is that of one sample.
func (a *Array) Shape() []int { return a.shape }

// DType is the type of the elements.
func (a *Array) DType() DType { return a.dtype }

// Read fills dst with sample i; see Source.
func (a *Array) Read(i int, dst []byte) error {
	checkWhole(a, i, dst)
	return a.ReadPart(i, 0, dst)
}

// ReadPart fills dst with the bytes of sample i from offset on, whole elements.
func (a *Array) ReadPart(i, offset int, dst []byte) error {
	checkRead(a, i, offset, len(dst))
	width := a.dtype.Size()
	if offset%width != 0 || len(dst)%width != 0 {
		panic(fmt.Sprintf("data: bytes [%d, %d+%d) are not whole elements of %d", offset, offset, len(dst), width))
	}
	p := a.pieceOf(i)
	if err := readFull(p.r, dst, p.offset+int64(i-p.first)*a.stride+int64(offset)); err != nil {
		return fmt.Errorf("data: sample %d: %w", i, err)
	}
	if a.big && width > 1 {
		for b := dst; len(b) > 0; b = b[width:] {
			slices.Reverse(b[:width])
		}
	}
	return nil
}

// readRun fills dst with elements from the first-th on, of a little-endian
// series of numbers in one piece.
func (a *Array) readRun(first int, dst []byte) error {
	p := a.pieces[0]
	if err := readFull(p.r, dst, p.offset+int64(first)*a.stride); err != nil {
		return fmt.Errorf("data: numbers %d to %d: %w", first, first+len(dst)/a.dtype.Size(), err)
	}
	return nil
}

// pieceOf finds the piece with sample i.
func (a *Array) pieceOf(i int) *piece {
	at, found := slices.BinarySearchFunc(a.pieces, i, func(p piece, i int) int { return p.first - i })
	if !found {
		at--
	}
	return &a.pieces[at]
}

// Windows gives a series of numbers as samples of length numbers: sample i
// begins stride numbers after sample i-1, and a rest too short for a window is
// left out. Windows of seq+1 tokens with a stride of seq train a language model.
// The windows share a's file.
func (a *Array) Windows(length, stride int) (*Array, error) {
	if len(a.shape) != 0 || len(a.pieces) != 1 {
		return nil, fmt.Errorf("data: windows need one series of numbers; here are %d samples of shape %v in %d pieces", a.n, a.shape, len(a.pieces))
	}
	if length < 1 || stride < 1 || length > a.n || stride > math.MaxInt/a.dtype.Size() {
		return nil, fmt.Errorf("data: windows of %d numbers, %d apart, in a series of %d", length, stride, a.n)
	}
	w := *a
	w.n, w.shape, w.stride = (a.n-length)/stride+1, []int{length}, int64(stride)*a.stride
	return &w, nil
}

// Close closes the file. No read may be running or follow; all that share the
// file are closed with it.
func (a *Array) Close() error {
	if a.closer == nil {
		return nil
	}
	return a.closer.Close()
}
