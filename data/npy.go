package data

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

const (
	npyMagic = "\x93NUMPY"

	// maxNPYHeader is far more than a header with a type and 64 dimensions has.
	maxNPYHeader = 64 << 10
	maxDims      = 64
)

// The header is a dictionary in Python's notation with these keys.
var (
	npyDescr   = regexp.MustCompile(`'descr'\s*:\s*'([^']*)'`)
	npyFortran = regexp.MustCompile(`'fortran_order'\s*:\s*(True|False)`)
	npyShape   = regexp.MustCompile(`'shape'\s*:\s*\(([0-9,\s]*)\)`)
)

// parseNPY reads the header of NumPy's format, versions 1 to 3: the magic, two
// bytes of version, the length of the header in two bytes (version 1) or four,
// the header, the data.
func parseNPY(r io.ReaderAt, size int64) (*Array, error) {
	var fixed [12]byte
	if err := readFull(r, fixed[:min(12, size)], 0); err != nil {
		return nil, err
	}
	version := fixed[6]
	if size < 12 || string(fixed[:6]) != npyMagic || version < 1 || version > 3 {
		return nil, fmt.Errorf("no npy file of version 1 to 3: it begins with %q", fixed)
	}
	begin, n := int64(10), int64(binary.LittleEndian.Uint16(fixed[8:]))
	if version > 1 {
		begin, n = 12, int64(binary.LittleEndian.Uint32(fixed[8:]))
	}
	if n > min(size-begin, maxNPYHeader) {
		return nil, fmt.Errorf("the npy header claims %d bytes; the file has %d, the limit is %d", n, size, maxNPYHeader)
	}
	header := make([]byte, n)
	if err := readFull(r, header, begin); err != nil {
		return nil, err
	}
	return npyArray(r, size, begin+n, string(header))
}

func npyArray(r io.ReaderAt, size, offset int64, header string) (*Array, error) {
	descr, fortran, dims := npyDescr.FindStringSubmatch(header), npyFortran.FindStringSubmatch(header), npyShape.FindStringSubmatch(header)
	if descr == nil || fortran == nil || dims == nil {
		return nil, fmt.Errorf("the npy header %.200q lacks a plain descr, fortran_order or shape (structured types are not supported)", header)
	}
	shape, err := npyDims(dims[1])
	if err != nil {
		return nil, err
	}
	if fortran[1] == "True" && len(shape) > 1 {
		return nil, errors.New("the array is stored column by column, so a sample is scattered over the file: store it with numpy.ascontiguousarray")
	}
	order, dtype := descr[1][:min(1, len(descr[1]))], npyTypes[strings.TrimLeft(descr[1], "<>|=")]
	a, err := newArray(r, size, offset, dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("npy type %q: %w", descr[1], err)
	}
	a.big = order == ">"
	return a, nil
}

func npyDims(text string) ([]int, error) {
	shape := []int{}
	for _, word := range strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ","), ",") {
		if word = strings.TrimSpace(word); word == "" && strings.TrimSpace(text) == "" {
			return shape, nil
		}
		n, err := strconv.Atoi(word)
		if err != nil || len(shape) == maxDims {
			return nil, fmt.Errorf("npy shape (%.100s): %q is no size, or there are more than %d", text, word, maxDims)
		}
		shape = append(shape, n)
	}
	return shape, nil
}

// npyTypes are NumPy's codes without the byte order. It has none for bfloat16.
var npyTypes = map[string]DType{
	"b1": Bool, "u1": Uint8, "u2": Uint16, "u4": Uint32, "u8": Uint64,
	"i1": Int8, "i2": Int16, "i4": Int32, "i8": Int64, "f2": Float16, "f4": Float32, "f8": Float64,
}

// parseNPZ finds an npy file in a zip archive.
func parseNPZ(f *file, name string) (*Array, error) {
	z, err := zip.NewReader(f, f.size)
	if err != nil {
		return nil, err
	}
	var names []string
	var entries []*zip.File
	for _, e := range z.File {
		if key, ok := strings.CutSuffix(e.Name, ".npy"); ok {
			names, entries = append(names, key), append(entries, e)
		}
	}
	i, err := pick(name, names)
	if err != nil {
		return nil, err
	}
	e := entries[i]
	if e.Method != zip.Store || e.UncompressedSize64 != e.CompressedSize64 || e.Flags&1 != 0 {
		return nil, fmt.Errorf("array %q is compressed or encrypted, so it cannot be read in a random order: write it with numpy.savez, not savez_compressed", names[i])
	}
	offset, err := e.DataOffset()
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > f.size || e.UncompressedSize64 > uint64(f.size-offset) {
		return nil, fmt.Errorf("array %q has %d bytes at offset %d, but the file has %d: is it truncated?", names[i], e.UncompressedSize64, offset, f.size)
	}
	size := int64(e.UncompressedSize64)
	return parseNPY(io.NewSectionReader(f, offset, size), size)
}
