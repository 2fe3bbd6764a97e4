package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// UnsafeError says that a pickle holds an instruction which imports, builds or
// calls something when Python loads the file. No memory snapshot needs one, and
// nothing of it was done.
type UnsafeError struct {
	Opcode string // Python's name of the instruction, such as "STACK_GLOBAL"
	Offset int64  // of the instruction in the pickle
	Class  string // the class or function named, such as "os.system"; empty if the instruction names none
}

func (e *UnsafeError) Error() string {
	named := ""
	if e.Class != "" {
		named = " of " + e.Class
	}
	return fmt.Sprintf("byte %d of the pickle: the instruction %s%s, which can run code when Python loads the file; a memory snapshot has none, so this file was made by something else: do not load it in Python", e.Offset, e.Opcode, named)
}

// opcode is an instruction: its name, the number of bytes that always follow
// it, and what it does.
type opcode struct {
	name string
	arg  int
	run  func(u *unpickler, arg []byte) error
}

// opcodes are the instructions of protocols 2 to 5. An instruction with no
// name is none.
var opcodes = instructions()

func instructions() [256]opcode {
	table := [256]opcode{
		opProto:           {"PROTO", 1, (*unpickler).proto},
		0x95:              {"FRAME", 8, (*unpickler).nothing},
		opStop:            {"STOP", 0, (*unpickler).stop},
		opMark:            {"MARK", 0, (*unpickler).mark},
		'0':               {"POP", 0, (*unpickler).drop},
		'1':               {"POP_MARK", 0, (*unpickler).dropToMark},
		'2':               {"DUP", 0, (*unpickler).dup},
		'N':               {"NONE", 0, (*unpickler).none},
		opNewTrue:         {"NEWTRUE", 0, (*unpickler).newTrue},
		opNewFalse:        {"NEWFALSE", 0, (*unpickler).newFalse},
		opBinInt:          {"BININT", 4, (*unpickler).binInt},
		opBinInt1:         {"BININT1", 1, (*unpickler).binUint},
		opBinInt2:         {"BININT2", 2, (*unpickler).binUint},
		opLong1:           {"LONG1", 1, (*unpickler).long},
		0x8b:              {"LONG4", 4, (*unpickler).long},
		opBinFloat:        {"BINFLOAT", 8, (*unpickler).binFloat},
		opShortBinUnicode: {"SHORT_BINUNICODE", 1, (*unpickler).text},
		opBinUnicode:      {"BINUNICODE", 4, (*unpickler).text},
		0x8d:              {"BINUNICODE8", 8, (*unpickler).text},
		'U':               {"SHORT_BINSTRING", 1, (*unpickler).text},
		'T':               {"BINSTRING", 4, (*unpickler).text},
		'C':               {"SHORT_BINBYTES", 1, (*unpickler).bytes},
		'B':               {"BINBYTES", 4, (*unpickler).bytes},
		0x8e:              {"BINBYTES8", 8, (*unpickler).bytes},
		0x96:              {"BYTEARRAY8", 8, (*unpickler).bytes},
		0x97:              {"NEXT_BUFFER", 0, (*unpickler).none},
		0x98:              {"READONLY_BUFFER", 0, (*unpickler).nothing},
		opEmptyList:       {"EMPTY_LIST", 0, (*unpickler).emptyList},
		'l':               {"LIST", 0, (*unpickler).listFromMark},
		'a':               {"APPEND", 0, (*unpickler).appendOne},
		opAppends:         {"APPENDS", 0, (*unpickler).appends},
		')':               {"EMPTY_TUPLE", 0, (*unpickler).emptyList},
		't':               {"TUPLE", 0, (*unpickler).listFromMark},
		0x85:              {"TUPLE1", 0, func(u *unpickler, _ []byte) error { return u.tuple(1) }},
		opTuple2:          {"TUPLE2", 0, func(u *unpickler, _ []byte) error { return u.tuple(2) }},
		0x87:              {"TUPLE3", 0, func(u *unpickler, _ []byte) error { return u.tuple(3) }},
		opEmptyDict:       {"EMPTY_DICT", 0, (*unpickler).emptyDict},
		'd':               {"DICT", 0, (*unpickler).dictFromMark},
		's':               {"SETITEM", 0, (*unpickler).setItem},
		opSetItems:        {"SETITEMS", 0, (*unpickler).setItems},
		0x8f:              {"EMPTY_SET", 0, (*unpickler).none},
		0x90:              {"ADDITEMS", 0, (*unpickler).dropToMark},
		0x91:              {"FROZENSET", 0, (*unpickler).frozenSet},
		opMemoize:         {"MEMOIZE", 0, (*unpickler).memoizeNext},
		'q':               {"BINPUT", 1, func(u *unpickler, arg []byte) error { return u.memoize(uint32(arg[0])) }},
		'r':               {"LONG_BINPUT", 4, func(u *unpickler, arg []byte) error { return u.memoize(binary.LittleEndian.Uint32(arg)) }},
		opBinGet:          {"BINGET", 1, func(u *unpickler, arg []byte) error { return u.get(uint32(arg[0])) }},
		opLongBinGet:      {"LONG_BINGET", 4, func(u *unpickler, arg []byte) error { return u.get(binary.LittleEndian.Uint32(arg)) }},
		'c':               {"GLOBAL", 0, func(u *unpickler, _ []byte) error { return u.unsafeLines("GLOBAL") }},
		'i':               {"INST", 0, func(u *unpickler, _ []byte) error { return u.unsafeLines("INST") }},
		0x93:              {"STACK_GLOBAL", 0, (*unpickler).unsafeStack},
	}
	for code, name := range map[byte]string{'R': "REDUCE", 'b': "BUILD", 'o': "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
		'P': "PERSID", 'Q': "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"} {
		table[code] = opcode{name, 0, func(u *unpickler, _ []byte) error { return &UnsafeError{Opcode: name, Offset: u.op} }}
	}
	for code := range table {
		if table[code].run == nil {
			table[code].run = func(u *unpickler, _ []byte) error {
				return u.errorf("%#02x is no instruction of protocols 2 to 5", code)
			}
		}
	}
	return table
}

func (u *unpickler) proto(arg []byte) error {
	if arg[0] < 2 || arg[0] > 5 {
		return u.errorf("protocol %d is not one of 2 to 5", arg[0])
	}
	return nil
}

func (u *unpickler) nothing([]byte) error { return nil }

func (u *unpickler) stop([]byte) (err error) {
	u.done = true
	u.root, err = u.pop()
	return err
}

func (u *unpickler) mark([]byte) error {
	if len(u.marks) == maxMarks {
		return u.errorf("collections are more than %d deep", maxMarks)
	}
	u.marks = append(u.marks, len(u.stack))
	return nil
}

func (u *unpickler) drop([]byte) error {
	v, err := u.pop()
	u.resolve(v)
	return err
}

func (u *unpickler) dropToMark([]byte) error {
	items, at, err := u.sinceMark()
	for _, v := range items {
		u.resolve(v)
	}
	u.stack = u.stack[:at]
	return err
}

func (u *unpickler) frozenSet([]byte) error {
	if err := u.dropToMark(nil); err != nil {
		return err
	}
	return u.push(value{})
}

func (u *unpickler) dup([]byte) error {
	v, err := u.pop()
	if err != nil {
		return err
	}
	if v.kind == kindOpen {
		u.open[v.n].shared = true
	}
	u.stack = append(u.stack, v, v)
	return nil
}

func (u *unpickler) none([]byte) error { return u.push(value{}) }

func (u *unpickler) newTrue([]byte) error { return u.push(value{kindBool, 1}) }

func (u *unpickler) newFalse([]byte) error { return u.push(value{kindBool, 0}) }

func (u *unpickler) binInt(arg []byte) error {
	return u.push(value{kindInt, uint64(int32(binary.LittleEndian.Uint32(arg)))})
}

func (u *unpickler) binUint(arg []byte) error { return u.push(value{kindInt, littleEndian(arg)}) }

func (u *unpickler) binFloat(arg []byte) error {
	return u.push(value{kindFloat, binary.BigEndian.Uint64(arg)})
}

// littleEndian gives the number of up to eight bytes.
func littleEndian(b []byte) (n uint64) {
	for i, c := range b {
		n |= uint64(c) << (8 * i)
	}
	return n
}

// length checks the length that arg tells of what follows.
func (u *unpickler) length(arg []byte, what string) (int64, error) {
	n := littleEndian(arg)
	if n > maxLength {
		return 0, u.errorf("a %s of %d bytes is longer than the %d that can be read", what, n, maxLength)
	}
	return int64(n), nil
}

// long reads a number of any length. What does not fit 64 bits becomes the
// nearest number that does.
func (u *unpickler) long(arg []byte) error {
	n, err := u.length(arg, "number")
	if err != nil {
		return err
	}
	if n > inputSize {
		return u.errorf("a number has %d bytes", n)
	}
	b, ok := u.in.take(int(n))
	if !ok {
		return u.ends("a number")
	}
	return u.push(longValue(b))
}

// longValue gives the number whose bytes are b: little-endian, in two's
// complement, as long as it wants to be.
func longValue(b []byte) value {
	var sign byte
	if n := len(b); n > 0 && b[n-1] >= 0x80 {
		sign = 0xff
	}
	for len(b) > 0 && b[len(b)-1] == sign { // these tell no more
		b = b[:len(b)-1]
	}
	negative := sign != 0
	v := littleEndian(b[:min(len(b), 8)])
	if n := len(b); negative && n < 8 {
		v |= math.MaxUint64 << (8 * n)
	}
	switch {
	case len(b) > 8 && !negative:
		return value{kindUint, math.MaxUint64}
	case negative && (len(b) > 8 || int64(v) >= 0):
		return value{kindInt, 1 << 63}
	case !negative && int64(v) < 0:
		return value{kindUint, v}
	}
	return value{kindInt, v}
}

// text reads a string. Very long ones are passed over.
func (u *unpickler) text(arg []byte) error {
	n, err := u.length(arg, "string")
	if err != nil {
		return err
	}
	if n > maxText {
		return u.pass(n, "a string")
	}
	if b, ok := u.in.take(int(min(n, inputSize))); ok && n <= inputSize {
		return u.push(value{kindText, uint64(u.intern(b))})
	} else if !ok {
		return u.ends("a string")
	} else {
		return u.longText(b, int(n))
	}
}

// longText reads the rest of a string of n bytes that begins with b.
func (u *unpickler) longText(b []byte, n int) error {
	s := bytes.Clone(b)
	for len(s) < n {
		b, ok := u.in.take(min(n-len(s), inputSize))
		if !ok {
			return u.ends("a string")
		}
		s = append(s, b...)
	}
	return u.push(value{kindText, uint64(u.intern(s))})
}

// bytes passes over bytes, of which snapshots have none.
func (u *unpickler) bytes(arg []byte) error {
	n, err := u.length(arg, "string of bytes")
	if err != nil {
		return err
	}
	return u.pass(n, "a string of bytes")
}

// pass skips n bytes and pushes a value that is nothing of ours.
func (u *unpickler) pass(n int64, what string) error {
	if !u.in.skip(n) {
		return u.ends(fmt.Sprintf("%s of %d bytes", what, n))
	}
	return u.push(value{})
}

func (u *unpickler) emptyList([]byte) error {
	u.settle()
	return u.push(u.create(false))
}

func (u *unpickler) emptyDict([]byte) error {
	u.settle()
	return u.push(u.create(true))
}

func (u *unpickler) appendOne([]byte) error {
	v, err := u.pop()
	if err != nil {
		return err
	}
	if len(u.stack) == u.bottom() {
		return u.errorf("a list is missing")
	}
	u.add(u.stack[len(u.stack)-1], []value{v})
	return nil
}

func (u *unpickler) appends([]byte) error {
	items, at, err := u.sinceMark()
	if err != nil {
		return err
	}
	if at == u.bottom() {
		return u.errorf("a list is missing")
	}
	u.add(u.stack[at-1], items)
	u.stack = u.stack[:at]
	return nil
}

// collect replaces all from index at of the stack on by one list of it.
func (u *unpickler) collect(at int) error {
	list := u.create(false)
	u.add(list, u.stack[at:])
	u.stack = append(u.stack[:at], list)
	return nil
}

func (u *unpickler) listFromMark([]byte) error {
	_, at, err := u.sinceMark()
	if err != nil {
		return err
	}
	return u.collect(at)
}

// tuple makes a list of the last n values.
func (u *unpickler) tuple(n int) error {
	at := len(u.stack) - n
	if at < u.bottom() {
		return u.errorf("a value is missing on the stack")
	}
	return u.collect(at)
}

func (u *unpickler) setItem([]byte) error {
	at := len(u.stack) - 3
	if at < u.bottom() {
		return u.errorf("a value is missing on the stack")
	}
	return u.set(at)
}

func (u *unpickler) setItems([]byte) error {
	_, at, err := u.sinceMark()
	if err != nil {
		return err
	}
	if at == u.bottom() {
		return u.errorf("a dictionary is missing")
	}
	return u.set(at - 1)
}

func (u *unpickler) dictFromMark([]byte) error {
	_, at, err := u.sinceMark()
	if err != nil {
		return err
	}
	u.stack = slices.Insert(u.stack, at, u.create(true))
	return u.set(at)
}

func (u *unpickler) memoizeNext([]byte) error {
	if u.memo.n >= maxNumber {
		return u.errorf("the memo has more than the %d values that can be read", maxNumber)
	}
	return u.memoize(uint32(u.memo.n))
}

// unsafeLines refuses an instruction that is followed by two lines, the module
// and the name.
func (u *unpickler) unsafeLines(opcode string) error {
	const longest = 500
	e := &UnsafeError{Opcode: opcode, Offset: u.op}
	lines := bytes.SplitN(u.in.peek(longest), []byte("\n"), 3)
	if len(lines) == 3 {
		e.Class = printable(lines[0]) + "." + printable(lines[1])
	}
	return e
}

// unsafeStack refuses an instruction that takes module and name from the stack.
func (u *unpickler) unsafeStack([]byte) error {
	e := &UnsafeError{Opcode: "STACK_GLOBAL", Offset: u.op}
	if n := len(u.stack); n >= 2 && u.stack[n-2].kind == kindText && u.stack[n-1].kind == kindText {
		e.Class = printable([]byte(u.string(u.stack[n-2]))) + "." + printable([]byte(u.string(u.stack[n-1])))
	}
	return e
}

// printable gives a name from an untrusted file for a message.
func printable(name []byte) string {
	const longest = 100
	name = name[:min(len(name), longest)]
	clean := strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, string(name))
	return clean
}
