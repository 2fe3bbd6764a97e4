package remat

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// planner changes a state until it fits its budget, and then until it costs
// little.
type planner struct {
	*state
	ctx   context.Context
	rng   *rand.Rand
	over  []int64 // stage → sum of what is over the budget before it
	count []int32 // stage → number of stages over the budget before it
	mark  []uint32
	epoch uint32
	noise float64   // of scores: they are multiplied by 1 ± noise; below 1
	taste []float64 // kind → factor of its scores' relief, or nil
	stop  int       // work at which repair gives up
	power float64   // of the relief in scores
}

func newPlanner(s *state, seed uint64) *planner {
	n := s.g.n + 1
	return &planner{state: s, stop: math.MaxInt, rng: rand.New(rand.NewPCG(seed, 1)), power: 1,
		over: make([]int64, n+1), count: make([]int32, n+1), mark: make([]uint32, n)}
}

// scan fills over and count for the stages from the first over the budget to the
// last, which it returns.
func (p *planner) scan() (first, last int32) {
	t := p.tree
	i, j := t.over(p.budget)
	sum := t.before(i)
	p.over[i], p.count[i] = 0, 0
	var over int64
	var count int32
	sums, tops := t.sum[t.size:], t.top[t.size:]
	for k := i; k <= j; k++ {
		if l := sum + tops[k]; l > p.budget {
			over += l - p.budget
			count++
		}
		sum += sums[k]
		p.over[k+1], p.count[k+1] = over, count
	}
	p.work += (j - i) / 32
	return int32(i), int32(j)
}

// repair adds runs until the peak is within the budget. It returns false when it
// finds none that helps, or when the cost passes limit.
func (p *planner) repair(limit int64) bool {
	for range 20 * len(p.runs) {
		if p.tree.peak() <= p.budget {
			return true
		}
		if p.cost > limit || p.work > p.stop {
			return false
		}
		if t := int32(p.tree.argmax()); !p.drop(t, 12) && !p.drop(t, len(p.runs)) {
			return false
		}
	}
	return false
}

// worst is the operation within stage t at which memory is highest.
func (p *planner) worst(t int32) int32 {
	var sum int64
	best, op := int64(low), int32(0)
	for _, e := range p.events[t] {
		sum += p.g.add[e.op]
		if m := sum + p.g.work[e.op]; m > best {
			best, op = m, e.op
		}
		sum -= e.drop
	}
	return op
}

// drop lets go of one slot at the worst event of stage t until its next read,
// where its producer runs again: the one with the least cost per byte-time of
// excess that it removes.
func (p *planner) drop(t int32, depth int) bool {
	first, end := p.scan()
	g := p.g
	e := p.worst(t)
	bestScore, bestOp, bestStage := math.Inf(1), int32(-1), int32(0)
	for _, v := range g.free {
		op := g.prod[v]
		if op > t {
			break
		}
		if p.until[v] < t {
			continue
		}
		if most := float64(min(g.size[v]*int64(p.count[end+1]), p.over[end+1])); float64(g.cost[op]) > bestScore*p.boost(op, most) {
			continue // even with the most relief that there is
		}
		s1, s2 := p.gapAt(v, t, e)
		if s2 < 0 {
			continue
		}
		lo, hi := max(first, min(s1+1, t)), min(end, max(s2-1, t))
		relief := float64(min(g.size[v]*int64(p.count[hi+1]-p.count[lo]), p.over[hi+1]-p.over[lo]))
		if p.power != 1 {
			relief = roughPow(relief, p.power)
		}
		relief *= p.favour(op)
		if limit := bestScore * relief; float64(g.cost[op]) <= limit {
			p.epoch++
			if score := p.estimate(op, s2, depth, limit) / relief; score < bestScore {
				bestScore, bestOp, bestStage = score, op, s2
			}
		}
	}
	p.work += len(g.free) / 16
	if bestOp < 0 {
		return false
	}
	p.apply(bestOp, bestStage)
	return true
}

// boost is at least the relief as scores count it.
func (p *planner) boost(op int32, relief float64) float64 {
	if p.power != 1 {
		relief = roughPow(relief, p.power)
	}
	if p.taste != nil {
		relief *= p.taste[p.g.kind[op]]
	}
	return relief * (1 + p.noise)
}

// favour is the noise in the scores of op: of its own, or one for all that repeat it.
func (p *planner) favour(op int32) float64 {
	p.work += 2
	f := 1.0
	if p.noise > 0 {
		f = 1 + p.noise*(2*p.rng.Float64()-1)
	}
	if p.taste != nil {
		f *= p.taste[p.g.kind[op]]
	}
	return f
}

// gapAt is gapOf for what is in memory.
func (p *planner) gapAt(v, t, e int32) (s1, s2 int32) {
	if p.away(v, t) {
		return -1, -1
	}
	return p.gapOf(v, t, e)
}

// gapOf returns the stages between which v lies unread around event (t, e), or
// -1, -1 if it is read there or not there at all.
func (p *planner) gapOf(v, t, e int32) (s1, s2 int32) {
	op := p.g.prod[v]
	p.work += 1 + len(p.g.cons[v])/4
	i, a, b := p.run(op, t)
	if p.last[v][i] < at(t, e) {
		return -1, -1
	}
	before, after := p.gap(v, t, a, b)
	if before < at(t, e) {
		if after < 0 {
			return -1, -1
		}
		return before.stage(), after
	}
	if op <= e || a == t || before == at(t, e) {
		return -1, -1
	}
	before, after = p.gap(v, t-1, a, b)
	return before.stage(), after
}

// estimate is about what it costs to run op again in stage t, with what it lacks
// there; it gives up above limit.
func (p *planner) estimate(op, t int32, depth int, limit float64) float64 {
	p.marked(op)
	cost := float64(p.g.cost[op])
	p.work++
	for _, v := range p.g.args[op] {
		if cost > limit {
			return cost
		}
		q := p.g.prod[v]
		if p.mark[q] == p.epoch || !p.lacks(v, op, t) {
			continue
		}
		if depth == 0 {
			return math.Inf(1)
		}
		cost += p.estimate(q, t, depth-1, limit-cost)
	}
	return cost
}

func (p *planner) marked(op int32) { p.mark[op] = p.epoch }

// lacks says whether op, run in stage t, would find v neither in memory nor
// possible to be kept until then.
func (p *planner) lacks(v, op, t int32) bool {
	q := p.g.prod[v]
	if p.g.once[q] {
		return false
	}
	j, _, _ := p.run(q, t)
	end := p.last[v][j]
	if p.away(v, t) {
		m := &p.moves[p.moved[v]]
		return p.maxOf(m.gone, m.back-1)+p.g.size[v] > p.budget
	}
	if end >= at(t, op) {
		return false
	}
	p.work++
	return p.maxOf(end.stage()+1, t-1)+p.g.size[v] > p.budget
}

func (p *planner) maxOf(a, b int32) int64 {
	if a > b {
		return low
	}
	return p.tree.maxOf(int(a), int(b))
}

// apply runs op again in stage t, and what it lacks there.
func (p *planner) apply(op, t int32) {
	var lack []int32
	for _, v := range p.g.args[op] {
		if q := p.g.prod[v]; p.lacks(v, op, t) && !slices.Contains(lack, q) {
			lack = append(lack, q)
		}
	}
	p.insert(t, op)
	for _, q := range lack {
		if !p.has(q, t) {
			p.apply(q, t)
		}
	}
}

// unread says whether nothing reads what the extra run i of op makes.
func (p *planner) unread(op int32, i int) bool {
	t := p.runs[op][i]
	for _, v := range p.g.outs[op] {
		if p.last[v][i] != at(t, op) {
			return false
		}
	}
	return true
}

// cut takes the extra run of op in stage t away, and those that only served it.
func (p *planner) cut(t, op int32) {
	p.remove(t, op)
	for _, v := range p.g.args[op] {
		q := p.g.prod[v]
		if i, a, _ := p.run(q, t); i > 0 && p.unread(q, i) {
			p.cut(a, q)
		}
	}
}

// spare is an extra run that clean tries to do without.
type spare struct {
	stage, op int32
	cost      int64
}

// clean takes extra runs away while the plan stays within the budget, the most
// expensive first.
func (p *planner) clean(all []spare) {
	slices.SortFunc(all, func(a, b spare) int {
		if a.cost != b.cost {
			return int(min(1, max(-1, b.cost-a.cost)))
		}
		return int(at(a.stage, a.op) - at(b.stage, b.op)>>1)
	})
	for _, x := range all {
		if p.has(x.op, x.stage) {
			p.try(x.stage, x.op)
		}
	}
}

// try takes a run away if the plan then fits and costs no more.
func (p *planner) try(t, op int32) {
	n, cost := len(p.log), p.cost
	p.cut(t, op)
	if p.tree.peak() > p.budget || p.cost > cost {
		p.undo(n)
	}
}

// spares lists all extra runs.
func (p *planner) spares() []spare {
	var all []spare
	for op := range p.runs {
		for _, t := range p.runs[op][1:] {
			all = append(all, spare{t, int32(op), p.g.cost[op]})
		}
	}
	return all
}

// roughPow is x to the power of y within some percent, rising in x: the logarithm
// is read off the bits of a float.
func roughPow(x, y float64) float64 {
	const one = 1023 << 52
	return math.Float64frombits(uint64(y*float64(int64(math.Float64bits(x))-one)) + one)
}
