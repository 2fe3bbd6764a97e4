package alloc

// find gives a free block for r without taking memory from the device, or nil:
// the first rungs of the ladder.
func (a *Allocator) find(r *request) *Block {
	if b := a.findReady(r); b != nil {
		return b
	}
	return a.findAny(r)
}

// findReady gives one that r's stream may use at once.
func (a *Allocator) findReady(r *request) *Block {
	if b := a.ready(r); b != nil {
		return b
	}
	if a.refresh() {
		if b := a.ready(r); b != nil {
			a.stats.Settles++
			a.note("settle", r.stream.id, r.size)
			return b
		}
	}
	return nil
}

// findAny gives one that others may still use.
func (a *Allocator) findAny(r *request) *Block {
	if b := bestFit(r.pool.free, r); b != nil {
		return b
	}
	if len(a.pending) == 0 {
		return nil
	}
	a.settle(func(*Block) bool { return true })
	return bestFit(r.pool.free, r)
}

// ready gives the best fit among the blocks that r's stream may use at once.
func (a *Allocator) ready(r *request) *Block {
	b, own := r.pool.free[clean].fit(r), r.pool.free[ownClass+r.stream.id].fit(r)
	if b == nil || own != nil && less(own, b) {
		return own
	}
	return b
}

// bestFit gives the best fit among all trees.
func bestFit(trees []*tree, r *request) *Block {
	var best *Block
	for _, t := range trees {
		if b := t.fit(r); b != nil && (best == nil || less(b, best)) {
			best = b
		}
	}
	return best
}

// refresh looks how far the device has come and moves free blocks to the class
// that fits, and says whether there was anything new.
func (a *Allocator) refresh() bool {
	a.poll()
	if a.sorted == a.progress {
		return false
	}
	a.sorted = a.progress
	for _, p := range a.pools {
		a.scratch = a.scratch[:0]
		for _, t := range p.free[clean+1:] {
			a.scratch = t.collect(a.scratch, 0)
		}
		for _, b := range a.scratch {
			b.tree.remove(b)
			b.uses = a.undone(b.uses)
			b.seg.enter(b)
		}
	}
	return true
}

// othersPassed says whether all streams but its own are done with a pending block.
func (a *Allocator) othersPassed(b *Block) bool {
	for _, u := range b.uses {
		if u.stream != b.stream.id && !a.passed(u) {
			return false
		}
	}
	return true
}

// settleFinished makes the pending blocks that others are done with free.
func (a *Allocator) settleFinished() {
	if len(a.pending) == 0 {
		return
	}
	a.poll()
	if a.settled != a.progress {
		a.settled = a.progress
		a.settle(a.othersPassed)
	}
}

// settle makes the pending blocks that are over free.
func (a *Allocator) settle(over func(*Block) bool) {
	kept := a.pending[:0]
	for _, b := range a.pending {
		if !over(b) {
			kept = append(kept, b)
			continue
		}
		a.stats.Pending -= b.size
		a.complete(b)
	}
	clear(a.pending[len(kept):])
	a.pending = kept
}
