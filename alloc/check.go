package alloc

import "fmt"

// Check recounts everything and gives the first equation of the package that
// does not hold, or nil, as for a closed allocator. It takes time in proportion
// to the number of blocks and pages. In builds that check invariants it runs
// after every call.
func (a *Allocator) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.check()
}

func (a *Allocator) check() error {
	if a.closed {
		return nil
	}
	var c count
	for _, seg := range a.segments {
		if err := c.segment(seg); err != nil {
			return err
		}
	}
	for w := range a.views.all {
		if w.block.state != free {
			c.block(&w.block)
		}
	}
	for _, p := range a.pools {
		if err := c.pool(p); err != nil {
			return err
		}
	}
	for _, b := range a.pending {
		if b.state != pending {
			return fmt.Errorf("block %#x is %v and in the list of pending ones", b.addr, b.state)
		}
	}
	if c.inTrees != c.number[free]+c.number[unbacked] || len(a.pending) != c.number[pending] {
		return fmt.Errorf("%d free, %d unbacked, %d pending blocks, yet %d in trees and %d in the list of pending ones",
			c.number[free], c.number[unbacked], c.number[pending], c.inTrees, len(a.pending))
	}
	if err := c.compare(&a.stats); err != nil {
		return err
	}
	if known := a.stats.Live + a.stats.Pending + c.bytes[free] + a.source.unplaced(); known != a.stats.Reserved {
		return fmt.Errorf("reserved is %d bytes, of which %d are accounted for", a.stats.Reserved, known)
	}
	return a.source.check()
}

// count is what check finds.
type count struct {
	number    [len(stateNames)]int
	bytes     [len(stateNames)]uint64
	liveBy    PurposeBytes
	requested uint64
	inTrees   int
}

// segment checks that the blocks tile it and counts them.
func (c *count) segment(seg *segment) error {
	at := seg.base
	var prev *Block
	for b := seg.first; b != nil; prev, b = b, b.next {
		switch {
		case b.seg != seg || b.prev != prev || b.addr != at || b.size == 0 || b.size%unit != 0 || b.state == dead:
			return fmt.Errorf("block %#x of %d bytes, %v, does not follow the one that ends at %#x", b.addr, b.size, b.state, at)
		case prev != nil && b.state == prev.state && b.idle():
			return fmt.Errorf("blocks %#x and %#x are neighbours and both %v", prev.addr, b.addr, b.state)
		case b.idle() != (b.tree != nil):
			return fmt.Errorf("block %#x is %v, in a tree: %v", b.addr, b.state, b.tree != nil)
		}
		c.block(b)
		at = b.end()
	}
	if at != seg.base+seg.size {
		return fmt.Errorf("blocks of the segment at %#x end at %#x, %d bytes from its end", seg.base, at, int64(seg.base+seg.size-at))
	}
	return nil
}

// block counts a block.
func (c *count) block(b *Block) {
	c.number[b.state]++
	c.bytes[b.state] += b.size
	if b.state == live {
		c.liveBy[b.purpose] += b.size
		c.requested += b.asked
	}
}

// pool checks its trees and counts their blocks.
func (c *count) pool(p *pool) error {
	if err := c.tree(p.holes, func(b *Block) bool { return b.state == unbacked && b.seg.pool == p }); err != nil {
		return err
	}
	for i, t := range p.free {
		if err := c.tree(t, func(b *Block) bool { return b.state == free && b.seg.pool == p && class(b.uses) == i }); err != nil {
			return err
		}
	}
	return nil
}

// tree checks that the blocks of a tree are in order and belong there.
func (c *count) tree(t *tree, belongs func(*Block) bool) error {
	var prev *Block
	for _, b := range t.collect(nil, 0) {
		if b.tree != t || !belongs(b) || prev != nil && !less(prev, b) {
			return fmt.Errorf("block %#x of %d bytes, %v, is in the wrong tree or place", b.addr, b.size, b.state)
		}
		c.inTrees++
		prev = b
	}
	return nil
}

// compare compares the statistics with the recount.
func (c *count) compare(s *Stats) error {
	got := [...]uint64{s.Live, s.Pending, s.Requested, s.Blocks, s.Allocs - s.Frees}
	want := [...]uint64{c.bytes[live], c.bytes[pending], c.requested, uint64(c.number[live]), uint64(c.number[live])}
	switch {
	case got != want:
		return fmt.Errorf("live, pending, requested, blocks, allocs − frees are %v, a recount gives %v", got, want)
	case s.LiveByPurpose() != c.liveBy:
		return fmt.Errorf("live by purpose is %v, a recount gives %v", s.LiveByPurpose(), c.liveBy)
	}
	return nil
}
