package train

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// What a step does when memory runs out all the same, because another program
// took some of it: it is tried again one rung down.
//
//	0      as planned
//	1      values are let go as memory runs out, the cheapest first
//	2 …    the same, with micro-batches of half the size
//
// A step that fails has changed nothing, so that trying again costs time alone.
// The next steps stay where one succeeded, and after some of them try a rung
// higher: memory may have been given back. Each time that fails they wait twice
// as long.
//
// Where a value was lost outside the device, because who lent the memory is gone,
// the step is done again on the same rung: the Store gives none of it out any more,
// and what finds no room elsewhere stays on the device.
type ladder struct {
	rung  int
	steps int // since the last change
	wait  int // steps before a rung higher is tried
}

const (
	firstWait = 8
	mostWait  = 512

	mostLost = 16 // times that a step is begun for what it lost
)

// Event is something that a step had to do beside its plan.
type Event struct {
	Kind string `json:"kind"` // retry, climb, evict or lost
	Text string `json:"text"` // for people
}

// strategyAt is the strategy on a rung, or false where there is none.
func (t *Trainer) strategyAt(rung int) (Strategy, bool) {
	s := t.Strategy
	if rung == 0 {
		return s, true
	}
	online := tensor.Schedule{Online: true}
	if rung == 1 && s.Values != nil {
		online.Waits, online.AwayAs = s.Values.Waits, s.Values.AwayAs
	}
	s.Values = &online
	most := s.MicroBatch >> (rung - 1)
	if most == 0 || most < s.MicroBatch && !t.Config.Divisible() {
		return s, false
	}
	for s.MicroBatch = most; t.Config.Batch%s.MicroBatch != 0; {
		s.MicroBatch--
	}
	return s, true
}

// climb goes a rung up when enough steps have gone well.
func (l *ladder) climb() bool {
	if l.steps++; l.rung == 0 || l.steps < l.wait {
		return false
	}
	l.rung--
	l.steps = 0
	return true
}

// fall goes a rung down.
func (l *ladder) fall() {
	l.rung++
	l.steps, l.wait = 0, min(max(2*l.wait, firstWait), mostWait)
}

// climbDown runs attempt on the rung that the ladder stands on and, as long as
// memory runs out and there are lower ones, on these.
func (t *Trainer) climbDown(attempt func(Strategy) error) (events []Event, err error) {
	if t.ladder.climb() {
		s, _ := t.strategyAt(t.ladder.rung)
		events = append(events, Event{"climb", fmt.Sprintf("trying again: %s", t.Config.Describe(s))})
	}
	for lost := 0; ; {
		s, _ := t.strategyAt(t.ladder.rung)
		evictions := t.mem.Stats().Evictions
		err := attempt(s)
		if n := t.mem.Stats().Evictions - evictions; n > 0 && err == nil {
			events = append(events, Event{"evict", fmt.Sprintf("memory ran out %d times: values were let go and made again", n)})
		}
		if errors.Is(err, tensor.ErrLost) && !t.Strict && lost < mostLost && t.par.failure(nil) == nil {
			lost++
			events = append(events, Event{"lost", fmt.Sprintf("%v; the step is done again without", err)})
			continue
		}
		if t.Strict || !errors.Is(err, device.ErrOutOfMemory) || t.par.failure(nil) != nil {
			return events, err
		}
		next, ok := t.strategyAt(t.ladder.rung + 1)
		if !ok {
			return events, err
		}
		t.ladder.fall()
		events = append(events, Event{"retry", fmt.Sprintf("memory ran out; once more with less: %s", t.Config.Describe(next))})
	}
}
