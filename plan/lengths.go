package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// Lengths are plans of a run whose steps are on sequences of different lengths,
// one plan for each length, in turn on one trainer.
type Lengths struct {
	Plans         []*Plan
	Shapes        []train.Shape // with what is close to the plans by the estimate
	PeakBytes     uint64        // of live memory: the most of all that Shapes has
	ReservedBytes uint64        // most taken from the device, in the turns that were tried
}

// Strategies whose estimates are within closeTo of the least are measured in the
// run; at most so many.
const (
	closeTo     = 1.25
	mostChoices = 4
)

// SearchLengths finds a plan for each of the lengths of sequences, which ascend.
// Then steps of all lengths are tried one after the other: what one leaves of free
// memory may lie badly for another. A length that finds no room so is planned again
// with less. It returns a *TooSmallError if one does not fit.
func SearchLengths(ctx context.Context, info device.Info, c train.Config, lengths []int, o Options) (*Lengths, error) {
	if len(o.Away.Tiers) > 0 || o.Parallel.Group != nil {
		return nil, errors.New("batches by length: they are for one device, with nothing outside it, yet")
	}
	l := &Lengths{Plans: make([]*Plan, len(lengths)), Shapes: make([]train.Shape, len(lengths))}
	for i := range lengths {
		if err := l.search(ctx, info, c, i, lengths[i], o); err != nil {
			return nil, err
		}
	}
	const tries = 16
	rooms := make([]uint64, len(lengths))
	for range tries {
		short, err := l.mix(ctx, info, c)
		if err == nil || !errors.Is(err, device.ErrOutOfMemory) {
			return l, err
		}
		rooms[short] += max(2*info.Granularity, info.Capacity/128)
		less := info
		less.Capacity -= min(rooms[short], info.Capacity)
		if err := l.search(ctx, less, c, short, lengths[short], o); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("batches by length: steps of %d tokens in turn do not fit %s: give the device more memory, or take fewer lengths", lengths, size.Format(info.Capacity))
}

// search plans the steps of the i-th length.
func (l *Lengths) search(ctx context.Context, info device.Info, c train.Config, i, length int, o Options) error {
	c.Test = c.Test && length == c.Seq // samples to evaluate on have all Seq
	c.Seq, c.Lengths = length, 0
	p, err := Search(ctx, info, c, o)
	if err != nil {
		return fmt.Errorf("steps of %d tokens: %w", length, err)
	}
	choices, err := p.choices(task{o, info, c})
	l.Plans[i], l.Shapes[i] = p, train.Shape{Seq: length, Choices: choices}
	return err
}

// choices are what was chosen and what is close to it, each with its own size of
// micro-batches: of what the search tried, and of what it left out, since smaller
// micro-batches than the first that fit as they are have longer estimates. They may
// be faster all the same, where caches hold them.
func (p *Plan) choices(k task) ([]train.Choice, error) {
	list := []train.Choice{{Strategy: p.Chosen.Strategy, Seconds: p.Chosen.Seconds}}
	seen := map[int]bool{p.Chosen.Strategy.MicroBatch: true}
	add := func(t Trial) {
		if micro := t.Strategy.MicroBatch; t.Fits && !seen[micro] && t.Seconds <= closeTo*p.Chosen.Seconds && len(list) < mostChoices {
			list = append(list, train.Choice{Strategy: t.Strategy, Seconds: t.Seconds})
			seen[micro] = true
		}
	}
	for _, t := range p.Tried {
		add(t)
	}
	for _, micro := range k.microBatches() {
		if len(list) == mostChoices || slices.ContainsFunc(p.Tried, func(t Trial) bool { return t.Strategy.MicroBatch == micro }) {
			continue
		}
		t, err := k.within(train.Strategy{MicroBatch: micro})
		if err != nil {
			return nil, err
		}
		add(t)
	}
	return list, nil
}

// mix runs steps on one trainer, each length after each other, with what was chosen
// and with what is close to it, twice, and enters the peaks. Where memory runs out, it
// gives the length that found none, and the error.
func (l *Lengths) mix(ctx context.Context, info device.Info, c train.Config) (at int, err error) {
	dev, err := device.OpenNullLike(info, info.Capacity, nil, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	longest := len(l.Shapes) - 1
	t, err := train.New(dev, c, l.Shapes[longest].Choices[0].Strategy)
	if err != nil {
		return longest, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	t.Strict = true
	for range 2 {
		for i, shape := range l.Shapes {
			for k := range max(len(l.Shapes), len(shape.Choices)) {
				other := k % len(l.Shapes)
				if err := l.step(ctx, t, c, other, 0); err != nil {
					return other, err
				}
				if err := l.step(ctx, t, c, i, k%len(shape.Choices)); err != nil {
					return i, err
				}
			}
		}
		if c.Test {
			if err := l.evaluate(t); err != nil {
				return longest, err
			}
		}
	}
	stats := t.Memory().Stats()
	l.PeakBytes, l.ReservedBytes = stats.PeakLive, stats.PeakReserved
	return 0, nil
}

// step runs a step of the i-th length.
func (l *Lengths) step(ctx context.Context, t *train.Trainer, c train.Config, i, choice int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.Seq = l.Shapes[i].Seq
	if err := t.At(c.Seq, l.Shapes[i].Choices[choice].Strategy); err != nil {
		return err
	}
	_, err := t.Step(c.NewBatch()...)
	return err
}

// evaluate runs the model on samples of the longest length.
func (l *Lengths) evaluate(t *train.Trainer) error {
	longest := l.Shapes[len(l.Shapes)-1]
	if err := t.At(longest.Seq, longest.Choices[0].Strategy); err != nil {
		return err
	}
	_, err := t.Evaluate(blank{longest.Choices[0].Strategy.MicroBatch})
	return err
}
