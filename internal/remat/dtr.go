package remat

import "math"

// dtrRun is a run of DTR's runtime with eager eviction over a program (Kirisame
// et al., Dynamic Tensor Rematerialization, ICLR 2021), counted as its published
// simulator counts.
type dtrRun struct {
	*dtrShape
	budget  int64
	limit   int64 // of extra time
	memory  int64
	clock   int64
	extra   int64
	stage   int32
	defined []bool
	store   []dtrStore // by root
	sets    []dtrSet   // union-find of evicted neighbours
	first   int32      // of the list of what may be evicted, in order
	last    int32
	seen    []int32
	rerun   func(stage, op int32)
	err     dtrEnd
}

type dtrEnd int

const (
	dtrDone dtrEnd = iota
	dtrMemory
	dtrLimit
)

// dtrStore is the state of one piece of memory.
type dtrStore struct {
	size, cost int64
	access     int64 // clock of the last use
	material   bool
	pinned     bool
	locks      int32
	set        int32
	prev, next int32 // list of what may be evicted; -2: not in it
	near       []int32
	values     []int32
}

type dtrSet struct {
	parent int32
	cost   int64
}

// dtrShape is what all runs over a program share.
type dtrShape struct {
	p    *Program
	root []int
	made []int
	held [][]int32 // operation → roots that the program lets go of after it
}

func newDTRShape(p *Program) *dtrShape {
	sh := &dtrShape{p: p, root: p.roots(), made: p.makers(), held: make([][]int32, len(p.Ops)+1)}
	for v, at := range p.lastHeld(true) {
		if sh.root[v] == v && sh.made[v] >= 0 {
			sh.held[at] = append(sh.held[at], int32(v))
		}
	}
	return sh
}

// run plays the program. rerun, if not nil, is called for each operation that
// runs again.
func (sh *dtrShape) run(budget, limit int64, rerun func(stage, op int32)) (extra int64, end dtrEnd) {
	p := sh.p
	r := &dtrRun{dtrShape: sh, budget: budget, limit: limit, clock: 1,
		defined: make([]bool, len(p.Values)), store: make([]dtrStore, len(p.Values)), first: -1, last: -1, rerun: rerun}
	for v := range r.store {
		s := &r.store[v]
		s.size, s.set, s.prev, s.next = p.Values[v].Bytes, -1, -2, -2
		if sh.made[v] < 0 {
			s.material, s.pinned, r.defined[v] = true, true, true
			r.memory += s.size
		}
	}
	r.seen = make([]int32, 0, 64)
	for i := range p.Ops {
		r.stage = int32(i)
		if !r.step(i) {
			return r.extra, r.err
		}
	}
	r.stage = int32(len(p.Ops))
	for _, v := range p.Outputs {
		if !r.defined[v] && !r.materialize(r.made[v], v, true) {
			return r.extra, r.err
		}
		r.pin(v)
	}
	return r.extra, dtrDone
}

func (r *dtrRun) pin(v int) {
	s := &r.store[r.root[v]]
	if !s.pinned {
		s.pinned = true
		r.lock(int32(r.root[v]))
	}
}

// step runs operation i of the program.
func (r *dtrRun) step(i int) bool {
	op := &r.p.Ops[i]
	for _, v := range op.Outs {
		rt := r.root[v]
		r.store[rt].cost += op.Cost
		r.store[rt].values = append(r.store[rt].values, int32(v))
		for _, a := range op.Args {
			if ra := r.root[a]; ra != rt {
				r.store[rt].near = append(r.store[rt].near, int32(ra))
				r.store[ra].near = append(r.store[ra].near, int32(rt))
			}
		}
	}
	if op.View && len(op.Outs) > 1 { // one operation counts once
		r.store[r.root[op.Outs[0]]].cost -= op.Cost * int64(len(op.Outs)-1)
	}
	first := -1
	if len(op.Outs) > 0 {
		first = op.Outs[0]
	}
	if !r.materialize(i, first, false) {
		return false
	}
	for _, v := range op.Outs {
		r.store[r.root[v]].access = r.clock
		if r.p.Values[v].Pinned {
			r.pin(v)
		}
	}
	for _, v := range r.held[i] {
		if s := &r.store[v]; s.material && !s.pinned {
			r.evict(v)
		}
	}
	return true
}

// materialize runs operation i for its output v (-1: it has none), and before it
// those whose values it lacks.
func (r *dtrRun) materialize(i, v int, again bool) bool {
	op := &r.p.Ops[i]
	if !r.collect(op.Args) {
		return false
	}
	var need int64
	if !op.View {
		for _, o := range op.Outs {
			need += r.p.Values[o].Bytes
		}
	}
	if !r.makeRoom(need + op.Workspace) {
		return false
	}
	r.compute(i, v, need, again)
	for _, a := range op.Args {
		r.unlock(int32(r.root[a]))
	}
	if r.extra > r.limit {
		r.err = dtrLimit
		return false
	}
	return true
}

// collect locks the arguments of an operation, made again where they are missing.
func (r *dtrRun) collect(args []int) bool {
	for _, a := range args {
		r.store[r.root[a]].access = r.clock
	}
	var missing []int
	for _, a := range args {
		if r.defined[a] {
			r.lock(int32(r.root[a]))
		} else {
			missing = append(missing, a)
		}
	}
	for _, a := range missing {
		if !r.defined[a] && !r.materialize(r.made[a], a, true) {
			return false
		}
		r.lock(int32(r.root[a]))
	}
	return true
}

// makeRoom evicts until so many bytes are free.
func (r *dtrRun) makeRoom(bytes int64) bool {
	for r.memory+bytes > r.budget {
		if r.first < 0 {
			r.err = dtrMemory
			return false
		}
		r.evict(r.choose())
	}
	return true
}

func (r *dtrRun) compute(i, v int, need int64, again bool) {
	op := &r.p.Ops[i]
	r.clock += op.Cost
	if again {
		r.extra += op.Cost
		if r.rerun != nil && !op.View {
			r.rerun(r.stage, int32(i))
		}
	}
	r.memory += need
	for _, o := range op.Outs {
		if r.defined[o] && !op.View {
			r.memory -= r.p.Values[o].Bytes
		}
	}
	for _, o := range op.Outs {
		if o != v {
			r.define(o)
		}
	}
	if v >= 0 {
		r.define(v)
	}
}

// define marks a value that its operation has just made.
func (r *dtrRun) define(o int) {
	s := &r.store[r.root[o]]
	r.defined[o] = true
	if s.material {
		return
	}
	s.material = true
	if s.set >= 0 {
		r.sets[r.find(s.set)].cost -= s.cost
		s.set = -1
	}
	r.listAdd(int32(r.root[o]))
}

func (r *dtrRun) lock(v int32) {
	s := &r.store[v]
	if s.locks == 0 && s.prev != -2 {
		r.listRemove(v)
	}
	s.locks++
}

func (r *dtrRun) unlock(v int32) {
	s := &r.store[v]
	s.locks--
	if s.locks == 0 && !(s.pinned && r.made[v] < 0) {
		r.listAdd(v)
	}
}

func (r *dtrRun) listAdd(v int32) {
	s := &r.store[v]
	s.prev, s.next = r.last, -1
	if r.last >= 0 {
		r.store[r.last].next = v
	} else {
		r.first = v
	}
	r.last = v
}

func (r *dtrRun) listRemove(v int32) {
	s := &r.store[v]
	if s.prev >= 0 {
		r.store[s.prev].next = s.next
	} else {
		r.first = s.next
	}
	if s.next >= 0 {
		r.store[s.next].prev = s.prev
	} else {
		r.last = s.prev
	}
	s.prev, s.next = -2, -2
}

func (r *dtrRun) evict(v int32) {
	s := &r.store[v]
	if s.prev != -2 {
		r.listRemove(v)
	}
	s.material = false
	r.memory -= s.size
	for _, t := range s.values {
		r.defined[t] = false
	}
	s.set = int32(len(r.sets))
	r.sets = append(r.sets, dtrSet{s.set, s.cost})
	for _, n := range s.near {
		if q := &r.store[n]; !q.material && q.set >= 0 {
			r.union(q.set, s.set)
		}
	}
}

func (r *dtrRun) find(i int32) int32 {
	for r.sets[i].parent != i {
		r.sets[i].parent = r.sets[r.sets[i].parent].parent
		i = r.sets[i].parent
	}
	return i
}

func (r *dtrRun) union(a, b int32) {
	a, b = r.find(a), r.find(b)
	if a != b {
		r.sets[a].parent = b
		r.sets[b].cost += r.sets[a].cost
	}
}

// choose returns what to evict.
func (r *dtrRun) choose() int32 {
	best, score := int32(-1), math.Inf(1)
	for v := r.first; v >= 0; v = r.store[v].next {
		x := r.value(v)
		if x <= score {
			best, score = v, x
		}
		if x == 0 {
			break
		}
	}
	return best
}

// value is h_DTR_eq: the cost to make v and its evicted neighbourhood again, per
// byte and time since the last use.
func (r *dtrRun) value(v int32) float64 {
	s := &r.store[v]
	if s.size == 0 || s.access == r.clock {
		return math.Inf(1)
	}
	return float64(s.cost+r.nearCost(s)) / (float64(s.size) * float64(r.clock-s.access))
}

// nearCost is the cost of the sets of evicted neighbours.
func (r *dtrRun) nearCost(s *dtrStore) int64 {
	var sum int64
	r.seen = r.seen[:0]
next:
	for _, n := range s.near {
		q := &r.store[n]
		if q.material || q.set < 0 {
			continue
		}
		root := r.find(q.set)
		for _, x := range r.seen {
			if x == root {
				continue next
			}
		}
		r.seen = append(r.seen, root)
		sum += r.sets[root].cost
	}
	return sum
}

// DTR returns the time, in ns, that the runtime of DTR with its heuristic h_DTR_eq
// computes again when it runs p in a budget of bytes, and whether it ends at all
// within twice the time without a budget.
func DTR(p *Program, budget int64) (extra int64, ok bool) {
	extra, end := newDTRShape(p).run(budget, p.PlainCost(), nil)
	return extra, end == dtrDone
}
