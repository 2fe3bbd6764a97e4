package trace

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
)

// list and dict are decoded by reference, so that sharing can be seen.
type (
	list = *[]any
	dict = map[string]any
)

// unpickle runs the instructions of pickle.go, and those alone, over b. It is
// written from their definition and shares nothing with the writer.
func unpickle(b []byte) (result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bad pickle: %v", r)
		}
	}()
	var stack, memo []any
	var marks []int
	push := func(v any) { stack = append(stack, v) }
	take := func(n int) []byte { v := b[:n]; b = b[n:]; return v }
	u32 := func() int { return int(binary.LittleEndian.Uint32(take(4))) }
	sinceMark := func() []any {
		at := marks[len(marks)-1]
		marks = marks[:len(marks)-1]
		items := append([]any(nil), stack[at:]...)
		stack = stack[:at]
		return items
	}
	if string(take(2)) != "\x80\x04" {
		return nil, fmt.Errorf("not protocol 4")
	}
	for {
		switch op := take(1)[0]; op {
		case '.':
			if len(stack) != 1 || len(marks) != 0 || len(b) != 0 {
				return nil, fmt.Errorf("stop with %d values, %d marks, %d bytes left", len(stack), len(marks), len(b))
			}
			return stack[0], nil
		case '(':
			marks = append(marks, len(stack))
		case 'K':
			push(uint64(take(1)[0]))
		case 'M':
			push(uint64(binary.LittleEndian.Uint16(take(2))))
		case 'J':
			if v := int32(u32()); v < 0 {
				push(int64(v))
			} else {
				push(uint64(v))
			}
		case 0x8a:
			v := take(int(take(1)[0]))
			n := new(big.Int)
			for i := len(v) - 1; i >= 0; i-- {
				n.Or(n.Lsh(n, 8), big.NewInt(int64(v[i])))
			}
			if v[len(v)-1] >= 0x80 {
				n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(v))))
			}
			switch {
			case n.IsUint64():
				push(n.Uint64())
			case n.IsInt64():
				push(n.Int64())
			default:
				return nil, fmt.Errorf("%v is too large", n)
			}
		case 'G':
			push(math.Float64frombits(binary.BigEndian.Uint64(take(8))))
		case 0x88, 0x89:
			push(op == 0x88)
		case 0x8c:
			push(string(take(int(take(1)[0]))))
		case 'X':
			push(string(take(u32())))
		case ']':
			push(list(new([]any)))
		case '}':
			push(dict{})
		case 0x86:
			n := len(stack) - 2
			stack = append(stack[:n], any([2]any{stack[n], stack[n+1]}))
		case 'e':
			items := sinceMark()
			l := stack[len(stack)-1].(list)
			*l = append(*l, items...)
		case 'u':
			items := sinceMark()
			d := stack[len(stack)-1].(dict)
			for i := 0; i < len(items); i += 2 {
				d[items[i].(string)] = items[i+1]
			}
		case 0x94:
			memo = append(memo, stack[len(stack)-1])
		case 'h':
			push(memo[take(1)[0]])
		case 'j':
			push(memo[u32()])
		default:
			return nil, fmt.Errorf("instruction %#x is not ours", op)
		}
	}
}
