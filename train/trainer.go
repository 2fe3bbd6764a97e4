package train

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Trainer holds a model and its optimizer on a device and runs steps. It is
// used from one goroutine at a time.
type Trainer struct {
	Config   Config
	Strategy Strategy
	Strict   bool // a step that does not fit fails at once, and is not tried with less

	rt     *tensor.Runtime
	side   device.Stream // of copies to and from memory outside the device; nil without
	mem    *alloc.Allocator
	job    job
	model  model   // all that this trainer has
	stages []model // the same, cut where there is a pipeline
	opt    *nn.Optimizer
	fields []Field
	par    *parallel // nil: this trainer computes alone

	outside *outside // under StateAway, from UseStore on

	now       Strategy // of the step in progress, or the last one
	ladder    ladder
	seq       int            // tokens of a sequence in the next step
	ladders   map[int]ladder // of other lengths
	precision nn.Precision
	choosing  bool        // ranks measure products, until they agree
	losses    []float32   // of the step's micro-batches, filled by the device
	counts    []int       // their targets that count
	counted   int         // the sum; 1 at least
	norm      []float32   // of the gradients
	before    [][]float32 // the model's buffers when the step began
}

// Result is what one step gave.
type Result struct {
	Step     int
	Loss     float64 // mean over the batch, before the update
	GradNorm float64 // before clipping
	Rate     float64 // learning rate
	Skipped  bool    // numbers overflowed: the weights are as before, and the step is to be done again with other data
	Events   []Event // what it had to do beside its plan
}

// New makes a trainer whose memory comes from dev. On an error, all that was
// taken is given back.
func New(dev device.Device, c Config, s Strategy) (*Trainer, error) {
	return NewParallel(dev, c, s, Parallel{})
}

// NewParallel is New of one of the ranks that a training is spread over; c is
// its Share. All ranks make theirs with the same shards and buckets.
func NewParallel(dev device.Device, c Config, s Strategy, p Parallel) (*Trainer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := errors.Join(c.Allows(s), c.Splits(p.Mesh), p.Check(c)); err != nil {
		return nil, err
	}
	if p.Group != nil && s.StateAway {
		return nil, errors.New("the optimizer's state of several ranks can't be outside their devices yet: it is sharded instead")
	}
	mem, err := alloc.New(dev, alloc.Options{StackDepth: stackDepth})
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	t := &Trainer{Config: c, Strategy: s, now: s, mem: mem, rt: tensor.New(mem, stream), fields: c.Fields(), seq: c.Seq, ladders: map[int]ladder{},
		losses: make([]float32, c.Batch*p.chunks()), norm: make([]float32, 1), precision: nn.NewPrecision(c.Precision)}
	if t.par, err = newParallel(dev, p); err != nil {
		return nil, t.abandon(err)
	}
	if err := t.tune(nil); err != nil {
		return nil, t.abandon(err)
	}
	if err := t.rt.Try(t.build); err != nil {
		t.par.forget()
		return nil, fmt.Errorf("model %s does not fit %s: %w", c.Model, dev.Info().Name, t.abandon(err))
	}
	return t, nil
}

func (t *Trainer) build() {
	defer t.mem.SetSink(nil, 0) // stacks are recorded for what lives as long as the run
	t.job, _ = t.Config.job()
	b := nn.NewBuilder(t.rt, t.Config.Seed)
	b.Split, b.Made = t.par.place().split(), t.par.adopt(t.rt)
	t.stages = t.par.pipeline().build(b, func() model { return t.job.build(b, t.around) })
	if t.model = t.stages[0]; len(t.stages) > 1 {
		t.model.Module = joined(t.stages)
	}
	t.par.take(t.rt, t.stages, t.Config.MoE != (nn.MoEConfig{}))
	if t.opt = new(nn.Optimizer); !t.Strategy.StateAway { // else UseStore makes it
		t.opt = t.optimizer(t.par.updated(t.model.Parameters()))
	}
	for _, b := range t.buffers() {
		t.before = append(t.before, make([]float32, b.Len()))
	}
}

func (t *Trainer) optimizer(of []*nn.Parameter) *nn.Optimizer {
	o := nn.NewOptimizer(of, t.Config.rule())
	o.Decay = t.par.decays()
	return o
}

// buffers are the model's arrays that are no parameters.
func (t *Trainer) buffers() []*nn.Parameter {
	if m, ok := t.model.Module.(nn.Buffered); ok {
		return m.Buffers()
	}
	return nil
}

// around recomputes the blocks that the strategy says.
func (t *Trainer) around(i int, x *tensor.Tensor, block func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if i < t.now.Recompute {
		return tensor.Checkpoint(x, block)
	}
	return block(x)
}

// abandon frees everything after the model could not be built.
func (t *Trainer) abandon(cause error) error {
	err := errors.Join(cause, t.rt.Sync(), t.outside.close(), t.par.close(), t.mem.Close(), t.rt.Stream().Close())
	if t.side != nil {
		err = errors.Join(err, t.side.Close())
	}
	return err
}

// UseStore lets values, and the optimizer's state, wait in memory outside the
// device, where the strategy says so. It comes before the first step and before
// Restore; the store stays the caller's, until the trainer is closed. Values
// that find no room there stay on the device; for the state there must be room.
//
// The optimizer outside computes on host, a device that computes in the store's
// memory, and the caller's too. With nil the trainer's own does, which must then
// be the host's.
func (t *Trainer) UseStore(s tensor.Store, host device.Device) error {
	side, err := t.mem.Device().NewStream()
	if err != nil {
		return err
	}
	t.side = side
	t.rt.UseStore(s, side)
	if t.Strategy.StateAway {
		return t.buildOutside(s, cmp.Or(host, t.mem.Device()))
	}
	return nil
}

// At makes the next steps, and evaluations, such on sequences of so many tokens,
// with strategy s. What s has outside the device must be what the trainer was made
// with. Each length stands by itself on the ladder of what is tried where memory
// runs out.
func (t *Trainer) At(seq int, s Strategy) error {
	c := t.Config
	c.Seq = seq
	if err := errors.Join(c.Validate(), c.Allows(s)); err != nil {
		return err
	}
	if t.par != nil || s.StateAway != t.Strategy.StateAway || s.GradientsAway != t.Strategy.GradientsAway {
		return fmt.Errorf("steps of %d tokens, %s: lengths can't change between ranks yet, nor what is outside the device", seq, c.Describe(s))
	}
	t.ladders[t.seq] = t.ladder
	t.seq, t.fields, t.Strategy, t.now, t.ladder = seq, c.Fields(), s, s, t.ladders[seq]
	return nil
}

// Steps is the number of steps done.
func (t *Trainer) Steps() int { return t.opt.Steps }

// Parameters is the number of the model's parameters, also of those that other
// ranks have.
func (t *Trainer) Parameters() (n int) {
	if at := t.par.place(); at.pipeline == nil && at.expert == nil && at.tensor == nil {
		return nn.Count(t.model)
	}
	if err := t.Config.outline(func(whole *Trainer) error { n = whole.Parameters(); return nil }); err != nil {
		panic("train: " + err.Error()) // the device has no limit, and a part of the model is there
	}
	return n
}

// Memory is where the trainer's memory comes from.
func (t *Trainer) Memory() *alloc.Allocator { return t.mem }

// Step runs one step on a batch: for each of the configuration's Fields an
// array, []float32 or []int32, as NewBatch makes them. When it fails, the model
// is that of before and all else that it took is given back.
func (t *Trainer) Step(batch ...any) (Result, error) {
	if err := t.check(batch); err != nil {
		return Result{}, err
	}
	if t.Strategy.StateAway && t.outside == nil {
		return Result{}, fmt.Errorf("strategy %q keeps the optimizer's state outside the device: UseStore must say where", t.Config.Describe(t.Strategy))
	}
	r := Result{Step: t.opt.Steps + 1, Rate: t.Config.Schedule.At(t.opt.Steps + 1)}
	for i, b := range t.buffers() {
		b.Download(device.BytesOf(t.before[i]))
	}
	var err error
	r.Events, err = t.climbDown(func(s Strategy) error { return t.attempt(s, batch, r) })
	if err != nil {
		return Result{}, fmt.Errorf("step %d (%s): %w", r.Step, t.Config.Describe(t.Strategy), err)
	}
	if r.Loss, err = t.meanLoss(); err != nil {
		return Result{}, err
	}
	r.GradNorm = float64(t.norm[0])
	t.judgePrecision(&r)
	return r, t.agreeOnTuning()
}

// meanLoss is that of all targets of the batch, of ranks the mean.
func (t *Trainer) meanLoss() (sum float64, err error) {
	for i, l := range t.losses {
		sum += float64(l) * float64(t.counts[i%len(t.counts)]) / float64(t.counted)
	}
	sum /= float64(len(t.stages))
	if t.par == nil {
		return sum, nil
	}
	loss := []float32{float32(sum)}
	err = t.par.agree(dist.Mean, loss...)
	return t.par.pipe.loss(float64(loss[0])), err
}

// attempt runs the step with strategy s. When it fails, the model is that of
// before.
func (t *Trainer) attempt(s Strategy, batch []any, r Result) error {
	if err := errors.Join(t.par.attempt(), t.mem.Step()); err != nil {
		return err
	}
	t.rt.SetSeed(t.Config.Seed*0x9e3779b97f4a7c15 + uint64(r.Step) + t.par.seed()) // so that dropout knows of no step before
	t.rt.Lost()                                                                    // what a step lost that failed otherwise
	t.now = s
	steps := t.opt.Steps
	err := t.rt.Try(func() {
		defer t.par.join()
		var losses []*tensor.Tensor
		t.par.together(t.Strict, func() error {
			losses = t.gradients(s, batch)
			return t.rt.Lost()
		})
		t.rt.Range("optimizer", func() { t.update(r.Rate) })
		for i, loss := range losses { // only now, since the host waits for them
			if t.losses[i] = 0; loss != nil {
				loss.Download(device.BytesOf(t.losses[i : i+1]))
				loss.Release()
			}
		}
	})
	nn.ZeroGrad(t.model)
	t.par.zeroGrad()
	t.outside.zeroGrad()
	if err == nil {
		err = errors.Join(t.rt.Sync(), t.outside.sync())
	}
	if err != nil || t.mixed() && !finite(float64(t.norm[0])) {
		t.opt.Steps = steps
	}
	if err = t.par.failure(err); err != nil {
		t.par.clear()
		return errors.Join(err, t.restoreBuffers())
	}
	return nil
}

// restoreBuffers undoes what the forward pass of a failed step has moved.
func (t *Trainer) restoreBuffers() error {
	for i, b := range t.buffers() {
		b.Upload(device.BytesOf(t.before[i]))
	}
	return t.rt.Sync()
}

// check compares a batch with the fields.
func (t *Trainer) check(batch []any) error {
	if len(batch) != len(t.fields) {
		return fmt.Errorf("a batch of %d arrays: it needs %d", len(batch), len(t.fields))
	}
	for i, f := range t.fields {
		if n, want := arrayLen(batch[i]), t.Config.Batch*f.len(); n != want {
			return fmt.Errorf("a batch has %d %s: it needs %d", n, f.Name, want)
		}
		if err := f.check(batch[i]); err != nil {
			return err
		}
	}
	return nil
}

// check looks for values that the model would take for others' memory.
func (f Field) check(array any) error {
	numbers, whole := array.([]int32)
	if whole != (f.Below > 0) {
		return fmt.Errorf("%s are %T: want float32 for what has no limit, int32 for what has one", f.Name, array)
	}
	for i, v := range numbers {
		if uint32(v) >= uint32(f.Below) && !(f.target && v == nn.IgnoreTarget) {
			return fmt.Errorf("%s %d at %d is not below %d", strings.TrimSuffix(f.Name, "s"), v, i, f.Below)
		}
	}
	return nil
}

// gradients adds up the gradients of the batch, a micro-batch at a time, and
// gives their losses.
func (t *Trainer) gradients(s Strategy, batch []any) []*tensor.Tensor {
	t.divide(batch, t.Config.Batch/s.MicroBatch)
	micros := len(t.counts)
	if t.par.pipeline() != nil {
		return t.flow(s.Values, batch, 0, micros, micros)
	}
	losses := make([]*tensor.Tensor, micros)
	for i := range losses {
		if s.Values == nil {
			losses[i] = t.microBatch(batch, i)
			continue
		}
		t.rt.Follow(s.Values, func() { losses[i] = t.microBatch(batch, i) })
	}
	return losses
}

// microBatch adds the gradients of the i-th micro-batch, and gives its loss.
func (t *Trainer) microBatch(batch []any, i int) (loss *tensor.Tensor) {
	t.outside.begin(i, i == len(t.losses)-1)
	t.par.reading("step", func() {
		t.par.begin(0, i == len(t.losses)-1)
		in := t.upload(batch, i, t.Config.Batch/len(t.losses), nil)
		loss = t.forward(t.model, in)
		loss.Backward(t.weight(i))
		release(in) // only now: recompute in backward needs some of them again
		t.par.end(0)
	})
	return loss
}

// divide makes a batch so many micro-batches, and counts the targets of each that
// are not to be left out: so much of the batch's loss is the micro-batch's, which is
// a mean itself. Where all count, the parts are equal. Each of the stages that this
// trainer has gives a loss for each micro-batch.
func (t *Trainer) divide(batch []any, micros int) {
	t.losses, t.counts, t.counted = t.losses[:micros*len(t.stages)], make([]int, micros), 0
	targets := batch[len(batch)-1].([]int32)
	for i := range t.counts {
		for _, v := range targets[i*len(targets)/micros : (i+1)*len(targets)/micros] {
			if v != nn.IgnoreTarget {
				t.counts[i]++
			}
		}
		t.counted += t.counts[i]
	}
	t.counted = max(t.counted, 1)
	t.par.expect()
}

// weight is what the i-th micro-batch's gradients are multiplied with.
func (t *Trainer) weight(i int) float32 {
	return t.precision.Seed() * float32(t.counts[i]) / float32(t.counted)
}

// Record computes the gradients of a batch as Step does, without an update,
// and records the last micro-batch; begun is told of its operations.
func (t *Trainer) Record(begun func(op int), batch ...any) (r *tensor.Record, err error) {
	if err := t.check(batch); err != nil {
		return nil, err
	}
	t.now = t.Strategy
	t.divide(batch, t.Config.Batch/t.Strategy.MicroBatch)
	micros := len(t.counts)
	for i, b := range t.buffers() {
		b.Download(device.BytesOf(t.before[i]))
	}
	err = t.rt.Try(func() {
		defer t.par.join()
		last := micros - 1
		for i := range last {
			release(t.oneMicroBatch(batch, i))
		}
		r = t.rt.Record(begun, func() { release(t.oneMicroBatch(batch, last)) })
	})
	nn.ZeroGrad(t.model)
	t.par.zeroGrad()
	t.outside.zeroGrad()
	return r, errors.Join(err, t.restoreBuffers())
}

// Observe tells o of all ranges of steps from now on, as tensor.Runtime.Observe does.
func (t *Trainer) Observe(o tensor.Observer) { t.rt.Observe(o) }

// oneMicroBatch is microBatch, on all stages that this trainer has.
func (t *Trainer) oneMicroBatch(batch []any, i int) []*tensor.Tensor {
	if t.par.pipeline() != nil {
		return t.flow(nil, batch, i, i+1, len(t.losses)/len(t.stages))
	}
	return []*tensor.Tensor{t.microBatch(batch, i)}
}

// forward gives the loss of a micro-batch: the place for all that holds in the
// forward pass alone.
func (t *Trainer) forward(m model, in []*tensor.Tensor) (loss *tensor.Tensor) {
	t.rt.Range("forward", func() { t.casting(func() { loss = m.loss(in) }) })
	return loss
}

// upload copies the i-th micro-batch of arrays, of m samples, to the device; x, if
// not nil, is there in the place of the first.
func (t *Trainer) upload(arrays []any, i, m int, x *tensor.Tensor) []*tensor.Tensor {
	var in []*tensor.Tensor
	for k, f := range t.fields {
		if k == 0 && x != nil {
			in = append(in, x)
			continue
		}
		shape := append([]int{m}, f.Shape...)
		from, to := i*m*f.len(), (i+1)*m*f.len()
		if f.Below == 0 {
			x := t.rt.Empty(tensor.Float32, trace.Input, shape...)
			x.Upload(device.BytesOf(arrays[k].([]float32)[from:to]))
			in = append(in, x)
			continue
		}
		x := t.rt.Empty(tensor.Int32, trace.Input, shape...)
		x.Upload(device.BytesOf(f.strided(arrays[k].([]int32)[from:to])))
		in = append(in, x)
	}
	return in
}

// strided makes numbers within samples count through the micro-batch.
func (f Field) strided(numbers []int32) []int32 {
	if f.stride == 0 {
		return numbers
	}
	numbers = slices.Clone(numbers)
	for i := range numbers {
		numbers[i] += int32(i / f.len() * f.stride)
	}
	return numbers
}

func release(ts []*tensor.Tensor) {
	for _, x := range ts {
		if x != nil {
			x.Release()
		}
	}
}

// update clips and applies the gradients, where the optimizer's state is; in
// mixed precision not where they overflowed.
func (t *Trainer) update(rate float64) {
	scale, norm := t.clip()
	defer scale.Release()
	defer norm.Release()
	if t.mixed() {
		nothing := tensor.Sub(norm, norm) // not a number where the norm is not finite
		defer nothing.Release()
		tensor.AddInPlace(scale, nothing)
	}
	t.opt.Step(rate, scale)
	norm.Download(device.BytesOf(t.norm))
	t.par.gather()
	t.outside.bring()
}

// clip gives the norm of the gradients that are updated with, and their factor.
func (t *Trainer) clip() (scale, norm *tensor.Tensor) {
	params := t.model.Parameters()
	if t.outside != nil {
		return t.precision.ClipGradNorm(t.outside.gather(), t.Config.Clip)
	}
	t.par.ready()
	return t.precision.Clip(t.Config.Clip, func(limit float32) (scale, norm *tensor.Tensor) { return t.par.clip(params, limit) })
}

// Close frees the model and reports what was left.
func (t *Trainer) Close() error {
	t.outside.release()
	nn.Release(t.model.Module)
	t.opt.Release()
	return t.abandon(nil)
}
