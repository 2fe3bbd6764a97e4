package placement

// A search decides by constraint search whether a part fits within a height.
//
// An unplaced item has a support, the highest top among the placed items that
// overlap it in time, and a bound, below which it can't lie; bound ≥ support. A
// placement in which nothing can be let down rests every item on the ground or
// on another one. So a node picks an item whose bound no unplaced neighbour
// undercuts (its bound then is its support), and there are two cases:
//
//	place it on its support; or
//	raise it: it rests on a neighbour that isn't placed yet, hence its bound
//	is at least the least bound + size among those.
//
// A raised item can't be placed until it has that neighbour below it, which is
// when its support has come up to its bound.
//
// A node dies by the section test: for every section and every height v, the
// items of the section whose bounds are at least v must fit between v and the
// ceiling. Two rules cut symmetric and dominated halves off, and neither loses
// the placement of the least sum of offsets: an item that fits below the bounds
// of all its neighbours stays on its support, and of items equal in time and
// size either all are raised or the first is placed.
//
// When no unplaced item crosses some point in time, both sides are searched one
// after the other, and the failure of one ends the node.
type search struct {
	p       *part
	near    [][]int32 // of each item, those that overlap it
	twins   [][]int32 // of each item, itself and those equal in time and size
	members [][]int32 // of each section, its items, by descending bound when last looked at
	ceiling int64

	size           []int64 // of each item
	support, bound []int64 // of each item; bound is -1 when it is placed, and support its offset
	sections       []section
	left           int // items unplaced
	trail          []change
	touched        []int32 // sections with changed items, a queue
	isTouched      []bool
	moved          []rise  // items whose bound has risen, a queue
	raised         []int32 // the raised items, and some that have come to rest since
	stack          []int32
	scan           []int32 // of each section, how many of members may be unplaced
	strays         []int32

	rank       []float64 // of each item: the larger is taken first among equals
	tightFirst bool      // take items of sections with a unique lowest item first
	blame      []float64 // of each item, how often it was in a failing section, of late
	nodes      int
	limit      int // of nodes
	work       int // items looked at, over all runs: about 2 ns each
	poll       int // work at which to ask done again
	done       func() bool
}

// section is what the search knows about the unplaced items of a section.
type section struct {
	low    int64 // least bound
	second int64 // least bound but one; equal to low when two items share it
	lowest int32 // how many items are at low
	slack  int64 // ceiling − sum of all sizes: how much may be wasted
}

// change is an entry of the trail: what to restore.
type change struct {
	index          int32 // item, or ^section
	support, bound int64
	lowest         int32
}

type rise struct {
	item int32
	from int64
}

// far is above every height.
const far = int64(1) << 62

func newSearch(p *part, done func() bool) *search {
	n := len(p.items)
	s := &search{
		p: p, done: done, near: p.neighbours(), members: p.members(), twins: make([][]int32, n),
		size: make([]int64, n), support: make([]int64, n), bound: make([]int64, n), sections: make([]section, p.sections),
		strays: make([]int32, 0, n), scan: make([]int32, p.sections), isTouched: make([]bool, p.sections), rank: make([]float64, n), blame: make([]float64, n),
	}
	groups := map[item][]int32{}
	for i, it := range p.items {
		s.size[i] = it.size
		groups[it] = append(groups[it], int32(i))
	}
	for i, it := range p.items {
		s.twins[i] = groups[it]
	}
	return s
}

// verdict is the outcome of a search.
type verdict int

const (
	found   verdict = iota // support holds the offsets
	refuted                // no placement is within the ceiling
	stopped                // the node limit was reached
)

// run searches for a placement within the ceiling, by the ranks, in at most
// limit nodes.
func (s *search) run(ceiling int64, limit int) verdict {
	s.ceiling, s.limit, s.nodes = ceiling, limit, 0
	s.trail, s.raised, s.stack = s.trail[:0], s.raised[:0], s.stack[:0]
	clear(s.support)
	clear(s.bound)
	sums := s.p.sums()
	for k := range s.sections {
		s.sections[k].slack = ceiling - sums[k]
		s.scan[k] = int32(len(s.members[k]))
		s.touch(int32(k))
	}
	s.left = len(s.p.items)
	if !s.propagate() {
		return refuted
	}
	items := make([]int32, len(s.p.items))
	for i := range items {
		items[i] = int32(i)
	}
	sortByRank(items, s.rank)
	switch {
	case s.solve(items):
		return found
	case s.nodes > s.limit:
		return stopped
	}
	return refuted
}

// solve places the items, which nothing unplaced crosses, or returns false.
// Items that are placed already are skipped.
func (s *search) solve(items []int32) bool {
	for {
		i, forced := s.pick(items)
		if i == dominated {
			return false
		}
		if s.exhausted() {
			return false
		}
		mark, raised, base := len(s.trail), len(s.raised), len(s.stack)
		if s.place(i) && s.rest(items, i) {
			return true
		}
		s.undo(mark)
		s.raised, s.stack = s.raised[:raised], s.stack[:base]
		if forced || s.nodes > s.limit || !s.raise(i) {
			return false
		}
	}
}

// exhausted counts a node and tells whether it is one too many.
func (s *search) exhausted() bool {
	s.nodes++
	if s.work > s.poll {
		s.poll = s.work + 1<<16
		if s.done() {
			s.nodes = s.limit + 1
		}
	}
	return s.nodes > s.limit
}

// rest goes on after item i of items was placed: with each side of every cut
// that no unplaced item crosses any more.
func (s *search) rest(items []int32, i int32) bool {
	base := len(s.stack)
	for _, j := range items {
		if s.bound[j] >= 0 {
			s.stack = append(s.stack, j)
		}
	}
	live := s.stack[base:]
	if len(live) == 0 {
		return true
	}
	cuts := s.cuts(live, s.p.items[i])
	if len(cuts) == 0 {
		return s.solve(live)
	}
	for c := 0; c <= len(cuts); c++ {
		lo, hi := int32(0), int32(s.p.sections)
		if c > 0 {
			lo = cuts[c-1]
		}
		if c < len(cuts) {
			hi = cuts[c]
		}
		from := len(s.stack)
		for _, j := range live {
			if s.p.items[j].first >= lo && s.p.items[j].end <= hi {
				s.stack = append(s.stack, j)
			}
		}
		if part := s.stack[from:]; len(part) > 0 && !s.solve(part) {
			return false
		}
	}
	return true
}

// cuts returns the sections within the item's time before which the live items
// can be cut apart. Only there can placing the item have opened one.
func (s *search) cuts(live []int32, it item) []int32 {
	var crossing [64]int32
	cross := crossing[:]
	if n := int(it.end-it.first) + 2; n > len(cross) {
		cross = make([]int32, n)
	}
	for _, j := range live {
		// Crosses the boundaries before sections first+1 … end-1.
		a, b := max(s.p.items[j].first+1, it.first), min(s.p.items[j].end-1, it.end)
		if a <= b {
			cross[a-it.first]++
			if b < it.end {
				cross[b+1-it.first]--
			}
		}
	}
	var out []int32
	var sum int32
	for k := it.first; k <= it.end; k++ {
		if sum += cross[k-it.first]; sum == 0 && k > 0 && int(k) < s.p.sections {
			out = append(out, k)
		}
	}
	return out
}

// dominated, for an item: the node can be given up.
const dominated = -1

// pick chooses the item to branch on among the unplaced ones whose bound no
// neighbour undercuts. Forced tells that it needn't ever be raised.
func (s *search) pick(items []int32) (choice int32, forced bool) {
	choice = dominated
	s.work += len(items)
	var few int32
	var tight, low int64
	for _, i := range items {
		bound, support := s.bound[i], s.support[i]
		if bound < 0 {
			continue
		}
		it := s.p.items[i]
		run := s.sections[it.first:it.end]
		if bound > support {
			if s.clear(run, bound, support+it.size) {
				return dominated, false
			}
			continue
		}
		f, t, ok := rate(run, bound)
		if !ok {
			continue
		}
		if s.clear(run, bound, support+it.size) {
			return i, true
		}
		if s.tightFirst {
			if choice < 0 || f < few || f == few && t < tight {
				choice, few, tight = i, f, t
			}
		} else if choice < 0 || bound < low {
			choice, low = i, bound
		}
	}
	return choice, false
}

// clear tells whether every other item in the sections has a bound of at least
// top; own is the bound of the item itself.
func (s *search) clear(run []section, own, top int64) bool {
	for k := range run {
		others := run[k].low
		if others == own {
			others = run[k].second
		}
		if others < top {
			return false
		}
	}
	return true
}

// rate returns the least number of items at the lowest bound in one of the
// sections and the least slack of such a section; ok tells that the bound is the
// lowest of all sections.
func rate(run []section, bound int64) (few int32, tight int64, ok bool) {
	few = 1 << 30
	for k := range run {
		c := &run[k]
		if c.low < bound {
			return 0, 0, false
		}
		if c.lowest < few || c.lowest == few && c.slack < tight {
			few, tight = c.lowest, c.slack
		}
	}
	return few, tight, true
}

// place puts the item on its support.
func (s *search) place(i int32) bool {
	s.save(i)
	top := s.support[i] + s.size[i]
	s.bound[i] = -1
	s.touchAll(i)
	for _, j := range s.near[i] {
		if s.bound[j] < 0 || s.support[j] >= top {
			continue
		}
		s.save(j)
		s.support[j] = top
		if from := s.bound[j]; from < top {
			s.bound[j] = top
			s.moved = append(s.moved, rise{j, from})
			s.touchAll(j)
		}
	}
	return s.propagate()
}

// raise excludes that the item and its twins lie on their support.
func (s *search) raise(i int32) bool {
	for _, j := range s.twins[i] {
		if s.bound[j] >= 0 && !s.lift(j) {
			s.moved = s.moved[:0]
			return false
		}
	}
	return s.propagate()
}

// lift raises the item's bound to the lowest top that an unplaced neighbour can
// have.
func (s *search) lift(i int32) bool {
	low := far
	for _, j := range s.near[i] {
		if b := s.bound[j]; b >= 0 {
			low = min(low, b+s.size[j])
		}
	}
	if low > s.ceiling {
		s.blameSection(s.p.items[i].first)
		return false
	}
	if low > s.bound[i] {
		s.save(i)
		if s.bound[i] == s.support[i] {
			s.raised = append(s.raised, i)
		}
		s.moved = append(s.moved, rise{i, s.bound[i]})
		s.bound[i] = low
		s.touchAll(i)
	}
	return true
}

// propagate lifts raised items until nothing changes and tests the sections.
func (s *search) propagate() bool {
	ok := true
	for ok && len(s.moved) > 0 {
		m := s.moved[len(s.moved)-1]
		s.moved = s.moved[:len(s.moved)-1]
		it, top := s.p.items[m.item], m.from+s.size[m.item]
		for _, j := range s.raised {
			r := &s.p.items[j]
			if s.bound[j] > s.support[j] && top <= s.bound[j] && r.first < it.end && it.first < r.end && !s.lift(j) {
				ok = false
				break
			}
		}
	}
	s.moved = s.moved[:0]
	for _, k := range s.touched {
		s.isTouched[k] = false
		if ok && !s.test(k) {
			s.blameSection(k)
			ok = false
		}
	}
	s.touched = s.touched[:0]
	return ok
}

// test sorts the section's items by bound, looks whether they fit, and sums the
// section up.
func (s *search) test(k int32) bool {
	m := s.sorted(k)
	c := section{low: far, second: far, slack: s.sections[k].slack}
	var sum int64
	for n, i := range m {
		b := s.bound[i]
		if b < 0 {
			s.scan[k] = int32(n)
			break
		}
		if sum += s.size[i]; sum+b > s.ceiling {
			return false
		}
		if b < c.low {
			c.lowest = 0
		}
		c.low, c.second = b, c.low
		c.lowest++
	}
	if old := s.sections[k]; old != c {
		s.trail = append(s.trail, change{^k, old.low, old.second, old.lowest})
		s.sections[k] = c
	}
	return true
}

// sorted returns the section's items by descending bound, the placed ones at the
// end. They are kept in the order of last time, so most are in place: those that
// aren't are sorted apart and merged.
func (s *search) sorted(k int32) []int32 {
	m, strays := s.members[k][:s.scan[k]], s.strays[:0]
	s.work += len(m)
	low, kept := far, 0
	for _, i := range m {
		if b := s.bound[i]; b <= low {
			low, m[kept] = b, i
			kept++
			continue
		}
		n := len(strays)
		strays = append(strays, i)
		for ; n > 0 && s.bound[strays[n-1]] < s.bound[i]; n-- {
			strays[n] = strays[n-1]
		}
		strays[n] = i
	}
	for to := len(m) - 1; len(strays) > 0; to-- {
		last := strays[len(strays)-1]
		if kept > 0 && s.bound[m[kept-1]] < s.bound[last] {
			kept--
			m[to] = m[kept]
		} else {
			m[to] = last
			strays = strays[:len(strays)-1]
		}
	}
	return m
}

func (s *search) save(i int32) {
	s.trail = append(s.trail, change{index: i, support: s.support[i], bound: s.bound[i]})
}

// undo goes back to the state when the trail had the length.
func (s *search) undo(mark int) {
	for n := len(s.trail) - 1; n >= mark; n-- {
		c := &s.trail[n]
		if c.index >= 0 {
			if s.bound[c.index] < 0 {
				s.reopen(s.p.items[c.index])
			}
			s.support[c.index], s.bound[c.index] = c.support, c.bound
		} else {
			k := &s.sections[^c.index]
			k.low, k.second, k.lowest = c.support, c.bound, c.lowest
		}
	}
	s.trail = s.trail[:mark]
}

// reopen makes the item's sections look at all their items again.
func (s *search) reopen(it item) {
	for k := it.first; k < it.end; k++ {
		s.scan[k] = int32(len(s.members[k]))
	}
}

func (s *search) touchAll(i int32) {
	it := s.p.items[i]
	for k := it.first; k < it.end; k++ {
		s.touch(k)
	}
}

func (s *search) touch(k int32) {
	if !s.isTouched[k] {
		s.isTouched[k] = true
		s.touched = append(s.touched, k)
	}
}

// blameSection notes the unplaced items of the section that failed.
func (s *search) blameSection(k int32) {
	for _, i := range s.members[k] {
		if s.bound[i] >= 0 {
			s.blame[i]++
		}
	}
}
