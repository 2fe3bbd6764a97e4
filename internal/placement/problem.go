package placement

import (
	"cmp"
	"math/bits"
	"slices"
)

// An item is a buffer as the solvers see it: its time is a run of sections, its
// size counts units.
//
// A section is a maximal set of buffers that are live together. Sections have an
// order in time, and every buffer is in a run of them, [first, end). Two buffers
// overlap in time exactly when they share a section, so nothing else about time
// matters.
type item struct {
	first, end int32
	size       int64
}

// A part is a stretch of time that no buffer crosses at either end. Parts don't
// touch each other: each has its own offsets, and the largest peak counts.
type part struct {
	items    []item
	ids      []int // of each item, the index of its buffer
	sections int
	bound    int64 // largest sum of sizes in a section
}

// problem is the whole task in units.
type problem struct {
	unit  uint64 // bytes of one unit: divides every rounded size and is a multiple of the alignment
	parts []*part
	bound int64 // largest bound of the parts
}

// newProblem rounds sizes up to align, divides them by their greatest common
// divisor and cuts time into parts of sections. Offsets of a placement in which
// nothing can be let down are sums of sizes, so the divisor loses no solution.
// Buffers of size 0 are left out: they are in nobody's way at offset 0.
func newProblem(bs []Buffer, align uint64) *problem {
	pr := &problem{}
	var starts []int
	for i, b := range bs {
		if b.Size > 0 {
			starts = append(starts, i)
			pr.unit = gcd(pr.unit, roundUp(b.Size, align))
		}
	}
	ends := slices.Clone(starts)
	slices.SortFunc(starts, func(a, b int) int { return cmp.Or(cmp.Compare(bs[a].Lower, bs[b].Lower), a-b) })
	slices.SortFunc(ends, func(a, b int) int { return cmp.Or(cmp.Compare(bs[a].Upper, bs[b].Upper), a-b) })

	place := make([]int32, len(bs)) // of each buffer, its item in the current part
	p := &part{}
	var live, open int // items live now; how many of them began in the current section
	var sum int64
	for len(ends) > 0 {
		if len(starts) > 0 && bs[starts[0]].Lower < bs[ends[0]].Upper {
			i := starts[0]
			starts = starts[1:]
			it := item{first: int32(p.sections), size: int64(roundUp(bs[i].Size, align) / pr.unit)}
			place[i] = int32(len(p.items))
			p.items, p.ids = append(p.items, it), append(p.ids, i)
			live, open, sum = live+1, open+1, sum+it.size
			continue
		}
		if open > 0 { // the first end after a start closes a section
			p.sections++
			p.bound = max(p.bound, sum)
			open = 0
		}
		it := &p.items[place[ends[0]]]
		ends = ends[1:]
		it.end = int32(p.sections)
		live, sum = live-1, sum-it.size
		if live == 0 {
			pr.parts, pr.bound = append(pr.parts, p), max(pr.bound, p.bound)
			p = &part{}
		}
	}
	return pr
}

// neighbours lists for each item the others that share a section with it.
func (p *part) neighbours() [][]int32 {
	members := p.members()
	near := make([][]int32, len(p.items))
	for i, it := range p.items {
		// The ones that live in its first section, and the ones that begin later.
		for k := it.first; k < it.end; k++ {
			for _, j := range members[k] {
				if int(j) != i && max(p.items[j].first, it.first) == k {
					near[i] = append(near[i], j)
				}
			}
		}
	}
	return near
}

// members lists the items of each section.
func (p *part) members() [][]int32 {
	m := make([][]int32, p.sections)
	for i, it := range p.items {
		for k := it.first; k < it.end; k++ {
			m[k] = append(m[k], int32(i))
		}
	}
	return m
}

// sums returns the sum of sizes in each section.
func (p *part) sums() []int64 {
	s := make([]int64, p.sections+1)
	for _, it := range p.items {
		s[it.first] += it.size
		s[it.end] -= it.size
	}
	for k := range p.sections {
		s[k+1] += s[k]
	}
	return s[:p.sections]
}

// maxima answers for the largest value within a range: entry h, k is that of
// 2^h values from k on.
type maxima [][]int64

func newMaxima(values []int64) maxima {
	m := maxima{values}
	for w := 1; 2*w <= len(values); w *= 2 {
		low := m[len(m)-1]
		next := make([]int64, len(values)-2*w+1)
		for k := range next {
			next[k] = max(low[k], low[k+w])
		}
		m = append(m, next)
	}
	return m
}

// over returns the largest value of [first, end), which isn't empty.
func (m maxima) over(first, end int32) int64 {
	h := bits.Len32(uint32(end-first)) - 1
	return max(m[h][first], m[h][end-(1<<h)])
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// roundUp returns the least multiple of align, a power of two, that is not below n.
func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// top returns the height that the items reach with the offsets.
func (p *part) top(offsets []int64) int64 {
	var top int64
	for i, it := range p.items {
		top = max(top, offsets[i]+it.size)
	}
	return top
}

// degrees counts the pairs of items that overlap, each twice, and the sections
// of all items.
func (p *part) degrees() int {
	begun, ended := make([]int, p.sections+1), make([]int, p.sections+1)
	for _, it := range p.items {
		begun[it.first+1]++
		ended[it.end]++
	}
	for k := range p.sections {
		begun[k+1] += begun[k]
		ended[k+1] += ended[k]
	}
	var n int
	for _, it := range p.items {
		n += begun[it.end] - ended[it.first] + int(it.end-it.first)
	}
	return n
}
