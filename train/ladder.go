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
//	1      values are let go as memory runs out, the cheapest first, and logits
//	       are made in the smallest parts
//	2 …    the same, with micro-batches of half the size
//
// Where ranks gather weights in the order in which they read them, none may make
// values again that the others don't: there rung 1 is that all blocks are recomputed.
//
// A step that fails has changed nothing, so that trying again costs time alone.
// The next steps stay where one succeeded, and after some of them try a rung
// higher: memory may have been given back. Each time that fails they wait twice
// as long.
//
// Where a value was lost outside the device, because who lent the memory is gone,
// the step is done again on the same rung: the Store gives none of it out any more,
// and what finds no room elsewhere stays on the device. Ranks do it one rung down, as
// where memory ran out on one.
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
	Kind string `json:"kind"` // retry, climb, evict or lost; a program may add its own
	Text string `json:"text"` // for people
}

// strategyAt is the strategy on a rung, or false where there is none.
func (t *Trainer) strategyAt(rung int) (Strategy, bool) {
	s := t.Strategy
	if rung == 0 {
		return s, true
	}
	if s.Values = online(s.Values, rung); t.par.inOrder() {
		s.Values, s.Recompute = nil, t.Config.Blocks()
	}
	if t.Config.Logits() > 0 {
		s.LogitRows = tensor.LogitRows
	}
	most := s.MicroBatch >> (rung - 1)
	if most == 0 || most < s.MicroBatch && !t.Config.Divisible() {
		return s, false
	}
	for s.MicroBatch = most; t.Config.Batch%s.MicroBatch != 0; {
		s.MicroBatch--
	}
	return s, true
}

// online is the schedule of values on a rung below the plan's.
func online(planned *tensor.Schedule, rung int) *tensor.Schedule {
	s := &tensor.Schedule{Online: true}
	if rung == 1 && planned != nil {
		s.Waits, s.AwayAs = planned.Waits, planned.AwayAs
	}
	return s
}

// short says whether err is that memory ran out, of ranks on one of them while all
// could still try again.
func (t *Trainer) short(err error) bool {
	if t.par == nil {
		return errors.Is(err, device.ErrOutOfMemory)
	}
	return abandoned(err)
}

// reason says why a step is tried again: of ranks which one met what.
func (t *Trainer) reason() string {
	if t.par == nil {
		return "memory ran out"
	}
	return t.par.Group.Err().Error()
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
		if errors.Is(err, tensor.ErrLost) && t.par == nil && !t.Strict && lost < mostLost {
			lost++
			events = append(events, Event{"lost", fmt.Sprintf("%v; the step is done again without", err)})
			continue
		}
		if t.Strict || !t.short(err) {
			return events, err
		}
		next, ok := t.strategyAt(t.ladder.rung + 1)
		if !ok {
			return events, t.par.fail(err)
		}
		t.ladder.fall()
		events = append(events, Event{"retry", fmt.Sprintf("%s; once more with less: %s", t.reason(), t.Config.Describe(next))})
	}
}
