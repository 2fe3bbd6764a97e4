package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A ConflictError says why no plan within the capacity was returned. There are
// three cases: more is live at one time than the capacity (Proved and Live); less
// is live, but all placements were refuted (Proved); or none was found in time.
type ConflictError struct {
	Capacity uint64
	Align    uint64

	// Proved: no placement exists. Else one wasn't found before the context or
	// the work ended.
	Proved bool
	// Live: the buffers are all live at the time At, and Need is their sum.
	Live bool
	At   int
	// Buffers that don't fit by themselves; if not Proved, those that end above
	// the capacity in the plan. Sorted indexes.
	Buffers []int
	// Minimal: each of Buffers is needed for the conflict: without any one of
	// them the others fit.
	Minimal bool
	// Need is the sum of the live buffers, or the peak of the plan returned.
	Need uint64
}

// Error says what doesn't fit.
func (e *ConflictError) Error() string {
	switch {
	case e.Live:
		return fmt.Sprintf("placement: %d buffers are live at time %d and need %d, more than the capacity of %d", len(e.Buffers), e.At, e.Need, e.Capacity)
	case e.Proved && e.Minimal:
		return fmt.Sprintf("placement: there is no placement within %d: %d buffers can't be arranged, though any one fewer could; the lowest peak found for all is %d", e.Capacity, len(e.Buffers), e.Need)
	case e.Proved:
		return fmt.Sprintf("placement: there is no placement within %d: %d buffers can't be arranged; the lowest peak found for all is %d", e.Capacity, len(e.Buffers), e.Need)
	}
	return fmt.Sprintf("placement: no placement within %d was found in time, and none is ruled out; the lowest has a peak of %d, with %d buffers above the capacity", e.Capacity, e.Need, len(e.Buffers))
}

// conflict explains the plan, which is above the capacity.
func (s *solver) conflict(plan Plan) *ConflictError {
	e := &ConflictError{Capacity: s.o.Capacity, Align: s.o.Align, Need: plan.Peak}
	for _, j := range s.jobs {
		switch {
		case j.bound > s.goal:
			e.live(s, j.part)
			return e
		case j.proved > s.goal:
			e.Proved = true
			e.Buffers, e.Minimal = s.shrink(slices.Sorted(slices.Values(j.ids)))
			return e
		}
	}
	for i, o := range plan.Offsets {
		if o+s.bs[i].Size > e.Capacity {
			e.Buffers = append(e.Buffers, i)
		}
	}
	return e
}

// live fills in the fullest section of the part.
func (e *ConflictError) live(s *solver, p *part) {
	k := slices.Index(p.sums(), p.bound)
	e.Proved, e.Live, e.Need = true, true, uint64(p.bound)*s.problem.unit
	for i, it := range p.items {
		if int(it.first) <= k && k < int(it.end) {
			e.Buffers = append(e.Buffers, p.ids[i])
		}
	}
	slices.Sort(e.Buffers)
	e.At = s.bs[e.Buffers[0]].Lower
	for _, id := range e.Buffers { // they are all live when the last one begins
		e.At = max(e.At, s.bs[id].Lower)
	}
}

// Limits of the work to shrink a conflict.
const (
	shrinkWork = 5e8 // in all
	refuteWork = 2e7 // per attempt
	setupWork  = 200 // of an attempt, per buffer
)

// shrink drops buffers from a conflict while the rest is still refuted, first in
// halves, at last one by one. Minimal tells that every one left was shown to be
// needed.
func (s *solver) shrink(ids []int) (left []int, minimal bool) {
	budget := int(shrinkWork)
	for chunk := (len(ids) + 1) / 2; ; chunk = (chunk + 1) / 2 {
		minimal = true
		for from := 0; from < len(ids); {
			if s.ctx.Err() != nil || budget <= 0 {
				return ids, false
			}
			fewer := slices.Concat(ids[:from], ids[min(len(ids), from+chunk):])
			switch s.retry(fewer, &budget) {
			case refuted:
				ids = fewer
				continue
			case stopped:
				minimal = false
			}
			from += chunk
		}
		if chunk == 1 {
			return ids, minimal
		}
	}
}

// retry decides whether the buffers fit, with little work.
func (s *solver) retry(ids []int, budget *int) verdict {
	*budget -= setupWork * len(ids)
	bs := make([]Buffer, len(ids))
	for i, id := range ids {
		bs[i] = s.bs[id]
	}
	pr := newProblem(bs, max(s.o.Align, 1))
	if pr.unit == 0 {
		return found
	}
	goal := int64(s.o.Capacity / pr.unit)
	if pr.bound > goal {
		return refuted
	}
	done := func() bool { return s.ctx.Err() != nil || *budget <= 0 }
	for _, p := range pr.parts {
		if v := decide(p, goal, rand.New(rand.NewPCG(s.o.Seed, 0)), done, budget); v != found {
			return v
		}
	}
	return found
}

// decide tells whether the part fits below the goal.
func decide(p *part, goal int64, rnd *rand.Rand, done func() bool, budget *int) verdict {
	r := newProver(p, rnd, done)
	v := stopped
	for v == stopped && r.work < refuteWork && !done() {
		v = r.step(goal)
	}
	*budget -= r.work
	return v
}
