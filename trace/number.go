package trace

import (
	"fmt"
	"math"
	"strconv"
)

// uint gives a value's number. Negative ones are addresses and sizes that
// PyTorch wrote with a sign.
func (v value) uint() uint64 {
	switch {
	case v.kind == kindInt || v.kind == kindUint || v.kind == kindBool:
		return v.n
	case v.kind != kindFloat:
		return 0
	}
	switch f := math.Float64frombits(v.n); {
	case f >= 1<<64:
		return math.MaxUint64
	case f > 0:
		return uint64(f)
	}
	return 0
}

// int gives a value's number with its sign. Numbers from 2⁶³ on are streams
// that are pointers: they come back from uint64 as they were.
func (v value) int() int64 { return int64(v.uint()) }

// size gives a value's number of bytes. One that is none, or that no memory
// has, is noted; it is read as 0, or as the greatest that can be.
func (r *rows) size(what string, key uint64, v value) uint64 {
	n, sound := v.uint(), false
	switch v.kind {
	case kindInt:
		sound = int64(n) >= 0
		n = uint64(max(int64(n), 0))
	case kindFloat:
		sound = math.Float64frombits(v.n) == float64(n) && n < 1<<63
	}
	if !sound {
		r.odd(what, key, v)
	}
	return n
}

// number gives a value's number, an address, a time or a name. What is no number
// is noted.
func (r *rows) number(what string, key uint64, v value) uint64 {
	if v.kind < kindInt {
		r.odd(what, key, v)
	}
	return v.uint()
}

// odd notes a value that is not what its key says.
func (r *rows) odd(what string, key uint64, v value) {
	if r.oddities.Count++; r.oddities.Count == 1 {
		r.oddities.First = fmt.Sprintf("the %s of the %s at byte %d is %s", keyNames[key], what, r.op, r.show(v))
	}
}

// show gives a value for a message.
func (r *rows) show(v value) string {
	switch v.kind {
	case kindText:
		return fmt.Sprintf("the text %q", printable([]byte(r.string(v))))
	case kindInt:
		return strconv.FormatInt(int64(v.n), 10)
	case kindUint:
		return "2⁶³ or more"
	case kindFloat:
		return strconv.FormatFloat(v.float(), 'g', -1, 64)
	case kindBool:
		return "a truth value"
	}
	return "missing, or no number"
}

// float gives a value's number.
func (v value) float() float64 {
	switch v.kind {
	case kindFloat:
		return math.Float64frombits(v.n)
	case kindInt:
		return float64(int64(v.n))
	}
	return float64(v.uint())
}
