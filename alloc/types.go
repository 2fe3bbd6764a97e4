package alloc

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// The vocabulary. A device is worked on by streams and gives memory for
// segments, which hold blocks:
//
//	device   memory, and streams that work on it in order
//	page     a handle, Granularity bytes, and the addresses where it is at
//	         home; addresses with a page at home there are backed
//	segment  a range of addresses: reserved once and backed page by page on
//	         devices with virtual memory, a plain allocation on others
//	block    a part of a segment, in one of the states below, or of a view
//	view     addresses of their own, behind which pages are mapped a second
//	         time, so that parts of several holes are one block there
//	pool     the segments for small blocks, those for all others, and those of
//	         each Pool
//	stream   order of work: what is freed on it may be used on it at once
//	tick     a number that counts the frees of a stream
//
// The equations, which Check recounts:
//
//	the blocks of a segment tile it
//	no two neighbours are both free or both unbacked
//	a page is backed ⇔ a live, pending, free or lent block touches it
//	the lent blocks of a view are the bytes of its block
//	live + pending + cached = reserved
//	reserved = granularity × handles + Σ plain allocations ≤ limit
//	live = Σ live by purpose = Σ size of live blocks
//	a free block is in the tree of its class, an unbacked one in its pool's holes

// state is what a block is.
type state uint8

const (
	dead     state = iota // not part of a segment; waits to be used again
	live                  // handed out
	pending               // freed, while work queued on other streams may touch it
	free                  // may be handed out
	unbacked              // addresses without memory
	lent                  // its memory is used through a view
)

var stateNames = [...]string{"dead", "live", "pending", "free", "unbacked", "lent"}

func (s state) String() string { return stateNames[s] }

const (
	// unit is what sizes of blocks are multiples of, in bytes.
	unit = 512
	// smallMax is the largest block that comes from the small pool. Small
	// blocks live long and are many; among larger ones they would pin pages.
	smallMax = 64 << 10
	// plainUnit is the size of a plain allocation that small requests share,
	// and what larger ones are rounded to.
	plainUnit = 2 << 20
)

// Block is memory handed out by an Allocator, and any other part of its
// segments. The program that holds it owns it until Free. Its methods may be
// called from any goroutine, but not at the same time as Free; a Block that
// was freed must not be used at all.
type Block struct {
	addr, size uint64

	// While it is free or unbacked: its place in a tree. These and the fields
	// above are what a search reads; they share a cache line.
	left, right *Block
	priority    uint64
	tree        *tree

	state      state
	purpose    trace.Purpose
	seg        *segment
	prev, next *Block // neighbours in the segment
	view       *view  // that it is the block of; nil for parts of segments

	// While it is live or pending.
	asked    uint64
	stream   *stream
	users    []*stream // other streams that work on it
	stack    *trace.Stack
	recorded uint64 // number of the recording and, in the low half, of the request in it

	// While it is pending or free: work that must be done, or come first in
	// the queue, before the memory is used.
	uses []use
}

func (b *Block) end() uint64 { return b.addr + b.size }

// segment is a range of addresses.
type segment struct {
	a       *Allocator
	pool    *pool
	base    uint64
	size    uint64
	first   *Block
	pages   []*page // by index: what is at home there; ends with the last page that was ever backed
	starts  starts  // of blocks
	adopted bool    // from a pool that is gone
}

// span is a part of a segment.
type span struct {
	seg      *segment
	from, to uint64
}

func (s span) size() uint64 { return s.to - s.from }

func (b *Block) span() span { return span{b.seg, b.addr, b.end()} }

// page is a handle of the device.
type page struct {
	handle device.Handle
	seg    *segment // nil: it has no home now
	addr   uint64   // of its home
	views  int      // that show it
}

// pool is segments that serve the same requests.
type pool struct {
	small     bool // the default one for small blocks
	private   bool // of NewPool, or of a plan
	keep      bool // nobody else uses what is free here
	destroyed bool
	free      []*tree // by class
	holes     *tree   // unbacked blocks
}

// Classes of free blocks: by whose work must be done before they are used.
const (
	clean    = iota // nobody's
	mixed           // several streams'
	ownClass        // that of stream 0, and so on
)

// request is what Alloc looks for.
type request struct {
	size   uint64 // multiple of unit
	align  uint64 // power of two, of the address
	pool   *pool
	stream *stream
	turn   *turn // that it had in earlier steps; nil: none is known
}

// when says by when a request's stream must be able to use what is found.
type when bool

const (
	atOnce when = true
	later  when = false // behind work of other streams, too
)

// start gives the first fitting address in b, and whether the request fits there.
func (r *request) start(b *Block) (uint64, bool) {
	at := roundUp(b.addr, r.align)
	return at, at+r.size <= b.end()
}

// roundUp and roundDown go to a multiple of n, a power of two.
func roundUp(v, n uint64) uint64   { return (v + n - 1) &^ (n - 1) }
func roundDown(v, n uint64) uint64 { return v &^ (n - 1) }
