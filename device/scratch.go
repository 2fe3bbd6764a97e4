package device

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/internal/invariant"
)

// scratch keeps buffers that kernels borrow, by their size. Sizes are rounded
// up to four steps per power of two, so that kernels with similar needs share
// buffers and a buffer is at most a quarter larger than what was asked for.
type scratch struct {
	mu    sync.Mutex
	free  map[int][][]float32 // by capacity
	bytes uint64              // of all buffers, lent and free
}

// Buffers begin at a multiple of a cache line.
const (
	lineBytes  = 64
	lineFloats = lineBytes / 4
)

// Scratch lends a buffer of n numbers, content undefined, whose first element
// lies at a multiple of 64 bytes. Release gives it back; once a kernel has run,
// running it again allocates nothing.
func (w *Workers) Scratch(n int) []float32 {
	s := &w.scratch
	size := scratchSize(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	buf := s.take(size)[:n]
	if invariant.Enabled {
		for i := range buf {
			buf[i] = float32(math.NaN())
		}
	}
	return buf
}

// take gives a buffer of the size from the free ones, or a new one.
func (s *scratch) take(size int) []float32 {
	free := s.free[size]
	if last := len(free) - 1; last >= 0 {
		s.free[size] = free[:last]
		return free[last]
	}
	s.bytes += uint64(size+lineFloats) * 4
	raw := make([]float32, size+lineFloats)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(raw))) % lineBytes / 4
	return raw[skip : skip+uintptr(size) : skip+uintptr(size)]
}

// Release takes back a buffer that Scratch lent. It must be the slice that
// Scratch returned, or one with the same beginning and capacity.
func (w *Workers) Release(buf []float32) {
	s := &w.scratch
	size := cap(buf)
	if size == 0 || scratchSize(size) != size {
		panic(fmt.Sprintf("device: Release of a buffer with room for %d numbers, which Scratch never lends", size))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free[size] = append(s.free[size], buf[:size])
}

// ScratchBytes is the Go memory in bytes that the buffers of Scratch take, lent
// and free ones together. It never falls.
func (w *Workers) ScratchBytes() uint64 {
	w.scratch.mu.Lock()
	defer w.scratch.mu.Unlock()
	return w.scratch.bytes
}

// scratchSize rounds n up to 5, 6, 7 or 8 times a power of two, and to 64 at least.
func scratchSize(n int) int {
	if n <= 64 {
		return 64
	}
	step := 1 << (bits.Len(uint(n-1)) - 3)
	return (n + step - 1) &^ (step - 1)
}
