// Blocks over pages of several holes.
//
// A view is a range of addresses behind which pages are mapped a second time.
// A page stays at home where it was; what a view uses of it is a lent block
// there, so that one set of books, the tiling of the segments, tells for every
// byte whether it is free:
//
//	at home  [live|lent ]   [live][  lent  ]   [lent |  live ]
//	pages     ....|sssss           wwwwwwww     ppppp|....
//	view           [sssss wwwwwwww ppppp]                       a block
//
// When the block is freed, its pieces become free blocks at home at once, and
// the view stays mapped and idle. A later request of the same size whose
// pieces happen to be free takes it again without a call of the driver. Which
// pages a view shows never changes; where they are at home may.
//
// For the trace, which knows no second addresses, memory moves to a view when
// its block goes live, and home when it is free again.

package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// view is a range of addresses with pages that are at home elsewhere.
type view struct {
	block  Block // live, pending, or free: idle
	base   uint64
	pages  []*page
	lent   []*Block // the bytes of a live or pending block, in order
	number uint64   // of the time when it was last taken
	pool   *pool    // that it serves
	homes  []span   // of find, when pages had moved so often:
	moves  uint64
}

// views are those of an allocator.
type views struct {
	bySize map[uint64][]*view
	home   *segment     // that their blocks belong to; it has no addresses
	pages  int          // mapped by all
	most   int          // that may be mapped, at home and by views
	taken  uint64       // number of times that one was taken
	moves  uint64       // number of times that a page which one shows got or lost its home
	lost   []device.Ptr // addresses that could not be released
}

// mostMapped bounds the pages that are mapped, at home and by views. The driver of an
// H200 (580) refused more at about 1<<19, whatever memory was free.
const mostMapped = 1<<19 - 1<<14

// mostViewed bounds the pages mapped by views: what homes leave, so that idle views
// stay as long as may be. Near the capacity a step uses up to three times as many as
// are reserved, and steps of several shapes may take turns; one whose blocks are a
// twentieth of the memory each, and most of them made again, used 66 times as many. A
// page mapped costs the driver 8 or 16 bytes of page table.
func (v *virtual) mostViewed() int {
	homes := v.homes()
	return max(homes, v.a.views.most-homes)
}

// homes is how many pages may be mapped at home.
func (v *virtual) homes() int { return int(v.a.stats.Reserved / v.a.page) }

// all lists the views.
func (v *views) all(yield func(*view) bool) {
	for _, list := range v.bySize {
		for _, w := range list {
			if !yield(w) {
				return
			}
		}
	}
}

// pieces gives the bytes of w's block at their homes. They are looked for again
// only where pages have moved: a block of gigabytes lies on thousands of pages,
// and in few pieces.
func (w *view) pieces() []span {
	if moves := w.block.seg.a.views.moves; w.moves != moves || len(w.homes) == 0 {
		w.homes, w.moves = w.find(w.homes[:0]), moves
	}
	return w.homes
}

// find adds the bytes of w's block at their homes to a list; neighbours there
// are one piece. A page that has no home gives a nil segment.
func (w *view) find(list []span) []span {
	page := w.block.seg.a.page
	for i, p := range w.pages {
		s := span{p.seg, p.addr, p.addr + page}
		if i == 0 {
			s.from += w.block.addr - w.base
		}
		if last := w.base + uint64(i+1)*page; last > w.block.end() {
			s.to -= last - w.block.end()
		}
		if n := len(list); n > 0 && s.seg == list[n-1].seg && s.from == list[n-1].to {
			list[n-1].to = s.to
			continue
		}
		list = append(list, s)
	}
	return list
}

// moved is told of pages that got or lost their home.
func (v *views) moved(pages []*page) {
	if slices.ContainsFunc(pages, func(p *page) bool { return p.views > 0 }) {
		v.moves++
	}
}

// free says whether all pieces are free, for anybody.
func (w *view) free() bool {
	if w.block.state != free {
		return false
	}
	for _, s := range w.pieces() {
		if s.seg == nil || s.seg.pool.keep && s.seg.pool != w.pool {
			return false
		}
		if b := s.seg.at(s.from); b.state != free || b.end() < s.to {
			return false
		}
	}
	return true
}

// ready says whether a stream may use the pieces, which are free, at once.
func (w *view) ready(s *stream) bool {
	for _, p := range w.pieces() {
		if !p.seg.at(p.from).ready(s) {
			return false
		}
	}
	return true
}

// serve gives the block of an idle view for r, if its pieces are free.
func (w *view) serve(r *request, by when) *Block {
	if !w.free() || by == atOnce && !w.ready(r.stream) {
		return nil
	}
	w.block.seg.a.stats.Reuses++
	return w.take()
}

// take lends the pieces, which are free, to w and gives its block.
func (w *view) take() *Block {
	a, b := w.block.seg.a, &w.block
	a.views.taken++
	w.number = a.views.taken
	b.uses = b.uses[:0]
	for _, s := range w.pieces() {
		piece := a.cut(s.seg.at(s.from), s.from, s.to)
		for _, u := range piece.uses {
			a.addUse(b, u)
		}
		piece.state, piece.uses = lent, piece.uses[:0]
		w.lent = append(w.lent, piece)
		a.recordRange(trace.SegmentUnmap, s.from, s.size())
	}
	a.recordRange(trace.SegmentMap, b.addr, b.size)
	return b
}

// giveBack makes the pieces of a block that was freed free.
func (w *view) giveBack() {
	a := w.block.seg.a
	a.recordRange(trace.SegmentUnmap, w.block.addr, w.block.size)
	for _, piece := range w.lent {
		a.recordRange(trace.SegmentMap, piece.addr, piece.size)
		piece.state, piece.uses = free, append(piece.uses[:0], w.block.uses...)
		a.join(piece)
	}
	clear(w.lent)
	w.lent = w.lent[:0]
}

// kept gives the block of an idle view of r's size whose pieces are free, the
// newest first.
func (v *virtual) kept(r request, w when) *Block {
	for _, view := range slices.Backward(v.a.views.bySize[r.size]) {
		if view.pool != r.pool {
			continue
		}
		if b := view.serve(&r, w); b != nil {
			v.a.note("reuse stitch", r.stream.id, r.size)
			return b
		}
	}
	return nil
}

// see maps a view of pages for a block of size bytes of a pool that starts at
// an offset in the first.
func (v *virtual) see(p *pool, pages []*page, offset, size uint64) (*view, error) {
	a := v.a
	if err := v.makeRoom(len(pages)); err != nil {
		return nil, err
	}
	base, err := a.dev.Reserve(uint64(len(pages)) * a.page)
	if err != nil {
		return nil, err
	}
	if err = v.show(base, pages); err != nil {
		return nil, errors.Join(err, v.release(base))
	}
	w := &view{base: uint64(base), pages: pages, pool: p}
	w.block = Block{addr: w.base + offset, size: size, state: free, seg: a.views.home, view: w}
	a.views.bySize[size] = append(a.views.bySize[size], w)
	a.views.pages += len(pages)
	for _, pg := range pages {
		pg.views++
	}
	a.stats.Stitches++
	a.note("stitch", 0, size)
	a.stats.ViewMaps += uint64(len(pages))
	return w, nil
}

// makeRoom lets views map n pages more. It drops more of them at once than it must,
// since each time all are sorted.
func (v *virtual) makeRoom(n int) error {
	most := v.mostViewed()
	if v.a.views.pages+n <= most {
		return nil
	}
	return v.drop(max(0, most-most/8-n))
}

// show maps pages at addresses. Where the device refuses, it may bound what the process
// maps beside this, too: then as many as are mapped now are the bound from here on.
func (v *virtual) show(at device.Ptr, pages []*page) error {
	err := v.a.dev.Map(at, v.list(pages))
	if err == nil || v.a.views.pages == 0 {
		return err
	}
	v.a.views.most = v.a.views.pages + v.homes()
	if err := v.makeRoom(len(pages)); err != nil {
		return err
	}
	return v.a.dev.Map(at, v.list(pages))
}

// release gives addresses back, or keeps them in mind for close.
func (v *virtual) release(base device.Ptr) error {
	err := v.a.dev.Release(base)
	if err != nil {
		v.a.views.lost = append(v.a.views.lost, base)
	}
	return err
}

// drop unmaps idle views, those first that were not taken for longest, until
// the views map at most so many pages. It waits for the work on them.
func (v *virtual) drop(most int) error {
	var idle []*view
	for w := range v.a.views.all {
		if w.block.state == free {
			idle = append(idle, w)
		}
	}
	slices.SortFunc(idle, func(x, y *view) int { return cmp.Compare(x.number, y.number) })
	for _, w := range idle {
		if v.a.views.pages <= most {
			break
		}
		if err := v.retire(w); err != nil {
			return err
		}
	}
	return nil
}

// hide unmaps the idle views that show a page. It waits for the work on them.
func (v *virtual) hide(p *page) error {
	var shown []*view
	for w := range v.a.views.all {
		if slices.Contains(w.pages, p) {
			shown = append(shown, w)
		}
	}
	for _, w := range shown {
		if err := v.retire(w); err != nil {
			return err
		}
	}
	return nil
}

// retire ends an idle view once the work on it is done.
func (v *virtual) retire(w *view) error {
	v.a.sync(w.block.uses)
	return v.unmap(w)
}

// unmap ends a view.
func (v *virtual) unmap(w *view) error {
	if err := v.a.dev.Unmap(device.Ptr(w.base), len(w.pages)); err != nil {
		return err
	}
	all := &v.a.views
	size := w.block.size
	all.bySize[size] = slices.DeleteFunc(all.bySize[size], func(x *view) bool { return x == w })
	if len(all.bySize[size]) == 0 {
		delete(all.bySize, size)
	}
	all.pages -= len(w.pages)
	w.block.state = dead
	for _, p := range w.pages {
		p.views--
	}
	v.a.stats.ViewUnmaps += uint64(len(w.pages))
	w.pages, w.homes = nil, nil // a step may remember w for long
	return v.release(device.Ptr(w.base))
}

// closeViews unmaps all views and gives their addresses back.
func (v *virtual) closeViews() error {
	var failed error
	for w := range v.a.views.all {
		w.block.state, w.block.seg = dead, nil
	}
	for _, list := range v.a.views.bySize {
		for _, w := range slices.Clone(list) {
			failed = errors.Join(failed, v.unmap(w))
		}
	}
	for _, base := range v.a.views.lost {
		failed = errors.Join(failed, v.a.dev.Release(base))
	}
	return failed
}

// checkViews compares views with the pages and blocks that they show.
func (v *virtual) checkViews() error {
	pages, shown := 0, map[*page]int{}
	for w := range v.a.views.all {
		if err := w.check(); err != nil {
			return err
		}
		pages += len(w.pages)
		for _, p := range w.pages {
			shown[p]++
			if shown[p] > p.views {
				return fmt.Errorf("page at %#x is in more than its %d views", p.addr, p.views)
			}
		}
	}
	if pages != v.a.views.pages {
		return fmt.Errorf("views are thought to map %d pages, and map %d", v.a.views.pages, pages)
	}
	return nil
}

// check compares the lent blocks with the pieces.
func (w *view) check() error {
	if found := w.find(nil); !slices.Equal(found, w.pieces()) {
		return fmt.Errorf("view %#x is thought to show %v, and shows %v", w.base, w.pieces(), found)
	}
	if w.block.state == free {
		if len(w.lent) > 0 {
			return fmt.Errorf("idle view %#x holds %d lent blocks", w.base, len(w.lent))
		}
		return nil
	}
	i := 0
	for _, s := range w.pieces() {
		if i == len(w.lent) || w.lent[i].span() != s || w.lent[i].state != lent {
			return fmt.Errorf("piece %d of view %#x should be lent at [%#x, %#x)", i, w.base, s.from, s.to)
		}
		i++
	}
	if i != len(w.lent) {
		return fmt.Errorf("view %#x has %d pieces and %d lent blocks", w.base, i, len(w.lent))
	}
	return nil
}
