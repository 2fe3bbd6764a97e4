// Memory behind addresses, page by page.
//
// A request for which no free block is large enough is placed in a gap: a run
// of free and unbacked blocks between two blocks in use. At place x it needs a
// number of pages that are unbacked now (moved: each costs a map), and those
// come from whole pages of free blocks elsewhere and, when these are too few,
// from the device (created). place tries the ends of all blocks in all gaps
// and takes the x with the fewest created, then the fewest moved pages, then
// the lowest.
//
//	gap      [live][ free ][   unbacked     ][ free  ][live]
//	x        1.....]       .                 .            start of the gap
//	         ......[2..... .                 .            end of a block …
//
// The pages of a donor are unmapped first; the handles wait in spare until they
// are mapped. Between public calls spare is empty unless a call failed and
// could not be undone.
//
// The price of a page goes by the number of handles, not by bytes: on an H200
// creating and mapping one costs 78 µs, moving one 77 µs.

package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// arenas is the number of times that the device's memory fits into the
// addresses which a pool reserves at once. Addresses cost nothing; a gap that
// is too small for a large block stays unused for a while.
const arenas = 4

// virtual is the source that maps handles into reserved addresses.
type virtual struct {
	a       *Allocator
	spare   []*page         // at home nowhere
	donors  []run           // of findDonors
	steps   []run           // done by grow
	handles []device.Handle // of attach
	alias   bool            // the device maps a page twice
	edges
}

func newVirtual(a *Allocator, alias bool) *virtual {
	a.views = views{most: mostMapped, bySize: map[uint64][]*view{}, home: &segment{a: a, pool: a.pools[1]}}
	return &virtual{a: a, alias: alias}
}

// run is a number of neighbouring pages of a segment.
type run struct {
	seg   *segment
	addr  uint64
	n     int
	pages []*page // steps: that were unmapped, nil for mapped
}

// spot is a place for a request.
type spot struct {
	seg            *segment
	before         *Block // last block before the gap, nil at the start of the segment
	at, end        uint64 // of the request
	created, moved int    // pages
	whole          int    // whole free pages that it would use up, created and moved ones among them
}

// better orders spots.
func (s *spot) better(t *spot) bool {
	return cmp.Or(cmp.Compare(s.created, t.created), cmp.Compare(s.moved, t.moved), cmp.Compare(s.at, t.at)) < 0
}

// grow makes room for r. Where the device has no memory left, idle views are dropped
// and it is tried once more: a system may count handles and mappings together, so that
// a handle is refused for what views map. Refused mappings are show's.
func (v *virtual) grow(r request) (*Block, error) {
	b, err := v.growOnce(r)
	if err == nil || err == errLimit || v.a.views.pages == 0 || !errors.Is(err, device.ErrOutOfMemory) {
		return b, err
	}
	if dropErr := v.drop(0); dropErr != nil {
		return nil, errors.Join(err, dropErr)
	}
	return v.growOnce(r)
}

// growOnce backs a place for r, or stitches one where that uses up fewer pages.
func (v *virtual) growOnce(r request) (*Block, error) {
	v.findEdges(r.pool)
	whole := v.wholePages()
	s, err := v.place(&r, whole)
	if err != nil {
		return nil, err
	}
	if st := v.stitch(&r, whole); st != nil && v.prefer(st, &s) {
		if b, err := v.sew(&r, st); err == nil {
			return b, nil
		}
	}
	err = v.supply(s.created, func() error {
		if err := v.gather(&s); err != nil {
			return err
		}
		return v.back(&s)
	})
	if err != nil {
		return nil, err
	}
	return v.a.cut(s.block(s.at), s.at, s.end), nil
}

// prefer says whether to stitch: if that uses up fewer whole pages; and, if it
// uses as many, where nothing is created, since lending pages needs no wait and
// they return when the block is freed, and for large blocks, which are few: a
// repeating step then finds them stitched.
func (v *virtual) prefer(st *stitch, s *spot) bool {
	const large = 128 // pages
	return st.whole < s.whole || st.whole == s.whole && (s.created == 0 || st.size >= large*v.a.page)
}

// supply creates n pages and then does what needs them; when one fails, all is
// as before.
func (v *virtual) supply(n int, use func() error) error {
	if v.a.stats.Reserved+uint64(n)*v.a.page > v.a.limit {
		return errLimit
	}
	v.steps = v.steps[:0]
	made, err := v.create(n)
	if err == nil {
		err = v.makeRoom(0)
	}
	if err == nil {
		err = use()
	}
	if err != nil {
		return errors.Join(err, v.undo(made))
	}
	return nil
}

// block gives the block of the gap that holds an address.
func (s *spot) block(addr uint64) *Block {
	b := s.before
	if b == nil {
		b = s.seg.first
	}
	for b.end() <= addr {
		b = b.next
	}
	return b
}

// place gives the best spot for r, given the number of whole pages there are,
// after reserving more addresses if there is none.
func (v *virtual) place(r *request, whole int) (spot, error) {
	best, found := spot{}, false
	v.a.scratch = r.pool.holes.collect(v.a.scratch[:0], 0)
	for _, hole := range v.a.scratch {
		v.try(r, hole, whole, func(s spot) {
			if !found || s.better(&best) {
				best, found = s, true
			}
		})
	}
	if found {
		return best, nil
	}
	if err := v.reserve(r); err != nil {
		return spot{}, err
	}
	return v.place(r, whole)
}

// reserve adds a segment of unbacked addresses that r fits into.
func (v *virtual) reserve(r *request) error {
	least := roundUp(r.size, v.a.page)
	size := least
	if most := roundDown(v.a.dev.Info().Capacity, v.a.page); most < 1<<60 {
		size = max(least, arenas*most)
	}
	for {
		p, err := v.a.dev.Reserve(size)
		if err == nil {
			v.a.join(v.a.newSegment(r.pool, uint64(p), size, unbacked))
			return nil
		}
		if size == least {
			return fmt.Errorf("%w: reserving %d bytes of addresses: %w", device.ErrOutOfMemory, size, err)
		}
		size = max(least, roundDown(size/2, v.a.page))
	}
}

// try offers the spots for r in the gap of which hole is the first unbacked block.
func (v *virtual) try(r *request, hole *Block, whole int, offer func(spot)) {
	first, last := hole, hole
	for b := hole.prev; b != nil && b.idle(); b = b.prev {
		if b.state == unbacked {
			return // the gap is that of another hole
		}
		first = b
	}
	for last.next != nil && last.next.idle() {
		last = last.next
	}
	if last.end()-first.addr < r.size {
		return
	}
	for b := first; b != last.next; b = b.next {
		low, high := roundUp(b.addr, r.align), roundDown(b.end()-min(b.end(), r.size), r.align)
		if v.mirror {
			low = roundUp(low+r.size, v.a.page) - r.size
		}
		for _, at := range [2]uint64{low, high} {
			if at < first.addr || at+r.size > last.end() {
				continue
			}
			s := spot{seg: hole.seg, before: first.prev, at: at, end: at + r.size}
			v.count(&s, first)
			v.price(&s, whole)
			offer(s)
		}
	}
}

// idle says whether the block is free or unbacked.
func (b *Block) idle() bool { return b.state == free || b.state == unbacked }

// count counts the pages of a spot that must be mapped and those that are
// there and whole.
func (v *virtual) count(s *spot, first *Block) {
	from, to := roundDown(s.at, v.a.page), roundUp(s.end, v.a.page) // the pages that it touches
	for b := first; b != nil && b.addr < s.end; b = b.next {
		if b.state == unbacked {
			s.moved += pages(max(b.addr, from), min(b.end(), to), v.a.page)
		} else {
			s.whole += pages(max(roundUp(b.addr, v.a.page), from), min(roundDown(b.end(), v.a.page), to), v.a.page)
		}
	}
}

// price completes what count has begun, given the number of whole pages there
// are for all.
func (v *virtual) price(s *spot, whole int) {
	if !s.seg.pool.keep { // else whole has none of its pages
		whole -= s.whole
	}
	s.created = max(0, s.moved-whole)
	s.whole += s.moved
}

// pages is the number of pages from one boundary to another, 0 if they cross.
func pages(from, to, page uint64) int {
	if to <= from {
		return 0
	}
	return int((to - from) / page)
}

// findDonors lists the whole pages of free blocks outside the pages of a spot,
// those of the smallest blocks first.
func (v *virtual) findDonors(s *spot) {
	free := v.a.scratch[:0]
	for _, p := range v.a.pools {
		if p.keep {
			continue
		}
		for _, t := range p.free {
			free = t.collect(free, v.a.page)
		}
	}
	slices.SortFunc(free, func(x, y *Block) int { return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.addr, y.addr)) })
	v.a.scratch, v.donors = free, v.donors[:0]
	for _, b := range free {
		from, to := roundUp(b.addr, v.a.page), roundDown(b.end(), v.a.page)
		if s == nil || s.end <= b.addr || b.end() <= s.at {
			v.offer(b.seg, from, to)
			continue
		}
		v.offer(b.seg, from, min(to, roundDown(s.at, v.a.page)))
		v.offer(b.seg, max(from, roundUp(s.end, v.a.page)), to)
	}
}

// offer adds a run to the donors.
func (v *virtual) offer(seg *segment, from, to uint64) {
	if n := pages(from, to, v.a.page); n > 0 {
		v.donors = append(v.donors, run{seg: seg, addr: from, n: n})
	}
}

// create takes n pages from the device, spare ones, or as many as it gives.
func (v *virtual) create(n int) (made []*page, err error) {
	for range n {
		h, err := v.a.dev.Create()
		if err != nil {
			return made, err
		}
		made = append(made, &page{handle: h})
		v.spare = append(v.spare, made[len(made)-1])
		v.a.stats.Reserved += v.a.page
		v.a.stats.Creates++
	}
	return made, nil
}

// destroy gives those of the pages that are spare back to the device. Idle
// views that show one are unmapped.
func (v *virtual) destroy(pages []*page) error {
	defer func() { v.spare = slices.DeleteFunc(v.spare, func(p *page) bool { return p.handle == 0 }) }()
	for _, p := range pages {
		if p.seg != nil {
			continue
		}
		if p.views > 0 {
			if err := v.hide(p); err != nil {
				return err
			}
		}
		if err := v.a.dev.Destroy(p.handle); err != nil {
			return err
		}
		p.handle = 0
		v.a.stats.Reserved -= v.a.page
		v.a.stats.Destroys++
	}
	return nil
}

// gather unmaps whole pages of other holes until enough handles for s are spare.
func (v *virtual) gather(s *spot) error {
	if len(v.spare) >= s.moved {
		return nil
	}
	v.findDonors(s)
	for _, donor := range v.donors {
		donor.n = min(donor.n, s.moved-len(v.spare))
		if donor.n == 0 {
			break
		}
		v.a.sync(donor.seg.at(donor.addr).uses)
		if err := v.detach(donor); err != nil {
			return err
		}
	}
	return nil
}

// back maps spare handles behind the unbacked pages of s.
func (v *virtual) back(s *spot) error {
	for b := s.block(roundDown(s.at, v.a.page)); b != nil && b.addr < s.end; b = b.next {
		if b.state != unbacked {
			continue
		}
		from, to := max(b.addr, roundDown(s.at, v.a.page)), min(b.end(), roundUp(s.end, v.a.page))
		joined, err := v.attach(run{seg: s.seg, addr: from, n: pages(from, to, v.a.page)})
		if err != nil {
			return err
		}
		b = joined
	}
	return nil
}

// attach gives spare pages, r's or any, a home behind unbacked addresses, and
// gives the free block that they are in then.
func (v *virtual) attach(r run) (*Block, error) {
	chosen := r.pages
	if chosen == nil {
		chosen = slices.Clone(v.spare[len(v.spare)-r.n:])
	}
	if err := v.show(device.Ptr(r.addr), chosen); err != nil {
		return nil, err
	}
	at := r.seg.index(r.addr)
	if missing := at + r.n - len(r.seg.pages); missing > 0 {
		r.seg.pages = append(r.seg.pages, make([]*page, missing)...)
	}
	for i, p := range chosen {
		p.seg, p.addr = r.seg, r.addr+uint64(i)*v.a.page
		r.seg.pages[at+i] = p
	}
	v.a.views.moved(chosen)
	v.spare = slices.DeleteFunc(v.spare, func(p *page) bool { return p.seg != nil })
	r.pages = nil
	v.logStep(r, trace.SegmentMap, &v.a.stats.Maps)
	return v.turn(r, free), nil
}

// list gives the handles of pages. It is overwritten by the next call.
func (v *virtual) list(pages []*page) []device.Handle {
	v.handles = v.handles[:0]
	for _, p := range pages {
		v.handles = append(v.handles, p.handle)
	}
	return v.handles
}

// detach unmaps whole pages of a free block; their handles become spare. The
// work on them is done.
func (v *virtual) detach(r run) error {
	if err := v.a.dev.Unmap(device.Ptr(r.addr), r.n); err != nil {
		return err
	}
	at := r.seg.index(r.addr)
	r.pages = slices.Clone(r.seg.pages[at : at+r.n])
	for i, p := range r.pages {
		p.seg = nil
		r.seg.pages[at+i] = nil
	}
	v.a.views.moved(r.pages)
	v.spare = append(v.spare, r.pages...)
	v.logStep(r, trace.SegmentUnmap, &v.a.stats.Unmaps)
	v.turn(r, unbacked)
	return nil
}

// turn makes the pages free or unbacked.
func (v *virtual) turn(r run, s state) *Block {
	end := r.addr + uint64(r.n)*v.a.page
	b := v.a.cut(r.seg.at(r.addr), r.addr, end)
	b.state, b.uses = s, b.uses[:0]
	return v.a.join(b)
}

// logStep counts and records a step, for undo.
func (v *virtual) logStep(r run, action trace.Action, count *uint64) {
	*count += uint64(r.n)
	v.steps = append(v.steps, r)
	v.a.recordRange(action, r.addr, uint64(r.n)*v.a.page)
}

// undo takes the steps of grow back, last first, and destroys what it created.
// Steps that cannot be taken back stay: that is no wrong state, only a worse one.
func (v *virtual) undo(made []*page) error {
	var failed error
	for _, step := range slices.Backward(slices.Clone(v.steps)) {
		var err error
		if step.pages == nil {
			err = v.detach(step)
		} else if !slices.ContainsFunc(step.pages, func(p *page) bool { return p.seg != nil }) {
			_, err = v.attach(step)
		}
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, v.destroy(made))
}

// prepare creates pages and gives them a home.
func (v *virtual) prepare(size uint64) error {
	size = roundUp(size, v.a.page)
	n := int(size / v.a.page)
	r := request{size: size, align: v.a.page, pool: v.a.pools[1]}
	return v.supply(n, func() error { return v.settleIn(&r, n) })
}

// trim destroys spare pages and whole ones, after unmapping them.
func (v *virtual) trim(keep uint64) (uint64, error) {
	before := v.a.stats.Reserved
	n := int((before - keep + v.a.page - 1) / v.a.page)
	v.steps = v.steps[:0]
	v.findDonors(nil)
	for _, r := range v.donors {
		r.n = min(r.n, n-len(v.spare))
		if r.n <= 0 {
			break
		}
		v.a.sync(r.seg.at(r.addr).uses)
		if err := v.detach(r); err != nil {
			return 0, err
		}
	}
	err := v.destroy(slices.Clone(v.spare[:min(n, len(v.spare))]))
	v.a.tidy()
	return before - v.a.stats.Reserved, err
}

// close unmaps all views and pages and gives handles and addresses back.
func (v *virtual) close() error {
	failed := v.closeViews()
	for _, seg := range v.a.segments {
		for i, p := range seg.pages {
			if p == nil {
				continue
			}
			if err := v.a.dev.Unmap(device.Ptr(p.addr), 1); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			seg.pages[i], p.seg = nil, nil
			v.spare = append(v.spare, p)
			v.a.stats.Unmaps++
		}
		failed = errors.Join(failed, v.a.dev.Release(device.Ptr(seg.base)))
	}
	return errors.Join(failed, v.destroy(slices.Clone(v.spare)))
}

func (v *virtual) unplaced() uint64 { return uint64(len(v.spare)) * v.a.page }

// check recounts pages and compares them with blocks.
func (v *virtual) check() error {
	number := len(v.spare)
	for _, seg := range v.a.segments {
		for b := seg.first; b != nil; b = b.next {
			if err := v.checkPages(seg, b); err != nil {
				return err
			}
		}
		for i, p := range seg.pages {
			if p == nil {
				continue
			}
			if number++; p.seg != seg || seg.index(p.addr) != i {
				return fmt.Errorf("page %d of the segment at %#x thinks that it is at %#x", i, seg.base, p.addr)
			}
		}
	}
	if got := uint64(number) * v.a.page; got != v.a.stats.Reserved {
		return fmt.Errorf("reserved is %d bytes, yet the handles have %d", v.a.stats.Reserved, got)
	}
	return v.checkViews()
}

// checkPages finds pages of b that are backed and should not be, or the reverse.
func (v *virtual) checkPages(seg *segment, b *Block) error {
	if b.state == unbacked && (b.addr|b.size)&(v.a.page-1) != 0 {
		return fmt.Errorf("unbacked block %#x of %d bytes is not of whole pages", b.addr, b.size)
	}
	for i := seg.index(b.addr); i <= seg.index(b.end()-1); i++ {
		if i >= len(seg.pages) && b.state == unbacked {
			break
		}
		if backed := i < len(seg.pages) && seg.pages[i] != nil; backed == (b.state == unbacked) {
			return fmt.Errorf("page %d of the segment at %#x: backed is %v, yet the block at %#x is %v", i, seg.base, backed, b.addr, b.state)
		}
	}
	return nil
}
