package kernel

import (
	"fmt"
	"unsafe"

	"github.com/headroom-go/headroom/device"
)

// chunk is the number of elements that a thread works on at once: enough that
// handing it out costs nothing beside, few enough that the threads end together.
const chunk = 1 << 15

// queue hands l to the stream, which copies it. So l may lie on the caller's
// stack, and queueing allocates nothing.
func queue(s device.Stream, l *device.Launch) {
	s.Launch(noescape(l))
}

// noescape hides l from escape analysis.
func noescape(l *device.Launch) *device.Launch {
	x := uintptr(unsafe.Pointer(l))
	return *(**device.Launch)(unsafe.Pointer(&x))
}

// rowsPerChunk is the number of rows of cols elements that make a chunk.
func rowsPerChunk(cols int) int {
	return max(1, chunk/max(1, cols))
}

// need panics unless each of ps is an address or n is 0.
func need(op string, n int, ps ...Array) {
	if n < 0 {
		panic(fmt.Sprintf("kernel.%s: %d elements", op, n))
	}
	for i, p := range ps {
		if p.Ptr == 0 && n > 0 {
			panic(fmt.Sprintf("kernel.%s: operand %d of %d elements has no address", op, i, n))
		}
	}
}

// needMatrix panics unless rows ≥ 0, cols > 0 and each of ps is an address.
func needMatrix(op string, rows, cols int, ps ...Array) {
	if rows < 0 || cols < 1 {
		panic(fmt.Sprintf("kernel.%s: %d rows of %d elements", op, rows, cols))
	}
	need(op, rows, ps...)
}

// operands makes arrays the launch's operands, from number first on.
func operands(l *device.Launch, first int, arrays ...Array) {
	for i, a := range arrays {
		l.Ptr[first+i], l.Type[first+i] = a.Ptr, a.Type
	}
}

// operandOf is operand i of a launch.
func operandOf(l *device.Launch, i int) Array { return Array{l.Ptr[i], l.Type[i]} }

// bytesOf is the traffic of n elements of four bytes.
func bytesOf(n int) uint64 { return 4 * uint64(n) }

// flag turns a condition into a launch argument.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
