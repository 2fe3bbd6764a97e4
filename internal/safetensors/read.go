package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// File is an open safetensors file whose header has been read and checked.
// Its methods may be called concurrently, Close excepted.
type File struct {
	data     *io.SectionReader
	closer   io.Closer // nil: the reader is the caller's
	tensors  []Tensor
	index    map[string]int
	metadata map[string]string
}

// Open opens the file at path. The data stay on the disk until they are read.
func Open(path string) (*File, error) {
	info, err := os.Stat(path) // first, because opening a pipe would block
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("safetensors: %s is no regular file (%v)", path, info.Mode().Type())
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := newFile(r, info.Size())
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	f.closer = r
	return f, nil
}

// NewFile is Open for a file of the given size in r.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	f, err := newFile(r, size)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return f, nil
}

func newFile(r io.ReaderAt, size int64) (*File, error) {
	if size < 8 {
		return nil, fmt.Errorf("%d bytes are too few for a safetensors file: it begins with a length of 8 bytes", size)
	}
	var prefix [8]byte
	if err := readAt(r, prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > uint64(size-8) {
		return nil, fmt.Errorf("the file says that its header has %d bytes, but %d follow: it is truncated or no safetensors file", n, size-8)
	}
	if n > maxHeader {
		return nil, fmt.Errorf("the header has %d bytes, more than the limit of %d", n, maxHeader)
	}
	raw := make([]byte, n)
	if err := readAt(r, raw, 8); err != nil {
		return nil, err
	}
	begin := 8 + int64(n)
	tensors, metadata, err := parseHeader(raw, size-begin)
	if err != nil {
		return nil, err
	}
	f := &File{data: io.NewSectionReader(r, begin, size-begin), tensors: tensors, metadata: metadata}
	f.index = make(map[string]int, len(tensors))
	for i, t := range tensors {
		f.index[t.Name] = i
	}
	return f, nil
}

// readAt fills p, and turns the end of the file into an error.
func readAt(r io.ReaderAt, p []byte, offset int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, offset, int64(len(p))), p)
	return noEOF(err)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close closes the file that Open opened. A file of NewFile needs no Close.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Tensors lists the tensors in the order of their data. The list is the
// file's own: do not change it.
func (f *File) Tensors() []Tensor { return f.tensors }

// Metadata is the text stored beside the tensors, empty if there is none. It
// is the file's own: do not change it.
func (f *File) Metadata() map[string]string { return f.metadata }

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Reader gives the bytes of the named tensor, to read in pieces.
func (f *File) Reader(name string) (*io.SectionReader, error) {
	t, ok := f.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("safetensors: the file has no tensor %q", name)
	}
	return io.NewSectionReader(f.data, t.begin, t.size), nil
}

// ReadBytes reads the named tensor as it is stored into dst, which must have
// its size in bytes.
func (f *File) ReadBytes(name string, dst []byte) error {
	r, err := f.Reader(name)
	if err != nil {
		return err
	}
	if int64(len(dst)) != r.Size() {
		return fmt.Errorf("safetensors: tensor %q has %d bytes, the destination %d", name, r.Size(), len(dst))
	}
	if err := readAt(r, dst, 0); err != nil {
		return fmt.Errorf("safetensors: read tensor %q: %w", name, err)
	}
	return nil
}
