package inspect

import "github.com/headroom-go/headroom/trace"

// collecting says whether garbage is collected: the settings ask for it and a
// memory fraction is set.
func (m *model) collecting() bool { return m.conf.GCThreshold > 0 && m.allowed != NoLimit }

// age is how many searches a free block has outlasted.
func (b *block) age() uint64 { return b.seg.pool.lookups - b.born }

// collectGarbage gives back wholly free segments of the large pool, those of
// average age and more first, until reserved is below the threshold. Pages of
// expandable segments stay, although blocks that are all of one count for the
// average.
func (m *model) collectGarbage() {
	threshold := uint64(m.conf.GCThreshold * float64(m.allowed))
	if m.figures.reserved <= threshold {
		return
	}
	target := m.figures.reserved - threshold
	var old []*block
	var ages uint64
	for _, b := range m.pool(trace.PoolID{}, false).free.all() {
		if b.whole() {
			old = append(old, b)
			ages += b.age()
		}
	}
	for released, going := uint64(0), true; going && released < target && len(old) > 0; {
		average := float64(ages) / float64(len(old))
		kept := old[:0]
		going = false
		for _, b := range old {
			if b.seg.page > 0 || float64(b.age()) < average {
				kept = append(kept, b)
				continue
			}
			going = true
			released += b.size
			ages -= b.age()
			m.releaseSegment(b)
		}
		old = kept
	}
}

// releaseSegment gives the plain segment of a free block that is all of it back.
func (m *model) releaseSegment(b *block) {
	seg := b.seg
	m.leave(b)
	m.dropSegment(seg)
	m.giveBack(change{trace.SegmentFree, seg.stream, seg.addr, seg.size})
}

// releaseOversize gives back cached blocks of max_split_size or more on r's
// stream: the smallest that r fits in or, without one, the largest until they
// are enough together. It says whether that many bytes were given back.
func (m *model) releaseOversize(r *request) bool {
	if m.conf.MaxSplit == NoLimit {
		return false
	}
	free, need := &r.pool.free, max(r.size, m.conf.MaxSplit)
	if b := free.ceiling(r.stream, need, 0); b != nil && b.seg.stream == r.stream && b.seg.page == 0 {
		m.release(b)
		return true
	}
	released := uint64(0)
	b := free.floor(r.stream, need, 0)
	for b != nil && released < need && b.size >= m.conf.MaxSplit && b.seg.stream == r.stream {
		smaller := free.floor(r.stream, b.rank, b.addr)
		if b.seg.page == 0 {
			released += b.size
			m.release(b)
		}
		b = smaller
	}
	return released >= need
}

// release gives a plain segment back if the block is all of it. PyTorch takes
// for granted that blocks of max_split_size or more are, since they are never
// split.
func (m *model) release(b *block) {
	if b.whole() {
		m.releaseSegment(b)
	}
}

// releaseCached waits for all pending frees and gives back all wholly free
// segments and pages outside private pools.
func (m *model) releaseCached() {
	for len(m.pending) > 0 {
		m.complete(m.pending[0])
	}
	m.releaseFree(m.pool(trace.PoolID{}, false))
	m.releaseFree(m.pool(trace.PoolID{}, true))
}

// releasable says whether releaseCached would give anything back.
func (m *model) releasable() bool {
	for _, small := range []bool{false, true} {
		for _, b := range m.pool(trace.PoolID{}, small).free.all() {
			if from, to := b.pages(); from < to || b.seg.page == 0 && b.whole() {
				return true
			}
		}
	}
	return false
}

func (m *model) releaseFree(p *pool) {
	var paged []*block
	for _, b := range p.free.all() {
		if b.seg.page > 0 {
			paged = append(paged, b)
		} else if b.whole() {
			m.releaseSegment(b)
		}
	}
	for _, b := range paged {
		m.unmapPages(b)
	}
}

// pages gives the range of the pages that lie wholly in the block; it is empty
// in a plain segment, and if to is not above from.
func (b *block) pages() (from, to uint64) {
	if b.seg.page == 0 {
		return 0, 0
	}
	base := b.seg.addr
	return base + roundUp(b.addr-base, b.seg.page), b.end() - (b.end()-base)%b.seg.page
}

// unmapPages takes away the memory of the pages that lie wholly in a free
// block. An expandable segment without memory is dropped.
func (m *model) unmapPages(b *block) {
	seg := b.seg
	from, to := b.pages()
	if from >= to {
		return
	}
	m.leave(b)
	if to < b.end() {
		m.enter(m.split(b, to))
	}
	if from > b.addr {
		front := b
		b = m.split(b, from)
		m.enter(front)
	}
	b.state = isUnmapped
	if b = m.join(b); b.whole() {
		m.leave(b)
		m.dropSegment(seg)
	}
	m.giveBack(change{trace.SegmentUnmap, seg.stream, from, to - from})
}
