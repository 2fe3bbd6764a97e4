package alloc

import (
	"cmp"
	"math"
	"slices"
)

// stitch is a way to hold a request: the free end of a page, whole free pages
// from anywhere, and the free beginning of a page. Any of the three may be
// missing.
//
//	[live| head ]  [ whole ] [ whole ]  [ tail |live]
//
// What a head or a tail has left over is shut in between two blocks of one
// page, of use to small requests only. So a stitch is tight: no more whole
// pages than it must have, the head and the tail that fit best; or, where that
// shuts in too much and whole pages are there, loose: a head or a tail used to
// the end, and what is left over is an edge of a page that was whole.
//
// Stitching is worth while on every miss, not only where memory would grow:
// edges are used that only requests of the right size could use, and whole
// pages, which anybody can use, last longer.
type stitch struct {
	size       uint64
	head, tail span   // of free blocks; zero if there is none
	whole      int    // pages
	homeless   int    // of them, beyond those at home in free blocks: spare ones and
	created    int    // … beyond these
	shutIn     uint64 // bytes
}

// shutInMost is how much a tight stitch may shut in, in eighths of a page.
const shutInMost = 3

// edges are the free parts of pages that are in use otherwise: heads reach to
// the end of their page, tails to the beginning.
type edges struct {
	heads, tails []span // ascending by size, after one that is empty
	// mirror says that heads outweigh tails by far, and only a head and a tail
	// make a pair. Then blocks are placed so that they leave tails.
	mirror bool
}

// stitch gives the best stitch for r, given the number of whole pages there
// are, or nil where the device maps no page twice, the request is too small for
// it, or its pool keeps to itself.
func (v *virtual) stitch(r *request, whole int) *stitch {
	if !v.alias || r.pool.small || r.pool.private {
		return nil
	}
	s := v.tight(r.size)
	if s.shutIn > shutInMost*v.a.page/8 {
		if loose := v.loose(r.size); loose.whole <= whole {
			s = loose
		}
	}
	s.created = max(0, s.whole-whole)
	s.homeless = max(0, s.whole-whole+len(v.spare))
	return s
}

// pagesBeside is the number of whole pages that hold size bytes together with
// edges of so many bytes.
func (v *virtual) pagesBeside(edges, size uint64) int {
	return int((size - min(size, edges) + v.a.page - 1) / v.a.page)
}

// tight gives the stitch of the fewest whole pages.
func (v *virtual) tight(size uint64) *stitch {
	s := &stitch{size: size, whole: v.pagesBeside(v.heads[len(v.heads)-1].size()+v.tails[len(v.tails)-1].size(), size)}
	if inWhole := uint64(s.whole) * v.a.page; inWhole < size {
		s.pair(&v.edges, size-inWhole)
	}
	return s
}

// pair gives s the head and the tail that hold size bytes with the least left
// over, which is cut from the tail first. There is such a pair.
func (s *stitch) pair(e *edges, size uint64) {
	best, j := uint64(math.MaxUint64), len(e.tails)-1
	for _, h := range e.heads {
		for j > 0 && h.size()+e.tails[j-1].size() >= size {
			j--
		}
		if sum := h.size() + e.tails[j].size(); sum >= size && sum < best {
			best, s.head, s.tail = sum, h, e.tails[j]
		}
	}
	s.shutIn = best - size
	s.tail.to -= min(s.shutIn, s.tail.size())
	s.head.from = s.head.to - min(s.head.size(), size)
}

// loose gives a stitch of the smallest edge that spares as many whole pages as
// the largest.
func (v *virtual) loose(size uint64) *stitch {
	s := &stitch{size: size, whole: v.pagesBeside(max(v.heads[len(v.heads)-1].size(), v.tails[len(v.tails)-1].size()), size)}
	rest := size - min(size, uint64(s.whole)*v.a.page)
	enough := func(e span) bool { return e.size() >= rest }
	if i := slices.IndexFunc(v.heads, enough); i >= 0 {
		s.head = v.heads[i]
	} else {
		s.tail = v.tails[slices.IndexFunc(v.tails, enough)]
	}
	return s
}

// findEdges lists the edges of a pool's free blocks, for stitches.
func (v *virtual) findEdges(p *pool) {
	if !v.alias {
		return
	}
	v.heads, v.tails = append(v.heads[:0], span{}), append(v.tails[:0], span{})
	v.a.scratch = v.a.scratch[:0]
	for _, t := range p.free {
		v.a.scratch = t.collect(v.a.scratch, 0)
	}
	var heads, tails uint64
	for _, b := range v.a.scratch {
		up, down := roundUp(b.addr, v.a.page), roundDown(b.end(), v.a.page)
		if b.addr < up && up <= b.end() {
			v.heads = append(v.heads, span{b.seg, b.addr, up})
			heads += up - b.addr
		}
		if down < b.end() && b.addr <= down {
			v.tails = append(v.tails, span{b.seg, down, b.end()})
			tails += b.end() - down
		}
	}
	v.mirror = heads > 8*tails+2*v.a.page
	bySize := func(x, y span) int { return cmp.Or(cmp.Compare(x.size(), y.size()), cmp.Compare(x.from, y.from)) }
	slices.SortFunc(v.heads, bySize)
	slices.SortFunc(v.tails, bySize)
}

// wholePages is the number of free pages that no live block touches.
func (v *virtual) wholePages() int {
	v.findDonors(nil)
	n := len(v.spare)
	for _, run := range v.donors {
		n += run.n
	}
	return n
}

// sew makes the block of a stitch. Pages that it creates, and spare ones that
// it uses, get a home behind those of the pool.
func (v *virtual) sew(r *request, st *stitch) (*Block, error) {
	var w *view
	err := v.supply(st.created, func() error {
		if st.homeless > 0 {
			if err := v.settleIn(r, st.homeless); err != nil {
				return err
			}
		}
		pages, offset := v.thread(st)
		var err error
		w, err = v.see(r.pool, pages, offset, st.size)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w.take(), nil
}

// settleIn gives n spare pages a home at the beginning of the largest hole.
func (v *virtual) settleIn(r *request, n int) error {
	hole := r.pool.holes.last()
	if hole == nil || hole.size < uint64(n)*v.a.page {
		if err := v.reserve(r); err != nil {
			return err
		}
		hole = r.pool.holes.last()
	}
	_, err := v.attach(run{seg: hole.seg, addr: hole.addr, n: n})
	return err
}

// thread lists the pages of a stitch, whole ones from the smallest free blocks
// first, and the offset of the block in the first.
func (v *virtual) thread(st *stitch) (pages []*page, offset uint64) {
	pages = make([]*page, 0, st.whole+2)
	if st.head.size() > 0 {
		pages = append(pages, st.head.page())
		offset = st.head.from & (v.a.page - 1)
	} else if st.tail.size() > 0 || v.mirror {
		offset = st.tail.size() + uint64(st.whole)*v.a.page - st.size
	}
	v.findDonors(nil)
	for _, run := range v.donors {
		at := run.seg.index(run.addr)
		n := min(run.n, st.whole)
		pages = append(pages, run.seg.pages[at:at+n]...)
		st.whole -= n
	}
	if st.tail.size() > 0 {
		pages = append(pages, st.tail.page())
	}
	return pages, offset
}

// page is the one that the span is in.
func (s *span) page() *page { return s.seg.pages[s.seg.index(s.from)] }
