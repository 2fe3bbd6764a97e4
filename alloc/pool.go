package alloc

import (
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// Pool is a part of an allocator's memory with a life of its own: its blocks
// lie in segments of the pool, and Destroy frees them all. What the allocator
// holds free elsewhere serves the pool too, page by page, and its statistics
// and limit count the pool's blocks like all others. Its methods may be called
// from several goroutines at once.
type Pool struct {
	a *Allocator
	p *pool // nil: destroyed
}

// PoolOptions are the choices of a pool. The zero value is the default.
type PoolOptions struct {
	// Keep keeps what was freed for the pool alone until Destroy: no request
	// from elsewhere and no Trim takes it. A captured graph, which goes on
	// using its addresses, needs that.
	Keep bool
}

// NewPool adds a pool.
func (a *Allocator) NewPool(o PoolOptions) *Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &pool{private: true, keep: o.Keep}
	a.addPool(p)
	return &Pool{a, p}
}

// addPool makes p a pool of a.
func (a *Allocator) addPool(p *pool) {
	p.holes = &tree{}
	p.addClasses(ownClass + len(a.streams))
	a.pools = append(a.pools, p)
}

// Alloc is Allocator.Alloc from the pool. It panics after Destroy.
func (p *Pool) Alloc(size uint64, purpose trace.Purpose, s device.Stream) (*Block, error) {
	return p.a.alloc(p.must("Alloc"), size, purpose, s)
}

func (p *Pool) must(call string) *pool {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	if p.p == nil {
		panic("alloc: " + call + " of a destroyed pool")
	}
	return p.p
}

// PoolStats are the figures of a pool.
type PoolStats struct {
	Blocks   uint64 // live ones
	Live     uint64 // bytes of them
	Reserved uint64 // bytes of the memory at the pool's addresses
}

// Stats gives the figures of this moment. It takes time in proportion to the
// number of the allocator's blocks.
func (p *Pool) Stats() PoolStats {
	pl := p.must("Stats")
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	var s PoolStats
	for b := range p.a.blocksOf(pl) {
		if b.state != unbacked {
			s.Reserved += b.size
		}
		if b.state == live {
			s.Live += b.size
			s.Blocks++
		}
	}
	return s
}

// Destroy frees the pool's blocks, in the order of their streams, and leaves
// the memory to the allocator. Blocks of the pool must not be used any more.
// Destroy of a destroyed pool does nothing.
func (p *Pool) Destroy() {
	p.a.begin()
	defer p.a.unlock()
	if p.p == nil || p.a.closed {
		return
	}
	p.a.freeAll(p.p)
	p.a.adopt(p.p)
	p.p = nil
}

// freeAll frees the live blocks of a pool.
func (a *Allocator) freeAll(p *pool) {
	a.scratch = a.scratch[:0]
	for b := range a.blocksOf(p) {
		if b.state == live {
			a.scratch = append(a.scratch, b)
		}
	}
	for _, b := range a.scratch {
		a.record(trace.FreeRequested, b, 2)
		a.release(b)
	}
}

// adopt gives the segments of a pool to the default pool for large blocks.
func (a *Allocator) adopt(p *pool) {
	for _, seg := range a.segments {
		if seg.pool != p {
			continue
		}
		seg.pool = a.pools[1]
		for b := seg.first; b != nil; b = b.next {
			if b.idle() {
				b.tree.remove(b)
				seg.enter(b)
			}
		}
	}
	a.pools = slices.DeleteFunc(a.pools, func(q *pool) bool { return q == p })
}

// blocksOf gives the blocks in the segments of a pool.
func (a *Allocator) blocksOf(p *pool) func(yield func(*Block) bool) {
	return func(yield func(*Block) bool) {
		for _, seg := range a.segments {
			for b := seg.first; b != nil && seg.pool == p; b = b.next {
				if !yield(b) {
					return
				}
			}
		}
	}
}
