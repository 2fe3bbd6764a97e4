package remat

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// Options of [Solve]. The zero value is the default.
type Options struct {
	// Work bounds the work, counted in steps of about 30 ns; 0 means about half a
	// second of it for a program of a few thousand operations.
	Work int
	// Seed varies the search.
	Seed uint64
	// Placed, if not nil, returns the bytes that a plan takes up once its values
	// have addresses. Solve then leaves room until that fits the budget too.
	Placed func(*Plan) (int64, error)
}

const defaultWork = 15e6

// NoPlanError is returned when no plan was found within the budget.
type NoPlanError struct {
	Budget  int64 // bytes asked for
	Reached int64 // the lowest peak reached
	// Impossible says that no plan exists without moves, which is proved.
	Impossible bool
}

func (e *NoPlanError) Error() string {
	if e.Impossible {
		return fmt.Sprintf("remat: no plan exists within %d bytes: single operations need more; raise the budget", e.Budget)
	}
	return fmt.Sprintf("remat: found no plan within %d bytes, only within %d; raise the budget or allow moves", e.Budget, e.Reached)
}

// Solve returns a plan of p within the budget of bytes that takes little time.
// The same arguments give the same plan. When ctx ends, Solve returns the best
// plan so far, or an error if there is none.
func Solve(ctx context.Context, p *Program, budget int64, o Options) (*Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return newGraph(p).placed(ctx, budget, o, nil)
}

// Curve returns plans for several budgets, in their order; nil where it found
// none. What is found for one budget serves the others: a plan never takes longer
// than that for a smaller budget.
func Curve(ctx context.Context, p *Program, budgets []int64, o Options) ([]*Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	g := newGraph(p)
	order := make([]int, len(budgets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(budgets[b], budgets[a]) })
	plans := make([]*Plan, len(budgets))
	var last *Plan
	for _, i := range order {
		plan, err := g.placed(ctx, budgets[i], o, last)
		if _, none := err.(*NoPlanError); err != nil && !none {
			return nil, err
		}
		if plan != nil {
			plans[i], last = plan, plan
		}
	}
	last = nil
	for _, i := range slices.Backward(order) {
		if last != nil && (plans[i] == nil || plans[i].Extra > last.Extra) {
			better := *last
			better.Budget = budgets[i]
			_, worst := g.worst(budgets[i], defaultWork/8)
			better.Lower = min(worst.bound, better.Extra)
			plans[i] = &better
		}
		if plans[i] != nil {
			last = plans[i]
		}
	}
	return plans, nil
}

// placed solves, leaving room for what placement adds.
func (g *graph) placed(ctx context.Context, budget int64, o Options, near *Plan) (*Plan, error) {
	for room := int64(0); ; {
		plan, err := g.fastest(ctx, budget-room, o, near)
		if err != nil || o.Placed == nil {
			return plan, err
		}
		size, err := o.Placed(plan)
		if err != nil {
			return nil, err
		}
		plan.Budget = budget
		if size <= budget {
			return plan, nil
		}
		room += max(size-budget, budget/1000)
	}
}

// fastest solves with copies that hide beside the operations, and, where these
// don't save all that has to be saved, with more of them, for which operations wait.
func (g *graph) fastest(ctx context.Context, budget int64, o Options, near *Plan) (*Plan, error) {
	work := cmp.Or(o.Work, defaultWork)
	try := func(stretch float64, work int) (*Plan, error) {
		sv := &solver{planner: newPlanner(newState(g, budget), o.Seed), shape: newDTRShape(g.p)}
		sv.ctx = ctx
		return sv.solve(stretch, work, near)
	}
	best, err := try(1, work)
	if !g.moves() || err == nil && best.Extra == 0 {
		return best, err
	}
	for _, stretch := range stretches {
		plan, failed := try(stretch, work/4)
		if failed == nil && (err != nil || plan.Extra < best.Extra) {
			best, err = plan, nil
		}
	}
	return best, err
}

// solver holds the best plans found.
type solver struct {
	*planner
	shape  *dtrShape
	found  []start // cheapest first, all within the budget, one of a source
	source source
	low    int64 // lowest peak reached
}

// start is a plan and where it comes from.
type start struct {
	runs   set
	cost   int64
	source source
}

type source int

const (
	bySolution source = iota // of another budget
	byCut
	byDescent
	byDTR
	byNothing
)

// solve finds a plan with copies that would hide if operations took stretch times
// as long.
func (sv *solver) solve(stretch float64, work int, near *Plan) (*Plan, error) {
	sv.hide(stretch)
	sv.low = sv.tree.peak()
	if len(sv.moves) == 0 && slices.Max(sv.g.least()) > sv.budget {
		return nil, &NoPlanError{Budget: sv.budget, Reached: sv.low, Impossible: true}
	}
	var lower int64
	if sv.low > sv.budget {
		highest, worst := sv.g.worst(sv.budget, work/8)
		if sv.work += worst.work; len(sv.moves) == 0 {
			lower = worst.bound
		}
		sv.starts(work/2, near, slices.Compact([]*moment{highest, worst}))
	} else {
		sv.note(nil, 0)
	}
	if len(sv.found) == 0 {
		return nil, cmp.Or(sv.ctx.Err(), error(&NoPlanError{Budget: sv.budget, Reached: sv.low}))
	}
	if sv.found[0].cost > lower {
		sv.refine(work - sv.work)
	}
	sv.load(sv.found[0].runs)
	plan, err := sv.plan()
	if err == nil {
		plan.Lower = min(lower, plan.Extra)
	}
	return plan, err
}

// keep repairs and cleans the state and notes it if it's good.
func (sv *solver) keep() {
	limit := sv.g.plain * 8
	if len(sv.found) > 0 {
		limit = 2 * sv.found[0].cost
	}
	if !sv.repair(limit) {
		sv.low = min(sv.low, sv.tree.peak())
		return
	}
	sv.clean(sv.spares())
	sv.note(sv.save(), sv.cost)
}

// note keeps a plan if it is the cheapest of its source: different plans are worth
// more to the search than good ones that are alike.
func (sv *solver) note(runs set, cost int64) {
	i := slices.IndexFunc(sv.found, func(f start) bool { return f.source == sv.source })
	switch {
	case i < 0:
		sv.found = append(sv.found, start{runs, cost, sv.source})
	case cost < sv.found[i].cost:
		sv.found[i] = start{runs, cost, sv.source}
	}
	slices.SortStableFunc(sv.found, func(a, b start) int { return cmp.Compare(a.cost, b.cost) })
}

// starts finds the first plans. Where none is found with this work, it goes on
// with as much again, in smaller steps.
func (sv *solver) starts(work int, near *Plan, moments []*moment) {
	sv.stop = sv.work + work
	if near != nil {
		sv.load(sv.g.runsOf(near))
		sv.power, sv.noise = 1, 0
		sv.keep()
	}
	sv.source = byCut
	for _, m := range moments {
		sv.cuts(m)
	}
	sv.source = byDescent
	sv.descend(10, work/100)
	sv.source = byDTR
	if x, ok := sv.g.dtr(sv.shape, sv.budget); ok {
		sv.load(x)
		sv.prune()
		sv.power, sv.noise = 1, 0
		sv.keep()
	}
	sv.source = byNothing
	for k, power := range []float64{1, .5, .7, .3} {
		sv.load(nil)
		sv.power, sv.noise = power, []float64{0, 0, .2, .4}[k]
		sv.keep()
	}
	for steps := 20; steps <= 80 && len(sv.found) == 0 && sv.ctx.Err() == nil; steps *= 2 {
		sv.stop = sv.work + work
		sv.descend(steps, work/4/steps)
	}
	sv.stop = math.MaxInt
}

// cuts builds plans from the choices at a moment, at prices around that which
// fills the memory there: what runs again does so before the first operation
// that reads it. Other moments are repaired.
func (sv *solver) cuts(m *moment) {
	for _, part := range []float64{.9, .95, 1.001, 1.05, 1.1, 1.2, 1.3} {
		m.work = 0
		m.choose(part * m.price)
		sv.work += m.work
		for _, power := range []float64{1, .5} {
			sv.load(m.runs())
			sv.power, sv.noise = power, 0
			sv.keep()
		}
	}
}

// descend lowers the budget in steps from the peak without a plan, improving the
// plan at each.
func (sv *solver) descend(steps, work int) {
	sv.load(nil)
	budget, peak := sv.budget, sv.tree.peak()
	defer func() { sv.budget = budget }()
	var runs set
	for k := 1; k <= steps; k++ {
		sv.budget = peak - int64(float64(peak-budget)*float64(k)/float64(steps))
		if !sv.force(runs) {
			return
		}
		sv.clean(sv.spares())
		sv.improve(work)
		runs = sv.save()
	}
	sv.note(runs, sv.cost)
}

// force repairs the plan runs by several tries.
func (sv *solver) force(runs set) bool {
	for _, power := range []float64{1, .6, 1, .4} {
		sv.power = power
		if sv.repair(8 * sv.g.plain) {
			return true
		}
		sv.low = min(sv.low, sv.tree.peak())
		sv.load(runs)
		sv.noise = 0.3
	}
	return false
}

// refine improves the plans found, each that is near the best for a while, then
// the best.
func (sv *solver) refine(work int) {
	near := slices.DeleteFunc(slices.Clone(sv.found), func(f start) bool { return f.cost/5*4 > sv.found[0].cost })
	for _, f := range near {
		sv.further(f, work/2/len(near))
	}
	sv.further(sv.found[0], work/4)
	sv.further(sv.found[0], work/4)
}

func (sv *solver) further(f start, work int) {
	sv.source = f.source
	sv.load(f.runs)
	sv.improve(work)
	sv.note(sv.save(), sv.cost)
}
