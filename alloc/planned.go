package alloc

import "context"

// planned is a plan that is being followed. Its pages have addresses of their
// own, page i at base + i × page, in a pool that nobody else uses; they are
// backed when a block first needs them, or at once as far as pages are free.
type planned struct {
	plan  *Plan
	pool  *pool
	seg   *segment
	next  int     // request that is expected
	views []*view // by request: blocks on pages that are no neighbours
	// lost counts requests of this step that were not served by the plan.
	lost int
}

// ahead is how far in a plan a request that was not expected is looked for.
const ahead = 16

// Follow makes the allocator serve requests by the plan from its first request
// on, and again from there after each Step. Requests of NewPool's pools are no
// part of it. A plan that was followed before is given up; nil ends planning.
// It fails if the plan is for pages of another size than the device's.
func (a *Allocator) Follow(p *Plan) error {
	a.begin()
	defer a.unlock()
	return a.followPlan(p)
}

func (a *Allocator) followPlan(p *Plan) error {
	if a.closed {
		return errClosed
	}
	if p != nil && (a.page == 0 || p.page != a.page) {
		return errPlan
	}
	a.giveUpPlan()
	a.tidy()
	if p == nil || p.pages == 0 {
		return nil
	}
	base, err := a.dev.Reserve(uint64(p.pages) * p.page)
	if err != nil {
		return err
	}
	pl := &planned{plan: p, pool: &pool{private: true, keep: true}, views: make([]*view, len(p.blocks))}
	a.addPool(pl.pool)
	a.join(a.newSegment(pl.pool, uint64(base), uint64(p.pages)*p.page, unbacked))
	pl.seg = a.segments[len(a.segments)-1]
	a.planned = pl
	a.steps.forget()
	return nil
}

// giveUpPlan leaves the memory of the plan to all requests.
func (a *Allocator) giveUpPlan() bool {
	if a.planned == nil {
		return false
	}
	a.adopt(a.planned.pool)
	a.planned = nil
	return true
}

// follow gives r the bytes that the plan has for it, or nil if it has none or
// they are in use.
func (a *Allocator) follow(r *request) *Block {
	p := a.planned
	for i := p.next; i < min(p.next+ahead, len(p.plan.blocks)); i++ {
		if p.plan.blocks[i].size == r.size {
			p.next = i + 1
			if b := a.source.(*virtual).planned(p, i); b != nil {
				a.stats.Planned++
				return b
			}
			break
		}
	}
	p.lost++
	return nil
}

// planned gives the block of request i, or nil.
func (v *virtual) planned(p *planned, i int) *Block {
	planned := &p.plan.blocks[i]
	if len(planned.runs) == 1 {
		at := p.seg.base + uint64(planned.runs[0].first)*v.a.page + planned.offset
		return v.plannedAt(p.seg, at, planned.size)
	}
	if (p.views[i] == nil || p.views[i].block.state == dead) && !v.plannedView(p, i) {
		return nil
	}
	if w := p.views[i]; w.free() {
		return w.take()
	}
	return nil
}

// plannedAt gives the block at an address of a plan if it is free.
func (v *virtual) plannedAt(seg *segment, at, size uint64) *Block {
	if !seg.idleIn(at, at+size) || !v.ensure(seg, at, at+size) {
		return nil
	}
	return v.a.cut(seg.at(at), at, at+size)
}

// idleIn says whether no byte of [from, to) is in use.
func (s *segment) idleIn(from, to uint64) bool {
	for b := s.at(from); b != nil && b.addr < to; b = b.next {
		if !b.idle() {
			return false
		}
	}
	return true
}

// ensure backs the pages of [from, to), and says whether that could be done.
func (v *virtual) ensure(seg *segment, from, to uint64) bool {
	first := seg.at(roundDown(from, v.a.page))
	s := spot{seg: seg, before: first.prev, at: from, end: to}
	if v.count(&s, first); s.moved == 0 {
		return true
	}
	v.price(&s, v.wholePages())
	return v.supply(s.created, func() error {
		if err := v.gather(&s); err != nil {
			return err
		}
		return v.back(&s)
	}) == nil
}

// plannedView maps the view of request i.
func (v *virtual) plannedView(p *planned, i int) bool {
	planned := &p.plan.blocks[i]
	if !v.alias {
		return false
	}
	var pages []*page
	for _, r := range planned.runs {
		from := p.seg.base + uint64(r.first)*v.a.page
		if !v.ensure(p.seg, from, from+uint64(r.n)*v.a.page) {
			return false
		}
		at := p.seg.index(from)
		pages = append(pages, p.seg.pages[at:at+r.n]...)
	}
	w, err := v.see(p.pool, pages, planned.offset, planned.size)
	if err != nil {
		return false
	}
	p.views[i] = w
	return true
}

// recording is the requests of a step, for a plan of the next.
type recording struct {
	number uint64 // of the recording
	clock  int
	blocks []Lifetime
}

// start notes a block that was handed out.
func (r *recording) start(b *Block) {
	b.recorded = r.number<<32 | uint64(len(r.blocks))
	r.blocks = append(r.blocks, Lifetime{Size: b.size, Start: r.clock})
	r.clock++
}

// end notes a block that was taken back.
func (r *recording) end(b *Block) {
	if b.recorded>>32 == r.number {
		r.blocks[b.recorded&(1<<32-1)].End = r.clock
		r.clock++
	}
}

// close gives the lifetimes. A block that outlives the step is taken back some
// time in the next, where another one may have its place: it holds it always.
func (r *recording) close() []Lifetime {
	for i := range r.blocks {
		if r.blocks[i].End == 0 {
			r.blocks[i].Start, r.blocks[i].End = 0, r.clock+1
		}
	}
	return r.blocks
}

// planWork bounds the search for a plan between two steps: some tenths of a
// second. It is counted, so that plans don't depend on the machine's speed.
const planWork = 1e8

// planStep ends a step of an allocator that makes its own plans. Steps are
// recorded until one is served by the plan wholly; plans that don't hold are
// made again, each time after twice as many steps.
func (a *Allocator) planStep() error {
	p, r := a.planned, a.recording
	a.recording = nil
	switch {
	case p != nil && p.lost == 0 && p.next == len(p.plan.blocks):
		a.failures = 0
		return nil
	case r == nil:
		if a.pause--; a.pause <= 0 {
			a.startRecording()
		}
		return nil
	}
	a.failures++
	a.pause = 1 << min(a.failures, 10) / 4
	if a.pause == 0 {
		a.startRecording()
	}
	plan, err := makePlan(context.Background(), r.close(), a.page, planWork)
	if err != nil {
		return err
	}
	return a.followNow(plan)
}

// startRecording starts a recording of the next step.
func (a *Allocator) startRecording() {
	a.recordings++
	a.recording = &recording{number: a.recordings}
}

// followNow follows a plan from the next step on, with the pages that are free
// now behind its addresses.
func (a *Allocator) followNow(p *Plan) error {
	if err := a.followPlan(p); err != nil || a.planned == nil {
		return err
	}
	v, seg := a.source.(*virtual), a.planned.seg
	if n := min(p.pages, v.wholePages()); n > 0 {
		v.ensure(seg, seg.base, seg.base+uint64(n)*a.page)
	}
	return nil
}
