package alloc

import (
	"math"
	"math/bits"
)

// The blocks of a segment tile it. All changes of the tiling are made of two
// steps, cut and join, with a change of state between them:
//
//	Alloc   cut a free block, make the middle live
//	Free    make a live block free, join it with its neighbours
//	map     cut an unbacked block, make the middle free, join
//	unmap   cut a free block, make the middle unbacked, join

// cut takes [from, to) out of a free or unbacked block and its tree. What is
// left of the block before and after stays what it was.
func (a *Allocator) cut(b *Block, from, to uint64) *Block {
	b.tree.remove(b)
	if to < b.end() {
		b.seg.enter(a.split(b, to))
	}
	if from > b.addr {
		front := b
		b = a.split(b, from)
		b.seg.enter(front)
	}
	return b
}

// join puts b, whose state has become free or unbacked, into its tree, as one
// block with those neighbours that have the same state.
func (a *Allocator) join(b *Block) *Block {
	if p := b.prev; p != nil && p.state == b.state {
		p.tree.remove(p)
		a.absorb(p, b)
		b = p
	}
	if n := b.next; n != nil && n.state == b.state {
		n.tree.remove(n)
		a.absorb(b, n)
	}
	b.seg.enter(b)
	return b
}

// enter puts a free or unbacked block into its tree.
func (s *segment) enter(b *Block) {
	if b.state == unbacked {
		s.pool.holes.insert(b)
	} else {
		s.pool.free[class(b.uses)].insert(b)
	}
}

// split cuts b off at an address inside it and gives the rest, a block of the
// same state.
func (a *Allocator) split(b *Block, at uint64) *Block {
	rest := a.newBlock()
	rest.seg, rest.state = b.seg, b.state
	rest.addr, rest.size = at, b.end()-at
	rest.uses = append(rest.uses[:0], b.uses...)
	rest.prev, rest.next = b, b.next
	if b.next != nil {
		b.next.prev = rest
	}
	b.next = rest
	b.size -= rest.size
	b.seg.starts.add(b.seg.index(at), rest)
	return rest
}

// absorb makes n, the next block, a part of b.
func (a *Allocator) absorb(b, n *Block) {
	b.size += n.size
	for _, u := range n.uses {
		a.addUse(b, u)
	}
	b.seg.starts.remove(b.seg.index(n.addr), n)
	b.next = n.next
	if n.next != nil {
		n.next.prev = b
	}
	a.recycle(n)
}

// newBlock gives a dead block.
func (a *Allocator) newBlock() *Block {
	if a.unused == nil {
		chunk := make([]Block, 64)
		for i := range chunk {
			a.recycle(&chunk[i])
		}
	}
	b := a.unused
	a.unused, b.next, b.recorded = b.next, nil, 0
	return b
}

// recycle keeps b for newBlock, with the memory of its slices.
func (a *Allocator) recycle(b *Block) {
	b.state, b.seg, b.prev, b.stream, b.stack = dead, nil, nil, nil, nil
	b.next, a.unused = a.unused, b
}

// newSegment adds a segment of one block, which is in no tree yet.
func (a *Allocator) newSegment(p *pool, base, size uint64, s state) *Block {
	seg := &segment{a: a, pool: p, base: base, size: size}
	b := a.newBlock()
	b.seg, b.addr, b.size, b.state = seg, base, size, s
	b.uses = b.uses[:0]
	seg.first = b
	seg.starts.add(0, b)
	a.segments = append(a.segments, seg)
	return b
}

// addClasses makes room for n classes of free blocks.
func (p *pool) addClasses(n int) {
	for len(p.free) < n {
		p.free = append(p.free, &tree{})
	}
}

// index is the number of the page that holds an address.
func (s *segment) index(addr uint64) int { return int((addr - s.base) >> s.a.pageBits) }

// at gives the block that holds an address.
func (s *segment) at(addr uint64) *Block {
	b := s.starts.before(s.index(addr), addr)
	for b.end() <= addr {
		b = b.next
	}
	return b
}

// starts finds the block at an address: it knows the first block that starts
// in each page of a segment, and which pages have one.
type starts struct {
	first []*Block
	some  []uint64 // bitmap
}

// add notes that b starts in page i.
func (s *starts) add(i int, b *Block) {
	if i >= len(s.first) {
		s.first = append(s.first, make([]*Block, i+1-len(s.first))...)
		s.some = append(s.some, make([]uint64, i/64+1-len(s.some))...)
	}
	if s.first[i] == nil || b.addr < s.first[i].addr {
		s.first[i] = b
		s.some[i/64] |= 1 << (i % 64)
	}
}

// remove forgets b, which starts in page i and is still linked to the next.
func (s *starts) remove(i int, b *Block) {
	if s.first[i] != b {
		return
	}
	s.first[i] = nil
	if n := b.next; n != nil && n.seg.index(n.addr) == i {
		s.first[i] = n
		return
	}
	s.some[i/64] &^= 1 << (i % 64)
}

// before gives a block that starts at an address of page i or before it, with
// no page between that has one.
func (s *starts) before(i int, addr uint64) *Block {
	if i < len(s.first) && s.first[i] != nil && s.first[i].addr <= addr {
		return s.first[i]
	}
	i = min(i, len(s.first))
	w, mask := i/64, uint64(1)<<(i%64)-1
	if w == len(s.some) {
		w, mask = w-1, math.MaxUint64
	}
	for s.some[w]&mask == 0 {
		w, mask = w-1, math.MaxUint64
	}
	return s.first[w*64+bits.Len64(s.some[w]&mask)-1]
}
