package remat

import "math"

// moment is the program at one stage, t, where all that is read later either
// lies in memory or is made again later. At a price for a byte of memory the
// cheapest choice is a least cut of a network (Rhys, 1970). Its nodes are slots
// and the operations before t; those on the source's side are wanted, or run again:
//
//	source → slot        endless          the program reads it after t
//	slot   → its maker   price × bytes    wanted, and not made again: it is kept
//	maker  → sink        its time         it runs again …
//	maker  → its slots   endless          … and wants what it reads
//
// For any price the cut's capacity, less the price of all the room that there
// is, is a bound on the time that a plan computes again (Everett, 1963).
type moment struct {
	g     *graph
	t     int32
	room  int64 // bytes for what lies unread
	net   *network
	kept  []int32 // slot → edge to its maker; -1: in memory anyway, or made later
	price float64 // with the greatest bound, in ns per byte
	bound int64   // ns
	work  int     // steps of work done
}

// choice is the cheapest at a price.
type choice struct{ bound, bytes, cost int64 }

func (g *graph) newMoment(t int32, budget int64) *moment {
	m := &moment{g: g, t: t, room: budget - g.base[t] - g.work[t], kept: make([]int32, len(g.size))}
	m.net = newNetwork(len(g.size) + int(t) + 2)
	if t < int32(g.n) {
		m.room -= g.add[t]
	}
	for v := range int32(len(g.size)) {
		m.kept[v] = -1
		if g.prod[v] < t {
			m.kept[v] = m.net.edge(v, m.node(g.prod[v]), 0)
			if r := g.cons[v]; len(r) > 0 && r[len(r)-1] > t {
				m.net.edge(m.node(t), v, endless)
			}
		}
	}
	for _, v := range g.args[t] {
		m.room -= g.size[v]
		m.kept[v] = -1
	}
	for op := range t {
		cost := g.cost[op]
		if g.once[op] {
			cost = endless
		}
		m.net.edge(m.node(op), m.node(t+1), cost)
		for _, v := range g.args[op] {
			m.net.edge(m.node(op), v, endless)
		}
	}
	m.solve()
	return m
}

// node is that of an operation before t; t stands for the source, t+1 for the sink.
func (m *moment) node(op int32) int32 { return int32(len(m.g.size)) + op }

// again says whether op, before t, runs again by the last choice.
func (m *moment) again(op int32) bool { return m.net.within(m.node(op)) }

// choose finds what is cheapest at a price.
func (m *moment) choose(price float64) (c choice) {
	for v, e := range m.kept {
		if e >= 0 {
			m.net.most[e] = int64(price * float64(m.g.size[v]))
		}
	}
	sum, work := m.net.cut(m.node(m.t), m.node(m.t+1))
	m.work += work
	for v, e := range m.kept {
		if e >= 0 && m.net.within(int32(v)) && !m.again(m.g.prod[v]) {
			c.bytes += m.g.size[v]
		}
	}
	for op := range m.t {
		if m.again(op) {
			c.cost += m.g.cost[op]
		}
	}
	c.bound = sum - int64(math.Ceil(price*float64(m.room)))
	if c.bound > m.bound {
		m.bound, m.price = c.bound, price
	}
	return c
}

// solve finds the price with the greatest bound, at which a choice that needs
// more than the room and one that needs less are equally cheap.
func (m *moment) solve() {
	over := m.choose(0)
	if over.bytes <= m.room {
		return
	}
	price := 1e-6
	fits := m.choose(price)
	for ; fits.bytes > m.room && price < 1e6; price *= 4 {
		over, fits = fits, m.choose(price*4)
	}
	for range 30 {
		c := m.choose(float64(fits.cost-over.cost) / float64(over.bytes-fits.bytes))
		switch {
		case c.bytes == over.bytes || c.bytes == fits.bytes:
			return
		case c.bytes > m.room:
			over = c
		default:
			fits = c
		}
	}
}

// worst is the moment at which the program needs most memory, and that with the
// greatest bound, or one near it: from the first it goes where the bound rises, in
// shorter and shorter steps, until the work is done.
func (g *graph) worst(budget int64, work int) (highest, best *moment) {
	live := g.plainLive()
	top := 0
	for t, b := range live {
		if b > live[top] {
			top = t
		}
	}
	highest = g.newMoment(int32(top), budget)
	best = highest
	done := best.work
	for step := g.n / 8; step > g.n/256; step /= 2 {
		for _, t := range []int{int(best.t) - step, int(best.t) + step} {
			if t < 0 || t > g.n || live[t] <= budget || done > work {
				continue
			}
			m := g.newMoment(int32(t), budget)
			if done += m.work; m.bound > best.bound {
				best = m
			}
		}
	}
	best.work = done
	return highest, best
}

// plainLive is the memory at each stage when all is kept until its last read.
func (g *graph) plainLive() []int64 {
	live := make([]int64, g.n+2)
	for v, b := range g.size {
		live[g.prod[v]] += b
		live[g.lastRead(int32(v))+1] -= b
	}
	return g.addUp(live)
}

// least is the memory at each stage without all that can be made again and is
// not read there: no plan without moves needs less.
func (g *graph) least() []int64 {
	live := make([]int64, g.n+2)
	add := func(v, from, to int32) {
		live[from] += g.size[v]
		live[to+1] -= g.size[v]
	}
	for v := range int32(len(g.size)) {
		p, end := g.prod[v], g.lastRead(v)
		if g.once[p] {
			add(v, p, end)
			continue
		}
		add(v, p, p)
		for _, c := range g.cons[v] {
			add(v, c, c)
		}
	}
	return g.addUp(live)
}

// addUp makes changes of memory the memory at each stage.
func (g *graph) addUp(live []int64) []int64 {
	var sum int64
	for t := range live[:g.n+1] {
		sum += live[t]
		live[t] = sum + g.base[t] + g.work[t]
	}
	return live[:g.n+1]
}

// lastRead is the stage at which the program last reads v, or makes it.
func (g *graph) lastRead(v int32) int32 {
	if c := g.cons[v]; len(c) > 0 {
		return c[len(c)-1]
	}
	return g.prod[v]
}
