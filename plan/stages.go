package plan

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/train"
)

// SearchStages is Search for the stages of a pipeline, on devices that are alike:
// the plan of each rank along it, the first one first. They have micro-batches of
// one size, with which a step takes the least time by the estimate: that of the
// slowest stage, and as much as it waits while the pipeline fills and drains.
func SearchStages(ctx context.Context, info device.Info, c train.Config, o Options) ([]*Plan, error) {
	if _, err := o.Parallel.Mesh.Places(o.Parallel.Group.Size()); err != nil {
		return nil, err
	}
	ranks := o.stages()
	bounds := map[int]float64{} // of a step's time, by the size of micro-batches
	sizes := task{o, info, c}.microBatches()
	for _, micro := range sizes {
		for _, at := range ranks {
			t, err := task{at, info, c}.free(train.Strategy{MicroBatch: micro})
			if err != nil {
				return nil, err
			}
			bounds[micro] = max(bounds[micro], o.Parallel.Stretch(c.Batch/micro)*t.least())
		}
	}
	slices.SortStableFunc(sizes, func(a, b int) int { return cmp.Compare(bounds[a], bounds[b]) })
	var best []*Plan
	least, short := math.Inf(1), &TooSmallError{LeastBytes: math.MaxUint64}
	for _, micro := range sizes {
		if bounds[micro] >= least {
			break
		}
		plans, seconds, err := searchWith(ctx, info, c, micro, ranks)
		if small := new(TooSmallError); errors.As(err, &small) {
			if small.LeastBytes < short.LeastBytes {
				short = small
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if seconds *= o.Parallel.Stretch(c.Batch / micro); seconds < least {
			best, least = plans, seconds
		}
	}
	if best == nil {
		return nil, short
	}
	return best, nil
}

// searchWith gives the plans of all stages with micro-batches of one size, and the
// slowest one's time.
func searchWith(ctx context.Context, info device.Info, c train.Config, micro int, ranks []Options) (plans []*Plan, seconds float64, err error) {
	for _, at := range ranks {
		at.micro = micro
		p, err := task{at, info, c}.search(ctx)
		if err != nil {
			return nil, 0, err
		}
		plans, seconds = append(plans, p), max(seconds, p.Chosen.Seconds)
	}
	return plans, seconds, nil
}

// stages are the options of each rank along the pipeline, in this one's place.
func (o Options) stages() (ranks []Options) {
	each := o.Parallel.Group.Size() / o.Parallel.Mesh.Pipeline
	for stage := range o.Parallel.Mesh.Pipeline {
		at := o
		at.Parallel.Group = dist.Null(stage*each+o.Parallel.Group.Rank()%each, o.Parallel.Group.Size())
		ranks = append(ranks, at)
	}
	return ranks
}

// stage is this rank's place along the pipeline.
func (o Options) stage() int {
	if o.Parallel.Mesh.Pipeline <= 1 {
		return 0
	}
	return o.Parallel.Group.Rank() / (o.Parallel.Group.Size() / o.Parallel.Mesh.Pipeline)
}
