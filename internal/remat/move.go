package remat

import (
	"cmp"
	"slices"
)

// move is a copy of a slot to slower memory and back, between its reads in stages
// out and need. It holds only while one run serves both and nothing reads the
// slot in between; else the slot just stays in memory. So runs can still be added
// and taken away at will.
type move struct {
	slot, out, gone, back, need int32
	on                          bool
}

// settle switches the move of v on or off as its reads are now.
func (s *state) settle(v int32) {
	if s.moved == nil || s.moved[v] < 0 {
		return
	}
	m := &s.moves[s.moved[v]]
	on := s.holds(m)
	if on == m.on {
		return
	}
	m.on = on
	size := s.g.size[v]
	if !on {
		size = -size
	}
	s.shift[m.gone] -= size
	s.shift[m.back] += size
	s.touch(m.gone)
	s.touch(m.back)
}

func (s *state) holds(m *move) bool {
	_, a, b := s.run(s.g.prod[m.slot], m.gone)
	if a > m.out || b <= m.need {
		return false
	}
	before, after := s.gap(m.slot, m.gone, a, b)
	return before.stage() <= m.out && after == m.need
}

// away says whether v is moved away in stage t.
func (s *state) away(v, t int32) bool {
	if s.moved == nil || s.moved[v] < 0 {
		return false
	}
	m := &s.moves[s.moved[v]]
	return m.on && m.gone <= t && t < m.back
}

// span is a time during which a lane is busy, in ns of the program without a plan.
type span struct{ from, to int64 }

// lane is the copies in one direction, ordered and apart.
type lane []span

// early is the first free time of length d at or after from.
func (l lane) early(from, d int64) int64 {
	for _, s := range l {
		if from+d <= s.from {
			break
		}
		from = max(from, s.to)
	}
	return from
}

// late is the last free time of length d that ends at or before to.
func (l lane) late(to, d int64) int64 {
	for _, s := range slices.Backward(l) {
		if to-d >= s.to {
			break
		}
		to = min(to, s.from)
	}
	return to - d
}

func (l *lane) take(from, d int64) {
	i, _ := slices.BinarySearchFunc(*l, from, func(s span, t int64) int { return int(min(1, max(-1, s.from-t))) })
	*l = slices.Insert(*l, i, span{from, from + d})
}

// mover plans copies that hide beside the operations of the program.
type mover struct {
	*planner
	start     []int64 // stage → stretched ns after the start of the program; one more for the end
	out, back lane
	bytes     int64 // of all that moves
}

// moves says whether values may move.
func (g *graph) moves() bool { return g.p.OutRate > 0 && g.p.BackRate > 0 }

// stretches are tried besides 1: with the last one copies are as good as free, so
// that all values move that must.
var stretches = [...]float64{1.1, 1.25, 2, 1e6}

// hide adds moves while the peak is above the budget and lanes are free: copies
// that would hide beside operations that took stretch times as long. With 1 they
// take no time; else operations wait for some, and fewer run again. What is
// expensive to make again goes first.
func (p *planner) hide(stretch float64) {
	g := p.g
	if !g.moves() {
		return
	}
	p.moved = make([]int32, len(g.size))
	for v := range p.moved {
		p.moved[v] = -1
	}
	p.shift = make([]int64, g.n+2)
	m := &mover{planner: p, start: make([]int64, g.n+2)}
	const longest = 1 << 60 // ns, so that no sum overflows
	stretch = min(stretch, longest/float64(g.plain+1))
	for t := range g.n {
		m.start[t+1] = m.start[t] + int64(stretch*float64(g.cost[t]))
	}
	m.start[g.n+1] = m.start[g.n]
	for p.tree.peak() > p.budget && m.add(int32(p.tree.argmax())) {
	}
}

// add moves the slot that is best away over stage t.
func (m *mover) add(t int32) bool {
	first, last := m.scan()
	g, e := m.g, m.worst(t)
	// relief is how much less is over the budget without v from stage a to b.
	relief := func(v, a, b int32) float64 {
		a, b = max(first, a), min(last, b)
		return float64(min(g.size[v]*int64(m.count[b+1]-m.count[a]), m.over[b+1]-m.over[a]))
	}
	var best move
	var bestScore float64
	for v := range int32(len(g.size)) {
		if g.prod[v] >= t || m.until[v] <= t || !m.movable(v) {
			continue
		}
		s1, s2 := m.gapOf(v, t, e)
		if s2 < 0 || s1 >= t || s2 <= t {
			continue
		}
		c, price := move{slot: v, out: s1, need: s2}, m.price(v)
		if relief(v, s1+1, s2-1)*price <= bestScore || !m.fit(&c) || c.gone > t || c.back <= t {
			continue
		}
		if score := relief(v, c.gone, c.back-1) * price; score > bestScore {
			best, bestScore = c, score
		}
	}
	if bestScore > 0 {
		m.use(best)
	}
	return bestScore > 0
}

// movable says whether v may move and does not yet.
func (m *mover) movable(v int32) bool {
	return m.moved[v] < 0 && m.g.size[v] > 0 && m.room(v) && !m.g.p.Values[m.g.value[v]].Stays
}

// price makes a score of v's relief: what counts is the relief for each byte that
// moves, and what a byte costs to make again.
func (m *mover) price(v int32) float64 {
	g := m.g
	price := float64(g.cost[g.prod[v]] + 1)
	if g.once[g.prod[v]] {
		price *= 100
	}
	return price / (float64(g.size[v]) * float64(g.size[v]))
}

// room says whether v finds room where values move to.
func (m *mover) room(v int32) bool {
	return m.g.p.Room == 0 || m.bytes+m.g.size[v] <= m.g.p.Room
}

// fit finds times for the copies of c and says whether there are any.
func (m *mover) fit(c *move) bool {
	d, e := m.g.copies(c.slot)
	out := m.out.early(m.start[c.out+1], d) + d
	back := m.back.late(m.start[c.need], e)
	c.gone = int32(search64(m.start, out))
	c.back = int32(search64(m.start, back+1) - 1)
	return back >= 0 && c.gone > c.out && c.gone < c.back && c.back <= c.need && m.inTime(*c)
}

// inTime says whether all copies end in time when each lane takes them in the
// order in which they may start, as it will.
func (m *mover) inTime(c move) bool {
	all := append(slices.Clone(m.moves), c)
	slices.SortFunc(all, func(a, b move) int { return cmp.Or(cmp.Compare(a.out, b.out), cmp.Compare(a.gone, b.gone)) })
	var free int64
	for _, x := range all {
		d, _ := m.g.copies(x.slot)
		if free = max(free, m.start[x.out+1]) + d; free > m.start[x.gone] {
			return false
		}
	}
	slices.SortFunc(all, func(a, b move) int { return cmp.Or(cmp.Compare(a.back, b.back), cmp.Compare(a.need, b.need)) })
	free = 0
	for _, x := range all {
		_, e := m.g.copies(x.slot)
		if free = max(free, m.start[x.back]) + e; free > m.start[x.need] {
			return false
		}
	}
	m.work += len(all)
	return true
}

// use takes the lanes for c.
func (m *mover) use(c move) {
	d, e := m.g.copies(c.slot)
	m.out.take(m.out.early(m.start[c.out+1], d), d)
	m.back.take(m.back.late(m.start[c.need], e), e)
	m.bytes += m.g.size[c.slot]
	m.moved[c.slot] = int32(len(m.moves))
	m.moves = append(m.moves, c)
	m.settle(c.slot)
	m.flush()
}

// copies are the times of the copies of v out and back, in ns.
func (g *graph) copies(v int32) (out, back int64) {
	return g.p.copyTime(g.size[v], g.p.OutRate), g.p.copyTime(g.size[v], g.p.BackRate)
}

// copyTime is the time of a copy, in ns, rounded up.
func (p *Program) copyTime(bytes, rate int64) int64 {
	return int64(float64(bytes)/float64(rate)*1e9) + 1
}

// search64 returns the first index of r whose value is ≥ x.
func search64(r []int64, x int64) int {
	i, _ := slices.BinarySearch(r, x)
	return i
}
