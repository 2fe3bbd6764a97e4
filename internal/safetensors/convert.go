package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// chunk is the size of the buffer that converted data pass through. It is a
// multiple of every element's size.
const chunk = 64 << 10

// ReadFloat32 reads the named tensor into dst, which must have its number of
// elements. F16, BF16 and F32 keep their values; F64 is rounded to nearest.
func (f *File) ReadFloat32(name string, dst []float32) error {
	if err := f.fills(name, len(dst)); err != nil {
		return err
	}
	return readAs(f, name, 0, dst, toFloat32)
}

// ReadFloat32At is ReadFloat32 of some of the elements, from one on.
func (f *File) ReadFloat32At(name string, from int, dst []float32) error {
	if t, ok := f.Lookup(name); ok && (from < 0 || from > t.elements-len(dst)) {
		return fmt.Errorf("safetensors: tensor %q has %d elements: there are no %d from %d on", name, t.elements, len(dst), from)
	}
	return readAs(f, name, from, dst, toFloat32)
}

// ReadInt64 reads the named tensor of type I64 or I32 into dst, which must have
// its number of elements.
func (f *File) ReadInt64(name string, dst []int64) error {
	if err := f.fills(name, len(dst)); err != nil {
		return err
	}
	return readAs(f, name, 0, dst, toInt64)
}

// fills says if a tensor has not n elements.
func (f *File) fills(name string, n int) error {
	if t, ok := f.Lookup(name); ok && t.elements != n {
		return fmt.Errorf("safetensors: tensor %q has shape %v, %d elements, the destination %d", name, t.Shape, t.elements, n)
	}
	return nil
}

// readAs reads elements of a tensor, which it has, through a buffer. convert fills dst from the elements
// in src and returns false for a type that it does not know.
func readAs[T any](f *File, name string, from int, dst []T, convert func(d DType, dst []T, src []byte) bool) error {
	t, ok := f.Lookup(name)
	if !ok {
		return fmt.Errorf("safetensors: the file has no tensor %q", name)
	}
	if !convert(t.DType, nil, nil) {
		return fmt.Errorf("safetensors: tensor %q is %s, which does not convert to %T", name, t.DType, *new(T))
	}
	width := t.DType.Bits() / 8
	buf := make([]byte, min(chunk, width*len(dst)))
	r := io.NewSectionReader(f.data, t.begin+int64(from*width), int64(width*len(dst)))
	for len(dst) > 0 {
		n := min(len(dst), len(buf)/width)
		if _, err := io.ReadFull(r, buf[:n*width]); err != nil {
			return fmt.Errorf("safetensors: read tensor %q: %w", name, noEOF(err))
		}
		convert(t.DType, dst[:n], buf)
		dst = dst[n:]
	}
	return nil
}

func toFloat32(d DType, dst []float32, src []byte) bool {
	little := binary.LittleEndian
	switch d {
	case F16:
		for i := range dst {
			dst[i] = float16(little.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(little.Uint16(src[2*i:])) << 16)
		}
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(little.Uint32(src[4*i:]))
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(little.Uint64(src[8*i:])))
		}
	default:
		return false
	}
	return true
}

func toInt64(d DType, dst []int64, src []byte) bool {
	switch d {
	case I32:
		for i := range dst {
			dst[i] = int64(int32(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case I64:
		for i := range dst {
			dst[i] = int64(binary.LittleEndian.Uint64(src[8*i:]))
		}
	default:
		return false
	}
	return true
}

// float16 converts from IEEE 754 binary16, exactly. With its bits moved to the
// place of float32's, a number is 2^112 times too small (the exponents' biases
// are 15 and 127); that holds for subnormal numbers too.
func float16(h uint16) float32 {
	const infinity = 0x7c00
	magnitude := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	b := math.Float32bits(magnitude) | uint32(h&0x8000)<<16
	if h&infinity == infinity { // NaN too
		b |= 0x7f800000
	}
	return math.Float32frombits(b)
}
