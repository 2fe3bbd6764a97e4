package remat

import (
	"fmt"
	"slices"
)

// Check runs the plan step by step on an account of memory and returns an error
// unless every operation finds its arguments and time and peak are what the plan
// says. It knows nothing of how plans are found.
//
// The rules are those of DTR's runtime: while an operation runs, its arguments
// and all its outputs are in memory, also outputs that are there already; a view
// is lost with its memory and made again, at its cost, when it is next read.
func (pl *Plan) Check(p *Program) error {
	if err := p.Check(); err != nil {
		return err
	}
	x, err := pl.execute(p)
	if err != nil {
		return err
	}
	if x.clock-pl.Plain != pl.Extra || pl.Plain != p.PlainCost() || x.peak != pl.Peak || x.peak > pl.Budget {
		return fmt.Errorf("remat: the plan says %d + %d ns and a peak of %d bytes within %d; it takes %d ns and %d bytes",
			pl.Plain, pl.Extra, pl.Peak, pl.Budget, x.clock, x.peak)
	}
	return nil
}

// execute runs all steps.
func (pl *Plan) execute(p *Program) (*executor, error) {
	x := &executor{p: p, root: p.roots(), made: p.makers(), steps: pl.Schedule(p),
		defined: make([]bool, len(p.Values)), windows: make([]int, len(p.Values))}
	if err := x.prepare(pl); err != nil {
		return nil, err
	}
	for k := range len(x.steps) + 1 {
		if err := x.step(k); err != nil {
			return nil, fmt.Errorf("remat: step %d: %w", k, err)
		}
	}
	return x, nil
}

// executor is the state of a program's memory between two steps.
type executor struct {
	p       *Program
	root    []int
	within  [][]int // of each root, the values in its memory
	made    []int
	steps   []int
	due     []due
	done    map[Move][2]int64 // when the copies end
	views   map[Move][]int    // what a copy out holds
	defined []bool            // values that may be read
	windows []int             // of each root, how many are open
	ran     []bool            // operations that have run
	live    int64
	peak    int64
	clock   int64
	lane    [2]int64 // when the lanes are free
}

// due is what the plan wants at a step: the windows that begin and end with it,
// and the moves with an event there, by which event that is.
type due struct {
	opens, closes            []Window
	outs, gone, backs, needs []Move
}

// prepare sorts what the plan wants by steps, and takes in what is there at the
// start.
func (x *executor) prepare(pl *Plan) error {
	n := len(x.steps)
	x.due = make([]due, n+1)
	x.done, x.views, x.ran = map[Move][2]int64{}, map[Move][]int{}, make([]bool, len(x.p.Ops))
	for _, w := range pl.Windows {
		if w.First < 0 || w.Last < w.First || w.Last > n || w.Value < 0 || w.Value >= len(x.root) || x.root[w.Value] != w.Value {
			return fmt.Errorf("remat: bad window %+v", w)
		}
		push(&x.due[w.First].opens, w)
		push(&x.due[w.Last].closes, w)
	}
	for _, m := range pl.Moves {
		if m.Out < 0 || m.Gone <= m.Out || m.Back <= m.Gone || m.Need < m.Back || m.Need > n {
			return fmt.Errorf("remat: bad move %+v", m)
		}
		push(&x.due[m.Out].outs, m)
		push(&x.due[m.Gone].gone, m)
		push(&x.due[m.Back].backs, m)
		push(&x.due[m.Need].needs, m)
	}
	for _, d := range x.due { // of copies that may start at once the most urgent goes first
		slices.SortStableFunc(d.outs, func(a, b Move) int { return a.Gone - b.Gone })
		slices.SortStableFunc(d.backs, func(a, b Move) int { return a.Need - b.Need })
	}
	x.within = make([][]int, len(x.p.Values))
	for v, at := range x.made {
		x.within[x.root[v]] = append(x.within[x.root[v]], v)
		if at < 0 {
			x.defined[v] = true
			x.live += x.p.Values[v].Bytes
		}
	}
	x.peak = x.live
	return nil
}

func push[T any](list *[]T, x T) { *list = append(*list, x) }

// step runs step k, or the end of the program, which reads the outputs.
func (x *executor) step(k int) error {
	if err := x.copies(k); err != nil {
		return err
	}
	op := Op{Args: x.p.Outputs}
	if k < len(x.steps) {
		i := x.steps[k]
		if op = x.p.Ops[i]; x.ran[i] && (op.Once || op.View) {
			return fmt.Errorf("operation %d may not run again", i)
		}
		x.ran[i] = true
	}
	for _, a := range op.Args {
		if err := x.need(a); err != nil {
			return err
		}
	}
	x.clock += op.Cost
	unkept, err := x.open(k, op)
	if err != nil {
		return err
	}
	x.peak = max(x.peak, x.live+op.Workspace+unkept)
	for _, m := range x.due[k].outs {
		if err := x.leave(m); err != nil {
			return err
		}
	}
	for _, w := range x.due[k].closes {
		x.windows[w.Value]--
		x.live -= x.p.Values[w.Value].Bytes
		if x.windows[w.Value] == 0 {
			x.lose(w.Value)
		}
	}
	return nil
}

// open opens the windows of step k, defines what its operation makes, and returns
// the bytes of what nobody keeps of it.
func (x *executor) open(k int, op Op) (unkept int64, err error) {
	kept := map[int]bool{}
	for _, w := range x.due[k].opens {
		x.windows[w.Value]++
		x.live += x.p.Values[w.Value].Bytes
		kept[w.Value] = true
	}
	unkept = x.outputs(op, kept)
	for v := range kept {
		if !x.defined[v] && !slices.ContainsFunc(x.due[k].backs, func(m Move) bool { return m.Value == v }) {
			return 0, fmt.Errorf("a window of value %d opens where nothing makes it", v)
		}
	}
	return unkept, nil
}

// outputs defines what op makes and returns the bytes of what nobody keeps.
func (x *executor) outputs(op Op, kept map[int]bool) (bytes int64) {
	for _, v := range op.Outs {
		x.defined[v] = true
		switch {
		case op.View || kept[v]:
		case x.p.Values[v].Pinned:
			x.live += x.p.Values[v].Bytes
		default:
			bytes += x.p.Values[v].Bytes
			x.defined[v] = x.windows[v] > 0
		}
	}
	return bytes
}

// need makes sure that value v can be read, making views again.
func (x *executor) need(v int) error {
	if x.defined[v] {
		return nil
	}
	at := x.made[v]
	if x.root[v] == v || !x.ran[at] {
		return fmt.Errorf("value %d is not in memory", v)
	}
	if err := x.need(x.p.Ops[at].Args[0]); err != nil {
		return err
	}
	x.clock += x.p.Ops[at].Cost
	for _, o := range x.p.Ops[at].Outs {
		x.defined[o] = true
	}
	return nil
}

// lose forgets all values in the memory of v.
func (x *executor) lose(v int) {
	for _, w := range x.within[v] {
		x.defined[w] = false
	}
}

// copies waits for the copies that must have ended before step k and starts those
// that begin with it.
func (x *executor) copies(k int) error {
	for _, m := range x.due[k].gone {
		x.clock = max(x.clock, x.done[m][0])
		if x.windows[m.Value] > 0 {
			return fmt.Errorf("value %d is in memory though it is moved away", m.Value)
		}
	}
	for _, m := range x.due[k].backs {
		end := max(x.clock, x.lane[1], x.done[m][0]) + x.p.copyTime(x.p.Values[m.Value].Bytes, x.p.BackRate)
		x.lane[1], x.done[m] = end, [2]int64{x.done[m][0], end}
	}
	for _, m := range x.due[k].needs {
		x.clock = max(x.clock, x.done[m][1])
		for _, v := range x.views[m] {
			x.defined[v] = true
		}
	}
	return nil
}

// leave starts the copy of m out.
func (x *executor) leave(m Move) error {
	if x.p.OutRate <= 0 || x.p.BackRate <= 0 || !x.defined[m.Value] || x.p.Values[m.Value].Stays {
		return fmt.Errorf("value %d can't be copied out", m.Value)
	}
	end := max(x.clock, x.lane[0]) + x.p.copyTime(x.p.Values[m.Value].Bytes, x.p.OutRate)
	x.lane[0], x.done[m] = end, [2]int64{end, 0}
	for _, v := range x.within[m.Value] {
		if x.defined[v] {
			x.views[m] = append(x.views[m], v)
		}
	}
	return nil
}
