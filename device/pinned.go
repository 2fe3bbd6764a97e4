package device

import (
	"errors"
	"os"

	"github.com/headroom-go/headroom/internal/size"
)

// PinnedHost is host memory whose pages the system keeps in place, for copies
// to and from other devices. Its plain allocations are page-locked; it has no
// virtual memory. An allocation takes its size rounded up to a page of the
// system, no more, and takes it at once, not when it is touched.
//
// The system bounds what a process may lock (RLIMIT_MEMLOCK). Allocations that
// it refuses to lock are given all the same, since all works with them, only
// slower: Unlocked counts them.
//
// Its streams are those of a host device with one worker. Programs need none
// where the streams of another device work on the memory.
type PinnedHost struct {
	HostDevice
	pinned *pinned
}

// OpenPinned opens pinned memory of a capacity in bytes, which is a limit and
// takes nothing yet; it must not be 0. Pages are locked on Linux; on other systems, and under the
// race detector, all memory is unlocked.
func OpenPinned(capacity uint64) (*PinnedHost, error) {
	plain, _, _, limit := systemMemory(capacity, true)
	return openPinned(capacity, plain, limit, lock)
}

// OpenPinnedFor opens pinned memory for copies to and from d: what d's driver
// has locked, where d is a GPU. Close it before d.
func OpenPinnedFor(d Device, capacity uint64) (*PinnedHost, error) {
	if gpu := CUDAOf(d); gpu != nil {
		return gpu.OpenPinned(capacity)
	}
	return OpenPinned(capacity)
}

func openPinned(capacity uint64, plain plainMemory, limit int, lock func(p Ptr, size uint64) error) (*PinnedHost, error) {
	if capacity == 0 {
		return nil, errors.New("pinned memory of 0 bytes: give it a size")
	}
	d := &PinnedHost{pinned: &pinned{plainMemory: plain, lock: lock, unlocked: map[Ptr]uint64{}}}
	info := Info{
		Kind: Host, Name: "pinned:" + size.Exact(capacity), Capacity: capacity,
		Granularity: uint64(os.Getpagesize()), Workers: 1,
	}
	d.start(info, limit, d.pinned, nil)
	return d, nil
}

// Unlocked is the number of bytes in allocations that the system refused to
// lock; 0 means that all memory handed out is page-locked.
func (d *PinnedHost) Unlocked() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var bytes uint64
	for _, n := range d.pinned.unlocked {
		bytes += n
	}
	return bytes
}

// pinned locks plain memory where the system allows it. The field lock is a
// system call that tests replace.
type pinned struct {
	plainMemory
	lock     func(p Ptr, size uint64) error
	unlocked map[Ptr]uint64 // sizes
}

func (m *pinned) alloc(size uint64) (Ptr, error) {
	p, err := m.plainMemory.alloc(size)
	if err == nil && m.lock(p, size) != nil {
		m.unlocked[p] = size
	}
	return p, err
}

// free unlocks, since addresses without memory hold no lock.
func (m *pinned) free(p Ptr, size uint64) error {
	if err := m.plainMemory.free(p, size); err != nil {
		return err
	}
	delete(m.unlocked, p)
	return nil
}
