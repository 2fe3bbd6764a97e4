package data

import (
	"encoding/binary"
	"errors"
)

// flatbuffer reads the encoding of Arrow's metadata, where structures refer to
// each other by offsets. Whatever points outside reads as zero and is
// remembered, so that a structure can be read whole before err is asked.
type flatbuffer struct {
	bytes []byte
	bad   bool
}

func (f *flatbuffer) err() error {
	if f.bad {
		return errors.New("broken metadata: an offset leads out of it")
	}
	return nil
}

// at gives n bytes at pos, and zeros in their place if they lie outside.
func (f *flatbuffer) at(pos, n int) []byte {
	if pos < 0 || pos > len(f.bytes)-n {
		f.bad = true
		return make([]byte, 8)
	}
	return f.bytes[pos : pos+n]
}

func (f *flatbuffer) u8(pos int) byte    { return f.at(pos, 1)[0] }
func (f *flatbuffer) i16(pos int) int    { return int(int16(binary.LittleEndian.Uint16(f.at(pos, 2)))) }
func (f *flatbuffer) i32(pos int) int    { return int(int32(binary.LittleEndian.Uint32(f.at(pos, 4)))) }
func (f *flatbuffer) i64(pos int) int64  { return int64(binary.LittleEndian.Uint64(f.at(pos, 8))) }
func (f *flatbuffer) offset(pos int) int { return pos + int(binary.LittleEndian.Uint32(f.at(pos, 4))) }

// root is the position of the outermost table.
func (f *flatbuffer) root() int { return f.offset(0) }

// field is the position of the i-th field of the table at pos, and 0 if the
// table does not have it.
func (f *flatbuffer) field(table, i int) int {
	fields := table - f.i32(table)
	if 4+2*i+2 > int(uint16(f.i16(fields))) {
		return 0
	}
	if o := int(uint16(f.i16(fields + 4 + 2*i))); o > 0 {
		return table + o
	}
	return 0
}

// table is the position of a table in a field, and 0 if there is none.
func (f *flatbuffer) table(table, i int) int {
	if pos := f.field(table, i); pos > 0 {
		return f.offset(pos)
	}
	return 0
}

// vector is the position of the first element, of the given size, of a vector
// in a field, and how many there are.
func (f *flatbuffer) vector(table, i, size int) (pos, n int) {
	pos = f.table(table, i)
	if pos == 0 {
		return 0, 0
	}
	n = f.i32(pos)
	if n < 0 || n > (len(f.bytes)-pos-4)/size {
		f.bad = true
		return 0, 0
	}
	return pos + 4, n
}

func (f *flatbuffer) text(table, i int) string {
	pos, n := f.vector(table, i, 1)
	return string(f.at(pos, n)[:n])
}
