package trace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// An assembler writes pickles as the programs do whose files we read. It is
// given trees of these types, and nil, bool, int, uint64, float64 and string.
type (
	pairs  []any  // a dictionary: keys and values in turn
	items  []any  // a list
	tuple  []any  // a tuple
	raw    string // instructions as they are
	shared struct{ v any }
	series struct { // a list whose elements are made when they are written
		n  int
		at func(i int) any
	}
)

// style is how a program writes pickles.
type style struct {
	protocol int
	late     bool // as PyTorch's C++: values get their number when they are complete, and collections are filled at once
	batch    int  // elements filled at once
}

// styles are those of Python's pickle and of PyTorch's C++.
var styles = []style{{2, false, 1000}, {3, false, 1000}, {4, false, 1000}, {5, false, 1000}, {2, true, math.MaxInt}, {4, false, 1}, {4, false, 3}}

func (s style) String() string {
	return fmt.Sprintf("protocol%d,late=%v,batch=%d", s.protocol, s.late, s.batch)
}

type assembler struct {
	style
	out     *bufio.Writer
	n       int // the next number of the memo
	strings map[string]int
	objects map[*shared]int
}

// assemble gives the pickle of a tree.
func assemble(s style, v any) []byte {
	var b bytes.Buffer
	if err := assembleTo(&b, s, v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func assembleTo(w io.Writer, s style, v any) error {
	a := &assembler{style: s, out: bufio.NewWriter(w), strings: map[string]int{}, objects: map[*shared]int{}}
	a.out.Write([]byte{0x80, byte(s.protocol)})
	a.value(v)
	a.out.WriteByte('.')
	return a.out.Flush()
}

func (a *assembler) u32(op byte, v int) {
	a.out.WriteByte(op)
	a.out.Write(binary.LittleEndian.AppendUint32(nil, uint32(v)))
}

// put gives the top of the stack the next number.
func (a *assembler) put() int {
	switch {
	case a.protocol >= 4:
		a.out.WriteByte(0x94)
	case a.n < 256:
		a.out.Write([]byte{'q', byte(a.n)})
	default:
		a.u32('r', a.n)
	}
	a.n++
	return a.n - 1
}

func (a *assembler) get(n int) {
	if n < 256 {
		a.out.Write([]byte{'h', byte(n)})
	} else {
		a.u32('j', n)
	}
}

func (a *assembler) value(v any) {
	switch v := v.(type) {
	case nil:
		a.out.WriteByte('N')
	case bool:
		a.out.WriteByte(map[bool]byte{true: 0x88, false: 0x89}[v])
	case int:
		a.int(int64(v))
	case int64:
		a.int(v)
	case uint64:
		if v > math.MaxInt64 {
			a.out.Write([]byte{0x8a, 9})
			a.out.Write(binary.LittleEndian.AppendUint64(nil, v))
			a.out.WriteByte(0)
		} else {
			a.int(int64(v))
		}
	case float64:
		a.out.WriteByte('G')
		a.out.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case string:
		a.string(v)
	case raw:
		a.out.WriteString(string(v))
	case *shared:
		a.shared(v)
	case tuple:
		a.tuple(v)
	default:
		a.collection(v, nil)
	}
}

func (a *assembler) int(v int64) {
	switch {
	case v >= 0 && v < 1<<8:
		a.out.Write([]byte{'K', byte(v)})
	case v >= 0 && v < 1<<16:
		a.out.Write([]byte{'M', byte(v), byte(v >> 8)})
	case v == int64(int32(v)):
		a.u32('J', int(v))
	default:
		a.out.Write([]byte{0x8a, 8})
		a.out.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
}

func (a *assembler) string(s string) {
	if n, known := a.strings[s]; known {
		a.get(n)
		return
	}
	if a.protocol >= 4 && len(s) < 256 {
		a.out.Write([]byte{0x8c, byte(len(s))})
	} else {
		a.u32('X', len(s))
	}
	a.out.WriteString(s)
	a.strings[s] = a.put()
}

func (a *assembler) shared(s *shared) {
	if n, known := a.objects[s]; known {
		a.get(n)
		return
	}
	a.collection(s.v, s)
}

func (a *assembler) tuple(v tuple) {
	if len(v) > 3 || len(v) == 0 {
		panic("tuples of 1 to 3")
	}
	for _, e := range v {
		a.value(e)
	}
	a.out.WriteByte(byte(0x84 + len(v)))
	a.put()
}

// collection writes a list or a dictionary, which s stands for if it is not nil.
func (a *assembler) collection(v any, s *shared) {
	open, one, many, each := byte(']'), byte('a'), byte('e'), 1
	var all series
	switch v := v.(type) {
	case pairs:
		open, one, many, each = '}', 's', 'u', 2
		all = series{len(v) / 2, func(i int) any { return v[2*i : 2*i+2] }}
	case items:
		all = series{len(v), func(i int) any { return v[i] }}
	case series:
		all = v
	default:
		panic(fmt.Sprintf("no tree: %T", v))
	}
	a.out.WriteByte(open)
	number := func() {
		n := a.put()
		if s != nil {
			a.objects[s] = n
		}
	}
	if !a.late {
		number()
	}
	for i := 0; i < all.n; {
		end := all.n
		if a.batch < end-i {
			end = i + a.batch
		}
		single := end-i == 1 && !a.late
		if !single {
			a.out.WriteByte('(')
		}
		for ; i < end; i++ {
			if each == 2 {
				kv := all.at(i).(pairs)
				a.value(kv[0])
				a.value(kv[1])
			} else {
				a.value(all.at(i))
			}
		}
		if single {
			a.out.WriteByte(one)
		} else {
			a.out.WriteByte(many)
		}
	}
	if a.late {
		number()
	}
}
