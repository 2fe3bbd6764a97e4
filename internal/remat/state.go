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
	i = search(s.runs[op], t+1) - 1
	a, b = s.span(op, i)
	return i, a, b
}

// span returns the stages [a, b) that run i of op serves.
func (s *state) span(op int32, i int) (a, b int32) {
	r := s.runs[op]
	if i+1 < len(r) {
		return r[i], r[i+1]
	}
	return r[i], int32(s.g.n + 1)
}

// place is the index in stage t's events of that of op, or where it belongs.
func (s *state) place(t, op int32) int {
	ev, k := s.events[t], 0
	for ev[k].op < op {
		k++
	}
	return k
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
	s.work += 16
	s.cost += s.g.cost[op]
	s.extras++
	i := search(s.runs[op], t)
	s.runs[op] = slices.Insert(s.runs[op], i, t)
	s.events[t] = slices.Insert(s.events[t], s.place(t, op), event{op: op})
	s.touch(t)
	for _, v := range s.g.outs[op] {
		s.divide(v, i)
		s.settle(v)
	}
	for _, v := range s.g.args[op] {
		s.readMore(v, at(t, op))
		s.settle(v)
	}
	s.flush()
}

func (s *state) removeRaw(t, op int32) {
	s.work += 16
	s.cost -= s.g.cost[op]
	s.extras--
	i := search(s.runs[op], t)
	s.runs[op] = slices.Delete(s.runs[op], i, i+1)
	for _, v := range s.g.args[op] {
		s.readLess(v, at(t, op))
		s.settle(v)
	}
	for _, v := range s.g.outs[op] {
		s.join(v, i, at(t, op))
		s.settle(v)
	}
	k := s.place(t, op)
	s.events[t] = slices.Delete(s.events[t], k, k+1)
	s.touch(t)
	s.flush()
}

// divide gives the reads of v that its producer's run i, which is new, serves to
// it, from the run before.
func (s *state) divide(v int32, i int) {
	op := s.g.prod[v]
	before, t := s.runs[op][i-1], s.runs[op][i]
	end := at(t, op)
	if old := s.last[v][i-1]; old.stage() >= t { // the new run's, with its drop
		end = old
		s.last[v][i-1] = s.lastRead(v, before, t)
		s.dropAt(s.last[v][i-1], s.g.size[v])
	} else {
		s.dropAt(end, s.g.size[v])
	}
	s.last[v] = slices.Insert(s.last[v], i, end)
	s.retain(v)
	if s.seen[v] != nil {
		s.seen[v] = slices.Insert(s.seen[v], i, 0)
		s.recost(v, i-1)
		s.recost(v, i)
	}
}

// join gives the reads of v that its producer's run i, gone from run, served to
// the run before.
func (s *state) join(v int32, i int, run pos) {
	if end := s.last[v][i]; end != run {
		s.dropAt(s.last[v][i-1], -s.g.size[v])
		s.last[v][i-1] = end
	}
	s.last[v] = slices.Delete(s.last[v], i, i+1)
	s.retain(v)
	if s.seen[v] != nil {
		s.cost -= s.seen[v][i]
		s.seen[v] = slices.Delete(s.seen[v], i, i+1)
		s.recost(v, i-1)
	}
}

// readMore counts a new read of v.
func (s *state) readMore(v int32, read pos) {
	i, _, _ := s.run(s.g.prod[v], read.stage())
	if old := s.last[v][i]; read > old {
		s.dropAt(old, -s.g.size[v])
		s.dropAt(read, s.g.size[v])
		s.last[v][i] = read
		s.retain(v)
	}
	if s.seen[v] != nil {
		s.recost(v, i)
	}
}

// readLess counts a read of v no more, whose event is about to go with its drop.
func (s *state) readLess(v int32, read pos) {
	i, a, b := s.run(s.g.prod[v], read.stage())
	if s.last[v][i] == read {
		s.last[v][i] = s.lastRead(v, a, b)
		s.dropAt(s.last[v][i], s.g.size[v])
		s.retain(v)
	}
	if s.seen[v] != nil {
		s.recost(v, i)
	}
}

// retain notes until when v is in memory.
func (s *state) retain(v int32) { s.until[v] = s.last[v][len(s.last[v])-1].stage() }

// recost counts again the views of v that run i must make again: those read in the
// stages it serves that the program itself makes elsewhere.
func (s *state) recost(v int32, i int) {
	var cost int64
	if i > 0 {
		cost = s.viewCost(v, i)
	}
	s.cost += cost - s.seen[v][i]
	s.seen[v][i] = cost
}

func (s *state) viewCost(v int32, i int) (cost int64) {
	g := s.g
	a, b := s.span(g.prod[v], i)
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
