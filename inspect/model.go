// The model of PyTorch's caching allocator.
//
// The model does what c10/cuda/CUDACachingAllocator.cpp does, without memory:
// it is told of requests and frees, keeps the same books, and tells what would
// be taken from the device and given back. Its vocabulary is the project's:
//
//	here                      in PyTorch
//	live                      allocated_bytes, active_allocated
//	pending                   active_pending_free, active_awaiting_free
//	cached = free             inactive
//	reserved                  reserved_bytes
//	requested                 requested_bytes
//	plain segment             segment made by cudaMalloc
//	expandable segment        segment made of pages by virtual memory management
//	unmapped                  addresses of an expandable segment without memory
//
// A device has pools: two for the program (small blocks, others), two for each
// private pool. A pool has segments, a segment blocks, which tile it in the
// order of addresses:
//
//	plain        [live][free    ][live][live][pending][free     ]
//	expandable   [live][free][live     ][  unmapped   ][live][free][ unmapped …
//
// # How a request climbs
//
// It is rounded (Conf.Round) and goes to the small pool up to 1 MiB. Then:
//
//  1. best fit on its own stream in its own pool (model_fit.go)
//  2. garbage collection, if settings and a memory fraction ask for it. It
//     frees memory for the next step; the search is not repeated
//  3. a new segment, or more pages of an expandable one (model_grow.go)
//  4. with max_split_size: cached blocks of that size or more are given back
//     until the request might fit, and step 3 again (model_release.go)
//  5. all pending frees are waited for, all wholly free segments and pages are
//     given back, and step 3 again: a retry. Private pools skip this step
//  6. out of memory
//
// A block that is found is cut if what is left of it is worth keeping. A block
// that is freed joins its free neighbours. Neither ever crosses a segment.
//
// # What decides besides sizes
//
// Ties go to the lowest address, and streams are visited in the order of their
// handles, so the addresses of segments and handles of streams matter. A
// placer gives the addresses: the recorded ones, or those of a simulated
// device (model_place.go).
//
// # Out of scope
//
// Pools with an allocator of their own, no_split and use_on_oom: snapshots
// don't tell of them. A private pool never becomes freeable. Other processes,
// and memory that the driver and libraries take: capacity is what is left for
// the allocator.

package inspect

import "github.com/headroom-go/headroom/trace"

// blockState is what a block of the model is.
type blockState uint8

const (
	isFree     blockState = iota // may be handed out
	isLive                       // handed out
	isPending                    // freed, while queued work may touch it
	isUnmapped                   // addresses without memory
)

// block is a part of a segment of the model.
type block struct {
	addr, size uint64

	// While it is free or unmapped: its place in a tree of its pool.
	left, right *block
	priority    uint64
	rank        uint64 // size if it is free, 0 if it is unmapped

	state      blockState
	seg        *segment
	prev, next *block // neighbours in the segment

	requested uint64 // while it is live or pending
	owner     int    // while it is live or pending: whose it is, for the caller
	waiting   int    // while it is pending: its place in model.pending
	born      uint64 // while it is free: the pool's lookups when it became so
}

func (b *block) end() uint64 { return b.addr + b.size }

// whole says whether the block is all of its segment.
func (b *block) whole() bool { return b.prev == nil && b.next == nil }

// segment is a range of addresses: plain with memory all behind it, or
// expandable, with memory behind some of its pages.
type segment struct {
	pool       *pool
	stream     int
	addr, size uint64
	page       uint64 // of an expandable segment; 0 for a plain one
	first      *block
	place      int // in model.segments
}

// pool is the segments of one kind of request.
type pool struct {
	id       trace.PoolID
	small    bool
	free     tree   // by stream, size, address
	unmapped tree   // by stream, address
	lookups  uint64 // searches so far, the clock of garbage collection
}

func (p *pool) private() bool { return p.id != trace.PoolID{} }

// request is what malloc looks for.
type request struct {
	size    uint64 // rounded
	segment uint64 // size of a plain segment for it
	stream  int
	pool    *pool
}

// figures are what the model counts, in bytes but for the last.
type figures struct {
	live, pending, requested, reserved uint64 // requested: of live and pending blocks
	peakLive                           uint64
	peakRequested                      uint64
	peakReserved                       uint64
	retries                            int
}

func (f *figures) notePeaks() {
	f.peakLive = max(f.peakLive, f.live)
	f.peakRequested = max(f.peakRequested, f.requested)
	f.peakReserved = max(f.peakReserved, f.reserved)
}

// change is a segment or some pages taken from the device or given back.
type change struct {
	action     trace.Action
	stream     int
	addr, size uint64
}

// model is one device's caching allocator.
type model struct {
	conf     Conf
	capacity uint64 // bytes that the device gives; NoLimit: any number
	allowed  uint64 // bytes that the memory fraction allows; NoLimit: no fraction is set
	place    placer
	onChange func(change) // is told of every change; nil: nobody
	// anyAddresses gives expandable segments more addresses than they need:
	// the placer says where they end.
	anyAddresses bool

	pools    map[trace.PoolID]*[2]pool // small, large
	segments []*segment
	byAddr   map[uint64]*segment // the newest at each address
	pending  []*block
	figures  figures
	unused   *block // blocks to use again
}

// newModel gives a model without memory. Capacity 0 is a device that never
// fails.
func newModel(c Conf, capacity uint64, place placer) *model {
	m := &model{conf: c, capacity: capacity, allowed: NoLimit, place: place,
		pools: map[trace.PoolID]*[2]pool{}, byAddr: map[uint64]*segment{}}
	if capacity == 0 {
		m.capacity = NoLimit
	} else if c.MemoryFraction < 1 {
		m.allowed = uint64(c.MemoryFraction * float64(capacity))
	}
	return m
}

// pool gives a pool, made when it is first asked for.
func (m *model) pool(id trace.PoolID, small bool) *pool {
	pair := m.pools[id]
	if pair == nil {
		pair = &[2]pool{{id: id, small: true}, {id: id}}
		m.pools[id] = pair
	}
	if small {
		return &pair[0]
	}
	return &pair[1]
}

// request rounds a request, and one that is too large to what no device has.
func (m *model) request(size uint64, stream int, id trace.PoolID) request {
	rounded := m.conf.Round(min(size, maxRequest))
	return request{size: rounded, segment: m.conf.segmentSize(rounded), stream: stream, pool: m.pool(id, rounded <= smallMax)}
}

// malloc hands out a block for size bytes, or nil when there is no memory.
func (m *model) malloc(size uint64, stream int, id trace.PoolID) *block {
	if size >= maxRequest {
		return nil
	}
	r := m.request(size, stream, id)
	b := m.find(&r)
	if b == nil {
		b = m.obtain(&r)
	}
	return m.handOut(b, &r, size)
}

// mallocNew does as malloc at the end of a retry: without looking at what is
// cached.
func (m *model) mallocNew(size uint64, stream int, id trace.PoolID) *block {
	r := m.request(size, stream, id)
	return m.handOut(m.grow(&r), &r, size)
}

// handOut makes a free block, in no tree, live. Nil stays nil.
func (m *model) handOut(b *block, r *request, size uint64) *block {
	if b == nil {
		return nil
	}
	m.trim(b, r)
	b.state, b.requested = isLive, size
	m.figures.live += b.size
	m.figures.requested += size
	m.figures.notePeaks()
	return b
}

// obtain gives a free block, in no tree, for a request that no cached block
// fits: steps 2 to 5.
func (m *model) obtain(r *request) *block {
	if m.collecting() {
		m.collectGarbage()
	}
	if m.conf.ThrowOnOOM && m.exceeds(r.segment, min(m.allowed, m.capacity)) {
		return nil
	}
	if b := m.grow(r); b != nil {
		return b
	}
	if m.releaseOversize(r) {
		if b := m.grow(r); b != nil {
			return b
		}
	}
	if r.pool.private() {
		return nil
	}
	m.releaseCached()
	m.figures.retries++
	return m.grow(r)
}

// exceeds says whether size bytes more would pass the limit.
func (m *model) exceeds(size, limit uint64) bool {
	return m.figures.reserved > limit || size > limit-m.figures.reserved
}

// free is the program's free of a live block: it is pending until complete.
func (m *model) free(b *block) {
	b.state, b.waiting = isPending, len(m.pending)
	m.pending = append(m.pending, b)
	m.figures.live -= b.size
	m.figures.pending += b.size
}

// complete ends the wait of a pending block.
func (m *model) complete(b *block) {
	last := len(m.pending) - 1
	m.pending[b.waiting], m.pending[last].waiting = m.pending[last], b.waiting
	m.pending[last] = nil
	m.pending = m.pending[:last]
	m.figures.pending -= b.size
	m.figures.requested -= b.requested
	b.state, b.requested, b.owner = isFree, 0, 0
	m.join(b)
}

// reserve counts bytes taken from the device and tells of them.
func (m *model) reserve(c change) {
	m.figures.reserved += c.size
	m.figures.peakReserved = max(m.figures.peakReserved, m.figures.reserved)
	m.tell(c)
}

// giveBack counts bytes given back to the device and tells of them.
func (m *model) giveBack(c change) {
	m.figures.reserved -= c.size
	m.tell(c)
}

func (m *model) tell(c change) {
	if m.onChange != nil {
		m.onChange(c)
	}
}
