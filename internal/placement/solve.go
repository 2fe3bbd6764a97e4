package placement

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// Shares of the work, which counts items looked at, about 2 ns each.
const (
	maxWork     = 2e9     // of all, when the context has no deadline: some seconds
	diveWork    = 300     // of a dive, per item
	firstDives  = 40      // before the prover begins
	proverShare = 3       // the prover's work per the wheel's
	goalTurns   = 6       // of so many turns of the prover, one aims at the goal itself
	maxDegrees  = 1 << 23 // pairs of overlapping items, above which there is no prover
)

// Solve places the buffers, as low as it can or, with Options.Capacity, within
// that. It returns when the plan is proved to be the best, when it is within the
// capacity, when ctx ends, or, if ctx has no deadline, after a fixed amount of
// work (some seconds on one core); the best plan found until then is returned
// and no error. The end of ctx is no error either: there always is a plan.
//
// If the capacity isn't met, the error is a [*ConflictError], and the plan that
// comes with it is the lowest found. Another error means bad input.
func Solve(ctx context.Context, bs []Buffer, o Options) (Plan, error) {
	if err := check(bs, o); err != nil {
		return Plan{}, err
	}
	s := newSolver(ctx, bs, o)
	s.run()
	plan := s.plan()
	if o.Capacity > 0 && plan.Peak > o.Capacity {
		return plan, s.conflict(plan)
	}
	return plan, nil
}

// solver shares the work among the parts.
type solver struct {
	ctx     context.Context
	bs      []Buffer
	o       Options
	problem *problem
	goal    int64 // height at which no part needs to get lower
	jobs    []*job
	budget  int
}

// job is the work on one part.
type job struct {
	*part
	wheel   *wheel
	prover  *prover // nil until it begins
	hard    bool    // too large for a prover
	offsets []int64 // of the lowest placement
	peak    int64
	proved  int64 // no placement is lower
	stride  int64 // how far below the peak the prover aims
	misses  int   // runs since the last success
	work    int   // of the wheel
}

// newSolver makes the jobs and the first dive of each.
func newSolver(ctx context.Context, bs []Buffer, o Options) *solver {
	align := max(o.Align, 1)
	s := &solver{ctx: ctx, bs: bs, o: o, problem: newProblem(bs, align), budget: maxWork}
	if _, ok := ctx.Deadline(); ok {
		s.budget = math.MaxInt
	}
	s.goal = s.problem.bound
	if o.Capacity > 0 && s.problem.unit > 0 {
		s.goal = int64(min(o.Capacity/s.problem.unit, uint64(far)))
	}
	for i, p := range s.problem.parts {
		rnd := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		j := &job{part: p, wheel: newWheel(p, rnd), peak: far, proved: p.bound, stride: 1, hard: p.degrees() > maxDegrees}
		j.dive(s.goal)
		s.jobs = append(s.jobs, j)
	}
	return s
}

// run works on the highest part until that can't or needn't get lower.
func (s *solver) run() {
	if len(s.jobs) == 0 || s.problem.bound > s.goal {
		return
	}
	for s.ctx.Err() == nil && s.budget > 0 {
		j := slices.MaxFunc(s.jobs, func(a, b *job) int { return cmp.Compare(a.peak, b.peak) })
		if j.peak <= s.goal || j.peak <= j.proved || s.o.Capacity > 0 && j.proved > s.goal {
			return
		}
		s.budget -= j.step(s)
	}
}

// step lets the wheel or the prover work and returns how much was done.
func (j *job) step(s *solver) int {
	if j.hard || j.wheel.turn < firstDives || j.prover != nil && j.work*proverShare < j.prover.work {
		return j.dive(s.goal)
	}
	if j.prover == nil {
		j.prover = newProver(j.part, j.wheel.rnd, func() bool { return s.ctx.Err() != nil })
		j.work = 0
	}
	return j.prove(s.goal, s.o.Capacity > 0)
}

// dive lets the wheel turn once.
func (j *job) dive(goal int64) int {
	if peak := j.wheel.step(max(goal, j.peak-1)); peak < j.peak {
		j.peak, j.offsets = peak, slices.Clone(j.wheel.offsets)
		if j.prover != nil {
			j.prover.follow(j.offsets)
		}
	}
	work := diveWork * len(j.items)
	j.work += work
	return work
}

// prove runs the prover once: at the goal itself if it is a capacity, else
// mostly a stride below the peak, which doubles with success and halves without.
func (j *job) prove(goal int64, capacity bool) int {
	before := j.prover.work
	lines := len(j.prover.lines)
	ceiling := max(goal, j.proved, j.peak-j.stride)
	if capacity || j.prover.turn/lines%goalTurns == 0 {
		ceiling = max(goal, j.proved)
	}
	switch j.prover.step(ceiling) {
	case found:
		j.peak, j.offsets = j.top(j.prover.support), slices.Clone(j.prover.support)
		j.stride, j.misses = 2*j.stride, 0
		j.prover.follow(j.offsets)
	case refuted:
		j.proved = ceiling + 1
	case stopped:
		if j.misses++; j.misses%lines == 0 {
			j.stride = max(1, j.stride/2)
		}
	}
	return j.prover.work - before
}

// plan turns the offsets of all parts into those of the buffers.
func (s *solver) plan() Plan {
	p := Plan{Offsets: make([]uint64, len(s.bs)), Bound: LowerBound(s.bs)}
	for _, j := range s.jobs {
		for i, id := range j.ids {
			p.Offsets[id] = uint64(j.offsets[i]) * s.problem.unit
			p.Peak = max(p.Peak, p.Offsets[id]+s.bs[id].Size)
		}
		if s.o.Align <= 1 {
			p.Bound = max(p.Bound, uint64(j.proved)*s.problem.unit)
		}
	}
	return p
}
