package plan

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/tensor"
)

// Results held.
//
// A step keeps cheap results by their recipes, whether there is room for them or not.
// Where the plain step fits, what is left of the device can save time: results are held,
// those first that save the most seconds for their bytes, as long as they fit by the
// record, which says how much is live during each operation and from when to when each
// result would be. What counts is a trial, as ever; where it needs more, fewer are held.
//
// In micro-batches nothing is held: with a little more memory the next larger ones fit,
// which leave less room, and more memory must not make a step slower.

const (
	worthHolding = 1.01 // a step without is so many times longer, at least; else it stays plain
	holdTrials   = 4    // until what is held fits, at most
)

// again is an Observer that tells how long recipes take of what a step does.
type again struct {
	open    []tensor.Range
	seconds map[uint64]float64 // by the number of the operation that is made again
}

// Begin is called by the runtime.
func (a *again) Begin(r tensor.Range) { a.open = append(a.open, r) }

// End is called by the runtime.
func (a *again) End() { a.open = a.open[:len(a.open)-1] }

// spend enters the seconds of a launch.
func (a *again) spend(seconds float64) {
	if a.running() {
		if a.seconds == nil {
			a.seconds = map[uint64]float64{}
		}
		a.seconds[a.open[len(a.open)-1].Node] += seconds
	}
}

// running says whether a recipe does.
func (a *again) running() bool {
	return len(a.open) > 0 && a.open[len(a.open)-1].Kind == tensor.Recipe
}

// addPlain enters the plain step, which fits, and the step with results held, if that
// is worth it.
func (p *Plan) addPlain(k task, plain Trial) error {
	p.add(plain)
	if plain.least()*worthHolding > plain.Seconds {
		return nil
	}
	prog, err := k.record(plain)
	if err != nil {
		return err
	}
	held, err := prog.hold(k, plain)
	if held.Fits && held.Seconds*worthHolding <= plain.Seconds {
		p.add(held)
	}
	return err
}

// least bounds the seconds of a step that is t with results held.
func (t Trial) least() float64 { return t.Seconds - t.recipes }

// hold is a trial of the plain step with as many results held as fit; of none if they
// can't be worth it.
func (p *program) hold(k task, plain Trial) (held Trial, err error) {
	s, most, less := plain.Strategy, int64(k.info.Capacity), int64(max(k.info.Granularity, k.info.Capacity/256))
	for range holdTrials {
		saved := 0.0
		if s.Values, saved = p.holding(most); (plain.Seconds-saved)*worthHolding > plain.Seconds {
			return Trial{}, nil
		}
		if held, err = k.within(s); err != nil || held.Fits {
			return held, err
		}
		most -= less // of what is reserved some is of no use
		less *= 2
	}
	return held, nil
}

// holding is a schedule with which no more than most bytes are live, and the seconds
// that it saves.
func (p *program) holding(most int64) (s *tensor.Schedule, saved float64) {
	live := p.live()
	s = p.waits()
	for _, r := range p.dearest() {
		longer := live[min(r.Freed, r.Last)+1 : r.Last+1]
		if len(longer) > 0 && slices.Max(longer)+r.Bytes > most {
			continue
		}
		for i := range longer {
			longer[i] += r.Bytes
		}
		s.Waits[p.record.Ops[r.Op].Node].Held = true
		saved += p.again[r.Node]
	}
	return s, saved
}

// live is the most memory that is live during each operation of the record.
func (p *program) live() []int64 {
	r := p.record
	live := make([]int64, len(r.Ops)+2)
	add := func(bytes int64, first, last int) {
		live[first] += bytes
		live[last+1] -= bytes
	}
	last := make([]int, len(r.Values)) // read
	for i, op := range r.Ops {
		add(op.Workspace, i, i)
		for _, v := range op.Reads {
			last[v] = i
		}
	}
	for v, value := range r.Values {
		add(value.Bytes, value.Op, max(value.Freed, last[v]))
	}
	for _, o := range r.Others {
		add(o.Bytes, o.Made, o.Freed)
	}
	sum := r.Start
	for i := range live {
		sum += live[i]
		live[i] = sum
	}
	return live[:len(r.Ops)]
}

// dearest are the results that are made again, those first that take the most time for
// their bytes.
func (p *program) dearest() []tensor.RecordedRecipe {
	list := slices.DeleteFunc(slices.Clone(p.record.Recipes), func(r tensor.RecordedRecipe) bool { return p.again[r.Node] == 0 })
	price := func(r tensor.RecordedRecipe) float64 { return p.again[r.Node] / float64(max(r.Bytes, 1)) }
	slices.SortStableFunc(list, func(a, b tensor.RecordedRecipe) int { return cmp.Compare(price(b), price(a)) })
	return list
}
