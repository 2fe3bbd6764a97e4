package plan

import (
	"slices"

	"github.com/headroom-go/headroom/internal/remat"
	"github.com/headroom-go/headroom/tensor"
)

// program is a recorded step as the solver takes it.
//
//   - A recorded operation is one of the solver's. Backward runs once; a
//     forward operation may run again if its result can be made again.
//   - A value's memory is a value of the solver's, read by backward (Reads) and
//     by operations that run again (From).
//   - What the program itself holds can't be let go: behind each forward
//     operation stands a guard, which takes no time and reads all values that
//     the program holds then. Other memory is made and read by operations that
//     run once, and so stays from the one to the other.
type program struct {
	remat.Program
	record *tensor.Record
	plain  float64 // seconds of a step with all values kept
	as     tensor.AwayForm
	ops    []int              // of the record's operations, their places in Ops
	again  map[uint64]float64 // the seconds that recipes take, by the number of their operation
}

// newProgram translates a record, whose operation i takes seconds[i].
func newProgram(r *tensor.Record, seconds []float64) *program {
	p := &program{record: r}
	for _, v := range r.Values {
		p.Values = append(p.Values, remat.Value{Bytes: v.Bytes})
	}
	held := heldValues(r)
	for i, op := range r.Ops {
		p.ops = append(p.ops, len(p.Ops))
		o := remat.Op{Name: op.Name, Cost: int64(seconds[i] * 1e9), Workspace: op.Workspace, Once: op.Back || !op.Remade, Args: op.From}
		if op.Back {
			o.Args = slices.Concat(op.Reads, held[i])
		}
		o.Args = distinct(o.Args)
		p.Ops = append(p.Ops, o)
		if !op.Back {
			p.Ops = append(p.Ops, remat.Op{Name: "held", Once: true, Args: held[i]})
		}
	}
	for v, value := range r.Values {
		o := &p.Ops[p.ops[value.Op]]
		o.Outs = append(o.Outs, v)
	}
	p.addOthers()
	return p
}

// heldValues lists for each operation the values that the program holds
// during it.
func heldValues(r *tensor.Record) [][]int {
	held := make([][]int, len(r.Ops))
	for v, value := range r.Values {
		for i := value.Op; i <= value.Freed; i++ {
			held[i] = append(held[i], v)
		}
	}
	return held
}

// addOthers adds the memory that no schedule moves.
func (p *program) addOthers() {
	r := p.record
	if r.Start > 0 {
		p.Values = append(p.Values, remat.Value{Bytes: r.Start, Pinned: true})
	}
	for _, o := range r.Others {
		v := len(p.Values)
		p.Values = append(p.Values, remat.Value{Bytes: o.Bytes, Pinned: o.Freed == len(r.Ops), Stays: true})
		p.guard(o.Made, func(op *remat.Op) { op.Outs = append(op.Outs, v) })
		if !r.Ops[o.Made].Back {
			p.Ops[p.ops[o.Made]].Workspace += o.Bytes // until the guard takes it over
		}
		if o.Freed < len(r.Ops) {
			p.guard(o.Freed, func(op *remat.Op) { op.Args = append(op.Args, v) })
		}
	}
}

// guard changes what runs once in operation i: itself in backward, the guard
// behind it in forward.
func (p *program) guard(i int, change func(op *remat.Op)) {
	at := p.ops[i]
	if !p.record.Ops[i].Back {
		at++
	}
	change(&p.Ops[at])
}

// distinct is values without repetitions, in order.
func distinct(values []int) []int {
	values = slices.Clone(values)
	slices.Sort(values)
	return slices.Compact(values)
}

// schedule is what the runtime does for the solver's plan.
//
// A window of a value is a copy. The reads that it serves are those of the
// steps within it: of backward the ones that were recorded, of a forward
// operation that runs again those that make its result.
func (p *program) schedule(plan *remat.Plan) *tensor.Schedule {
	copies := make([][]remat.Window, len(p.record.Values))
	for _, w := range plan.Windows { // in the order of First
		if w.Value < len(copies) {
			copies[w.Value] = append(copies[w.Value], w)
		}
	}
	steps, of := plan.Schedule(&p.Program), p.recorded()
	reads := p.reads(steps, of, copies)
	s := p.waits()
	if len(plan.Moves) > 0 {
		s.AwayAs = p.as
	}
	for i := range s.Waits {
		if v := p.value(i); v >= 0 {
			s.Waits[i].Reads = reads[v]
		}
	}
	p.moves(s, plan.Moves, steps, of)
	return s
}

// waits is a schedule that says of no result how it waits.
func (p *program) waits() *tensor.Schedule {
	s := &tensor.Schedule{}
	for i, op := range p.record.Ops {
		if op.Back {
			break
		}
		s.Waits = append(s.Waits, tensor.Wait{Op: op.Name, Seconds: float64(p.Ops[p.ops[i]].Cost) / 1e9})
	}
	return s
}

// value is the one that forward operation i of the record makes, or -1.
func (p *program) value(i int) int {
	for _, v := range p.Ops[p.ops[i]].Outs {
		if v < len(p.record.Values) {
			return v
		}
	}
	return -1
}

// reads counts the reads that each copy of each value serves; of is recorded's.
func (p *program) reads(steps, of []int, copies [][]remat.Window) [][]int {
	reads := make([][]int, len(copies))
	for v := range reads {
		reads[v] = make([]int, len(copies[v]))
	}
	ran := make([]bool, len(p.Ops))
	for k, op := range steps {
		i := of[op]
		if i < 0 {
			continue
		}
		values := p.record.Ops[i].Reads
		if ran[op] {
			values = p.record.Ops[i].From
		}
		ran[op] = true
		for _, v := range values {
			c := slices.IndexFunc(copies[v], func(w remat.Window) bool { return w.First <= k && k <= w.Last })
			reads[v][c]++
		}
	}
	for v := range reads {
		if !slices.ContainsFunc(reads[v], func(n int) bool { return n > 0 }) {
			reads[v] = nil
		}
	}
	return reads
}

// recorded gives for each operation of the solver that of the record, -1 for
// guards.
func (p *program) recorded() []int {
	of := make([]int, len(p.Ops))
	for op := range of {
		of[op] = -1
	}
	for i, op := range p.ops {
		of[op] = i
	}
	return of
}

// moves enters the values that are moved away, and before which operation of
// backward each comes back.
func (p *program) moves(s *tensor.Schedule, moves []remat.Move, steps, of []int) {
	back := 0
	before := make([]int, len(steps)+1) // operations of backward before each step
	for k, op := range steps {
		before[k] = back
		if i := of[op]; i >= 0 && p.record.Ops[i].Back {
			back++
		}
	}
	before[len(steps)] = back
	for _, m := range moves {
		w := &s.Waits[p.record.Ops[p.record.Values[m.Value].Op].Node]
		w.Away = true
		w.Fetch = append(w.Fetch, before[m.Back])
	}
}
