package device

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugePage        = 2 << 20
	defaultMapLimit = 65530 // Linux's vm.max_map_count
	private         = unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE
	readWrite       = unix.PROT_READ | unix.PROT_WRITE
)

// granules gives the granularity for a device of the capacity and the greatest
// number of its pieces (see "Mapping records" in pages_linux.go).
func granules(capacity uint64) (granularity uint64, limit int) {
	limit = mapLimit() / 4
	granularity = hugePage
	for capacity/granularity > uint64(limit) {
		granularity *= 2
	}
	return granularity, limit
}

// mapLimit is the number of mappings that this process may have.
func mapLimit() int {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	n, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || bad != nil || n < 4 {
		return defaultMapLimit
	}
	return n
}

// fence makes addresses of the process inaccessible and drops what was there.
func fence(p Ptr, size uint64) error {
	_, err := unix.MmapPtr(-1, 0, p.pointer(), uintptr(size), unix.PROT_NONE, private|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}

// mmapAligned gives fresh addresses at a multiple of align, a power of two.
// From the size of a huge page on, they ask for huge pages.
func mmapAligned(size, align uint64, access int) (Ptr, error) {
	page := uint64(os.Getpagesize())
	size = (size + page - 1) &^ (page - 1)
	length := size + align
	if length < align || uint64(uintptr(length)) != length {
		return 0, os.NewSyscallError("mmap", unix.ENOMEM)
	}
	raw, err := unix.MmapPtr(-1, 0, nil, uintptr(length), access, private)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	first := address(raw)
	p := (first + Ptr(align) - 1) &^ Ptr(align-1)
	err = errors.Join(munmap(first, uint64(p-first)), munmap(p+Ptr(size), align-uint64(p-first)))
	if err == nil && size >= hugePage {
		// Without huge pages all works, but slower: an error is no matter.
		_ = unix.Madvise(unsafe.Slice((*byte)(p.pointer()), size), unix.MADV_HUGEPAGE)
	}
	return p, err
}

func munmap(p Ptr, size uint64) error {
	if size == 0 {
		return nil
	}
	return os.NewSyscallError("munmap", unix.MunmapPtr(p.pointer(), uintptr(size)))
}
