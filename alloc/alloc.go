// The design of the allocator.
//
// An allocator takes memory from a device in large pieces and hands it out in
// blocks. It is judged by three things: reserved / live at the peak, the time
// of Alloc and Free, and that it never fails while the bytes are there.
//
// Addresses and memory are separate. On a device with virtual memory a pool
// reserves a range of addresses larger than the device's memory (segment), and
// maps handles of one page into it (virtual.go). In address order it looks
// like this; every hole can give its whole pages to a request anywhere:
//
//	page     |         |         |         |         |         |         |
//	block    [live][fre][live        ][ free      ][   unbacked   ][live][…
//	backed   ·····································                ·······
//
// On other devices a segment is one plain allocation (plain.go). The two are
// sources: they make free blocks where there are none and give wholly free
// memory back. Everything else is the same for both.
//
// # How a request climbs
//
// A request is rounded up to a multiple of 512 bytes. Those of up to 64 KiB go
// to the small pool, others to the large one. Then, until one step gives a
// free block:
//
//  1. the place that a plan has for it, if one is followed (plan.go)
//  2. where the same request of an earlier step was, if that is free and its
//     stream may use it at once (repeat.go). Nearly every request of a repeating
//     step ends here.
//  3. from four pages on, what was stitched for an earlier request of its size,
//     if its stream may use that at once (view.go)
//  4. best fit among the blocks that its stream may use at once
//  5. finished frees: look how far other streams have come, and again
//  6. frees that are not finished: take a block that others may still use, that
//     of an earlier step if it is one, and make the stream wait for them, on
//     the device
//  7. pending frees: the same for blocks that Use was called for
//  8. what was stitched for an earlier request, whoever uses it
//  9. the source grows. It stitches the parts of several holes, or maps pages
//     of other holes behind the gap that needs the fewest, whichever uses up
//     fewer whole pages (stitch.go), and creates handles only when no wholly
//     free page is left: reserved never grows while enough whole pages are
//     free. A device without virtual memory first gives back its wholly free
//     segments.
//  10. what is left in any shape: unaligned, or in the other pool
//  11. the memory of the plan, which is given up
//  12. the evictors, after each of which all begins anew
//  13. an OutOfMemoryError which says why
//
// A request of exactly n pages starts on a page, so that equal large blocks do
// not straddle: on measured traces this and the small pool are worth up to 4 %
// of reserved memory. Other sizes are packed without a gap.
//
// Which block is chosen in steps 1 to 4, 8 and 9 does not depend on how far the device
// has come, so a program that uses one stream gets the same addresses and
// peaks on every run and on every device, the null device included. Where a
// page changes its place, the host waits for the work that may touch it.
//
// # How a free comes back
//
// Free records where in its stream the block was freed (stream.go, Note
// [Stream order]) and joins the block with its free neighbours at once. If
// Use told of other streams, the block is pending until they have passed the
// place where they were at the time of Free.
//
// # Failing
//
// Growing is a sequence of driver calls, each of which may fail. The source
// undoes what it did in reverse order, so a failed request leaves what was
// before it. If undoing fails as well, pages stay without addresses (spare) or
// addresses without pages: less is usable, nothing is wrong.
//
// Out of scope: memory that other libraries take.
//
// See types.go for the vocabulary and the equations.

// Package alloc turns few large reservations into many stream-ordered blocks
// and accounts for every byte.
package alloc

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/trace"
)

// Options are the choices of an allocator. The zero value is the default.
type Options struct {
	Limit         uint64  // bytes reserved at most; 0: LimitFraction
	LimitFraction float64 // the same as a share of the device's capacity, up to 1; 0: all of it
	SoftLimit     uint64  // bytes reserved that Step trims to where it can; 0: no such limit
	TrimEvery     int     // number of Steps after which all that is wholly free is given back; 0: never
	Preallocate   uint64  // bytes that New reserves
	PlanSteps     bool    // place what repeats from Step to Step by a plan; making one may take some tenths of a second
	NoVirtual     bool    // use plain allocations even where the device has virtual memory

	Sink       trace.Sink // receives every event; nil: none
	StackDepth int        // frames recorded with each Alloc and Free event; 0: none
	StackRate  uint64     // bytes allocated for one recorded stack, on average; 0: every stack. Sites then tell of the recorded blocks alone.
}

// Allocator hands out the memory of a device. Its methods may be called from
// several goroutines at once.
//
// Streams must stay open as long as the allocator. Besides Wait on the stream
// that Alloc is called for, the allocator calls Record on streams: in Free on
// those of the block, and where it has to know when older work is done, in any
// method, on any stream that it knows.
type Allocator struct {
	dev      device.Device
	limit    uint64
	page     uint64 // multiples of it start on one; 0 without virtual memory
	pageBits int    // log of the unit by which segments find their blocks

	mu       sync.Mutex
	closed   bool
	source   source
	options  Options
	pools    []*pool // for small blocks, for others, and those of NewPool
	segments []*segment
	views    views
	streams  []*stream // by ID; nil where none was seen
	nstreams int       // that are not nil
	pending  []*Block
	progress uint64 // number of events that streams were seen to pass,
	settled  uint64 // … when pending was last gone through,
	sorted   uint64 // … when free blocks were last sorted by class
	stats    Stats
	unused   *Block   // dead blocks
	scratch  []*Block // of refresh and the source

	planned    *planned   // nil: no plan is followed
	recording  *recording // of this step; nil: none
	steps      steps
	recordings uint64
	failures   int // plans in a row that did not hold
	pause      int // steps until the next recording

	evictors []*Evictor
	evicting bool

	sink    trace.Sink
	high    High      // since it was taken
	pcs     []uintptr // room for StackDepth frames
	stacks  trace.Stacks
	quiet   uint64    // bytes to be allocated before the next stack is recorded
	time    int64     // of the present operation, in microseconds since 1970
	start   time.Time // when the allocator was opened,
	startUS int64     // … in microseconds since 1970
}

// source makes free blocks of the device's memory.
type source interface {
	// grow makes room for r and gives a free block of its size that is in no
	// tree. When it fails the allocator is as before; the error is or wraps
	// device.ErrOutOfMemory if memory is missing.
	grow(r request) (*Block, error)
	// kept gives the same without taking or mapping anything, from what was
	// stitched for an earlier request of this size; nil if there is none.
	kept(r request, w when) *Block
	// prepare takes size bytes from the device, or a little more.
	prepare(size uint64) error
	// trim gives wholly free memory back until no more than keep bytes are
	// reserved, and says how many bytes.
	trim(keep uint64) (uint64, error)
	// close gives everything back. No work is queued.
	close() error
	// unplaced is the bytes taken from the device that are behind no address.
	unplaced() uint64
	// check recounts what the source took from the device.
	check() error
}

// errLimit says that a request does not fit the limit.
var errLimit = fmt.Errorf("%w: limit of the allocator", device.ErrOutOfMemory)

// errClosed and errDestroyed are returned by what comes too late.
var (
	errClosed    = errors.New("allocator is closed")
	errDestroyed = errors.New("pool is destroyed")
)

// New gives an allocator of the device's memory. The device must outlive it.
// It fails if the granularity of the device is no power of two of 512 or more,
// or if there is no memory for Preallocate.
func New(dev device.Device, o Options) (*Allocator, error) {
	if !(o.LimitFraction >= 0 && o.LimitFraction <= 1) {
		return nil, fmt.Errorf("limit fraction %g is not between 0 and 1", o.LimitFraction)
	}
	a := &Allocator{dev: dev, limit: o.limit(dev.Info().Capacity), options: o, start: time.Now()}
	a.startUS = a.start.UnixMicro()
	for i := range 2 {
		a.addPool(&pool{small: i == 0})
	}
	a.SetSink(o.Sink, o.StackDepth)
	if err := a.openSource(); err != nil {
		return nil, err
	}
	if o.PlanSteps && a.page > 0 {
		a.startRecording()
	}
	if o.Preallocate > 0 {
		if err := a.Reserve(o.Preallocate); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// limit gives the bytes that may be reserved.
func (o *Options) limit(capacity uint64) uint64 {
	switch {
	case o.Limit > 0:
		return min(o.Limit, capacity)
	case o.LimitFraction > 0:
		return uint64(o.LimitFraction * float64(capacity))
	}
	return capacity
}

// openSource chooses where memory comes from.
func (a *Allocator) openSource() error {
	info := a.dev.Info()
	if !info.Virtual || a.options.NoVirtual {
		a.source, a.pageBits = &plain{a: a}, bits.TrailingZeros64(plainUnit)
		return nil
	}
	if g := info.Granularity; g < unit || g&(g-1) != 0 {
		return fmt.Errorf("granularity of %s is %d, no power of two of %d or more", info.Name, g, unit)
	}
	a.page, a.pageBits = info.Granularity, bits.TrailingZeros64(info.Granularity)
	a.limit = roundDown(a.limit, a.page)
	a.source = newVirtual(a, info.Alias)
	return nil
}

// Device gives the device.
func (a *Allocator) Device() device.Device { return a.dev }

// Alloc hands out size bytes, aligned to 512 bytes, content undefined, for
// work on s. size is at least 1, or it panics. The error is an
// *OutOfMemoryError or one of the device; nothing live has changed then, but
// climbing the ladder may have settled frees, moved pages, and given up a plan.
func (a *Allocator) Alloc(size uint64, p trace.Purpose, s device.Stream) (*Block, error) {
	return a.alloc(nil, size, p, s)
}

// alloc is Alloc from a pool, or from the default ones.
func (a *Allocator) alloc(from *pool, size uint64, p trace.Purpose, s device.Stream) (*Block, error) {
	if size == 0 || int(p) >= trace.NumPurposes {
		panic(fmt.Sprintf("alloc: Alloc of %d bytes for purpose %d", size, p))
	}
	a.begin()
	defer a.unlock()
	if a.closed {
		return nil, errClosed
	}
	r := a.request(from, size, s)
	if from == nil && a.steps.last != nil {
		r.turn = a.steps.next(r.size)
	}
	a.settleFinished()
	b, err := a.obtain(&r)
	for err != nil && a.evict(&r, err) {
		b, err = a.obtain(&r)
	}
	if err != nil {
		return nil, a.failed(size, p, r.stream, err)
	}
	a.order(r.stream, b.uses)
	b.state, b.stream, b.purpose, b.asked = live, r.stream, p, size
	b.uses, b.users, b.stack = b.uses[:0], b.users[:0], nil
	a.stats.alloc(b)
	a.high.raise(&a.stats)
	r.turn.note(b)
	if a.recording != nil && from == nil {
		a.recording.start(b)
	}
	a.record(trace.Alloc, b, 2)
	return b, nil
}

// request is size bytes as the pools know it. A size that no memory holds
// becomes one that no source can give.
func (a *Allocator) request(from *pool, size uint64, s device.Stream) request {
	r := request{size: math.MaxInt64 &^ (unit - 1), align: unit, pool: from, stream: a.known(s)}
	if size < r.size {
		r.size = roundUp(size, unit)
	}
	switch {
	case from != nil:
	case r.size <= smallMax:
		r.pool = a.pools[0]
	default:
		r.pool = a.pools[1]
	}
	if r.size&(a.page-1) == 0 {
		r.align = a.page
	}
	return r
}

// Free gives the block back, in the order of its stream: work queued there
// before may still use it. It must not run at the same time as calls that
// queue work on the block's streams. Freeing a block twice panics where it can
// be told.
func (b *Block) Free() {
	a := b.lock("Free")
	defer a.unlock()
	a.record(trace.FreeRequested, b, 1)
	a.release(b)
}

// release takes a live block back.
func (a *Allocator) release(b *Block) {
	a.stats.free(b)
	if a.recording != nil {
		a.recording.end(b)
	}
	a.addUse(b, a.freed(b.stream))
	for _, s := range b.users {
		a.addUse(b, a.freed(s))
	}
	if len(b.users) > 0 {
		a.poll()
	}
	if a.othersPassed(b) {
		a.complete(b)
		return
	}
	b.state = pending
	a.stats.Pending += b.size
	a.pending = append(a.pending, b)
}

// lock gives the allocator of a live block, locked.
func (b *Block) lock(call string) *Allocator {
	if seg := b.seg; seg != nil {
		seg.a.begin()
		if b.state == live {
			return seg.a
		}
		seg.a.mu.Unlock()
	}
	panic(fmt.Sprintf("alloc: %s of a block that is %v: it was freed, or its allocator closed", call, b.state))
}

// complete makes a block that was freed free.
func (a *Allocator) complete(b *Block) {
	a.record(trace.FreeCompleted, b, 0)
	b.state = free
	if b.view != nil {
		b.view.giveBack()
		return
	}
	a.join(b)
}

// Use says that work on s, which is not the block's own stream, touches it
// too: after Free its memory waits for what s has queued until then. Queue
// that work only after s waits for the work that fills the block.
func (b *Block) Use(s device.Stream) {
	a := b.lock("Use")
	defer a.unlock()
	if st := a.known(s); st != b.stream && !slices.Contains(b.users, st) {
		b.users = append(b.users, st)
	}
}

// Allocator is the one that the block is live in.
func (b *Block) Allocator() *Allocator {
	a := b.lock("Allocator")
	defer a.mu.Unlock()
	return a
}

// Ptr is the block's first address.
func (b *Block) Ptr() device.Ptr { return device.Ptr(b.addr) }

// Handles gives the device's handles that the block lies on, in order, and its
// offset in the first, for those who share it with another process. Without
// virtual memory there are none.
func (b *Block) Handles() (handles []device.Handle, offset uint64) {
	a := b.lock("Handles")
	defer a.unlock()
	if a.page == 0 {
		return nil, 0
	}
	pages, offset := b.pages()
	for _, p := range pages {
		handles = append(handles, p.handle)
	}
	return handles, offset
}

// pages gives the pages that the block lies on, in order, and its offset in
// the first.
func (b *Block) pages() (pages []*page, offset uint64) {
	if b.view != nil {
		return b.view.pages, b.addr - b.view.base
	}
	return b.seg.pages[b.seg.index(b.addr) : b.seg.index(b.end()-1)+1], b.addr & (b.seg.a.page - 1)
}

// Size is the number of bytes asked for.
func (b *Block) Size() uint64 { return b.asked }

// Purpose says what the block holds.
func (b *Block) Purpose() trace.Purpose { return b.purpose }

// unlock ends a public operation.
func (a *Allocator) unlock() {
	if invariant.Enabled {
		if err := a.check(); err != nil {
			panic("alloc: " + err.Error())
		}
	}
	a.mu.Unlock()
}
