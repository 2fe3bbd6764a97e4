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
	p *pool
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
	a.tidy()
	return &Pool{a, p}
}

// addPool makes p a pool of a.
func (a *Allocator) addPool(p *pool) {
	p.holes = &tree{}
	p.addClasses(ownClass + len(a.streams))
	a.pools = append(a.pools, p)
}

// Alloc is Allocator.Alloc from the pool. After Destroy it fails.
func (p *Pool) Alloc(size uint64, purpose trace.Purpose, s device.Stream) (*Block, error) {
	return p.a.alloc(p.p, size, purpose, s)
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
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	var s PoolStats
	for b := range p.a.blocksOf(p.p) {
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
	if p.p.destroyed || p.a.closed {
		return
	}
	p.a.freeAll(p.p)
	p.a.adopt(p.p)
	p.p.destroyed = true
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

// adopt gives the segments and views of a pool to the default pool for large
// blocks.
func (a *Allocator) adopt(p *pool) {
	for _, seg := range a.segments {
		if seg.pool != p {
			continue
		}
		seg.pool, seg.adopted = a.pools[1], true
		for b := seg.first; b != nil; b = b.next {
			if b.idle() {
				b.tree.remove(b)
				seg.enter(b)
			}
		}
	}
	for w := range a.views.all {
		if w.pool == p {
			w.pool = a.pools[1]
		}
	}
	a.pools = slices.DeleteFunc(a.pools, func(q *pool) bool { return q == p })
}

// tidy gives the addresses of adopted segments back of which no memory is left.
func (a *Allocator) tidy() {
	a.segments = slices.DeleteFunc(a.segments, func(seg *segment) bool {
		b := seg.first
		if !seg.adopted || b.state != unbacked || b.next != nil || a.dev.Release(device.Ptr(seg.base)) != nil {
			return false
		}
		b.tree.remove(b)
		a.recycle(b)
		seg.first = nil
		return true
	})
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
