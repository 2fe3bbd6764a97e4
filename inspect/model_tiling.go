package inspect

// The blocks of a segment tile it. All changes of the tiling are made of split
// and join, with a change of state between them.

// split cuts b, which is in no tree, at an address inside it and gives the
// rest, a block of the same state in no tree.
func (m *model) split(b *block, at uint64) *block {
	rest := m.newBlock(b.seg, at, b.end()-at)
	rest.state = b.state
	rest.prev, rest.next = b, b.next
	if b.next != nil {
		b.next.prev = rest
	}
	b.next = rest
	b.size -= rest.size
	return rest
}

// join puts b, which has become free or unmapped, into its tree, as one block
// with those neighbours that are the same, and gives that block.
func (m *model) join(b *block) *block {
	if p := b.prev; p != nil && p.state == b.state {
		m.leave(p)
		m.absorb(p, b)
		b = p
	}
	if n := b.next; n != nil && n.state == b.state {
		m.leave(n)
		m.absorb(b, n)
	}
	m.enter(b)
	return b
}

// absorb makes n, the next block, a part of b.
func (m *model) absorb(b, n *block) {
	b.size += n.size
	b.next = n.next
	if n.next != nil {
		n.next.prev = b
	}
	m.recycle(n)
}

// enter puts a free or unmapped block into its tree.
func (m *model) enter(b *block) {
	p := b.seg.pool
	if b.state == isUnmapped {
		b.rank = 0
		p.unmapped.insert(b)
		return
	}
	b.rank, b.born = b.size, p.lookups
	p.free.insert(b)
}

// leave takes a free or unmapped block out of its tree.
func (m *model) leave(b *block) {
	if b.state == isUnmapped {
		b.seg.pool.unmapped.remove(b)
	} else {
		b.seg.pool.free.remove(b)
	}
}

// newSegment adds a segment of one block, which is free or unmapped and in no
// tree.
func (m *model) newSegment(s segment, state blockState) *block {
	seg := &s
	seg.first = m.newBlock(seg, seg.addr, seg.size)
	seg.first.state = state
	seg.place = len(m.segments)
	m.segments = append(m.segments, seg)
	m.byAddr[seg.addr] = seg
	return seg.first
}

// dropSegment forgets a segment, whose only block is in no tree.
func (m *model) dropSegment(seg *segment) {
	last := len(m.segments) - 1
	m.segments[seg.place], m.segments[last].place = m.segments[last], seg.place
	m.segments[last] = nil
	m.segments = m.segments[:last]
	if m.byAddr[seg.addr] == seg {
		delete(m.byAddr, seg.addr)
	}
	m.recycle(seg.first)
	m.place.release(seg.addr, seg.size)
}

// newBlock gives a block without neighbours.
func (m *model) newBlock(seg *segment, addr, size uint64) *block {
	if m.unused == nil {
		chunk := make([]block, 64)
		for i := range chunk {
			m.recycle(&chunk[i])
		}
	}
	b := m.unused
	m.unused = b.next
	*b = block{seg: seg, addr: addr, size: size}
	return b
}

// recycle keeps b for newBlock.
func (m *model) recycle(b *block) {
	b.seg, b.prev, b.next = nil, nil, m.unused
	m.unused = b
}
