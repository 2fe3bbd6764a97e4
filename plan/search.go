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
// Where the plain step fits, results that it makes again all the same are held
// (hold.go). Where a step doesn't fit as it is, logits in smaller parts are the first remedy, if
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
		return all[o.stage()].of(task{o, info, c})
	}
	p, err := task{first, info, c}.search(ctx)
	if err != nil {
		return nil, err
	}
	return p.of(task{o, info, c})
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

// of is the plan with what the rank of k takes, which needs no more than the one that
// it was made for.
func (p *Plan) of(k task) (*Plan, error) {
	if k.alongTensor() == 0 {
		return p, nil
	}
	own, err := k.within(p.Chosen.Strategy)
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
			bound, err := task{o, info, c}.free(c.Plain())
			if err != nil || bound.least() >= best.Chosen.Seconds { // no strategy is faster
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

// search is Search for one rank by itself.
func (k task) search(ctx context.Context) (*Plan, error) {
	p := &Plan{Step: k.c.Fingerprint(), Precision: k.c.Precision, Device: k.info.Name, BudgetBytes: k.info.Capacity}
	var err error
	if p.Plain, err = k.free(k.c.Plain()); err != nil {
		return nil, err
	}
	for place, s := range k.outside(slices.Min(k.microBatches())) {
		held, err := k.heldBytes(s)
		if err != nil {
			return nil, err
		}
		if held > k.info.Capacity {
			continue
		}
		if err := p.fitAny(ctx, k, place); err != nil {
			return nil, err
		}
		if len(p.Tried) > 0 && p.Tried[0].Fits {
			break
		}
	}
	if !p.Chosen.Fits {
		if err := p.fitLeast(ctx, k); err != nil {
			return nil, err
		}
	}
	if !p.Chosen.Fits {
		if k.rough {
			return nil, &TooSmallError{Model: k.c.Model, BudgetBytes: k.info.Capacity}
		}
		return nil, k.with(k.briefly()).tooSmall(ctx)
	}
	return p, p.refine(ctx, k)
}

// heldBytes is what lives on the device between all steps with what s has outside: the
// model and what of the optimizer is not outside.
func (k task) heldBytes(s train.Strategy) (n uint64, err error) {
	dev, err := device.OpenNullLike(k.info, unlimited, nil, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t, err := train.NewParallel(dev, k.c, s, k.Parallel)
	if err != nil {
		return 0, err
	}
	return t.Memory().Stats().Live, t.Close()
}

// refine searches longer for the strategy that was chosen.
func (p *Plan) refine(ctx context.Context, k task) error {
	before := p.Chosen
	if _, _, held := before.Strategy.Values.Count(); before.Strategy.Values == nil || held > 0 || k.Work > 0 {
		return nil
	}
	s := before.Strategy
	s.Values = nil
	free, err := k.free(s)
	if err != nil {
		return err
	}
	prog, err := k.record(free)
	if err != nil {
		return err
	}
	prog.moveAt(before.moved, k.Options)
	better, err := prog.solve(ctx, k, s)
	if err == nil && better.Fits && better.Seconds < before.Seconds && k.room(better) {
		p.choose(better)
	}
	return ignoreNone(err)
}

// outside lists strategies with micro-batches of that size by what of the
// training is outside the device, if anything may be: the least and fastest first.
func (k task) outside(micro int) []train.Strategy {
	list := []train.Strategy{{MicroBatch: micro}}
	if k.Away.state().Bytes > 0 && k.Parallel.Group == nil {
		list = append(list, train.Strategy{MicroBatch: micro, StateAway: true})
		if micro < k.c.Batch {
			list = append(list, train.Strategy{MicroBatch: micro, StateAway: true, GradientsAway: true})
		}
	}
	return list
}

// logits is how many rows of them a step with strategy s makes that may go in parts.
func (k task) logits(s train.Strategy) int {
	if m := k.Parallel.Mesh.Pipeline; m > 1 && k.stage() < m-1 { // the last one has them
		return 0
	}
	return s.MicroBatch * k.c.Logits()
}

// inLeastParts is s with logits in the smallest parts.
func (k task) inLeastParts(s train.Strategy) train.Strategy {
	if s.LogitRows = 0; k.logits(s) > tensor.LogitRows {
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
func (k task) inParts(free Trial) (Trial, error) {
	k.steps = 1
	for s := k.inLeastParts(free.Strategy); s.LogitRows > 0 && s.LogitRows < k.logits(s); s.LogitRows *= 2 {
		t, err := k.free(s)
		if err != nil {
			return free, err
		}
		given, missing := float64(free.ReservedBytes)-float64(t.ReservedBytes), float64(free.ReservedBytes)-float64(k.info.Capacity)
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
func (k task) leastTrial() (least Trial, err error) {
	for _, s := range k.outside(slices.Min(k.microBatches())) {
		t, err := k.free(k.inLeastParts(s))
		if err != nil {
			return t, err
		}
		if k.room(t) {
			least = t
		}
	}
	return least, nil
}

// room says whether what t moves away finds room.
func (o Options) room(t Trial) bool { return !t.noRoom }

// fitAny tries micro-batches of every size, the greatest first, with what is at
// that place in outside's list.
func (p *Plan) fitAny(ctx context.Context, k task, place int) error {
	for _, micro := range k.microBatches() {
		list := k.outside(micro)
		if place >= len(list) {
			continue
		}
		if done, err := p.fit(ctx, k, list[place]); done || err != nil {
			return err
		}
	}
	return nil
}

// fit finds the fastest strategy that is s with logits in parts and values made again
// or moved, if one fits. It is done when smaller micro-batches can only be slower.
func (p *Plan) fit(ctx context.Context, k task, s train.Strategy) (done bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	plain, err := k.within(s)
	if err != nil {
		return false, err
	}
	if !k.room(plain) {
		return true, nil
	}
	if plain.Fits && s == k.c.Plain() {
		return true, p.addPlain(k, plain)
	}
	p.add(plain)
	if plain.Fits {
		return true, nil
	}
	free, err := k.free(s)
	if err != nil || !k.room(free) || p.Chosen.Fits && free.Seconds >= p.Chosen.Seconds {
		return true, err
	}
	inParts, err := k.inParts(free)
	if err != nil {
		return false, err
	}
	if inParts.Strategy != s {
		kept, err := k.within(inParts.Strategy)
		if err != nil {
			return false, err
		}
		if kept.Fits {
			p.add(kept)
			return true, nil
		}
	}
	return false, p.fitValues(ctx, k, inParts)
}

// fitLeast is fitValues for what leaves the most room for values, where logits in the
// smallest parts were no help that is worth its time.
func (p *Plan) fitLeast(ctx context.Context, k task) error {
	once := k
	once.steps = 1
	free, err := once.leastTrial()
	if err != nil || free.Strategy.LogitRows == 0 {
		return err
	}
	if held, err := k.heldBytes(free.Strategy); err != nil || held > k.info.Capacity {
		return err
	}
	return p.fitValues(ctx, k, free)
}

// fitValues finds the fastest strategy that is free's with values made again or moved,
// if one fits; free is a trial without a limit.
func (p *Plan) fitValues(ctx context.Context, k task, free Trial) error {
	prog, err := k.record(free)
	if err != nil {
		return err
	}
	brief := k.with(k.briefly())
	best, err := prog.solve(ctx, brief, free.Strategy)
	if err == nil && prog.moveAt(best.moved, k.Options) { // slower tiers hold a part
		best, err = prog.solve(ctx, brief, free.Strategy)
	}
	if err == nil && !k.room(best) {
		prog.OutRate, prog.BackRate = 0, 0
		best, err = prog.solve(ctx, brief, free.Strategy)
	}
	if err == nil && best.Fits {
		p.add(best)
	}
	return ignoreNone(err)
}

// solve finds a schedule with which s fits the task's device, or gives a
// *remat.NoPlanError.
func (p *program) solve(ctx context.Context, k task, s train.Strategy) (best Trial, err error) {
	micros, capacity := k.c.Batch/s.MicroBatch, k.info.Capacity
	placed := func(plan *remat.Plan) (int64, error) {
		s.Values = p.schedule(plan)
		if best, err = k.within(s); err != nil || best.Fits {
			p.addCopies(&best, plan, micros)
			return int64(best.ReservedBytes), err
		}
		free, err := k.with(k.roughly()).free(s)
		over := max(free.ReservedBytes, capacity+1) - capacity
		each := uint64(k.Parallel.InFlight(k.stage(), micros)) // so many micro-batches keep what one does
		return int64(capacity + (over+each-1)/each), err
	}
	_, err = remat.Solve(ctx, &p.Program, int64(capacity), remat.Options{Work: k.Work, Placed: placed})
	if err != nil && ignoreNone(err) != nil {
		return best, err
	}
	for _, recipe := range p.recipes(k, s) {
		trial, failed := p.tryRecipe(k, recipe)
		if failed != nil {
			return best, failed
		}
		if trial.Fits && (err != nil || trial.Seconds < best.Seconds) {
			if best, err = p.fewestBlocks(k, trial); err != nil {
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
func (k task) tooSmall(ctx context.Context) error {
	few, micro := k, slices.Min(k.microBatches())
	few.c.Batch = min(k.c.Batch, (1+k.Parallel.InFlight(k.stage(), k.c.Batch/micro))*micro)
	free, err := few.leastTrial()
	if err != nil {
		return err
	}
	prog, err := few.record(free)
	if err != nil {
		return err
	}
	held, err := few.heldBytes(free.Strategy)
	if err != nil {
		return err
	}
	unit := max(k.info.Granularity, 512)
	fits := func(k task, units uint64) (best Trial, err error) {
		k.info.Capacity = units * unit
		best, err = prog.solve(ctx, k, free.Strategy)
		best.Fits = best.Fits && err == nil && k.room(best)
		return best, ignoreNone(err)
	}
	lo := max(k.info.Capacity, held-1) / unit
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
		best, err := fits(k, hi)
		if err != nil {
			return err
		}
		if best.Fits {
			return &TooSmallError{k.c.Model, k.info.Capacity, hi * unit, best.Description}
		}
	}
}

// record runs a step with the strategy of free, a trial without a limit, on a
// null device and gives it as the solver takes it.
func (k task) record(free Trial) (p *program, err error) {
	s := free.Strategy
	rates, seconds, now, recipes := k.rates(k.info), []float64(nil), -1, again{}
	dev, err := device.OpenNullLike(k.info, unlimited, func(l *device.Launch) {
		if now >= 0 {
			s := rates.seconds(l)
			seconds[now] += s
			recipes.spend(s)
		}
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t, err := train.NewParallel(dev, k.c, s, k.Parallel)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if s.StateAway {
		if err := t.UseStore(openBooks(k.Away), nil); err != nil {
			return nil, err
		}
	}
	t.Observe(&recipes)
	r, err := t.Record(func(op int) { now, seconds = op, append(seconds, 0) }, k.c.NewBatch()...)
	if err != nil {
		return nil, err
	}
	p = newProgram(r, seconds)
	p.plain, p.as, p.again = free.Seconds, k.Away.As, recipes.seconds
	if room := k.Away.bytes(); room > free.AwayBytes { // else nothing moves
		p.moveAt(k.Away.Tiers[0], k.Options)
		p.Room = int64(float64(room-free.AwayBytes) * k.Away.times())
	}
	return p, nil
}
