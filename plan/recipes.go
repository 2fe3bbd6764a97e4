package plan

import (
	"math"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// Recipes are fixed strategies that a search tries beside the solver's plans.
// Near the least budget, where most of the memory is not in values, one may fit
// where no plan is found.

// recipes lists those that are s besides: every block keeps its input alone;
// every value waits outside the device.
func (p *program) recipes(k task, s train.Strategy) []train.Strategy {
	blocks, away := s, s
	blocks.Values, blocks.Recompute = nil, k.c.Blocks()
	if len(k.Away.Tiers) == 0 {
		return []train.Strategy{blocks}
	}
	away.Values = p.allAway()
	away.Values.AwayAs = p.as
	return []train.Strategy{blocks, away}
}

// tryRecipe tries a recipe and estimates what copies take that don't hide.
func (p *program) tryRecipe(k task, s train.Strategy) (Trial, error) {
	t, err := k.within(s)
	if !k.room(t) {
		return Trial{}, err
	}
	if s.Values != nil {
		copies := 0.0
		for v, value := range p.record.Values {
			if s.Values.Waits[p.record.Ops[value.Op].Node].Away {
				copies += float64(p.Values[v].Bytes) * t.moved.seconds()
			}
		}
		t.Seconds = max(t.Seconds, copies*float64(k.c.Batch/s.MicroBatch))
	}
	return t, err
}

// fewestBlocks is t, which fits, with no more blocks recomputed than it takes.
func (p *program) fewestBlocks(k task, t Trial) (Trial, error) {
	for few := 0; t.Strategy.Recompute-few > 1; {
		s := t.Strategy
		s.Recompute = (few + s.Recompute) / 2
		trial, err := p.tryRecipe(k, s)
		if err != nil {
			return t, err
		}
		if trial.Fits {
			t = trial
		} else {
			few = s.Recompute
		}
	}
	return t, nil
}

// allAway moves every value that backward reads away, and brings it back an
// operation before the first read.
func (p *program) allAway() *tensor.Schedule {
	s := &tensor.Schedule{}
	back := 0
	for _, op := range p.record.Ops {
		if !op.Back {
			s.Waits = append(s.Waits, tensor.Wait{Op: op.Name})
			continue
		}
		for _, v := range op.Reads {
			w := &s.Waits[p.record.Ops[p.record.Values[v].Op].Node]
			if w.Reads == nil && p.record.Values[v].Saved {
				*w = tensor.Wait{Op: w.Op, Reads: []int{0, math.MaxInt}, Away: true, Fetch: []int{max(back-1, 0)}}
			}
		}
		back++
	}
	return s
}
