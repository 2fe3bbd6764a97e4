//go:build linux && !race

// Host memory on Linux.
//
// # Virtual memory
//
// The kernel moves pages from one address to another without copying them
// (mremap). A handle is one granule of anonymous memory that lives at a fixed
// place, its slot in a staging range as large as the device's capacity; Map
// moves the pages from the slot to the address, Unmap moves them back:
//
//	staging  [ h1 | h2 |    | h4 ]      h3 is mapped: its slot is empty
//	range    [ no access | h3 | no access ]
//
// A move leaves its source in place as empty memory (MREMAP_DONTUNMAP, Linux
// 5.7). Without that the addresses would be free for a moment, any other mmap
// of the process could get them, and moving back would overwrite it. At the
// slot the empty memory just waits. In the range it must not be touched, since
// touching would take memory that nobody counted, so Unmap puts a fence of
// inaccessible addresses over it.
//
// Creating a handle costs no system call: the slot's memory comes into being
// when it is first touched, in huge pages where the system has them. That
// happens in the kernels, on all workers, instead of on the goroutine that
// allocates; taking it beforehand (MADV_POPULATE_WRITE) costs the same time
// per page. Destroying a handle drops its pages (MADV_DONTNEED).
//
// # Mapping records
//
// The kernel allows vm.max_map_count separate mappings per process, and at
// that limit the Go runtime itself dies. A granule mapped out of order between
// two holes takes two. So handles and plain allocations together stay under a
// quarter of the limit, and the granularity grows where the capacity would not
// fit otherwise.

package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// systemMemory gives the memory of this system for a device of the capacity,
// its granularity and the greatest number of its pieces. virtual is nil where
// the kernel cannot move memory, or where plainOnly asks for that.
func systemMemory(capacity uint64, plainOnly bool) (plain plainMemory, virtual virtualMemory, granularity uint64, limit int) {
	granularity, limit = granules(capacity)
	if plainOnly {
		return pages{}, nil, granularity, limit
	}
	s, err := newStaging(capacity, granularity)
	if err != nil {
		return pages{}, nil, granularity, limit
	}
	return pages{}, s, granularity, limit
}

// pages is plain memory in pages of the system.
type pages struct{}

func (pages) alloc(size uint64) (Ptr, error) {
	if size >= hugePage {
		return mmapAligned(size, hugePage, readWrite)
	}
	return mmapAligned(size, uint64(os.Getpagesize()), readWrite)
}

func (pages) free(p Ptr, size uint64) error { return munmap(p, size) }

// lock keeps the pages of plain memory in the machine's memory, or leaves them
// as they are and returns an error.
func lock(p Ptr, size uint64) error {
	b := Bytes(p, int(size))
	err := unix.Mlock(b)
	if err != nil {
		_ = unix.Munlock(b) // what was locked before the failure
	}
	return os.NewSyscallError("mlock", err)
}

// staging is virtual memory: a slot for each handle, at base + granularity ·
// (handle − 1). The fields move and fence are system calls that tests replace.
type staging struct {
	base        Ptr
	size        uint64
	granularity uint64
	move        func(from, to Ptr, size uint64) error
	fence       func(p Ptr, size uint64) error
}

// newStaging fails where the system has no room for the staging range or
// cannot move memory as attach needs.
func newStaging(capacity, granularity uint64) (*staging, error) {
	size := max(capacity&^(granularity-1), granularity)
	base, err := mmapAligned(size, granularity, readWrite)
	if err != nil {
		return nil, err
	}
	s := &staging{base: base, size: size, granularity: granularity, move: move, fence: fence}
	if err := s.try(); err != nil {
		return nil, errors.Join(err, munmap(base, size))
	}
	return s, nil
}

// try maps and unmaps one handle.
func (s *staging) try() error {
	p, err := s.reserve(s.granularity)
	if err != nil {
		return err
	}
	defer s.release(p, s.granularity)
	handle := []Handle{1}
	if err := s.attach(p, handle); err != nil {
		return err
	}
	return s.detach(p, handle)
}

func (s *staging) slot(h Handle) Ptr { return s.base + Ptr((uint64(h)-1)*s.granularity) }

func (s *staging) reserve(size uint64) (Ptr, error) {
	return mmapAligned(size, s.granularity, unix.PROT_NONE)
}

func (s *staging) release(p Ptr, size uint64) error { return munmap(p, size) }

func (s *staging) attach(p Ptr, handles []Handle) error {
	if err := s.moveAll(s.moves(p, handles)); err != nil {
		return errors.Join(err, s.fence(p, uint64(len(handles))*s.granularity))
	}
	return nil
}

func (s *staging) detach(p Ptr, handles []Handle) error {
	moves := s.moves(p, handles)
	for i, m := range moves {
		moves[i] = relocation{m.to, m.from}
	}
	if err := s.moveAll(moves); err != nil {
		return err
	}
	if err := s.fence(p, uint64(len(handles))*s.granularity); err != nil {
		s.undo(moves)
		return err
	}
	return nil
}

// relocation is one granule's way.
type relocation struct{ from, to Ptr }

// moves lists the ways of the handles from their slots to p and what follows.
func (s *staging) moves(p Ptr, handles []Handle) []relocation {
	moves := make([]relocation, len(handles))
	for i, h := range handles {
		moves[i] = relocation{s.slot(h), p + Ptr(uint64(i)*s.granularity)}
	}
	return moves
}

// moveAll makes all moves or, when one fails, none.
func (s *staging) moveAll(moves []relocation) error {
	for i, m := range moves {
		if err := s.move(m.from, m.to, s.granularity); err != nil {
			s.undo(moves[:i])
			return err
		}
	}
	return nil
}

// undo takes moves back. Where that fails nobody can say any more which memory
// lies where.
func (s *staging) undo(moves []relocation) {
	for _, m := range moves {
		if err := s.move(m.to, m.from, s.granularity); err != nil {
			panic(fmt.Sprintf("device: memory that had been moved from %#x to %#x cannot be moved back: %v", m.from, m.to, err))
		}
	}
}

// create leaves it to the first touch to take memory.
func (s *staging) create(Handle) error { return nil }

func (s *staging) discard(h Handle) error {
	return os.NewSyscallError("madvise", unix.Madvise(Bytes(s.slot(h), int(s.granularity)), unix.MADV_DONTNEED))
}

func (s *staging) close() error { return munmap(s.base, s.size) }

// move takes the pages at from to to, and leaves empty memory at from.
func move(from, to Ptr, size uint64) error {
	const flags = unix.MREMAP_MAYMOVE | unix.MREMAP_FIXED | unix.MREMAP_DONTUNMAP
	n := uintptr(size)
	_, err := unix.MremapPtr(from.pointer(), n, to.pointer(), n, flags)
	return os.NewSyscallError("mremap", err)
}
