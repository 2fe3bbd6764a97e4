package inspect

import (
	"errors"
	"fmt"
)

// recount is what a model has, counted from its blocks.
type recount struct {
	m                                  *model
	errs                               []error
	live, pending, requested, reserved uint64
	free, unmapped                     map[*block]bool
}

func (c *recount) wrong(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// checkModel recounts everything that the model keeps books of.
func checkModel(m *model) error {
	c := &recount{m: m, free: map[*block]bool{}, unmapped: map[*block]bool{}}
	for i, seg := range m.segments {
		if seg.place != i {
			c.wrong("segment %d thinks it is %d", i, seg.place)
		}
		c.segment(seg)
	}
	f := m.figures
	if f.live != c.live || f.pending != c.pending || f.requested != c.requested || f.reserved != c.reserved {
		c.wrong("figures %+v, recount live %d pending %d requested %d reserved %d", f, c.live, c.pending, c.requested, c.reserved)
	}
	if f.peakLive < c.live || f.peakReserved < c.reserved || f.peakRequested < c.requested {
		c.wrong("peaks of %+v are below what is", f)
	}
	if f.reserved > m.capacity || f.reserved > m.allowed && !m.conf.Expandable { // pages are not counted before they are mapped
		c.wrong("reserved %d of %d, allowed %d", f.reserved, m.capacity, m.allowed)
	}
	for _, pair := range m.pools {
		for i := range pair {
			c.tree(&pair[i], &pair[i].free, c.free)
			c.tree(&pair[i], &pair[i].unmapped, c.unmapped)
		}
	}
	if len(c.free)+len(c.unmapped) > 0 {
		c.wrong("%d free and %d unmapped blocks are in no tree", len(c.free), len(c.unmapped))
	}
	return errors.Join(c.errs...)
}

// segment checks that blocks tile the segment, and counts them.
func (c *recount) segment(seg *segment) {
	at := seg.addr
	var prev *block
	for b := seg.first; b != nil; prev, b = b, b.next {
		if b.addr != at || b.seg != seg || b.prev != prev || b.size == 0 {
			c.wrong("block of %d bytes at %#x: expected at %#x", b.size, b.addr, at)
		}
		if prev != nil && prev.state == b.state && (b.state == isFree || b.state == isUnmapped) {
			c.wrong("neighbours at %#x are both in state %d", b.addr, b.state)
		}
		at += b.size
		c.block(b)
	}
	if at != seg.addr+seg.size {
		c.wrong("blocks end at %#x, their segment at %#x", at, seg.addr+seg.size)
	}
}

func (c *recount) block(b *block) {
	seg := b.seg
	switch b.state {
	case isFree:
		c.free[b] = true
	case isUnmapped:
		c.unmapped[b] = true
		if seg.page == 0 || (b.addr-seg.addr)%seg.page != 0 || b.size%seg.page != 0 {
			c.wrong("unmapped block of %d bytes at %#x is not whole pages", b.size, b.addr-seg.addr)
		}
		return
	case isLive:
		c.live += b.size
		c.requested += b.requested
	case isPending:
		c.pending += b.size
		c.requested += b.requested
		if c.m.pending[b.waiting] != b {
			c.wrong("pending block at %#x is not in the list", b.addr)
		}
	}
	c.reserved += b.size
}

// tree checks order and membership and takes what it finds out of the set.
func (c *recount) tree(p *pool, t *tree, set map[*block]bool) {
	list := t.all()
	for i, b := range list {
		if !set[b] || b.seg.pool != p {
			c.wrong("block at %#x does not belong into this tree", b.addr)
		}
		if i > 0 && !before(list[i-1], b) {
			c.wrong("block at %#x is out of order", b.addr)
		}
		delete(set, b)
	}
}
