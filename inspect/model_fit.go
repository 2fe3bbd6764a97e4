package inspect

// find takes the best fit for r out of the cached blocks, or gives nil.
func (m *model) find(r *request) *block {
	if m.collecting() {
		r.pool.lookups++
	}
	b := m.fit(r)
	if b != nil {
		m.leave(b)
	}
	return b
}

// fit gives the best fit for r among the cached blocks of its pool and stream,
// or nil.
func (m *model) fit(r *request) *block {
	b := r.pool.free.ceiling(r.stream, r.size, 0)
	if b != nil && b.seg.stream == r.stream && b.seg.page > 0 {
		b = m.refine(r, b)
	}
	if b == nil || b.seg.stream != r.stream || m.oversize(r, b) {
		return nil
	}
	return b
}

// refine goes on from b, the best fit by size, which is in an expandable
// segment. There the size of a block that can grow is what it can grow to, so
// a larger block that ends before other blocks is the better fit. With
// expandable segments switched off their blocks are passed over.
func (m *model) refine(r *request, b *block) *block {
	free := &r.pool.free
	if !m.conf.Expandable {
		for b != nil && b.seg.stream == r.stream && b.seg.page > 0 {
			b = free.after(b)
		}
		return b
	}
	for b.seg.page > 0 {
		n := free.after(b)
		if n == nil || n.seg.stream != r.stream || room(n) >= room(b) {
			break
		}
		b = n
	}
	return b
}

// room is the size that a free block could grow to.
func room(b *block) uint64 {
	if b.next != nil && b.next.state == isUnmapped {
		return b.size + b.next.size
	}
	return b.size
}

// oversize says whether max_split_size keeps r from b: a small request from a
// block that must not be split, a large one from a block that is much larger.
func (m *model) oversize(r *request, b *block) bool {
	if r.size < m.conf.MaxSplit {
		return b.size >= m.conf.MaxSplit
	}
	return b.size-r.size >= m.conf.MaxNonSplitRounding
}

// trim cuts off what r does not need of its block, if that is worth keeping.
// The front is handed out, the tail is cached.
func (m *model) trim(b *block, r *request) {
	rest := b.size - r.size
	keep := rest > smallMax && r.size < m.conf.MaxSplit
	if r.pool.small || m.conf.Expandable {
		keep = rest >= minBlock
	}
	if keep {
		m.enter(m.split(b, b.addr+r.size))
	}
}
