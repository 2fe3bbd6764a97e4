package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// Layout is a way to spread a step over ranks, and what it comes to on the fullest
// and on the slowest of them.
type Layout struct {
	Mesh  train.Mesh  `json:"mesh"`
	Data  int         `json:"data"` // ranks along it
	Shard train.Shard `json:"zero_stage"`

	Schedule train.Schedule `json:"schedule"`         // of the ranks along pipeline, if there are several
	Chunks   int            `json:"chunks,omitempty"` // as in train.Parallel

	// BoundSeconds is what a step takes at least, by the estimate: as long as it
	// would with memory for everything.
	BoundSeconds float64 `json:"bound_seconds"`
	// Searched says that a strategy was looked for. Where BoundSeconds is no less than
	// what another layout takes, none was, and Fits says whether a plain step fits.
	Searched    bool   `json:"searched"`
	Fits        bool   `json:"fits"`
	Description string `json:"description,omitempty"` // of the fullest rank's strategy
	// Of the fullest rank; 0 if it doesn't fit.
	PeakBytes     uint64 `json:"peak_bytes"`
	ReservedBytes uint64 `json:"reserved_bytes"`
	// Seconds are those of a step; of one that doesn't fit 0.
	Seconds float64 `json:"seconds"`

	parallel train.Parallel
	c        train.Config // of a place
	micro    int          // the size of micro-batches with which BoundSeconds are least
}

// NoLayoutError is returned when no layout fits.
type NoLayoutError struct {
	Least  Layout         // the one whose plain step with the smallest micro-batches needs least
	Failed *TooSmallError // of it
}

func (e *NoLayoutError) Error() string {
	return fmt.Sprintf("model %s does not fit %d devices of %s in any layout: it needs at least %s each (pipeline %d, data %d, expert %d, tensor %d and ZeRO stage %d, %s); give it more or larger devices, a smaller model, a smaller batch, or shorter sequences",
		e.Failed.Model, e.Least.parallel.Group.Size(), size.Format(e.Failed.BudgetBytes), size.Format(e.Failed.LeastBytes), e.Least.Mesh.Pipeline, e.Least.Data, e.Least.Mesh.Expert, e.Least.Mesh.Tensor, e.Least.Shard, e.Failed.Strategy)
}

func (e *NoLayoutError) Unwrap() error { return e.Failed }

// SearchLayouts finds which of some layouts are best on devices with info's properties
// and capacity: those that fit from the fastest on, by the estimate, and then the
// others. It returns a *NoLayoutError if none fits. o.Parallel is not looked at.
//
// How long a layout's step takes with memory for everything bounds what it can take;
// from the least bound on layouts are searched, briefly, until the next can't be
// faster than the best one found. Of the others a plain step is tried.
func SearchLayouts(ctx context.Context, info device.Info, all []Layout, o Options) ([]Layout, error) {
	o, all = o.briefly(), slices.Clone(all)
	o.rough = true
	for i := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := all[i].bound(info, o); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b Layout) int { return cmp.Compare(a.BoundSeconds, b.BoundSeconds) })
	best := math.Inf(1)
	for i := range all {
		l := &all[i]
		look := l.search
		if l.BoundSeconds >= best {
			look = l.glance
		}
		if err := look(ctx, info, o); err != nil {
			return nil, err
		}
		best = min(best, l.order())
	}
	if math.IsInf(best, 1) {
		return nil, noLayout(ctx, info, all, o)
	}
	slices.SortStableFunc(all, func(a, b Layout) int { return cmp.Compare(a.order(), b.order()) })
	return all, nil
}

// order is a layout's seconds, and infinite where there are none.
func (l *Layout) order() float64 {
	if l.Fits {
		return l.Seconds
	}
	return math.Inf(1)
}

// Layouts lists the ways to spread a step of c, the whole job's, over so many ranks:
// every mesh along which the model can be split, with every shard. Pipelines have the
// schedule and chunks of each of orders. Where there are none, the error says why not
// along data alone.
func Layouts(c train.Config, ranks int, orders ...train.Parallel) (all []Layout, err error) {
	for _, m := range meshes(ranks) {
		each := orders
		if m.Pipeline == 1 {
			each = []train.Parallel{{}}
		}
		for shard := range train.ShardParameters + 1 {
			for _, p := range each {
				l, failed := newLayout(c, ranks, m, shard, p)
				if failed != nil {
					err = cmp.Or(err, failed)
					continue
				}
				if shard == train.ShardNothing || l.Data*m.Expert > 1 {
					all = append(all, l)
				}
			}
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("model %s can't be spread over %d ranks along any axis; along data: %w", c.Model, ranks, err)
}

// meshes are all of so many ranks, the one along data alone first.
func meshes(ranks int) (all []train.Mesh) {
	for p := range ranks {
		for e := range ranks / (p + 1) {
			for t := range ranks / ((p + 1) * (e + 1)) {
				m := train.Mesh{Pipeline: p + 1, Expert: e + 1, Tensor: t + 1}
				if _, err := m.Places(ranks); err == nil {
					all = append(all, m)
				}
			}
		}
	}
	return all
}

// newLayout says if c can't be split so.
func newLayout(c train.Config, ranks int, m train.Mesh, shard train.Shard, p train.Parallel) (l Layout, err error) {
	p.Group, p.Mesh, p.Shard = dist.Null(0, ranks), m, shard
	l = Layout{Mesh: m, Data: ranks / (m.Pipeline * m.Expert * m.Tensor), Shard: shard, Schedule: p.Schedule, Chunks: p.Chunks, parallel: p}
	if err = c.Splits(m); err == nil {
		err = p.Check(c)
	}
	if err == nil {
		l.c, err = c.Share(l.Data * m.Expert)
	}
	return l, err
}

// bound finds BoundSeconds: of a pipeline by its last stage, which has the head.
func (l *Layout) bound(info device.Info, o Options) error {
	o.Parallel, o.steps = l.parallel, 2
	stages, sizes := o.stages(), []int{l.c.Batch}
	if len(stages) > 1 {
		sizes = task{o, info, l.c}.microBatches()
	}
	l.BoundSeconds = math.Inf(1)
	for _, micro := range sizes {
		t, err := task{stages[len(stages)-1], info, l.c}.free(train.Strategy{MicroBatch: micro})
		if err != nil {
			return err
		}
		if s := l.stretched(t.least(), t); s < l.BoundSeconds {
			l.BoundSeconds, l.micro = s, micro
		}
	}
	return nil
}

// search looks for the fastest strategy that fits.
func (l *Layout) search(ctx context.Context, info device.Info, o Options) error {
	l.Searched = true
	plans, err := l.plans(ctx, info, o)
	if errors.As(err, new(*TooSmallError)) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range plans {
		l.add(p.Chosen)
	}
	return nil
}

// glance finds whether a plain step fits.
func (l *Layout) glance(ctx context.Context, info device.Info, o Options) error {
	o.Parallel = l.parallel
	var trials []Trial
	for _, at := range o.stages() {
		t, err := task{at, info, l.c}.within(train.Strategy{MicroBatch: l.micro})
		if err := cmp.Or(err, ctx.Err()); err != nil || !t.Fits {
			return err
		}
		trials = append(trials, t)
	}
	for _, t := range trials {
		l.add(t)
	}
	return nil
}

// add enters a rank's trial, which fits.
func (l *Layout) add(t Trial) {
	l.Fits, l.Seconds = true, max(l.Seconds, l.seconds(t))
	if l.PeakBytes = max(l.PeakBytes, t.PeakBytes); t.ReservedBytes > l.ReservedBytes {
		l.ReservedBytes, l.Description = t.ReservedBytes, t.Description
	}
}

// seconds are those of a step of which t is a rank's part: with its waits in a pipeline.
func (l *Layout) seconds(t Trial) float64 {
	return l.stretched(t.Seconds, t)
}

func (l *Layout) stretched(seconds float64, t Trial) float64 {
	return seconds * l.parallel.Stretch(l.c.Batch/t.Strategy.MicroBatch)
}

// plans are those of all stages, or of the first rank.
func (l *Layout) plans(ctx context.Context, info device.Info, o Options) ([]*Plan, error) {
	if o.Parallel = l.parallel; l.Mesh.Pipeline > 1 {
		return SearchStages(ctx, info, l.c, o)
	}
	p, err := task{o, info, l.c}.search(ctx)
	return []*Plan{p}, err
}

// noLayout says how much the layout needs that seems to need least.
func noLayout(ctx context.Context, info device.Info, all []Layout, o Options) error {
	var best Layout
	least := uint64(math.MaxUint64)
	for _, l := range all {
		o := o.roughly()
		o.Parallel = l.parallel
		t, err := task{o, info, l.c}.leastTrial()
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if t.ReservedBytes < least {
			best, least = l, t.ReservedBytes
		}
	}
	o.rough = false
	_, err := best.plans(ctx, info, o)
	if small := new(TooSmallError); errors.As(err, &small) {
		return &NoLayoutError{best, small}
	}
	return err
}
