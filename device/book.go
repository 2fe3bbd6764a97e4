package device

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
)

// A book knows the state of all memory of a device: what was allocated,
// reserved, created and mapped. It holds the rules of device.go and touches no
// memory itself. Its methods come in pairs: check… says whether a step is
// allowed and changes nothing; the other one enters the step, which was
// checked and has been carried out. The caller holds the device's lock.
//
//	used           == granularity · handles.live + Σ plain
//	used           <= capacity
//	len(mapped)    == number of handles with an address == Σ ranges.mapped
//	mapped[p] == h <=> handles.at(h) == p
type book struct {
	info    Info
	limit   int // handles and plain allocations at most, for want of memory mappings; 0: no limit
	used    uint64
	plain   map[Ptr]uint64 // size of each plain allocation
	ranges  []*addresses   // in the order of their start
	mapped  map[Ptr]Handle // the handle behind each granule of address that has one
	handles handleTable
	closed  bool
}

// addresses is a range that Reserve gave.
type addresses struct {
	start  Ptr
	size   uint64
	mapped int // granules with memory
}

// allocUnit is the alignment of plain allocations; their size counts in it.
const allocUnit = 512

var (
	errClosed    = errors.New("the device is closed")
	errNoVirtual = errors.New("the device has no virtual memory, only Alloc and Free")
)

func newBook(info Info, limit int) book {
	return book{info: info, limit: limit, plain: map[Ptr]uint64{}, mapped: map[Ptr]Handle{}}
}

// misuse makes an error for a call that the state does not allow.
func (b *book) misuse(format string, args ...any) error {
	return fmt.Errorf("device %s: %w", b.info.Name, fmt.Errorf(format, args...))
}

// checkOpen says whether the device is open.
func (b *book) checkOpen() error {
	if b.closed {
		return b.misuse("%w", errClosed)
	}
	return nil
}

// admit says whether bytes more memory may be taken, in one piece.
func (b *book) admit(bytes uint64) error {
	if err := b.checkOpen(); err != nil {
		return err
	}
	if free := b.info.Capacity - b.used; bytes > free {
		return fmt.Errorf("%w: %s asked of %s, which has %s free of %s",
			ErrOutOfMemory, size.Format(bytes), b.info.Name, size.Format(free), size.Format(b.info.Capacity))
	}
	if pieces := b.handles.live + len(b.plain); b.limit > 0 && pieces >= b.limit {
		return fmt.Errorf("%w: %s holds %d handles and allocations, all that a quarter of the system's "+
			"memory mappings allow: raise vm.max_map_count with sysctl or allocate fewer, larger pieces",
			ErrOutOfMemory, b.info.Name, pieces)
	}
	return nil
}

// checkAlloc gives the bytes that an allocation of n counts.
func (b *book) checkAlloc(n uint64) (uint64, error) {
	if n == 0 {
		return 0, b.misuse("allocation of 0 bytes")
	}
	rounded := (n + allocUnit - 1) &^ (allocUnit - 1)
	if rounded < n {
		rounded = n // no device has it: admit says so
	}
	return rounded, b.admit(rounded)
}

func (b *book) alloc(p Ptr, n uint64) {
	b.plain[p] = n
	b.used += n
}

// checkFree gives the size of the allocation at p.
func (b *book) checkFree(p Ptr) (uint64, error) {
	n, ok := b.plain[p]
	if !ok {
		return 0, b.misuse("free of %#x, which is no allocation", uint64(p))
	}
	return n, nil
}

func (b *book) free(p Ptr) {
	b.used -= b.plain[p]
	delete(b.plain, p)
}

// checkReserve says whether n bytes of addresses may be reserved.
func (b *book) checkReserve(n uint64) error {
	if err := b.checkOpen(); err != nil {
		return err
	}
	switch {
	case !b.info.Virtual:
		return b.misuse("%w", errNoVirtual)
	case n == 0 || n%b.info.Granularity != 0:
		return b.misuse("reservation of %d bytes, which is no multiple of the granularity of %s",
			n, size.Format(b.info.Granularity))
	}
	return nil
}

func (b *book) reserve(p Ptr, n uint64) {
	i := sort.Search(len(b.ranges), func(i int) bool { return b.ranges[i].start > p })
	b.ranges = slices.Insert(b.ranges, i, &addresses{start: p, size: n})
}

// find gives the range that holds address p, or nil, and its place.
func (b *book) find(p Ptr) (*addresses, int) {
	i := sort.Search(len(b.ranges), func(i int) bool { return b.ranges[i].start > p }) - 1
	if i < 0 || uint64(p-b.ranges[i].start) >= b.ranges[i].size {
		return nil, -1
	}
	return b.ranges[i], i
}

// checkRelease gives the size of the range that starts at p.
func (b *book) checkRelease(p Ptr) (uint64, error) {
	r, _ := b.find(p)
	switch {
	case r == nil || r.start != p:
		return 0, b.misuse("release of %#x, where no reserved range starts", uint64(p))
	case r.mapped > 0:
		return 0, b.misuse("release of the range at %#x, in which %d granules are mapped", uint64(p), r.mapped)
	}
	return r.size, nil
}

func (b *book) release(p Ptr) {
	_, i := b.find(p)
	b.ranges = slices.Delete(b.ranges, i, i+1)
}

// checkCreate says whether one more handle may be created.
func (b *book) checkCreate() error {
	if !b.info.Virtual {
		return b.misuse("%w", errNoVirtual)
	}
	return b.admit(b.info.Granularity)
}

func (b *book) create() Handle {
	b.used += b.info.Granularity
	return b.handles.take()
}

// checkDestroy says whether h is a handle that is mapped nowhere.
func (b *book) checkDestroy(h Handle) error {
	if !b.handles.has(h) {
		return b.misuse("handle %d does not exist", h)
	}
	if p := b.handles.at[h-1]; p != 0 {
		return b.misuse("destruction of handle %d, which is mapped at %#x", h, uint64(p))
	}
	return nil
}

func (b *book) destroy(h Handle) {
	b.used -= b.info.Granularity
	b.handles.drop(h)
}

// checkSpan says whether n granules from p on lie in one reserved range.
func (b *book) checkSpan(p Ptr, n int) error {
	r, _ := b.find(p)
	switch {
	case n < 1:
		return b.misuse("span of %d granules", n)
	case r == nil:
		return b.misuse("address %#x is not reserved", uint64(p))
	case uint64(p-r.start)%b.info.Granularity != 0:
		return b.misuse("address %#x is no multiple of the granularity of %s from the start %#x of its range",
			uint64(p), size.Format(b.info.Granularity), uint64(r.start))
	case uint64(n) > (r.size-uint64(p-r.start))/b.info.Granularity:
		return b.misuse("%d granules from %#x on pass the end %#x of the range", n, uint64(p), uint64(r.start)+r.size)
	}
	return nil
}

// granule gives the address of granule i after p.
func (b *book) granule(p Ptr, i int) Ptr { return p + Ptr(uint64(i)*b.info.Granularity) }

// checkMap says whether the handles may be mapped from p on.
func (b *book) checkMap(p Ptr, handles []Handle) error {
	if err := b.checkSpan(p, len(handles)); err != nil {
		return err
	}
	seen := make(map[Handle]bool, len(handles))
	for i, h := range handles {
		q := b.granule(p, i)
		switch {
		case b.mapped[q] != 0:
			return b.misuse("address %#x is mapped already, to handle %d", uint64(q), b.mapped[q])
		case !b.handles.has(h):
			return b.misuse("handle %d does not exist", h)
		case b.handles.at[h-1] != 0:
			return b.misuse("handle %d is mapped already, at %#x", h, uint64(b.handles.at[h-1]))
		case seen[h]:
			return b.misuse("handle %d is given twice", h)
		}
		seen[h] = true
	}
	return nil
}

func (b *book) mapAt(p Ptr, handles []Handle) {
	r, _ := b.find(p)
	r.mapped += len(handles)
	for i, h := range handles {
		b.mapped[b.granule(p, i)] = h
		b.handles.at[h-1] = b.granule(p, i)
	}
}

// checkUnmap gives the handles behind n granules from p on, all of them mapped.
func (b *book) checkUnmap(p Ptr, n int) ([]Handle, error) {
	if err := b.checkSpan(p, n); err != nil {
		return nil, err
	}
	handles := make([]Handle, n)
	for i := range handles {
		h, ok := b.mapped[b.granule(p, i)]
		if !ok {
			return nil, b.misuse("address %#x is not mapped", uint64(b.granule(p, i)))
		}
		handles[i] = h
	}
	return handles, nil
}

func (b *book) unmap(p Ptr, handles []Handle) {
	r, _ := b.find(p)
	r.mapped -= len(handles)
	for i, h := range handles {
		delete(b.mapped, b.granule(p, i))
		b.handles.at[h-1] = 0
	}
}

// leaks is an error that names what has not been given back, or nil.
func (b *book) leaks() error {
	var left []string
	note := func(n int, what string, bytes uint64) {
		if n > 0 {
			left = append(left, fmt.Sprintf("%d %s (%s)", n, what, size.Format(bytes)))
		}
	}
	var plain, reserved uint64
	for _, n := range b.plain {
		plain += n
	}
	for _, r := range b.ranges {
		reserved += r.size
	}
	note(len(b.plain), "allocations", plain)
	note(len(b.ranges), "reserved ranges", reserved)
	note(b.handles.live, "handles", b.info.Granularity*uint64(b.handles.live))
	note(len(b.mapped), "mapped granules", b.info.Granularity*uint64(len(b.mapped)))
	if left == nil {
		return nil
	}
	return b.misuse("closed with %s", strings.Join(left, ", "))
}

// close empties the book for good.
func (b *book) close() {
	*b = newBook(b.info, b.limit)
	b.closed = true
}

// check recounts the book and returns an error if an equation does not hold.
func (b *book) check() error {
	used, reachable := b.info.Granularity*uint64(b.handles.live), 0
	for _, n := range b.plain {
		used += n
	}
	for _, r := range b.ranges {
		reachable += r.mapped
	}
	if used != b.used || used > b.info.Capacity {
		return b.misuse("%d bytes in use by the count of pieces, %d by the book, capacity %d", used, b.used, b.info.Capacity)
	}
	for p, h := range b.mapped {
		if !b.handles.has(h) || b.handles.at[h-1] != p {
			return b.misuse("address %#x is mapped to handle %d, which is elsewhere", uint64(p), h)
		}
	}
	if placed := b.handles.placed(); placed != len(b.mapped) || placed != reachable {
		return b.misuse("%d handles have an address, %d addresses a handle, the ranges count %d", placed, len(b.mapped), reachable)
	}
	return nil
}
