package remat

import (
	"cmp"
	"slices"
)

// Plan says how a program runs within a budget: which operations run again and
// when, how long each value stays in memory, and what is moved away meanwhile.
type Plan struct {
	Budget int64 // bytes, as is Peak
	Peak   int64
	Plain  int64 // time without a plan, in ns
	Extra  int64 // time more than that
	// Lower is proved: no plan of operations that run again, without moves, takes
	// less extra time within the budget.
	Lower int64
	// Again are the operations that run again, in order.
	Again []Run
	// Windows say when values are in memory, ordered by First, then Value. Pinned
	// values and views have none.
	Windows []Window
	Moves   []Move
}

// Run is another run of operation Op just before operation Before of the program,
// or at the end if Before is the number of operations. Runs before the same
// operation are in the order of Op.
type Run struct {
	Before, Op int
}

// Window is the time during which a value stays in memory, as steps of
// [Plan.Schedule]: it is there before, during and after each step from First to
// Last. A window starts with the step that makes the value, or, when a move
// brings it back, before that step. A last step equal to the length of the
// schedule is the end of the program.
type Window struct {
	Value, First, Last int
}

// Move copies a value to slower memory and back. Copies out take one lane, copies
// back another, each in the order of the steps; both run beside the operations.
type Move struct {
	Value int
	Out   int // the copy out starts after this step
	Gone  int // before this step it must have ended: the memory is free from here
	Back  int // the copy back starts, and has its memory, with this step
	Need  int // before this step it must have ended
}

// Schedule is the order in which operations run.
func (pl *Plan) Schedule(p *Program) []int {
	var steps []int
	k := 0
	for i := range len(p.Ops) + 1 {
		for ; k < len(pl.Again) && pl.Again[k].Before == i; k++ {
			steps = append(steps, pl.Again[k].Op)
		}
		if i < len(p.Ops) {
			steps = append(steps, i)
		}
	}
	return steps
}

// Lifetime is memory in use during the steps from First to Last.
type Lifetime struct {
	Value       int // -1: workspace
	First, Last int
	Bytes       int64
}

// Lifetimes are the pieces of memory that the plan needs, pinned values and
// workspace included, for placing them at addresses.
func (pl *Plan) Lifetimes(p *Program) []Lifetime {
	var out []Lifetime
	steps, made := pl.Schedule(p), p.makers()
	for _, w := range pl.Windows {
		out = append(out, Lifetime{w.Value, w.First, w.Last, p.Values[w.Value].Bytes})
	}
	for v, at := range made {
		if at < 0 {
			out = append(out, Lifetime{v, 0, len(steps), p.Values[v].Bytes})
		}
	}
	for k, o := range steps {
		if w := p.Ops[o].Workspace; w > 0 {
			out = append(out, Lifetime{-1, k, k, w})
		}
		for _, v := range p.Ops[o].Outs {
			if p.Values[v].Pinned {
				out = append(out, Lifetime{v, k, len(steps), p.Values[v].Bytes})
			}
		}
	}
	return out
}

// Overhead is the time with the plan as a multiple of that without.
func (pl *Plan) Overhead() float64 { return 1 + float64(pl.Extra)/float64(max(pl.Plain, 1)) }

// plan writes the state down. Where values move, the executor's clock tells how
// long copies stall.
func (s *state) plan() (*Plan, error) {
	g := s.g
	again, step := s.steps()
	out := &Plan{Budget: s.budget, Peak: s.tree.peak(), Plain: g.plain, Extra: s.cost, Again: again}
	for v := range g.size {
		for i, r := range s.runs[g.prod[v]] {
			w := Window{int(g.value[v]), step[at(r, g.prod[v])], step[s.last[v][i]]}
			out.Windows = append(out.Windows, w)
		}
	}
	for _, m := range s.moves {
		if m.on {
			s.planMove(out, m, step)
		}
	}
	slices.SortFunc(out.Windows, func(a, b Window) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Value, b.Value))
	})
	if len(out.Moves) > 0 {
		x, err := out.execute(g.p)
		if err != nil {
			return nil, err
		}
		out.Extra = x.clock - out.Plain
	}
	return out, nil
}

// steps are the extra runs, and the step of each event in the plan's schedule.
func (s *state) steps() (again []Run, step map[pos]int) {
	stages, own := s.g.stages()
	step = map[pos]int{}
	n := 0
	for i, t := range stages {
		if i == len(own) || own[i] {
			for _, e := range s.events[t] {
				step[at(t, e.op)] = n
				if e.op != t {
					again = append(again, Run{i, int(s.g.op[e.op])})
					n++
				}
			}
		}
		n++
	}
	return again, step
}

// planMove writes a move down and divides its window.
func (s *state) planMove(out *Plan, m move, step map[pos]int) {
	v := int(s.g.value[m.slot])
	i, a, b := s.run(s.g.prod[m.slot], m.gone)
	before, _ := s.gap(m.slot, m.gone, a, b)
	mv := Move{Value: v, Out: step[before], Gone: step[at(m.gone-1, m.gone-1)] + 1, Back: step[at(m.back, s.events[m.back][0].op)]}
	mv.Need = -1
	for _, e := range s.events[m.need] {
		if mv.Need < 0 && (e.op == int32(s.g.n) || slices.Contains(s.g.args[e.op], m.slot)) {
			mv.Need = step[at(m.need, e.op)]
		}
	}
	w := slices.Index(out.Windows, Window{v, step[at(a, s.g.prod[m.slot])], step[s.last[m.slot][i]]})
	out.Windows = append(out.Windows, Window{v, mv.Back, out.Windows[w].Last})
	out.Windows[w].Last = mv.Gone - 1
	out.Moves = append(out.Moves, mv)
}
