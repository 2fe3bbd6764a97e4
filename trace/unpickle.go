// Reading pickles.
//
// A pickle is a program for a stack machine. It pushes numbers and strings,
// opens lists and dictionaries and fills them with what was pushed since a
// mark, and gives values numbers in a memo by which they are pushed again. The
// full machine can also import classes and call them; this one cannot: such an
// instruction ends the reading with an UnsafeError.
//
// Python builds the whole tree of objects, which takes ten times the file.
// Here a dictionary is looked at when it is complete: what looks like an event,
// a frame, a block or a segment (schema.go) becomes a row of its table, and
// from then on the machine holds the number of the row. A list of frames
// becomes the number of a stack, a list of events a Trace. What is nothing of
// this kind, and every key that is not known, becomes kindOther. So a value
// takes 16 bytes on the stack, and what stays of a file is the rows and 4 bytes
// for every number of the memo.
//
//	stack   values: numbers, strings by number, rows by number, open objects
//	marks   where in the stack collections began
//	memo    values by number, packed: 4 bits of kind, 28 of number
//	open    objects that are not resolved: lists and dictionaries being filled
//
// A list or dictionary is open from its creation until the collection around
// it takes it, a dictionary only until another collection begins behind it.
// Then it is resolved: it becomes a value, which replaces it in the memo, and
// its place is used again. Objects of which there is more than one reference
// keep their place, so that the second reference finds the value. An event
// belongs to the list that takes it first; a second reference to one is
// refused.
//
// Of a file that ends early, what is open is closed from the inside out: lists
// keep what they have, dictionaries that may not be complete are forgotten, but
// the outermost.
package trace

import "fmt"

// kind says what a value is.
type kind uint8

const (
	kindOther      kind = iota // nothing that a snapshot needs
	kindOpen                   // n: index into unpickler.open
	kindText                   // n: index into rows.strings
	kindFrame                  // n: index into the table of frames
	kindStack                  // n: index into the table of stacks
	kindPool                   // n: index into rows.pools
	kindBlock                  // n: index into rows.blocks
	kindSegment                // n: index into rows.segments
	kindAnnotation             // n: index into rows.annotations
	kindHistory                // n: index into rows.histories
	kindSettings               // it stands in rows.settings
	kindDivisions              // they stand in rows.divisions
	kindTrace                  // n: index into rows.traces
	kindList                   // n: index into rows.lists
	kindNumber                 // n: index into rows.numbers; in the memo only
	kindGone                   // an event that was given to a list; in the memo only
	kindEvent                  // n: rows of rows.stage: the first one, and in the lower 32 bits how many
	kindInt                    // n: in two's complement
	kindUint                   // n, from 2⁶³ on
	kindFloat                  // n: its bits
	kindBool                   // n: 0 or 1
)

// value is what the machine's stack holds.
type value struct {
	kind kind
	n    uint64
}

// object is a list or dictionary that is being filled.
type object struct {
	isDict bool
	shared bool    // there may be more references: the place is not used again
	closed bool    // resolved to value
	slot   int64   // where in the memo it stands, -1 if nowhere
	value  value   // what it was resolved to
	items  []value // of a list what counts, of a dictionary keys and values in turn
	trace  *Trace  // the events of a list
}

// Limits, far above what snapshots need. They keep a small file from taking
// much memory.
const (
	maxText   = 1 << 20 // longer strings are passed over
	maxLength = 1 << 30 // longer strings and numbers are an error
	maxMarks  = 1000    // depth of collections
	maxNumber = 1 << 28 // of a row, so that it can be packed
	allowance = 1 << 16 // of values and objects that a file of any size may hold
)

// unpickler is the machine.
type unpickler struct {
	in    *input
	done  bool // STOP was met
	stack []value
	marks []int
	memo  memo
	open  []object
	free  []uint32 // places in open
	twice bool     // there is a second reference to an event
	*rows
}

// newUnpickler gives a machine that reads from in.
func newUnpickler(in *input) *unpickler { return &unpickler{in: in, rows: newRows()} }

// run executes instructions up to STOP. The error wraps errEnds if the input
// ends before.
func (u *unpickler) run() error {
	const longest = 9
	in := u.in
	for !u.done {
		if len(in.buf)-in.pos < longest {
			in.fill(longest)
			if err := u.check(); err != nil {
				return err
			}
		}
		u.op = in.at()
		if in.pos == len(in.buf) {
			return u.ends("")
		}
		code := &opcodes[in.buf[in.pos]]
		if in.pos+1+code.arg > len(in.buf) {
			return u.ends(code.name)
		}
		arg := in.buf[in.pos+1 : in.pos+1+code.arg]
		in.pos += 1 + code.arg
		if err := code.run(u, arg); err != nil {
			return err
		}
	}
	return u.check()
}

// check bounds what the machine holds by what it has read, and refuses what
// was found out late.
func (u *unpickler) check() error {
	if u.twice {
		return u.errorf("one event is used twice")
	}
	read := u.in.at()
	if values := int64(len(u.stack)); values > allowance+read/2 {
		return u.errorf("%d values are on the stack", values)
	}
	if events := u.stage.Len(); events > maxNumber {
		return u.errorf("a list of %d events is longer than the %d that can be read", events, maxNumber)
	}
	if lists := int64(len(u.lists)); lists > allowance+read/32 {
		return u.errorf("%d lists in lists are more than a file of this length can need", lists)
	}
	if objects := int64(len(u.open) - len(u.free)); objects > allowance+read/16 {
		return u.errorf("%d lists and dictionaries are open", objects)
	}
	return nil
}

// errorf gives an error that says where in the file it is.
func (u *unpickler) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d of the pickle: %s; this is no memory snapshot of PyTorch, or it is damaged", u.op, fmt.Sprintf(format, args...))
}

// ends gives the error of an input that ends in the middle of something.
func (u *unpickler) ends(what string) error {
	if what != "" {
		what = fmt.Sprintf(", in the middle of %s that begins at byte %d", what, u.op)
	}
	return u.in.ends(what)
}

func (u *unpickler) push(v value) error {
	u.stack = append(u.stack, v)
	return nil
}

// bottom is the index of the first value after the last mark.
func (u *unpickler) bottom() int {
	if n := len(u.marks); n > 0 {
		return u.marks[n-1]
	}
	return 0
}

// pop gives the top of the stack. What stands below the last mark stays.
func (u *unpickler) pop() (value, error) {
	n := len(u.stack) - 1
	if n < u.bottom() {
		return value{}, u.errorf("a value is missing on the stack")
	}
	v := u.stack[n]
	u.stack = u.stack[:n]
	return v, nil
}

// sinceMark gives what was pushed since the last mark and takes the mark away.
// The values stay on the stack until the caller cuts it at the index.
func (u *unpickler) sinceMark() (items []value, at int, err error) {
	n := len(u.marks) - 1
	if n < 0 {
		return nil, 0, u.errorf("a mark is missing")
	}
	at = u.marks[n]
	u.marks = u.marks[:n]
	return u.stack[at:], at, nil
}

// create opens a list or a dictionary.
func (u *unpickler) create(isDict bool) value {
	n := len(u.free) - 1
	if n < 0 {
		u.open = append(u.open, object{})
		u.free = append(u.free, uint32(len(u.open)-1))
		n = 0
	}
	at := u.free[n]
	u.free = u.free[:n]
	u.open[at] = object{isDict: isDict, slot: -1, items: u.open[at].items[:0]}
	return value{kindOpen, uint64(at)}
}

// object gives the object that the value is, if it is open.
func (u *unpickler) object(v value) *object {
	if v.kind != kindOpen || u.open[v.n].closed {
		return nil
	}
	return &u.open[v.n]
}

// resolve gives the value that an open object becomes; other values are
// themselves.
func (u *unpickler) resolve(v value) value {
	if v.kind != kindOpen {
		return v
	}
	o := &u.open[v.n]
	if o.closed {
		return o.value
	}
	o.closed = true // what it holds may refer to it
	result := value{}
	if o.isDict {
		result = u.row(o.items)
	} else {
		result = u.list(o)
	}
	u.close(v, result)
	return result
}

// close says what an open object has become.
func (u *unpickler) close(v, result value) {
	o := &u.open[v.n]
	o.closed, o.value, o.trace = true, result, nil
	if cap(o.items) > batch {
		o.items = nil
	}
	if o.slot >= 0 {
		u.memo.put(uint32(o.slot), u.pack(result))
	}
	u.twice = u.twice || o.shared && result.kind == kindEvent
	if !o.shared {
		u.free = append(u.free, uint32(v.n))
	}
}

// pack gives a value as it stands in the memo.
func (u *unpickler) pack(v value) uint32 {
	switch {
	case v.kind == kindEvent:
		v = value{kind: kindGone}
	case v.kind > kindGone:
		u.numbers = append(u.numbers, v)
		v = value{kindNumber, uint64(len(u.numbers) - 1)}
	}
	return uint32(v.kind)<<28 | uint32(v.n)
}

// memoize gives the top of the stack the number at.
func (u *unpickler) memoize(at uint32) error {
	if len(u.stack) == 0 {
		return u.errorf("a value is missing on the stack")
	}
	v := u.stack[len(u.stack)-1]
	if v.kind <= kindGone && v.n >= maxNumber || len(u.numbers) >= maxNumber {
		return u.errorf("%d values of one kind are more than the %d that can be read", v.n, maxNumber)
	}
	if o := u.object(v); o != nil {
		o.shared = o.shared || o.slot >= 0
		o.slot = int64(at)
	}
	u.memo.put(at, u.pack(v))
	return nil
}

// get pushes what has the number at.
func (u *unpickler) get(at uint32) error {
	packed, ok := u.memo.get(at)
	if !ok {
		return u.errorf("value %d is used and was never given", at)
	}
	v := value{kind(packed >> 28), uint64(packed & (maxNumber - 1))}
	switch v.kind {
	case kindOpen:
		u.open[v.n].shared = true
	case kindNumber:
		v = u.numbers[v.n]
	case kindGone:
		return u.errorf("one event is used twice (value %d)", at)
	}
	return u.push(v)
}

// add fills an open list with values. What is no open list is not changed.
func (u *unpickler) add(to value, items []value) {
	taken := u.stage.Len() // from this row on the stage is free afterwards
	for _, v := range items {
		if v == to {
			continue // a list in itself
		}
		v = u.resolve(v)
		o := u.object(to)
		switch {
		case v.kind == kindEvent:
			first, _ := v.events()
			taken = min(taken, first)
			u.take(o, v)
		case o == nil || o.isDict || v.kind == kindOther || v.kind == kindText || v.kind > kindUint:
		case v.kind >= kindInt && len(o.items) > len(PoolID{}): // too long for a pool
		default:
			o.items = append(o.items, v)
		}
	}
	u.stage.truncate(taken)
}

// take moves events from the stage to an open list. If they are all there are,
// the stage itself becomes the list's trace.
func (u *unpickler) take(o *object, v value) {
	first, n := v.events()
	switch {
	case o == nil || o.isDict || first+n > u.stage.Len():
	case o.trace == nil && first == 0 && n == u.stage.Len():
		o.trace, u.stage = u.stage, u.newTrace()
	default:
		if o.trace == nil {
			o.trace = u.newTrace()
		}
		for i := range n {
			o.trace.add(*u.stage.at(first + i))
		}
	}
}

// events gives the rows of the stage that the value stands for.
func (v value) events() (first, n int) { return int(v.n >> 32), int(uint32(v.n)) }

// set fills the open dictionary at index at of the stack with what stands above
// it, keys and values in turn. What is no open dictionary is not changed.
func (u *unpickler) set(at int) error {
	const enough = 64 // values of keys that are not known
	items := u.stack[at+1:]
	if len(items)%2 != 0 {
		return u.errorf("a dictionary has a key without a value")
	}
	for i, v := range items {
		if v.kind == kindOpen {
			items[i] = u.resolve(v)
		}
	}
	u.stack = u.stack[:at+1]
	o := u.object(u.stack[at])
	switch {
	case o == nil || !o.isDict:
	case len(o.items)+len(items) <= enough:
		o.items = append(o.items, items...)
	default:
		for i := 0; i < len(items); i += 2 {
			if items[i].isKey() {
				o.items = append(o.items, items[i], items[i+1])
			}
		}
	}
	return nil
}

// settle resolves a dictionary on top of the stack: something comes after it,
// so it is complete. Events that follow each other become one value.
func (u *unpickler) settle() {
	top, bottom := len(u.stack)-1, u.bottom()
	if top < bottom {
		return
	}
	if o := u.object(u.stack[top]); o == nil || !o.isDict {
		return
	}
	v := u.resolve(u.stack[top])
	u.stack[top] = v
	if v.kind != kindEvent || top == bottom || u.stack[top-1].kind != kindEvent {
		return
	}
	row, _ := v.events()
	if first, n := u.stack[top-1].events(); first+n == row {
		u.stack[top-1].n++
		u.stack = u.stack[:top]
	}
}
