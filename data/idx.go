package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// idxTypes are the codes in the third byte of an IDX file. Numbers of several
// bytes are big-endian.
var idxTypes = map[byte]DType{8: Uint8, 9: Int8, 0xb: Int16, 0xc: Int32, 0xd: Float32, 0xe: Float64}

// parseIDX reads a header: two zero bytes, the type, the number of dimensions,
// and each of them in four bytes, big-endian. The data follow.
func parseIDX(r io.ReaderAt, size int64) (*Array, error) {
	head := make([]byte, min(size, 4+4*math.MaxUint8))
	if err := readFull(r, head, 0); err != nil {
		return nil, err
	}
	dtype, shape, err := idxHeader(head)
	if err != nil {
		return nil, err
	}
	a, err := newArray(r, size, int64(4+4*len(shape)), dtype, shape)
	if err != nil {
		return nil, err
	}
	a.big = true
	return a, nil
}

// idxHeader reads a header from the beginning of a file.
func idxHeader(head []byte) (DType, []int, error) {
	if len(head) < 4 || head[0] != 0 || head[1] != 0 || idxTypes[head[2]] == "" {
		return "", nil, fmt.Errorf("no IDX file: it begins with %.4x", head)
	}
	dims := int(head[3])
	if dims == 0 || dims > maxDims || len(head) < 4+4*dims {
		return "", nil, fmt.Errorf("an IDX header with %d dimensions in a file of %d bytes", dims, len(head))
	}
	shape := make([]int, dims)
	for i := range shape {
		n := binary.BigEndian.Uint32(head[4+4*i:])
		if uint64(n) > math.MaxInt {
			return "", nil, fmt.Errorf("dimension %d is too large for this platform", n)
		}
		shape[i] = int(n)
	}
	return idxTypes[head[2]], shape, nil
}

// parseGzipIDX unpacks a file into memory. Memory grows with what is really
// unpacked, up to what the header asks for, whatever the header claims.
func parseGzipIDX(f *file) (*Array, error) {
	z, err := gzip.NewReader(io.NewSectionReader(f, 0, f.size))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	head := make([]byte, 4+4*math.MaxUint8)
	n, err := io.ReadFull(z, head)
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	dtype, shape, err := idxHeader(head[:n])
	if err != nil {
		return nil, err
	}
	total, err := product(shape, dtype.Size())
	if err != nil {
		return nil, err
	}
	want := total + int64(4+4*len(shape))
	var all bytes.Buffer
	all.Write(head[:n])
	// One byte more: the checksum is compared at the end only.
	if _, err := io.Copy(&all, io.LimitReader(z, max(0, want-int64(n))+1)); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	if int64(all.Len()) > want {
		return nil, fmt.Errorf("more follows after the %d bytes that the header speaks of", want)
	}
	return parseIDX(bytes.NewReader(all.Bytes()), int64(all.Len()))
}
