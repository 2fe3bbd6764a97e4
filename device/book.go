package device

import (
	"errors"
	"fmt"
	"iter"
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
// The device's own handles have numbers from 1 on, those that were imported
// from firstImport on, none of them twice.
//
//	used    == granularity · handles.live + Σ plain
//	used    <= capacity
//	mapped  == Σ ranges.mapped, and that is the number of ranges.behind that are not 0
//	maps(h) == number of ranges.behind that are h, at most 1 without Info.Alias
//	aliases == Σ max(maps(h) − 1, 0)
type book struct {
	info       Info
	limit      int // pieces at most, for want of memory mappings; 0: no limit
	used       uint64
	plain      map[Ptr]uint64 // size of each plain allocation
	ranges     []*addresses   // in the order of their start
	mapped     int            // granules of address with memory
	aliases    int            // mappings beyond the first of their handle
	handles    handleTable
	imports    map[Handle]*int // how many addresses each imported handle has
	nextImport Handle
	closed     bool
}

// addresses is a range that Reserve gave.
type addresses struct {
	start  Ptr
	size   uint64
	mapped int      // granules with memory
	behind []Handle // of each granule, 0 for none, up to the last that had one
}

// firstImport is the number of the first imported handle.
const firstImport Handle = 1 << 32

// allocUnit is the alignment of plain allocations; their size counts in it.
const allocUnit = 512

var (
	errClosed    = errors.New("the device is closed")
	errNoVirtual = errors.New("the device has no virtual memory, only Alloc and Free")
)

func newBook(info Info, limit int) book {
	return book{
		info: info, limit: limit, plain: map[Ptr]uint64{},
		imports: map[Handle]*int{}, nextImport: firstImport,
	}
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
	return b.admitPieces(1)
}

// admitPieces says whether n more pieces may be held. A piece is what may take
// memory mappings of its own: a plain allocation, a handle, created or
// imported, and each mapping of a handle beyond its first.
func (b *book) admitPieces(n int) error {
	if pieces := b.handles.live + len(b.imports) + b.aliases + len(b.plain); b.limit > 0 && pieces+n > b.limit {
		return fmt.Errorf("%w: %s holds %d handles, further mappings and allocations, all that a quarter of the system's "+
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
	if err := b.checkExists(h); err != nil {
		return err
	}
	if n := *b.places(h); n > 0 {
		return b.misuse("destruction of handle %d, which is mapped at %#x (%d mappings)", h, uint64(b.place(h)), n)
	}
	return nil
}

func (b *book) destroy(h Handle) {
	if h >= firstImport {
		delete(b.imports, h)
		return
	}
	b.used -= b.info.Granularity
	b.handles.drop(h)
}

// checkImport says whether one more handle may be imported.
func (b *book) checkImport() error {
	if err := b.checkOpen(); err != nil {
		return err
	}
	return b.admitPieces(1)
}

// imported enters an import under the number nextImport.
func (b *book) imported() Handle {
	h := b.nextImport
	b.nextImport++
	b.imports[h] = new(int)
	return h
}

// places points to the number of addresses of h; nil if h does not exist.
func (b *book) places(h Handle) *int {
	if h >= firstImport {
		return b.imports[h]
	}
	return b.handles.places(h)
}

// checkExists says whether h is a handle.
func (b *book) checkExists(h Handle) error {
	if b.places(h) == nil {
		return b.misuse("handle %d does not exist", h)
	}
	return nil
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

// behind gives the handles of n granules from p on, which passed checkSpan, as
// far as the range has had any.
func (b *book) behind(p Ptr, n int) []Handle {
	r, _ := b.find(p)
	from := min(int(uint64(p-r.start)/b.info.Granularity), len(r.behind))
	return r.behind[from:min(from+n, len(r.behind))]
}

// granule gives the address of granule i after p.
func (b *book) granule(p Ptr, i int) Ptr { return p + Ptr(uint64(i)*b.info.Granularity) }

// checkMap says whether the handles may be mapped from p on.
func (b *book) checkMap(p Ptr, handles []Handle) error {
	if err := b.checkSpan(p, len(handles)); err != nil {
		return err
	}
	behind := b.behind(p, len(handles))
	for i, h := range handles {
		if i < len(behind) && behind[i] != 0 {
			return b.misuse("address %#x is mapped already, to handle %d", uint64(b.granule(p, i)), behind[i])
		}
		if err := b.checkExists(h); err != nil {
			return err
		}
	}
	if b.info.Alias {
		return b.checkAliases(handles)
	}
	return b.checkUnmapped(handles)
}

// checkUnmapped says whether the handles are given once and mapped nowhere.
func (b *book) checkUnmapped(handles []Handle) error {
	seen := make(map[Handle]bool, len(handles))
	for _, h := range handles {
		switch {
		case *b.places(h) > 0:
			return b.misuse("handle %d is mapped already, at %#x", h, uint64(b.place(h)))
		case seen[h]:
			return b.misuse("handle %d is given twice", h)
		}
		seen[h] = true
	}
	return nil
}

// checkAliases says whether the system has mappings for those that mapping the
// handles takes beyond the first of each.
func (b *book) checkAliases(handles []Handle) error {
	if b.limit == 0 {
		return nil
	}
	first := map[Handle]bool{}
	for _, h := range handles {
		if *b.places(h) == 0 {
			first[h] = true
		}
	}
	return b.admitPieces(len(handles) - len(first))
}

// place gives the lowest address of h, which has one. It looks at all mapped
// addresses, which errors can afford.
func (b *book) place(h Handle) Ptr {
	for p, other := range b.allMapped() {
		if other == h {
			return p
		}
	}
	return 0
}

// allMapped gives the addresses of granules with memory, ascending, and the
// handle behind each.
func (b *book) allMapped() iter.Seq2[Ptr, Handle] {
	return func(yield func(Ptr, Handle) bool) {
		for _, r := range b.ranges {
			for i, h := range r.behind {
				if h != 0 && !yield(b.granule(r.start, i), h) {
					return
				}
			}
		}
	}
}

func (b *book) mapAt(p Ptr, handles []Handle) {
	r, _ := b.find(p)
	at := int(uint64(p-r.start) / b.info.Granularity)
	if missing := at + len(handles) - len(r.behind); missing > 0 {
		r.behind = append(r.behind, make([]Handle, missing)...)
	}
	copy(r.behind[at:], handles)
	r.mapped += len(handles)
	b.mapped += len(handles)
	for _, h := range handles {
		n := b.places(h)
		if *n++; *n > 1 {
			b.aliases++
		}
	}
}

// checkUnmap gives the handles behind n granules from p on, all of them mapped,
// until unmap.
func (b *book) checkUnmap(p Ptr, n int) ([]Handle, error) {
	if err := b.checkSpan(p, n); err != nil {
		return nil, err
	}
	behind := b.behind(p, n)
	for i := range n {
		if i >= len(behind) || behind[i] == 0 {
			return nil, b.misuse("address %#x is not mapped", uint64(b.granule(p, i)))
		}
	}
	return behind, nil
}

// unmap enters that the granules from p on, behind which handles are, have no
// memory.
func (b *book) unmap(p Ptr, handles []Handle) {
	for _, h := range handles {
		n := b.places(h)
		if *n--; *n > 0 {
			b.aliases--
		}
	}
	clear(b.behind(p, len(handles)))
	r, _ := b.find(p)
	r.mapped -= len(handles)
	b.mapped -= len(handles)
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
	note(len(b.imports), "imported handles", b.info.Granularity*uint64(len(b.imports)))
	note(b.mapped, "mapped granules", b.info.Granularity*uint64(b.mapped))
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
	used := b.info.Granularity * uint64(b.handles.live)
	for _, n := range b.plain {
		used += n
	}
	if used != b.used || used > b.info.Capacity {
		return b.misuse("%d bytes in use by the count of pieces, %d by the book, capacity %d", used, b.used, b.info.Capacity)
	}
	return b.checkMappings()
}

// checkMappings recounts which handles are mapped where.
func (b *book) checkMappings() error {
	reachable, found, maps, aliases := 0, 0, map[Handle]int{}, 0
	for _, r := range b.ranges {
		reachable += r.mapped
	}
	for _, h := range b.allMapped() {
		found++
		if maps[h]++; maps[h] > 1 {
			aliases++
		}
	}
	if reachable != found || b.mapped != found || aliases != b.aliases || aliases > 0 && !b.info.Alias {
		return b.misuse("%d granules are mapped, the ranges count %d, the book %d; %d aliases, the book counts %d", found, reachable, b.mapped, aliases, b.aliases)
	}
	exist := 0
	for h, n := range b.allPlaces() {
		exist++
		if n != maps[h] {
			return b.misuse("handle %d has %d addresses, the book counts %d", h, maps[h], n)
		}
		delete(maps, h)
	}
	if len(maps) > 0 || exist != b.handles.live+len(b.imports) {
		return b.misuse("%d handles exist, the book counts %d and %d imported ones; mapped without existing: %v",
			exist, b.handles.live, len(b.imports), maps)
	}
	return nil
}

// allPlaces gives each handle with the number of its addresses.
func (b *book) allPlaces() iter.Seq2[Handle, int] {
	return func(yield func(Handle, int) bool) {
		for i := range b.handles.maps {
			if n := b.handles.places(Handle(i + 1)); n != nil && !yield(Handle(i+1), *n) {
				return
			}
		}
		for h, n := range b.imports {
			if !yield(h, *n) {
				return
			}
		}
	}
}
