package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/headroom-go/headroom/internal/atomicfile"
)

// Entry is a tensor to write. Data writes its bytes, row-major and
// little-endian, exactly as many as shape and type ask for; it is called once,
// when the entries before it are written.
type Entry struct {
	Name  string
	DType DType
	Shape []int
	Data  func(w io.Writer) error
}

// Bytes is the Data of an Entry whose bytes are at hand.
func Bytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// Float32s is the Data of an F32 Entry.
func Float32s(values []float32) func(io.Writer) error {
	return func(w io.Writer) error {
		buf := make([]byte, 0, min(chunk, 4*len(values)))
		for part := range slices.Chunk(values, chunk/4) {
			buf = buf[:0]
			for _, v := range part {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
			}
			if _, err := w.Write(buf); err != nil {
				return err
			}
		}
		return nil
	}
}

// WriteFile writes a file as Write does. It replaces the file at path only when
// all is on the disk: after an error the old file is there, whole.
func WriteFile(path string, metadata map[string]string, entries []Entry) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 1<<20)
		if err := Write(buffered, metadata, entries); err != nil {
			return err
		}
		return buffered.Flush()
	})
}

// Write writes metadata, which may be nil, and the entries, whose data lie in
// the order given. Equal arguments give equal bytes. The data begin at a
// multiple of 8 bytes; for every tensor to be aligned, entries with wide
// elements have to come first.
func Write(w io.Writer, metadata map[string]string, entries []Entry) error {
	tensors, err := layout(entries)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	header, err := encodeHeader(metadata, tensors, maxHeader)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: write header: %w", err)
	}
	for i, e := range entries {
		exact := &exactWriter{w: w, left: tensors[i].size}
		if err := e.Data(exact); err != nil {
			return fmt.Errorf("safetensors: write tensor %q: %w", e.Name, err)
		}
		if exact.left != 0 {
			return fmt.Errorf("safetensors: write tensor %q: the data end %d bytes before the %d of shape %v in %s", e.Name, exact.left, tensors[i].size, e.Shape, e.DType)
		}
	}
	return nil
}

// layout checks the entries and places them one behind the other.
func layout(entries []Entry) ([]Tensor, error) {
	tensors := make([]Tensor, len(entries))
	seen := make(map[string]bool, len(entries))
	var end int64
	for i, e := range entries {
		t, err := newTensor(e.Name, e.DType, e.Shape)
		if err != nil {
			return nil, err
		}
		if seen[e.Name] {
			return nil, fmt.Errorf("two tensors are named %q", e.Name)
		}
		if t.size > math.MaxInt64-end {
			return nil, fmt.Errorf("tensor %q: the sum of all sizes overflows", e.Name)
		}
		seen[e.Name] = true
		t.begin = end
		end += t.size
		tensors[i] = t
	}
	return tensors, nil
}

// encodeHeader gives the length, the JSON and the spaces behind it, which
// together with the JSON have at most limit bytes.
func encodeHeader(metadata map[string]string, tensors []Tensor, limit int) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8)) // the length, known last
	separator := "{"
	if len(metadata) > 0 {
		text, err := encodeMetadata(metadata)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `{"%s":%s`, metadataKey, text)
		separator = ","
	}
	for _, t := range tensors {
		name, shape := mustMarshal(t.Name), mustMarshal(append([]int{}, t.Shape...)) // never null
		fmt.Fprintf(&b, `%s%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, separator, name, t.DType, shape, t.begin, t.begin+t.size)
		separator = ","
	}
	if separator == "{" {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > limit {
		return nil, fmt.Errorf("the header of %d tensors has %d bytes, more than the limit of %d", len(tensors), b.Len()-8, limit)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

func encodeMetadata(metadata map[string]string) ([]byte, error) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
			return nil, fmt.Errorf("metadata %q: %.40q: not valid UTF-8", key, metadata[key])
		}
	}
	return mustMarshal(metadata), nil // sorts the keys
}

// mustMarshal encodes strings, integers, and lists and maps of them, which
// cannot fail.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("safetensors: encode %v: %v", v, err))
	}
	return b
}

// exactWriter refuses what goes beyond the bytes left for a tensor.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%d bytes are left for the tensor, and %d more came", e.left, len(p))
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
