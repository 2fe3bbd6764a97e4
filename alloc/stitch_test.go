package alloc

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestPairAgainstAllPairs compares the search for a head and a tail with a
// trial of all pairs.
func TestPairAgainstAllPairs(t *testing.T) {
	const page = 64 << 10
	r := rand.New(rand.NewPCG(4, 4))
	for range 3000 {
		e := edges{heads: []span{{}}, tails: []span{{}}}
		for i := range uint64(r.IntN(8)) {
			e.heads = append(e.heads, span{nil, (i+1)*page - unit*(1+r.Uint64N(page/unit-1)), (i + 1) * page})
		}
		for i := range uint64(r.IntN(8)) {
			e.tails = append(e.tails, span{nil, (i + 100) * page, (i+100)*page + unit*(1+r.Uint64N(page/unit-1))})
		}
		sortSpans(e.heads)
		sortSpans(e.tails)
		most := e.heads[len(e.heads)-1].size() + e.tails[len(e.tails)-1].size()
		if most == 0 {
			continue
		}
		size := unit * (1 + r.Uint64N(most/unit))
		best := most
		for _, h := range e.heads {
			for _, tail := range e.tails {
				if sum := h.size() + tail.size(); sum >= size {
					best = min(best, sum)
				}
			}
		}
		var s stitch
		s.pair(&e, size)
		isHead := slices.ContainsFunc(e.heads, func(h span) bool { return h.to == s.head.to && h.from <= s.head.from })
		isTail := slices.ContainsFunc(e.tails, func(h span) bool { return h.from == s.tail.from && s.tail.to <= h.to })
		if s.head.size()+s.tail.size() != size || s.shutIn != best-size || !isHead || !isTail {
			t.Fatalf("pair for %d of %v is %+v, the best shuts in %d", size, e, s, best-size)
		}
	}
}

func sortSpans(list []span) {
	slices.SortFunc(list, func(x, y span) int { return cmp.Or(cmp.Compare(x.size(), y.size()), cmp.Compare(x.from, y.from)) })
}

// TestSearches looks at states of random programs, and compares every search
// in them with a plain one.
func TestSearches(t *testing.T) {
	edges, loose := 0, 0
	for seed := range uint64(8) {
		data := randomOperations(seed, 400)
		data[0], data[1] = 2+4*byte(seed%4), 0 // aliases, pages of 64 to 512 KiB
		m := newModel(t, data, 0)
		r := rand.New(rand.NewPCG(seed, 9))
		for i := 2; i < len(data); i += 2 {
			m.step(data[i], int(data[i+1]))
			if i%16 > 0 {
				continue
			}
			c := survey(m.a)
			c.edgesAreFound(t)
			edges += len(c.heads) + len(c.tails)
			loose += c.stitchIsBest(t, unit*(1+r.Uint64N(4*c.page/unit)))
			c.placeIsBest(t, unit*(129+r.Uint64N(4*c.page/unit)))
			c.blocksAreFound(t, r)
		}
		m.end()
	}
	if edges < 300 || loose < 3 {
		t.Errorf("only %d edges and %d loose stitches were seen", edges, loose)
	}
}

// chart is what a walk through all segments finds.
type chart struct {
	v            *virtual
	page         uint64
	whole        int    // free pages that anybody may use
	heads, tails []span // of the pool of large blocks
}

func survey(a *Allocator) *chart {
	c := &chart{v: a.source.(*virtual), page: a.page, whole: len(a.source.(*virtual).spare)}
	for _, seg := range a.segments {
		for from := seg.base; from < seg.base+seg.size; from += a.page {
			c.look(seg, from)
		}
	}
	return c
}

// look counts the free bytes at both ends of a page.
func (c *chart) look(seg *segment, from uint64) {
	head, tail, to := from+c.page, from, from+c.page
	for b := seg.first; b != nil; b = b.next {
		if b.state == free && b.addr < to && to <= b.end() {
			head = max(from, b.addr)
		}
		if b.state == free && b.addr <= from && from < b.end() {
			tail = min(to, b.end())
		}
	}
	if head == from && !seg.pool.keep {
		c.whole++
	}
	if head == from || seg.pool != c.v.a.pools[1] {
		return
	}
	if head < to {
		c.heads = append(c.heads, span{seg, head, to})
	}
	if from < tail {
		c.tails = append(c.tails, span{seg, from, tail})
	}
}

func (c *chart) edgesAreFound(t *testing.T) {
	c.v.findEdges(c.v.a.pools[1])
	sortSpans(c.heads)
	sortSpans(c.tails)
	if !slices.Equal(c.v.heads[1:], c.heads) || !slices.Equal(c.v.tails[1:], c.tails) {
		t.Fatalf("edges %v and %v, want %v and %v", c.v.heads[1:], c.v.tails[1:], c.heads, c.tails)
	}
	if n := c.v.wholePages(); n != c.whole {
		t.Fatalf("%d whole pages, want %d", n, c.whole)
	}
}

// stitchIsBest tries all pairs of edges, and says 1 if the stitch is loose.
func (c *chart) stitchIsBest(t *testing.T, size uint64) int {
	least, shutIn, largest := 1<<30, uint64(0), uint64(0)
	for _, h := range append([]span{{}}, c.heads...) {
		for _, tail := range append([]span{{}}, c.tails...) {
			edges := h.size() + tail.size()
			n := int(roundUp(size-min(size, edges), c.page) / c.page)
			over := uint64(0)
			if inWhole := uint64(n) * c.page; inWhole < size {
				over = edges + inWhole - size
			}
			if n < least || n == least && over < shutIn {
				least, shutIn = n, over
			}
			largest = max(largest, h.size(), tail.size())
		}
	}
	isLoose := 0
	if n := int(roundUp(size-min(size, largest), c.page) / c.page); shutIn > c.page*3/8 && n <= c.whole {
		least, shutIn, isLoose = n, 0, 1
	}
	s := c.v.stitch(&request{size: size, align: unit, pool: c.v.a.pools[1]}, c.v.wholePages())
	if s.whole != least || s.shutIn != shutIn || s.created != max(0, least-c.whole) || s.head.size()+s.tail.size()+uint64(s.whole)*c.page < size {
		t.Fatalf("stitch for %d is %+v, want %d of %d whole pages, %d bytes shut in", size, s, least, c.whole, shutIn)
	}
	return isLoose
}

// placeIsBest tries the addresses of all segments, in steps of 8 KiB.
func (c *chart) placeIsBest(t *testing.T, size uint64) {
	a := c.v.a
	r := request{size: size, align: unit, pool: a.pools[1]}
	if bestFit(r.pool.free, &r) != nil {
		return // no place is looked for
	}
	c.v.mirror = false
	got, err := c.v.place(&r, c.v.wholePages())
	if err != nil {
		t.Fatal(err)
	}
	best := spot{created: 1 << 30}
	for _, seg := range a.segments {
		if seg.pool != r.pool {
			continue
		}
		for at := seg.base; at+size <= seg.base+seg.size; at += unit * 16 {
			if s, ok := c.count(seg, at, at+size); ok && cmp.Or(cmp.Compare(s.created, best.created), cmp.Compare(s.moved, best.moved)) < 0 {
				best = s
			}
		}
	}
	s, ok := c.count(got.seg, got.at, got.end)
	if !ok || got.created != s.created || got.moved != s.moved || got.end != got.at+size || s.created > best.created || s.created == best.created && s.moved > best.moved {
		t.Fatalf("place for %d is %+v, of which a count gives %+v; %+v is possible", size, got, s, best)
	}
}

// count counts the pages of a spot, if nothing is in the way.
func (c *chart) count(seg *segment, from, to uint64) (s spot, ok bool) {
	for b := seg.at(from); b != nil && b.addr < to; b = b.next {
		if !b.idle() {
			return s, false
		}
	}
	for p := roundDown(from, c.page); p < to; p += c.page {
		switch b := seg.at(p); {
		case b.state == unbacked:
			s.moved++
		case b.state == free && p+c.page <= b.end():
			s.whole++
		}
	}
	s.created = max(0, s.moved-(c.whole-s.whole))
	return s, true
}

// blocksAreFound compares segment.at with a walk.
func (c *chart) blocksAreFound(t *testing.T, r *rand.Rand) {
	for _, seg := range c.v.a.segments {
		for range 20 {
			addr := seg.base + r.Uint64N(seg.size)
			want := seg.first
			for want.end() <= addr {
				want = want.next
			}
			if got := seg.at(addr); got != want {
				t.Fatalf("block at %#x is %+v, want %+v", addr, got, want)
			}
		}
	}
}

// aliased opens an allocator whose device maps pages of 1 MiB twice.
func aliased(t *testing.T, o Options) (*Allocator, device.Stream) {
	t.Helper()
	return openNull(t, device.NullOptions{Capacity: 64 * mib, Virtual: true, Alias: true, Granularity: mib}, o)
}
