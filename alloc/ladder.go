package alloc

import (
	"errors"
	"slices"

	"github.com/headroom-go/headroom/device"
)

// obtain gives a free block of r's size that is in no tree. It climbs the
// ladder that alloc.go describes, up to the evictors, and searches again after
// every rung.
func (a *Allocator) obtain(r *request) (*Block, error) {
	switch {
	case r.pool.destroyed:
		return nil, errDestroyed
	case r.size > a.limit:
		return nil, errLimit
	}
	if a.planned != nil && !r.pool.private {
		if b := a.follow(r); b != nil {
			return b, nil
		}
	}
	if b := a.again(r, atOnce); b != nil {
		return b, nil
	}
	if a.page > 0 && r.size >= keptFirst*a.page {
		if b := a.source.kept(*r, atOnce); b != nil {
			return b, nil
		}
	}
	if b := a.findReady(r); b != nil {
		return a.carve(b, r), nil
	}
	if b := a.again(r, later); b != nil {
		return b, nil
	}
	if b := a.findAny(r); b != nil {
		return a.carve(b, r), nil
	}
	if b := a.source.kept(*r, later); b != nil {
		return b, nil
	}
	b, err := a.source.grow(*r)
	if !errors.Is(err, device.ErrOutOfMemory) {
		return b, err
	}
	return a.obtainAnywhere(r, err)
}

// keptFirst is the number of pages from which on a request looks for what was
// stitched for its like before it breaks whole pages open: else the pages of a
// stitch are used for something smaller, and a program that repeats without
// Steps has to stitch again.
const keptFirst = 4

// obtainAnywhere gives what is left in any shape: unaligned, or of the other
// default pool.
func (a *Allocator) obtainAnywhere(r *request, err error) (*Block, error) {
	q := *r
	q.align = unit
	for i, p := range [2]*pool{r.pool, a.otherPool(r.pool)} {
		if p == r.pool && (i > 0 || r.align == unit) {
			continue // that was tried
		}
		q.pool = p
		b := a.find(&q)
		if b != nil {
			b = a.carve(b, &q)
		} else if b, _ = a.source.grow(q); b == nil {
			continue
		}
		a.stats.Borrows++
		a.note("borrow", r.stream.id, r.size)
		return b, nil
	}
	if a.giveUpPlan() {
		a.note("give up plan", r.stream.id, r.size)
		return a.obtain(r)
	}
	return nil, err
}

// carve takes r out of a block that it fits into.
func (a *Allocator) carve(b *Block, r *request) *Block {
	at, _ := r.start(b)
	return a.cut(b, at, at+r.size)
}

// otherPool gives the default pool that p is not, or p if it is neither.
func (a *Allocator) otherPool(p *pool) *pool {
	switch p {
	case a.pools[0]:
		return a.pools[1]
	case a.pools[1]:
		return a.pools[0]
	}
	return p
}

// Evictor frees memory of an allocator that has none left for a request of
// need bytes, and says whether it freed any. It is called in the goroutine of
// the request and may free blocks, and allocate some; an allocation that fails
// meanwhile, inside it or in another goroutine, calls no evictor.
type Evictor func(need uint64) bool

// OnShortage adds an evictor. They are asked in the order in which they were
// added, before a request fails, until it is served or none frees any more.
// The function that it gives removes the evictor.
func (a *Allocator) OnShortage(f Evictor) (remove func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := &f
	a.evictors = append(slices.Clip(a.evictors), e)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.evictors = slices.DeleteFunc(slices.Clone(a.evictors), func(x *Evictor) bool { return x == e })
	}
}

// evict asks the evictors, without the lock, and says whether one of them
// freed a block.
func (a *Allocator) evict(r *request, err error) bool {
	if a.evicting || r.size > a.limit || !errors.Is(err, device.ErrOutOfMemory) {
		return false
	}
	a.evicting = true
	defer func() { a.evicting = false }()
	for _, e := range a.evictors {
		frees := a.stats.Frees
		if a.ask(*e, r.size) && a.stats.Frees > frees && !a.closed {
			a.stats.Evictions++
			a.note("evict", r.stream.id, r.size)
			return true
		}
	}
	return false
}

// ask calls an evictor without the lock.
func (a *Allocator) ask(e Evictor, need uint64) bool {
	a.mu.Unlock()
	defer a.mu.Lock()
	return e(need)
}
