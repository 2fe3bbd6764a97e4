package plan

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/remat"
	"github.com/headroom-go/headroom/train"
)

// How a strategy is found.
//
// For each size of micro-batch, the greatest first, the step runs once on a null
// device and is recorded: its operations with their times, its values with their
// bytes and reads. The solver (internal/remat) then chooses for each value
// whether it is kept, made again or moved away, so that the step fits at the
// least time. The runtime does what the schedule says on the null device again,
// and what that run reserves is what counts: where it is more than the budget,
// the solver leaves more room. So the solver's model of memory only guides, and
// a plan is as exact as a trial.
//
// A smaller micro-batch takes longer even without a plan, so the search ends
// with the first that is slower so than what was found. Until then searches are
// brief; the longer one is for the size that was chosen.
//
// Where there is room outside the device, all this is done again with the
// optimizer there, and once more with gradients there between micro-batches:
// each leaves more of the device to values, and takes longer.

// Options of a search. The zero value is the default.
type Options struct {
	// Away allows values to wait outside the device.
	Away Away
	// Work bounds the search for one budget, as remat.Options.Work.
	Work int
	// Rates estimate the time; zero stands for HostRates.
	Rates Rates
	// Parallel says that the step is one of several ranks', of which c is the
	// Share; its group is a dist.Null. The zero value is one alone.
	Parallel train.Parallel

	// OnTrial is told of each trial after its run on the null device; nil:
	// nobody is.
	OnTrial func(Trial)

	steps int  // of a trial at most; 0: maxTrialSteps
	micro int  // the size of micro-batches; 0: any
	rough bool // of what does not fit it is not asked how much it needs
}

// briefly is o for one of many searches, of which only the best is done again
// with all the work.
func (o Options) briefly() Options {
	o.Work = cmp.Or(o.Work, 3e6)
	return o
}

// roughly is o for trials of which only the size of memory is asked, roughly.
func (o Options) roughly() Options {
	o.steps = 4
	return o
}

// toGuess is o to find out roughly what fits.
func (o Options) toGuess() Options {
	o.Work = min(cmp.Or(o.Work, 1e6), 1e6)
	return o.roughly()
}

// Search finds, for a step of c on a device with info's properties and
// capacity, the fastest strategy that fits, by the estimate of time. It
// returns a *TooSmallError if none does. Of a stage of a pipeline it is the one that
// SearchStages gives.
func Search(ctx context.Context, info device.Info, c train.Config, o Options) (*Plan, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if o.Parallel.Mesh.Pipeline > 1 {
		all, err := SearchStages(ctx, info, c, o)
		if err != nil {
			return nil, err
		}
		return all[o.stage()], nil
	}
	return search(ctx, info, c, o)
}

func search(ctx context.Context, info device.Info, c train.Config, o Options) (*Plan, error) {
	p := &Plan{Step: c.Fingerprint(), Device: info.Name, BudgetBytes: info.Capacity}
	var err error
	if p.Plain, err = Try(info, unlimited, c, c.Plain(), o); err != nil {
		return nil, err
	}
	for place, s := range o.outside(c, slices.Min(o.microBatches(c))) {
		held, err := heldBytes(info, c, s, o)
		if err != nil {
			return nil, err
		}
		if held > info.Capacity {
			continue
		}
		if err := p.fitAny(ctx, info, c, place, o); err != nil {
			return nil, err
		}
		if len(p.Tried) > 0 && p.Tried[0].Fits {
			break
		}
	}
	if !p.Chosen.Fits {
		if o.rough {
			return nil, &TooSmallError{Model: c.Model, BudgetBytes: info.Capacity}
		}
		return nil, tooSmall(ctx, info, c, o.briefly())
	}
	return p, p.refine(ctx, info, c, o)
}

// heldBytes is what lives on the device between all steps with what s has outside: the
// model and what of the optimizer is not outside.
func heldBytes(info device.Info, c train.Config, s train.Strategy, o Options) (n uint64, err error) {
	dev, err := device.OpenNullLike(info, unlimited, nil, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t, err := train.NewParallel(dev, c, s, o.Parallel)
	if err != nil {
		return 0, err
	}
	return t.Memory().Stats().Live, t.Close()
}

// refine searches longer for the strategy that was chosen.
func (p *Plan) refine(ctx context.Context, info device.Info, c train.Config, o Options) error {
	before := p.Chosen
	if before.Strategy.Values == nil || o.Work > 0 {
		return nil
	}
	s := before.Strategy
	s.Values = nil
	free, err := Try(info, unlimited, c, s, o)
	if err != nil {
		return err
	}
	prog, err := record(info, c, free, o)
	if err != nil {
		return err
	}
	prog.moveAt(before.moved, o)
	better, err := prog.solve(ctx, info, c, s, o)
	if err == nil && better.Fits && better.Seconds < before.Seconds && o.room(better) {
		at := slices.IndexFunc(p.Tried, func(t Trial) bool { return t.Strategy == before.Strategy })
		p.Tried[at], p.Chosen = better, better
	}
	return ignoreNone(err)
}

// outside lists strategies with micro-batches of that size by what of the
// training is outside the device, if anything may be: the least and fastest first.
func (o Options) outside(c train.Config, micro int) []train.Strategy {
	list := []train.Strategy{{MicroBatch: micro}}
	if o.Away.state().Bytes > 0 && o.Parallel.Group == nil {
		list = append(list, train.Strategy{MicroBatch: micro, StateAway: true})
		if micro < c.Batch {
			list = append(list, train.Strategy{MicroBatch: micro, StateAway: true, GradientsAway: true})
		}
	}
	return list
}

// leastTrial is of the strategy that leaves the most room for values: with the
// smallest micro-batches, and the most outside the device that finds room there.
func leastTrial(info device.Info, c train.Config, o Options) (least Trial, err error) {
	for _, s := range o.outside(c, slices.Min(o.microBatches(c))) {
		t, err := Try(info, unlimited, c, s, o)
		if err != nil {
			return t, err
		}
		if o.room(t) {
			least = t
		}
	}
	return least, nil
}

// room says whether what t moves away finds room.
func (o Options) room(t Trial) bool { return !t.noRoom }

// fitAny tries micro-batches of every size, the greatest first, with what is at
// that place in outside's list.
func (p *Plan) fitAny(ctx context.Context, info device.Info, c train.Config, place int, o Options) error {
	for _, micro := range o.microBatches(c) {
		list := o.outside(c, micro)
		if place >= len(list) {
			continue
		}
		if done, err := p.fit(ctx, info, c, list[place], o); done || err != nil {
			return err
		}
	}
	return nil
}

// fit finds the fastest strategy that is s with values made again or moved, if
// one fits. It is done when smaller micro-batches can only be slower.
func (p *Plan) fit(ctx context.Context, info device.Info, c train.Config, s train.Strategy, o Options) (done bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	plain, err := Try(info, info.Capacity, c, s, o)
	if err != nil {
		return false, err
	}
	if !o.room(plain) {
		return true, nil
	}
	p.add(plain)
	if plain.Fits {
		return true, nil
	}
	free, err := Try(info, unlimited, c, s, o)
	if err != nil || !o.room(free) || p.Chosen.Fits && free.Seconds >= p.Chosen.Seconds {
		return true, err
	}
	prog, err := record(info, c, free, o)
	if err != nil {
		return false, err
	}
	best, err := prog.solve(ctx, info, c, s, o.briefly())
	if err == nil && prog.moveAt(best.moved, o) { // slower tiers hold a part
		best, err = prog.solve(ctx, info, c, s, o.briefly())
	}
	if err == nil && !o.room(best) {
		prog.OutRate, prog.BackRate = 0, 0
		best, err = prog.solve(ctx, info, c, s, o.briefly())
	}
	if err == nil && best.Fits {
		p.add(best)
	}
	return false, ignoreNone(err)
}

// solve finds a schedule with which s fits info's capacity, or gives a
// *remat.NoPlanError.
func (p *program) solve(ctx context.Context, info device.Info, c train.Config, s train.Strategy, o Options) (best Trial, err error) {
	placed := func(plan *remat.Plan) (int64, error) {
		s.Values = p.schedule(plan)
		if best, err = Try(info, info.Capacity, c, s, o); err != nil || best.Fits {
			p.addCopies(&best, plan, c.Batch/s.MicroBatch)
			return int64(best.ReservedBytes), err
		}
		free, err := Try(info, unlimited, c, s, o.roughly())
		over := max(free.ReservedBytes, info.Capacity+1) - info.Capacity
		each := uint64(o.Parallel.InFlight(o.stage(), c.Batch/s.MicroBatch)) // so many micro-batches keep what one does
		return int64(info.Capacity + (over+each-1)/each), err
	}
	_, err = remat.Solve(ctx, &p.Program, int64(info.Capacity), remat.Options{Work: o.Work, Placed: placed})
	if err != nil && ignoreNone(err) != nil {
		return best, err
	}
	for _, recipe := range p.recipes(c, s, o) {
		trial, failed := p.tryRecipe(info, c, recipe, o)
		if failed != nil {
			return best, failed
		}
		if trial.Fits && (err != nil || trial.Seconds < best.Seconds) {
			best, err = trial, nil
		}
	}
	return best, err
}

// moveAt makes copies as fast as those of a tier, and says whether that is another
// speed. A zero tier changes nothing.
func (p *program) moveAt(t Tier, o Options) (another bool) {
	if t.OutBytesPerSecond == 0 {
		return false
	}
	out, back := p.OutRate, p.BackRate
	p.OutRate, p.BackRate = int64(t.OutBytesPerSecond*o.Away.times()), int64(t.BackBytesPerSecond*o.Away.times())
	return p.OutRate < out-out/100 || p.BackRate < back-back/100
}

// addCopies puts into t the time that the plan's copies delay a step of so many
// micro-batches: they run beside what is computed, and are told to no device.
func (p *program) addCopies(t *Trial, plan *remat.Plan, micros int) {
	if len(plan.Moves) > 0 {
		t.Seconds = p.plain + float64(plan.Extra)/1e9*float64(micros)
	}
}

// ignoreNone is err, but nil where only no plan was found.
func ignoreNone(err error) error {
	if errors.As(err, new(*remat.NoPlanError)) {
		return nil
	}
	return err
}

// tooSmall finds the least capacity that the strategy of leastTrial fits with
// values made again or moved: to a page, or to 1/256 where that is more. It is
// looked for with one micro-batch more than are in flight, of which all others are
// repetitions, and then tried with all.
func tooSmall(ctx context.Context, info device.Info, c train.Config, o Options) error {
	few, micro := c, slices.Min(o.microBatches(c))
	few.Batch = min(c.Batch, (1+o.Parallel.InFlight(o.stage(), c.Batch/micro))*micro)
	free, err := leastTrial(info, few, o)
	if err != nil {
		return err
	}
	prog, err := record(info, few, free, o)
	if err != nil {
		return err
	}
	held, err := heldBytes(info, few, free.Strategy, o)
	if err != nil {
		return err
	}
	unit := max(info.Granularity, 512)
	fits := func(c train.Config, units uint64) (best Trial, err error) {
		info.Capacity = units * unit
		best, err = prog.solve(ctx, info, c, free.Strategy, o)
		best.Fits = best.Fits && err == nil && o.room(best)
		return best, ignoreNone(err)
	}
	small := &TooSmallError{Model: c.Model, BudgetBytes: info.Capacity}
	lo := max(info.Capacity, held-1) / unit
	hi := max(lo+1, (free.ReservedBytes+unit-1)/unit)
	for hi-lo > max(1, hi/256) {
		mid := (lo + hi) / 2
		best, err := fits(few, mid)
		if err != nil {
			return err
		}
		if best.Fits {
			hi = mid
		} else {
			lo = mid
		}
	}
	for ; ; hi += max(1, hi/256) {
		best, err := fits(c, hi)
		if err != nil {
			return err
		}
		if best.Fits {
			small.LeastBytes, small.Strategy = info.Capacity, best.Description
			return small
		}
	}
}

// record runs a step with the strategy of free, a trial without a limit, on a
// null device and gives it as the solver takes it.
func record(info device.Info, c train.Config, free Trial, o Options) (p *program, err error) {
	s := free.Strategy
	rates, seconds, now := o.rates(info), []float64(nil), -1
	dev, err := device.OpenNullLike(info, unlimited, func(l *device.Launch) {
		if now >= 0 {
			seconds[now] += rates.seconds(l)
		}
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t, err := train.NewParallel(dev, c, s, o.Parallel)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if s.StateAway {
		if err := t.UseStore(openBooks(o.Away), nil); err != nil {
			return nil, err
		}
	}
	r, err := t.Record(func(op int) { now, seconds = op, append(seconds, 0) }, c.NewBatch()...)
	if err != nil {
		return nil, err
	}
	p = newProgram(r, seconds)
	p.plain, p.as = free.Seconds, o.Away.As
	if len(o.Away.Tiers) > 0 {
		p.moveAt(o.Away.Tiers[0], o)
	}
	return p, nil
}
