package alloc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// Move is a block that Compact has moved. The content of From is copied to To
// on their stream; From is freed, and good for comparison only.
type Move struct{ From, To *Block }

// Compact empties pages: it moves blocks, all of which the caller says may
// move, out of the pages where they are few into the holes of others, and so
// makes whole pages that Trim can give back and any request can use. The copies
// are queued on the blocks' own streams, which nobody else must use meanwhile;
// the caller replaces From by To in all that it keeps, in the order of the
// moves. Blocks that Use was called for, of more than a page, of pools and of
// stitches stay where they are, and without virtual memory all do. It panics
// if a block is not a live one of this allocator.
func (a *Allocator) Compact(movable []*Block) []Move {
	a.begin()
	defer a.unlock()
	if a.page == 0 || a.closed {
		return nil
	}
	c := compaction{a: a, movable: map[*Block]bool{}}
	for _, b := range movable {
		c.movable[b] = b.mayMove(a)
	}
	for _, p := range c.pages() {
		c.empty(p)
	}
	a.stats.Moves += uint64(len(c.moves))
	return c.moves
}

// mayMove says whether Compact may move b, which is a's.
func (b *Block) mayMove(a *Allocator) bool {
	if b.seg == nil || b.seg.a != a || b.state != live {
		panic(fmt.Sprintf("alloc: Compact of a block that is %v, or another allocator's", b.state))
	}
	return b.view == nil && len(b.users) == 0 && b.size <= a.page && !b.seg.pool.private
}

// compaction is a run of Compact.
type compaction struct {
	a       *Allocator
	movable map[*Block]bool
	moves   []Move
	holes   []span // free parts of pages in use, ascending by size
}

// usedPage is a page of which all that is live may move.
type usedPage struct {
	span
	live uint64 // bytes
}

// pages lists those that can be emptied, those with the least to move first.
func (c *compaction) pages() []usedPage {
	found := map[uint64]usedPage{}
	for b, ok := range c.movable {
		for at := roundDown(b.addr, c.a.page); ok && at < b.end(); at += c.a.page {
			p := usedPage{span: span{b.seg, at, at + c.a.page}}
			if blocks := c.inside(p.span); blocks != nil {
				for _, x := range blocks {
					p.live += x.size
				}
				found[at] = p
			}
		}
	}
	list := make([]usedPage, 0, len(found))
	for _, p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, func(x, y usedPage) int {
		return cmp.Or(cmp.Compare(x.live, y.live), cmp.Compare(y.from, x.from))
	})
	return list
}

// inside lists the blocks that keep a page in use, or nil if one may not move.
func (c *compaction) inside(p span) []*Block {
	var list []*Block
	for b := p.seg.at(p.from); b != nil && b.addr < p.to; b = b.next {
		switch {
		case b.state == free:
		case c.movable[b]:
			list = append(list, b)
		default:
			return nil
		}
	}
	return list
}

// empty moves all blocks out of a page, or none.
func (c *compaction) empty(p usedPage) {
	blocks := c.inside(p.span)
	c.findHoles(p.span)
	targets := make([]span, len(blocks))
	for i, b := range blocks {
		at, _ := slices.BinarySearchFunc(c.holes, b.size, func(h span, size uint64) int { return cmp.Compare(h.size(), size) })
		if at == len(c.holes) {
			return
		}
		h := c.holes[at]
		c.holes = slices.Delete(c.holes, at, at+1)
		targets[i] = span{h.seg, h.from, h.from + b.size}
		c.keepHole(span{h.seg, h.from + b.size, h.to})
	}
	for i, b := range blocks {
		c.move(b, targets[i])
	}
}

// findHoles lists what is free in pages that stay in use, p not among them.
func (c *compaction) findHoles(p span) {
	c.holes = c.holes[:0]
	for _, pl := range c.a.pools[:2] {
		for _, t := range pl.free {
			for _, b := range t.collect(nil, 0) {
				c.parts(b, p)
			}
		}
	}
	slices.SortFunc(c.holes, func(x, y span) int { return cmp.Or(cmp.Compare(x.size(), y.size()), cmp.Compare(x.from, y.from)) })
}

// parts adds the parts of a free block outside whole pages and outside p.
func (c *compaction) parts(b *Block, p span) {
	up, down := roundUp(b.addr, c.a.page), roundDown(b.end(), c.a.page)
	if up > down { // within one page
		up, down = b.end(), b.end()
	}
	for _, s := range [2]span{{b.seg, b.addr, up}, {b.seg, down, b.end()}} {
		if s.size() > 0 && (s.to <= p.from || p.to <= s.from) {
			c.holes = append(c.holes, s)
		}
	}
}

// keepHole puts what is left of a hole back.
func (c *compaction) keepHole(h span) {
	if h.size() == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(c.holes, h.size(), func(x span, size uint64) int { return cmp.Compare(x.size(), size) })
	c.holes = slices.Insert(c.holes, at, h)
}

// move copies a block to a free span.
func (c *compaction) move(from *Block, s span) {
	to := c.a.cut(s.seg.at(s.from), s.from, s.to)
	c.a.order(from.stream, to.uses)
	from.stream.dev.Copy(device.Ptr(to.addr), device.Ptr(from.addr), from.asked)
	to.state, to.stream, to.purpose, to.asked = live, from.stream, from.purpose, from.asked
	to.uses, to.users, to.stack = to.uses[:0], to.users[:0], from.stack
	c.a.stats.alloc(to)
	c.a.record(trace.Alloc, to, 0)
	c.a.record(trace.FreeRequested, from, 0)
	c.a.release(from)
	delete(c.movable, from)
	c.moves = append(c.moves, Move{from, to})
}
