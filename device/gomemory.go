//go:build !linux || race

package device

import (
	"errors"
	"math"
	"os"
	"unsafe"

	"github.com/headroom-go/headroom/internal/invariant"
)

// goMemory is plain memory from Go's heap: for systems without the calls of
// pages_linux.go, and for builds with the race detector, which sees no other
// memory.
type goMemory map[Ptr][]byte

// systemMemory gives the memory of this system for a device of the capacity.
// There is no virtual memory and no limit on the number of pieces.
func systemMemory(capacity uint64, plainOnly bool) (plain plainMemory, virtual virtualMemory, granularity uint64, limit int) {
	return goMemory{}, nil, 2 << 20, 0
}

func (m goMemory) alloc(size uint64) (Ptr, error) {
	if size > math.MaxInt-allocUnit {
		return 0, os.ErrInvalid
	}
	raw := make([]byte, size+allocUnit)
	if invariant.Slow {
		fillNaN(raw)
	}
	first := address(unsafe.Pointer(unsafe.SliceData(raw)))
	p := (first + allocUnit - 1) &^ (allocUnit - 1)
	m[p] = raw
	return p, nil
}

func (m goMemory) free(p Ptr, size uint64) error {
	delete(m, p)
	return nil
}

// lock cannot keep pages of Go's heap in the machine's memory.
func lock(p Ptr, size uint64) error { return errors.ErrUnsupported }

// fillNaN sets every float32 to a NaN, so that a kernel that reads what nobody
// wrote shows. len(b) is not 0. Nobody else knows b yet, and the race detector
// would take seconds for a gigabyte.
//
//go:norace
func fillNaN(b []byte) {
	b[0] = 0xff
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
