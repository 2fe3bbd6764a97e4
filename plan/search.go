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
	"github.com/headroom-go/headroom/internal/remat"
	"github.com/headroom-go/headroom/tensor"
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
// Where a step doesn't fit as it is, logits in smaller parts are the first remedy, if
// they cost little for what they give. Where nothing fits, they are tried all the same.
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
// SearchStages gives. Of a rank along tensor it is that of the first one there, which
// has the most: so all of them recompute the same blocks.
func Search(ctx context.Context, info device.Info, c train.Config, o Options) (*Plan, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	first := o.firstAlongTensor()
	if o.Parallel.Mesh.Pipeline > 1 {
		all, err := SearchStages(ctx, info, c, first)
		if err != nil {
			return nil, err
		}
		return all[o.stage()].of(info, c, o)
	}
	p, err := search(ctx, info, c, first)
	if err != nil {
		return nil, err
	}
	return p.of(info, c, o)
}

// alongTensor is this rank's place along tensor.
func (o Options) alongTensor() int {
	if o.Parallel.Mesh.Tensor <= 1 {
		return 0
	}
	return o.Parallel.Group.Rank() % o.Parallel.Mesh.Tensor
}

// firstAlongTensor are the options of the first rank there, in this one's place.
func (o Options) firstAlongTensor() Options {
	if at := o.alongTensor(); at > 0 {
		g := o.Parallel.Group
		o.Parallel.Group = dist.Null(g.Rank()-at, g.Size())
	}
	return o
}

// of is the plan with what the rank of o takes, which needs no more than the one that
// it was made for.
func (p *Plan) of(info device.Info, c train.Config, o Options) (*Plan, error) {
	if o.alongTensor() == 0 {
		return p, nil
	}
	own, err := Try(info, info.Capacity, c, p.Chosen.Strategy, o)
	if own.Seconds = p.Chosen.Seconds; err == nil && own.Fits {
		p.choose(own)
	}
	return p, err
}

// choose puts t in the place of the chosen trial.
func (p *Plan) choose(t Trial) {
	at := slices.IndexFunc(p.Tried, func(tried Trial) bool { return tried.Strategy == p.Chosen.Strategy })
	p.Tried[at], p.Chosen = t, t
}

// SearchPrecision is Search of the precision whose steps are fastest by the estimate,
// among those that fit: c's is not looked at, and the plan says which it is. Of float32
// and bfloat16 it is one; float16, in which numbers overflow, is not chosen by itself.
func SearchPrecision(ctx context.Context, info device.Info, c train.Config, o Options) (best *Plan, err error) {
	least := &TooSmallError{LeastBytes: math.MaxUint64}
	for _, c.Precision = range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		if best != nil {
			bound, err := Try(info, unlimited, c, c.Plain(), o)
			if err != nil || bound.Seconds >= best.Chosen.Seconds { // no strategy is faster
				return best, err
			}
		}
		p, err := Search(ctx, info, c, o)
		small := new(TooSmallError)
		switch {
		case errors.As(err, &small):
			if small.LeastBytes < least.LeastBytes {
				small.Strategy += fmt.Sprintf(", in %s", c.Precision)
				least = small
			}
		case err != nil:
			return nil, err
		case best == nil || p.Chosen.Seconds < best.Chosen.Seconds:
			best = p
		}
	}
	if best == nil {
		return nil, least
	}
	return best, nil
}

func search(ctx context.Context, info device.Info, c train.Config, o Options) (*Plan, error) {
	p := &Plan{Step: c.Fingerprint(), Precision: c.Precision, Device: info.Name, BudgetBytes: info.Capacity}
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
		if err := p.fitLeast(ctx, info, c, o); err != nil {
			return nil, err
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
		p.choose(better)
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

// logits is how many rows of them a step with strategy s makes that may go in parts.
func (o Options) logits(c train.Config, s train.Strategy) int {
	if m := o.Parallel.Mesh.Pipeline; m > 1 && o.stage() < m-1 { // the last one has them
		return 0
	}
	return s.MicroBatch * c.Logits()
}

// inLeastParts is s with logits in the smallest parts.
func (o Options) inLeastParts(c train.Config, s train.Strategy) train.Strategy {
	if s.LogitRows = 0; o.logits(c, s) > tensor.LogitRows {
		s.LogitRows = tensor.LogitRows
	}
	return s
}

// Logits go in smaller parts where a step is at most so many times longer with them,
// and that gives at least this share of what is missing.
const (
	littleLonger = 1.01
	partsGive    = 1. / 8
)

// inParts is a trial of free's strategy, without a limit as free is, with logits in
// the smallest parts that make a step little longer; free itself where that is no help.
func (o Options) inParts(info device.Info, c train.Config, free Trial) (Trial, error) {
	o.steps = 1
	for s := o.inLeastParts(c, free.Strategy); s.LogitRows > 0 && s.LogitRows < o.logits(c, s); s.LogitRows *= 2 {
		t, err := Try(info, unlimited, c, s, o)
		if err != nil {
			return free, err
		}
		given, missing := float64(free.ReservedBytes)-float64(t.ReservedBytes), float64(free.ReservedBytes)-float64(info.Capacity)
		if given <= 0 || given < partsGive*missing {
			break
		}
		if t.Seconds <= littleLonger*free.Seconds {
			return t, nil
		}
	}
	return free, nil
}

// leastTrial is of the strategy that leaves the most room for values: with the
// smallest micro-batches, logits in the smallest parts, and the most outside the
// device that finds room there.
func leastTrial(info device.Info, c train.Config, o Options) (least Trial, err error) {
	for _, s := range o.outside(c, slices.Min(o.microBatches(c))) {
		t, err := Try(info, unlimited, c, o.inLeastParts(c, s), o)
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

// fit finds the fastest strategy that is s with logits in parts and values made again
// or moved, if one fits. It is done when smaller micro-batches can only be slower.
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
	inParts, err := o.inParts(info, c, free)
	if err != nil {
		return false, err
	}
	if inParts.Strategy != s {
		kept, err := Try(info, info.Capacity, c, inParts.Strategy, o)
		if err != nil {
			return false, err
		}
		if kept.Fits {
			p.add(kept)
			return true, nil
		}
	}
	return false, p.fitValues(ctx, info, c, inParts, o)
}

// fitLeast is fitValues for what leaves the most room for values, where logits in the
// smallest parts were no help that is worth its time.
func (p *Plan) fitLeast(ctx context.Context, info device.Info, c train.Config, o Options) error {
	once := o
	once.steps = 1
	free, err := leastTrial(info, c, once)
	if err != nil || free.Strategy.LogitRows == 0 {
		return err
	}
	if held, err := heldBytes(info, c, free.Strategy, o); err != nil || held > info.Capacity {
		return err
	}
	return p.fitValues(ctx, info, c, free, o)
}

// fitValues finds the fastest strategy that is free's with values made again or moved,
// if one fits; free is a trial without a limit.
func (p *Plan) fitValues(ctx context.Context, info device.Info, c train.Config, free Trial, o Options) error {
	prog, err := record(info, c, free, o)
	if err != nil {
		return err
	}
	best, err := prog.solve(ctx, info, c, free.Strategy, o.briefly())
	if err == nil && prog.moveAt(best.moved, o) { // slower tiers hold a part
		best, err = prog.solve(ctx, info, c, free.Strategy, o.briefly())
	}
	if err == nil && !o.room(best) {
		prog.OutRate, prog.BackRate = 0, 0
		best, err = prog.solve(ctx, info, c, free.Strategy, o.briefly())
	}
	if err == nil && best.Fits {
		p.add(best)
	}
	return ignoreNone(err)
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
			if best, err = p.fewestBlocks(info, c, trial, o); err != nil {
				return best, err
			}
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
	if room := o.Away.bytes(); room > free.AwayBytes { // else nothing moves
		p.moveAt(o.Away.Tiers[0], o)
		p.Room = int64(float64(room-free.AwayBytes) * o.Away.times())
	}
	return p, nil
}
