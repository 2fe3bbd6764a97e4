// Writing snapshots as PyTorch does.
//
// A snapshot file is a Python pickle of dictionaries, lists, strings and
// numbers. Pickle is the code of a small stack machine; these are all the
// instructions that stand in our files (protocol 4):
//
//	numbers        BININT1 BININT2 BININT LONG1 BINFLOAT NEWTRUE NEWFALSE
//	strings        SHORT_BINUNICODE BINUNICODE
//	collections    EMPTY_LIST APPENDS EMPTY_DICT SETITEMS TUPLE2 MARK
//	sharing        MEMOIZE (give the top of the stack the next number)
//	               BINGET LONG_BINGET (push what has that number)
//	frame          PROTO STOP
//
// Strings, frames and stacks are written once and memoised; every later use is
// a reference, which keeps files small and lets readers share memory. Lists
// are appended to in batches of a thousand, as Python does: memory_viz passes
// a batch as the arguments of one call, and browsers bound their number.
//
// The snapshot is written as it is read: no second tree of it is built.
package trace

import (
	"encoding/binary"
	"io"
	"math"
	"strings"
)

// Instructions of pickle.
const (
	opMark            = '('
	opStop            = '.'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opSetItems        = 'u'
	opEmptyDict       = '}'
	opProto           = 0x80
	opTuple2          = 0x86
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opMemoize         = 0x94
)

// batch is the number of elements that one APPENDS adds to a list.
const batch = 1000

// flushAt is the number of bytes that are gathered before they are written.
const flushAt = 64 << 10

// pickler writes values. After the first error it writes nothing more.
type pickler struct {
	w       io.Writer
	err     error
	buf     []byte
	memo    uint32 // the next number
	strings map[string]uint32
	frames  map[Frame]uint32
	stacks  map[*Stack]uint32
}

func newPickler(w io.Writer) *pickler {
	return &pickler{
		w:       w,
		buf:     append(make([]byte, 0, flushAt+flushAt/4), opProto, 4),
		strings: make(map[string]uint32),
		frames:  make(map[Frame]uint32),
		stacks:  make(map[*Stack]uint32),
	}
}

// flush writes what is gathered.
func (p *pickler) flush() {
	if p.err == nil && len(p.buf) > 0 {
		var n int
		n, p.err = p.w.Write(p.buf)
		if p.err == nil && n < len(p.buf) {
			p.err = io.ErrShortWrite
		}
	}
	p.buf = p.buf[:0]
}

func (p *pickler) op(code ...byte) { p.buf = append(p.buf, code...) }

// close ends the pickle and gives the first error.
func (p *pickler) close() error {
	p.op(opStop)
	p.flush()
	return p.err
}

// share pushes the value of key: by reference if it was written before, else
// by write.
func share[K comparable](p *pickler, memo map[K]uint32, key K, write func()) {
	n, known := memo[key]
	switch {
	case !known:
		write()
		memo[key] = p.memo
		p.memo++
		p.op(opMemoize)
	case n < 1<<8:
		p.op(opBinGet, byte(n))
	default:
		p.op(opLongBinGet)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, n)
	}
}

// str writes s, with what is no UTF-8 in it replaced: readers refuse it.
func (p *pickler) str(s string) {
	share(p, p.strings, s, func() {
		s := strings.ToValidUTF8(s, "\uFFFD")
		if len(s) < 1<<8 {
			p.op(opShortBinUnicode, byte(len(s)))
		} else {
			p.op(opBinUnicode)
			p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(len(s)))
		}
		p.buf = append(p.buf, s...)
	})
}

// uint writes a number exactly: those from 2³¹ on as LONG1, which is signed,
// little-endian and as short as its value allows.
func (p *pickler) uint(v uint64) {
	switch {
	case v < 1<<8:
		p.op(opBinInt1, byte(v))
	case v < 1<<16:
		p.op(opBinInt2, byte(v), byte(v>>8))
	case v < 1<<31:
		p.op(opBinInt)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(v))
	default:
		p.op(opLong1, 0)
		at := len(p.buf)
		for ; v >= 1<<7; v >>= 8 {
			p.op(byte(v))
		}
		p.op(byte(v))
		p.buf[at-1] = byte(len(p.buf) - at)
	}
}

// int writes a number that may be negative.
func (p *pickler) int(v int64) {
	switch {
	case v >= 0:
		p.uint(uint64(v))
	case v >= math.MinInt32:
		p.op(opBinInt)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(v))
	default:
		p.op(opLong1, 8)
		p.buf = binary.LittleEndian.AppendUint64(p.buf, uint64(v))
	}
}

func (p *pickler) float(v float64) {
	p.op(opBinFloat)
	p.buf = binary.BigEndian.AppendUint64(p.buf, math.Float64bits(v))
}

func (p *pickler) bool(v bool) {
	if v {
		p.op(opNewTrue)
	} else {
		p.op(opNewFalse)
	}
}

// list writes n elements, the i-th by element(i).
func (p *pickler) list(n int, element func(i int)) {
	p.op(opEmptyList)
	for i := 0; i < n && p.err == nil; {
		p.op(opMark)
		for end := min(n, i+batch); i < end; i++ {
			element(i)
		}
		p.op(opAppends)
		if len(p.buf) >= flushAt {
			p.flush()
		}
	}
}

// dict writes a dictionary whose items are written by items, each key before its value.
func (p *pickler) dict(items func()) {
	p.op(opEmptyDict, opMark)
	items()
	p.op(opSetItems)
}
