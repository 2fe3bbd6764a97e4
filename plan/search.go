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

// Options of a search. The zero value is the default.
type Options struct {
	// Away allows values to wait outside the device.
	Away Away
	// Work bounds the search for one budget, as remat.Options.Work.
	Work int
	// Rates estimate the time; zero stands for HostRates.
	Rates Rates
}

// briefly is o for one of many searches, of which only the best is done again
// with all the work.
func (o Options) briefly() Options {
	o.Work = cmp.Or(o.Work, 3e6)
	return o
}

// Away is memory outside the device, for values. The zero value is none.
type Away struct {
	Bytes              uint64  // room there
	OutBytesPerSecond  float64 // of copies from the device
	BackBytesPerSecond float64
}

// Search finds, for a step of c on a device with info's properties and
// capacity, the fastest strategy that fits, by the estimate of time. It
// returns a *TooSmallError if none does.
func Search(ctx context.Context, info device.Info, c train.Config, o Options) (*Plan, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Plan{Step: c.Fingerprint(), Device: info.Name, BudgetBytes: info.Capacity}
	var err error
	if p.Plain, err = Try(info, unlimited, c, c.Plain(), o); err != nil {
		return nil, err
	}
	sizes := microBatches(c)
	for _, micro := range sizes {
		done, err := p.fit(ctx, info, c, micro, o)
		if err != nil {
			return nil, err
		}
		if done {
			break
		}
	}
	if !p.Chosen.Fits {
		return nil, tooSmall(ctx, info, c, sizes[len(sizes)-1], o.briefly())
	}
	return p, p.refine(ctx, info, c, o)
}

// refine searches longer for the strategy that was chosen.
func (p *Plan) refine(ctx context.Context, info device.Info, c train.Config, o Options) error {
	before := p.Chosen
	if before.Strategy.Values == nil || o.Work > 0 {
		return nil
	}
	micro := before.Strategy.MicroBatch
	free, err := Try(info, unlimited, c, train.Strategy{MicroBatch: micro}, o)
	if err != nil {
		return err
	}
	prog, err := record(info, c, micro, o)
	if err != nil {
		return err
	}
	prog.plain = free.Seconds
	better, err := prog.solve(ctx, info, c, micro, o)
	if err == nil && better.Fits && better.Seconds < before.Seconds && better.AwayBytes <= o.Away.Bytes {
		at := slices.IndexFunc(p.Tried, func(t Trial) bool { return t.Strategy == before.Strategy })
		p.Tried[at], p.Chosen = better, better
	}
	return ignoreNone(err)
}

// fit finds the fastest strategy with micro-batches of the given size, if one
// fits. It is done when smaller ones can only be slower.
func (p *Plan) fit(ctx context.Context, info device.Info, c train.Config, micro int, o Options) (done bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s := train.Strategy{MicroBatch: micro}
	plain, err := Try(info, info.Capacity, c, s, o)
	if err != nil {
		return false, err
	}
	p.add(plain)
	if plain.Fits {
		return true, nil
	}
	free, err := Try(info, unlimited, c, s, o)
	if err != nil || p.Chosen.Fits && free.Seconds >= p.Chosen.Seconds {
		return true, err
	}
	prog, err := record(info, c, micro, o)
	if err != nil {
		return false, err
	}
	prog.plain = free.Seconds
	best, err := prog.solve(ctx, info, c, micro, o.briefly())
	if err == nil && best.AwayBytes > o.Away.Bytes {
		prog.OutRate, prog.BackRate = 0, 0
		best, err = prog.solve(ctx, info, c, micro, o.briefly())
	}
	if err == nil && best.Fits {
		p.add(best)
	}
	return false, ignoreNone(err)
}

// solve finds a schedule with which micro-batches of the given size fit info's
// capacity, or gives a *remat.NoPlanError.
func (p *program) solve(ctx context.Context, info device.Info, c train.Config, micro int, o Options) (best Trial, err error) {
	placed := func(plan *remat.Plan) (int64, error) {
		s := train.Strategy{MicroBatch: micro, Values: p.schedule(plan)}
		if best, err = Try(info, info.Capacity, c, s, o); err != nil || best.Fits {
			if len(plan.Moves) > 0 { // copies run beside what is computed: what they delay, the plan knows
				best.Seconds = p.plain + float64(plan.Extra)/1e9*float64(c.Batch/micro)
			}
			return int64(best.ReservedBytes), err
		}
		free, err := Try(info, unlimited, c, s, o)
		return int64(max(free.ReservedBytes, info.Capacity+1)), err
	}
	_, err = remat.Solve(ctx, &p.Program, int64(info.Capacity), remat.Options{Work: o.Work, Placed: placed})
	if err != nil && ignoreNone(err) != nil {
		return best, err
	}
	for _, recipe := range p.recipes(c, micro, o) {
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

// ignoreNone is err, but nil where only no plan was found.
func ignoreNone(err error) error {
	if errors.As(err, new(*remat.NoPlanError)) {
		return nil
	}
	return err
}

// tooSmall finds the least capacity for which a strategy is found, with
// micro-batches of the given size, to a page.
func tooSmall(ctx context.Context, info device.Info, c train.Config, micro int, o Options) error {
	prog, err := record(info, c, micro, o)
	if err != nil {
		return err
	}
	small := &TooSmallError{Model: c.Model, BudgetBytes: info.Capacity}
	unit := max(info.Granularity, 512)
	fits := func(pages uint64) (bool, error) {
		in := info
		in.Capacity = pages * unit
		best, err := prog.solve(ctx, in, c, micro, o)
		if err == nil && best.Fits {
			small.LeastBytes, small.Strategy = in.Capacity, best.Description
		}
		return err == nil && best.Fits, ignoreNone(err)
	}
	lo := info.Capacity / unit
	hi := lo
	for step := uint64(1); ; step *= 2 {
		hi += step
		ok, err := fits(hi)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		lo = hi
	}
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		ok, err := fits(mid)
		if err != nil {
			return err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
	}
	return small
}

// record runs a step on a null device and gives it as the solver takes it.
func record(info device.Info, c train.Config, micro int, o Options) (p *program, err error) {
	rates, seconds, now := o.rates(info), []float64(nil), -1
	dev, err := device.OpenNull(device.NullOptions{Capacity: unlimited, Virtual: info.Virtual, Alias: info.Alias, Granularity: info.Granularity,
		OnLaunch: func(l *device.Launch) {
			if now >= 0 {
				seconds[now] += rates.seconds(l)
			}
		}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t, err := train.New(dev, c, train.Strategy{MicroBatch: micro})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	r, err := t.Record(func(op int) { now, seconds = op, append(seconds, 0) }, c.NewBatch()...)
	if err != nil {
		return nil, err
	}
	p = newProgram(r, seconds)
	p.OutRate, p.BackRate = int64(o.Away.OutBytesPerSecond), int64(o.Away.BackBytesPerSecond)
	return p, nil
}
