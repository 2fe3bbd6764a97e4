// Arrow IPC files, also called Feather version 2. A file is "ARROW1", record
// batches, a footer that says where they lie, the footer's length, "ARROW1". In
// a batch, each column is a few buffers of plain numbers, so once the footer and
// the head of each batch are read, a column of fixed width is an Array with a
// piece for each batch. The types are those of Schema.fbs and Message.fbs in the
// description of the format; the numbers in the code are the fields' there.

package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	arrowMagic       = "ARROW1"
	maxArrowMetadata = 64 << 20
	maxArrowFields   = 1 << 16
	maxArrowDepth    = 32
)

// Kinds of type, as the format numbers them.
const (
	arrowInt             = 2
	arrowFloat           = 3
	arrowStruct          = 13
	arrowFixedSizeBinary = 15
	arrowFixedSizeList   = 16
)

// arrowColumn is a column of the schema.
type arrowColumn struct {
	name        string
	dtype       DType // empty: the column is no array of numbers
	shape       []int // of one row
	firstNode   int   // in a batch
	firstBuffer int
	depth       int // lists around the numbers, each with a node and a buffer
}

// parseArrow finds a column.
func parseArrow(f *file, name string) (*Array, error) {
	footer, err := arrowFooter(f)
	if err != nil {
		return nil, err
	}
	columns, err := arrowColumns(footer)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	i, err := pick(name, names)
	if err != nil {
		return nil, err
	}
	c := columns[i]
	if c.dtype == "" {
		return nil, fmt.Errorf("column %q is no column of numbers, nor of lists of one length: lists of several lengths, texts, bits and dictionaries cannot be samples of one shape", c.name)
	}
	stride, err := sampleStride(c.shape, c.dtype)
	if err != nil {
		return nil, err
	}
	a := &Array{stride: stride, shape: c.shape, dtype: c.dtype}
	blocks, n := footer.vector(footer.root(), 3, 24)
	for i := range n {
		if err := addArrowBatch(a, f, c, footer, blocks+24*i); err != nil {
			return nil, fmt.Errorf("record batch %d: %w", i, err)
		}
	}
	return a, footer.err()
}

func arrowFooter(f *file) (*flatbuffer, error) {
	var end [4 + len(arrowMagic)]byte
	if f.size < int64(8+len(end)) {
		return nil, fmt.Errorf("an Arrow file of %d bytes is cut off", f.size)
	}
	if err := readFull(f, end[:], f.size-int64(len(end))); err != nil {
		return nil, err
	}
	if string(end[4:]) != arrowMagic {
		return nil, errors.New("the Arrow file does not end as one: it is cut off, or still being written, or a stream (write a file)")
	}
	n := int64(int32(binary.LittleEndian.Uint32(end[:])))
	return arrowMetadata(f, f.size-int64(len(end))-n, n)
}

// arrowMetadata reads n bytes of metadata.
func arrowMetadata(f *file, offset, n int64) (*flatbuffer, error) {
	if n < 8 || n > maxArrowMetadata || offset < 0 || offset > f.size-n {
		return nil, fmt.Errorf("metadata of %d bytes at offset %d in a file of %d (the limit is %d)", n, offset, f.size, maxArrowMetadata)
	}
	b := make([]byte, n)
	return &flatbuffer{bytes: b}, readFull(f, b, offset)
}

// arrowColumns reads the schema in a footer.
func arrowColumns(f *flatbuffer) ([]arrowColumn, error) {
	schema := f.table(f.root(), 1)
	if schema == 0 {
		return nil, errors.New("the file has no schema")
	}
	if e := f.field(schema, 0); e > 0 && f.i16(e) != 0 {
		return nil, errors.New("the file is big-endian, which is not supported")
	}
	walk := arrowWalk{flatbuffer: f}
	fields, n := f.vector(schema, 1, 4)
	columns := make([]arrowColumn, 0, n)
	for i := range n {
		field := f.offset(fields + 4*i)
		c := arrowColumn{name: f.text(field, 0), firstNode: walk.nodes, firstBuffer: walk.buffers}
		c.dtype, c.shape, c.depth = walk.numbers(field, 0)
		if err := walk.skip(field, 0); err != nil {
			return nil, errors.Join(err, f.err())
		}
		columns = append(columns, c)
	}
	return columns, f.err()
}

// arrowWalk counts the nodes and buffers of fields, to know those of the next.
type arrowWalk struct {
	*flatbuffer
	nodes, buffers, fields int
}

// numbers says which numbers a field has in each row, if it has such.
func (w *arrowWalk) numbers(field, depth int) (dtype DType, shape []int, lists int) {
	kind, t := w.kind(field)
	if depth > maxArrowDepth || w.field(field, 4) > 0 { // a dictionary's
		return "", nil, 0
	}
	switch kind {
	case arrowInt:
		return w.intType(t), nil, 0
	case arrowFloat:
		precision := 0
		if pos := w.field(t, 0); pos > 0 {
			precision = w.i16(pos)
		}
		return map[int]DType{0: Float16, 1: Float32, 2: Float64}[precision], nil, 0
	case arrowFixedSizeBinary:
		return Uint8, []int{w.size(t)}, 0
	case arrowFixedSizeList:
		children, n := w.vector(field, 5, 4)
		if n != 1 {
			return "", nil, 0
		}
		dtype, shape, lists = w.numbers(w.offset(children), depth+1)
		return dtype, append([]int{w.size(t)}, shape...), lists + 1
	}
	return "", nil, 0
}

// kind gives the kind of a field's type and its table.
func (w *arrowWalk) kind(field int) (kind byte, table int) {
	if pos := w.field(field, 2); pos > 0 {
		kind = w.u8(pos)
	}
	return kind, w.table(field, 3)
}

// size is the length of lists or bytes, field 0 of their type.
func (w *arrowWalk) size(t int) int {
	if pos := w.field(t, 0); pos > 0 {
		return w.i32(pos)
	}
	return 0
}

func (w *arrowWalk) intType(t int) DType {
	width, kind := w.size(t), "uint"
	if pos := w.field(t, 1); pos > 0 && w.u8(pos) != 0 {
		kind = "int"
	}
	if d := DType(fmt.Sprint(kind, width)); d.Size() > 0 {
		return d
	}
	return ""
}

// arrowBuffers is how many buffers the kinds have in a batch, without those of
// their children. Kinds that are not listed have layouts of their own.
var arrowBuffers = map[byte]int{
	1: 0, arrowInt: 2, arrowFloat: 2, 4: 3, 5: 3, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2, 12: 2,
	arrowStruct: 1, arrowFixedSizeBinary: 2, arrowFixedSizeList: 1, 17: 2, 18: 2, 19: 3, 20: 3, 21: 2,
}

// skip counts a field with its children.
func (w *arrowWalk) skip(field, depth int) error {
	kind, _ := w.kind(field)
	buffers, known := arrowBuffers[kind]
	w.fields++
	switch {
	case depth > maxArrowDepth || w.fields > maxArrowFields:
		return fmt.Errorf("more than %d columns, or more than %d within each other", maxArrowFields, maxArrowDepth)
	case !known:
		return fmt.Errorf("column %q has a type (number %d of the format) that is not supported: leave it out of the file", w.text(field, 0), kind)
	}
	w.nodes++
	if w.field(field, 4) > 0 { // of a dictionary the batch has the indices
		w.buffers += 2
		return nil
	}
	w.buffers += buffers
	children, n := w.vector(field, 5, 4)
	for i := range n {
		if err := w.skip(w.offset(children+4*i), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// addArrowBatch appends the rows of a batch, whose place the footer has at pos.
func addArrowBatch(a *Array, f *file, c arrowColumn, footer *flatbuffer, pos int) error {
	offset, size, bodySize := footer.i64(pos), int64(footer.i32(pos+8)), footer.i64(pos+16)
	m, err := arrowMetadata(f, offset, size)
	if err != nil {
		return err
	}
	body := offset + size
	if bodySize < 0 || bodySize > f.size-body {
		return fmt.Errorf("a body of %d bytes at offset %d in a file of %d: is it truncated?", bodySize, body, f.size)
	}
	prefix := 4
	if m.i32(0) == -1 {
		prefix = 8
	}
	m.bytes = m.bytes[prefix:]
	rows, buffer, length, err := arrowBatch(m, c)
	switch {
	case err != nil:
		return err
	case rows == 0:
		return nil
	case buffer < 0 || length < 0 || buffer > bodySize || length > bodySize-buffer:
		return fmt.Errorf("column %q has bytes [%d, %d+%d) of a body of %d", c.name, buffer, buffer, length, bodySize)
	case rows > length/a.stride || rows > int64(math.MaxInt-a.n):
		return fmt.Errorf("%d rows of %d bytes each do not fit in the column's %d", rows, a.stride, length)
	}
	a.pieces = append(a.pieces, piece{io.NewSectionReader(f, body, bodySize), buffer, a.n})
	a.n += int(rows)
	return nil
}

// arrowBatch reads from the head of a batch how many rows it has and where in
// its body the column's numbers lie.
func arrowBatch(m *flatbuffer, c arrowColumn) (rows, buffer, length int64, err error) {
	message := m.root()
	kind, batch := m.field(message, 1), m.table(message, 2)
	if kind == 0 || m.u8(kind) != 3 || batch == 0 {
		return 0, 0, 0, errors.Join(errors.New("the footer points to something else"), m.err())
	}
	if m.field(batch, 3) > 0 {
		return 0, 0, 0, errors.New("the batch is compressed, so it cannot be read in a random order: write the file without compression")
	}
	nodes, n := m.vector(batch, 1, 16)
	buffers, b := m.vector(batch, 2, 16)
	if n <= c.firstNode+c.depth || b <= c.firstBuffer+c.depth+1 {
		return 0, 0, 0, errors.Join(fmt.Errorf("%d nodes and %d buffers are too few for the schema", n, b), m.err())
	}
	rows = m.i64(nodes + 16*c.firstNode)
	for i := range c.depth + 1 {
		if nulls := m.i64(nodes + 16*(c.firstNode+i) + 8); nulls != 0 {
			return 0, 0, 0, fmt.Errorf("column %q has %d missing values: fill them in", c.name, nulls)
		}
	}
	if rows < 0 {
		return 0, 0, 0, fmt.Errorf("%d rows", rows)
	}
	at := buffers + 16*(c.firstBuffer+c.depth+1)
	return rows, m.i64(at), m.i64(at + 8), m.err()
}
