package inspect

import "github.com/headroom-go/headroom/trace"

// grow gives a free block, in no tree, of memory taken from the device, or nil
// if the device or the memory fraction does not give it. The fraction counts a
// plain segment even where expandable segments take less.
func (m *model) grow(r *request) *block {
	if m.exceeds(r.segment, m.allowed) {
		return nil
	}
	if m.conf.Expandable {
		return m.expand(r)
	}
	if m.exceeds(r.segment, m.capacity) {
		return nil
	}
	addr, ok := m.place.plain(r.segment, r.stream)
	if !ok {
		return nil
	}
	b := m.newSegment(segment{pool: r.pool, stream: r.stream, addr: addr, size: r.segment}, isFree)
	m.reserve(change{trace.SegmentAlloc, r.stream, addr, r.segment})
	return b
}

// expand maps pages behind the lowest addresses of an expandable segment where
// free and unmapped blocks together hold r. A request never spans two segments.
func (m *model) expand(r *request) *block {
	b := m.gap(r)
	if b == nil {
		b = m.newExpandable(r)
	}
	if b == nil {
		return nil
	}
	if b.state == isUnmapped {
		if b = m.mapPages(b, min(b.size, r.size)); b == nil {
			return nil
		}
	}
	for b.size < r.size { // b is free and an unmapped block follows
		if b = m.mapPages(b.next, min(r.size-b.size, b.next.size)); b == nil {
			return nil
		}
	}
	m.leave(b)
	return b
}

// gap gives the first block of the lowest row of free and unmapped neighbours,
// with an unmapped one first or second, that holds r, or nil.
func (m *model) gap(r *request) *block {
	unmapped := &r.pool.unmapped
	for b := unmapped.ceiling(r.stream, 0, 0); b != nil && b.seg.stream == r.stream; b = unmapped.after(b) {
		start := b
		if b.prev != nil && b.prev.state == isFree {
			start = b.prev
		}
		if last := reach(start, r.size); last != nil && (last.next != nil || !m.place.ends(b.addr)) {
			return start
		}
	}
	return nil
}

// reach gives the block with which b and the free and unmapped blocks behind
// it have size bytes, or nil.
func reach(b *block, size uint64) *block {
	var sum uint64
	for ; b != nil && (b.state == isFree || b.state == isUnmapped); b = b.next {
		if sum += b.size; sum >= size {
			return b
		}
	}
	return nil
}

// newExpandable reserves addresses for a segment, in which nothing is mapped,
// that holds r, or gives nil.
func (m *model) newExpandable(r *request) *block {
	page := m.conf.page(r.pool.small)
	size := m.addresses(page)
	if size < r.size {
		return nil // the device has less memory than addresses
	}
	addr, ok := m.place.expandable(size)
	if !ok {
		return nil
	}
	b := m.newSegment(segment{pool: r.pool, stream: r.stream, addr: addr, size: size, page: page}, isUnmapped)
	m.enter(b)
	return b
}

// manyAddresses is the size of an expandable segment on a device that never
// fails.
const manyAddresses = 1 << 44

// addresses is the size of an expandable segment.
func (m *model) addresses(page uint64) uint64 {
	if m.anyAddresses {
		return m.conf.addresses(NoLimit, page)
	}
	return m.conf.addresses(m.capacity, page)
}

// addresses is the size of an expandable segment: 9/8 of the device, in pages,
// or less if the settings say so.
func (c *Conf) addresses(capacity, page uint64) uint64 {
	size := uint64(manyAddresses)
	if capacity < manyAddresses {
		size = capacity + capacity/8
	}
	limit := size
	if c.ReserveFraction > 0 && c.ReserveFraction*float64(capacity) < float64(limit) {
		limit = uint64(c.ReserveFraction * float64(capacity))
	}
	if c.ReserveBytes > 0 {
		limit = min(limit, c.ReserveBytes)
	}
	return roundUp(max(limit, 1), page)
}

// mapPages puts memory behind at least size bytes at the start of an unmapped
// block, whole pages, and gives the free block that they are in, or nil if the
// device has too little for all of them.
func (m *model) mapPages(b *block, size uint64) *block {
	size = min(roundUp(size, b.seg.page), b.size)
	if m.exceeds(size, m.capacity) {
		return nil
	}
	addr, stream := b.addr, b.seg.stream
	m.leave(b)
	if size < b.size {
		m.enter(m.split(b, b.addr+size))
	}
	b.state = isFree
	b = m.join(b)
	m.reserve(change{trace.SegmentMap, stream, addr, size})
	return b
}
