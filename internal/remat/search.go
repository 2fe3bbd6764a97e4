package remat

import "slices"

// set is a plan as the extra runs, sorted.
type set []pos

func (p *planner) save() set {
	p.work += len(p.runs) / 16
	out := make(set, 0, p.extras)
	for op := range p.runs {
		for _, t := range p.runs[op][1:] {
			out = append(out, at(t, int32(op)))
		}
	}
	slices.Sort(out)
	return out
}

// load makes the state that of the extra runs x.
func (p *planner) load(x set) {
	for _, e := range p.save() {
		if _, ok := slices.BinarySearch(x, e); !ok {
			p.removeRaw(e.stage(), e.op())
		}
	}
	for _, e := range x {
		if !p.has(e.op(), e.stage()) {
			p.insertRaw(e.stage(), e.op())
		}
	}
	p.log = p.log[:0]
}

// prune takes away extra runs whose outputs nobody reads.
func (p *planner) prune() {
	for _, e := range p.save() {
		if p.has(e.op(), e.stage()) {
			if i, _, _ := p.run(e.op(), e.stage()); p.unread(e.op(), i) {
				p.cut(e.stage(), e.op())
			}
		}
	}
}

// improve is ruin and recreate: it takes some extra runs away, repairs the plan
// with noise in the scores, takes away what that made superfluous, and keeps the
// result unless it costs more than a falling temperature allows. It ends when
// the work does and leaves the best plan in place.
func (p *planner) improve(work int) {
	best, bestCost := p.save(), p.cost
	start, end := p.work, p.work+work
	p.log = p.log[:0]
	hot := 0.0005 * float64(p.g.plain)
	all := p.spares()
	taste := make([]float64, p.g.kinds)
	for iter := 0; p.work < end && len(all) > 0 && p.ctx.Err() == nil; iter++ {
		if iter%16 == 0 {
			all = p.spares()
			if len(all) == 0 {
				break
			}
		}
		was := p.cost
		T := hot * (1 - float64(p.work-start)/float64(work))
		limit := was + int64(T*p.rng.ExpFloat64())
		p.noise = 0.1 + 0.4*p.rng.Float64()
		p.power = 1
		if p.rng.IntN(2) == 0 {
			p.power = 0.3 + 0.7*p.rng.Float64()
		}
		p.taste = nil
		if p.rng.IntN(2) == 0 {
			p.draw(taste, p.noise)
			p.taste = taste
		}
		p.ruin(all)
		if p.work += 8; !p.repair(limit + was/50) {
			p.undo(0)
			continue
		}
		p.trim(all)
		if p.cost > limit {
			p.undo(0)
			continue
		}
		p.log = p.log[:0]
		if p.cost < bestCost {
			best, bestCost = p.save(), p.cost
		}
	}
	p.taste = nil
	p.load(best)
}

// draw fills taste with factors around 1.
func (p *planner) draw(taste []float64, width float64) {
	for k := range taste {
		taste[k] = 1 + width*(2*p.rng.Float64()-1)
	}
	p.work += len(taste) / 16
}

// trim tries to take away the extra runs near what the last change touched.
func (p *planner) trim(all []spare) {
	n := len(p.log)
	for range 4 {
		x := all[p.rng.IntN(len(all))]
		if p.has(x.op, x.stage) {
			p.try(x.stage, x.op)
		}
	}
	var near []spare
	for _, e := range p.log[:n] {
		if !e.removed && p.has(e.op, e.stage) {
			near = append(near, spare{e.stage, e.op, p.g.cost[e.op]})
		}
	}
	p.clean(near)
}

// ruin changes the plan at random: it takes extra runs away, or adds one.
func (p *planner) ruin(all []spare) {
	x := all[p.rng.IntN(len(all))]
	switch k := p.rng.IntN(100); {
	case k < 35:
		y := all[p.rng.IntN(len(all))]
		if y.cost > x.cost {
			x = y
		}
		if p.has(x.op, x.stage) {
			p.cut(x.stage, x.op)
		}
	case k < 60:
		width := int32(1) << p.rng.IntN(6)
		for op := max(0, x.op-width); op <= min(x.op+width, int32(p.g.n-1)); op++ {
			p.cutAll(op)
		}
	case k < 64:
		width := int32(16) << p.rng.IntN(8)
		for op := max(0, x.op-width); op <= min(x.op+width, int32(p.g.n-1)); op++ {
			if p.g.kind[op] == p.g.kind[x.op] {
				p.cutAll(op)
			}
		}
		p.work += int(width) / 16
	case k < 77:
		width := int32(1) << p.rng.IntN(6)
		for t := max(0, x.stage-width); t <= min(x.stage+width, int32(p.g.n)); t++ {
			for len(p.events[t]) > 1 {
				p.cut(t, p.events[t][len(p.events[t])-2].op)
			}
		}
	default:
		p.push()
	}
}

func (p *planner) cutAll(op int32) {
	for len(p.runs[op]) > 1 {
		p.cut(p.runs[op][len(p.runs[op])-1], op)
	}
}

// push drops a slot at random over a gap between its reads.
func (p *planner) push() {
	g := p.g
	for range 50 {
		v := int32(p.rng.IntN(len(g.size)))
		if w := int32(p.rng.IntN(len(g.size))); g.size[w] > g.size[v] {
			v = w
		}
		if g.size[v] == 0 || g.once[g.prod[v]] {
			continue
		}
		l := p.last[v]
		first, last := g.prod[v], l[len(l)-1].stage()
		if last-first < 2 {
			continue
		}
		t := first + 1 + int32(p.rng.IntN(int(last-first-1)))
		s1, s2 := p.gapAt(v, t, t)
		if s2 < 0 || s2-s1 < 2 {
			continue
		}
		p.apply(g.prod[v], s2)
		return
	}
}

// stages returns for each operation, and the end, its stage or the next one, and
// whether it is its own.
func (g *graph) stages() (stage []int32, own []bool) {
	stage, own = make([]int32, len(g.p.Ops)+1), make([]bool, len(g.p.Ops))
	t := int32(g.n)
	stage[len(g.p.Ops)] = t
	for i := len(g.p.Ops) - 1; i >= 0; i-- {
		if t > 0 && g.op[t-1] == int32(i) {
			t--
			own[i] = true
		}
		stage[i] = t
	}
	return stage, own
}

// runsOf are the extra runs of a plan.
func (g *graph) runsOf(plan *Plan) set {
	stage, _ := g.stages()
	var x set
	for _, r := range plan.Again {
		x = append(x, at(stage[r.Before], stage[r.Op]))
	}
	slices.Sort(x)
	return x
}

// runs are the extra runs of the last choice: of each operation one, at the first
// stage after t that reads what it makes.
func (m *moment) runs() set {
	g, x := m.g, set(nil)
	stage := make([]int32, m.t) // of the extra run, or the end
	for op := m.t - 1; op >= 0; op-- {
		stage[op] = int32(g.n)
		if !m.again(op) {
			continue
		}
		for _, v := range g.outs[op] {
			for _, c := range g.cons[v] {
				if c > m.t {
					stage[op] = min(stage[op], c)
				} else if c < m.t {
					stage[op] = min(stage[op], stage[c])
				}
			}
		}
		x = append(x, at(stage[op], op))
	}
	slices.Sort(x)
	return x
}

// dtr is the run of DTR's runtime as extra runs, if it ends.
func (g *graph) dtr(sh *dtrShape, budget int64) (set, bool) {
	stage, own := g.stages()
	var x set
	_, end := sh.run(budget, g.plain, func(t, op int32) {
		if own[op] && !g.once[stage[op]] {
			x = append(x, at(stage[t], stage[op]))
		}
	})
	slices.Sort(x)
	return slices.Compact(x), end == dtrDone
}
