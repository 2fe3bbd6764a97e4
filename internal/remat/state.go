package remat

import "slices"

// pos is the place of an event in the total order: its stage, then its operation.
type pos int64

func at(stage, op int32) pos { return pos(stage)<<32 | pos(op) }
func (p pos) stage() int32   { return int32(p >> 32) }
func (p pos) op() int32      { return int32(p) }

// event is one run of an operation within its stage.
type event struct {
	op   int32
	drop int64 // bytes whose last read this is
}

// state is a plan under construction: the program's own run of every stage plus
// extra runs. See doc.go for what a set of runs means.
type state struct {
	g      *graph
	budget int64
	until  []int32   // slot → stage of its last read
	runs   [][]int32 // op → stages of its runs, ascending; the first is its own
	last   [][]pos   // slot → for each run of its producer the last read, or the run itself
	seen   [][]int64 // slot with views → for each run the time of views made again
	events [][]event // stage → runs in it, ascending by op
	tree   *tree
	cost   int64 // of extra runs and views
	extras int
	log    []edit // what to undo
	dirty  []int32
	mark   []uint32
	epoch  uint32
	moves  []move
	moved  []int32 // slot → its move, or -1; nil without moves
	shift  []int64 // stage → change of memory at its start by moves
	work   int     // steps of work done, for deterministic limits
}

// edit is one insertion or deletion of a run.
type edit struct {
	stage, op int32
	removed   bool
}

func newState(g *graph, budget int64) *state {
	s := &state{g: g, budget: budget, tree: newTree(g.n + 1)}
	s.runs = make([][]int32, g.n+1)
	s.events = make([][]event, g.n+1)
	for i := range s.runs {
		s.runs[i] = []int32{int32(i)}
		s.events[i] = []event{{op: int32(i)}}
	}
	s.last = make([][]pos, len(g.size))
	s.until = make([]int32, len(g.size))
	s.seen = make([][]int64, len(g.size))
	for v := range s.last {
		p := g.prod[v]
		end := s.lastRead(int32(v), p, int32(g.n+1))
		s.last[v] = []pos{end}
		s.until[v] = end.stage()
		s.dropAt(end, g.size[v])
		if n := len(g.views[v]); n > 0 {
			s.seen[v] = []int64{0}
			s.mark = append(s.mark, make([]uint32, max(0, n-len(s.mark)))...)
		}
	}
	for i := range s.runs {
		s.refresh(int32(i))
	}
	return s
}

// lastRead is the last read of v within stages [a, b), or its run in stage a.
func (s *state) lastRead(v, a, b int32) pos {
	best := at(a, s.g.prod[v])
	for _, c := range s.g.cons[v] {
		if c >= b {
			break
		}
		r := s.runs[c]
		i := len(r) - 1
		for i >= 0 && r[i] >= b {
			i--
		}
		if i >= 0 && r[i] >= a {
			best = max(best, at(r[i], c))
		}
	}
	return best
}

// gap returns the stages of the reads of v around stage t within [a, b): the last
// one ≤ t and the first one > t; -1 if there is none.
func (s *state) gap(v, t, a, b int32) (before pos, after int32) {
	before, after = at(a, s.g.prod[v]), -1
	for _, c := range s.g.cons[v] {
		if c >= b {
			break
		}
		r := s.runs[c]
		i := search(r, t+1) // first > t
		if i < len(r) && r[i] < b && (after < 0 || r[i] < after) {
			after = r[i]
		}
		if i > 0 && r[i-1] >= a {
			before = max(before, at(r[i-1], c))
		}
	}
	return before, after
}

// search returns the first index of r whose stage is ≥ t.
func search(r []int32, t int32) int {
	if len(r) <= 8 {
		for i, x := range r {
			if x >= t {
				return i
			}
		}
		return len(r)
	}
	i, _ := slices.BinarySearch(r, t)
	return i
}

// run returns the index of the run of op that serves stage t, and the stages
// [a, b) that it serves.
func (s *state) run(op, t int32) (i int, a, b int32) {
	r := s.runs[op]
	i = search(r, t+1) - 1
	b = int32(s.g.n + 1)
	if i+1 < len(r) {
		b = r[i+1]
	}
	return i, r[i], b
}

func (s *state) find(p pos) *event {
	ev := s.events[p.stage()]
	o := p.op()
	for i := len(ev) - 1; i >= 0; i-- {
		if ev[i].op == o {
			return &ev[i]
		}
	}
	panic("remat: no such event")
}

func (s *state) dropAt(p pos, bytes int64) {
	s.find(p).drop += bytes
	s.touch(p.stage())
}

func (s *state) touch(t int32) {
	for _, d := range s.dirty {
		if d == t {
			return
		}
	}
	s.dirty = append(s.dirty, t)
}

// flush brings the tree up to date with the stages touched.
func (s *state) flush() {
	for _, t := range s.dirty {
		s.refresh(t)
	}
	s.dirty = s.dirty[:0]
}

func (s *state) refresh(t int32) {
	g := s.g
	sum := g.base[t]
	if t > 0 {
		sum -= g.base[t-1]
	}
	if s.shift != nil {
		sum += s.shift[t]
	}
	top := int64(low)
	for _, e := range s.events[t] {
		sum += g.add[e.op]
		top = max(top, sum+g.work[e.op])
		sum -= e.drop
	}
	s.tree.set(int(t), sum, top)
}

// has says whether op runs in stage t.
func (s *state) has(op, t int32) bool {
	r := s.runs[op]
	i := search(r, t)
	return i < len(r) && r[i] == t
}

// insert runs op again in stage t.
func (s *state) insert(t, op int32) {
	s.insertRaw(t, op)
	s.log = append(s.log, edit{t, op, false})
}

// remove takes the extra run of op in stage t away.
func (s *state) remove(t, op int32) {
	s.removeRaw(t, op)
	s.log = append(s.log, edit{t, op, true})
}

// undo goes back to when the log had n entries.
func (s *state) undo(n int) {
	for len(s.log) > n {
		e := s.log[len(s.log)-1]
		s.log = s.log[:len(s.log)-1]
		if e.removed {
			s.insertRaw(e.stage, e.op)
		} else {
			s.removeRaw(e.stage, e.op)
		}
	}
}

func (s *state) insertRaw(t, op int32) {
	g := s.g
	s.work += 16
	i := search(s.runs[op], t)
	s.runs[op] = slices.Insert(s.runs[op], i, t)
	ev := s.events[t]
	k := 0
	for ev[k].op < op {
		k++
	}
	s.events[t] = slices.Insert(ev, k, event{op: op})
	s.touch(t)
	s.cost += g.cost[op]
	s.extras++
	b := int32(g.n + 1)
	if i+1 < len(s.runs[op]) {
		b = s.runs[op][i+1]
	}
	a := s.runs[op][i-1]
	for _, v := range g.outs[op] {
		old := s.last[v][i-1]
		end := at(t, op)
		if old.stage() >= t {
			end = old
			old = s.lastRead(v, a, t)
			s.dropAt(old, g.size[v]) // end keeps its drop
		} else {
			s.dropAt(end, g.size[v])
		}
		s.last[v][i-1] = old
		s.last[v] = slices.Insert(s.last[v], i, end)
		s.until[v] = s.last[v][len(s.last[v])-1].stage()
		if s.seen[v] != nil {
			s.seen[v] = slices.Insert(s.seen[v], i, 0)
			s.recost(v, i-1, a, t)
			s.recost(v, i, t, b)
		}
		s.settle(v)
	}
	for _, v := range g.args[op] {
		q := g.prod[v]
		j, a, b := s.run(q, t)
		if end := at(t, op); end > s.last[v][j] {
			s.dropAt(s.last[v][j], -g.size[v])
			s.dropAt(end, g.size[v])
			s.last[v][j] = end
			s.until[v] = s.last[v][len(s.last[v])-1].stage()
		}
		if s.seen[v] != nil {
			s.recost(v, j, a, b)
		}
		s.settle(v)
	}
	s.flush()
}

func (s *state) removeRaw(t, op int32) {
	g := s.g
	s.work += 16
	i := search(s.runs[op], t)
	b := int32(g.n + 1)
	if i+1 < len(s.runs[op]) {
		b = s.runs[op][i+1]
	}
	a := s.runs[op][i-1]
	s.runs[op] = slices.Delete(s.runs[op], i, i+1)
	s.cost -= g.cost[op]
	s.extras--
	for _, v := range g.args[op] {
		j, a, b := s.run(g.prod[v], t)
		if s.last[v][j] == at(t, op) {
			end := s.lastRead(v, a, b)
			s.dropAt(end, g.size[v])
			s.last[v][j] = end
			s.until[v] = s.last[v][len(s.last[v])-1].stage()
		}
		if s.seen[v] != nil {
			s.recost(v, j, a, b)
		}
		s.settle(v)
	}
	for _, v := range g.outs[op] {
		if end := s.last[v][i]; end != at(t, op) {
			s.dropAt(s.last[v][i-1], -g.size[v])
			s.last[v][i-1] = end
		}
		s.last[v] = slices.Delete(s.last[v], i, i+1)
		s.until[v] = s.last[v][len(s.last[v])-1].stage()
		if s.seen[v] != nil {
			s.cost -= s.seen[v][i]
			s.seen[v] = slices.Delete(s.seen[v], i, i+1)
			s.recost(v, i-1, a, b)
		}
		s.settle(v)
	}
	ev := s.events[t]
	k := 0
	for ev[k].op < op {
		k++
	}
	s.events[t] = slices.Delete(ev, k, k+1)
	s.touch(t)
	s.flush()
}

// recost counts again the views of v that run i, which serves stages [a, b),
// must make again: those read there that the program itself makes elsewhere.
func (s *state) recost(v int32, i int, a, b int32) {
	var cost int64
	if i > 0 {
		cost = s.viewCost(v, a, b)
	}
	s.cost += cost - s.seen[v][i]
	s.seen[v][i] = cost
}

func (s *state) viewCost(v, a, b int32) int64 {
	g := s.g
	var cost int64
	s.epoch++
	for k, c := range g.cons[v] {
		th := g.through[v][k].views
		if len(th) == 0 {
			continue
		}
		r := s.runs[c]
		if j := search(r, a); j == len(r) || r[j] >= b {
			continue
		}
		for _, w := range th {
			for w >= 0 && s.mark[w] != s.epoch {
				s.mark[w] = s.epoch
				if x := g.views[v][w]; x.stage < a || x.stage >= b {
					cost += x.cost
				}
				w = g.views[v][w].parent
			}
		}
	}
	return cost
}
