package train

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Trainer holds a model and its optimizer on a device and runs steps. It is
// used from one goroutine at a time.
type Trainer struct {
	Config   Config
	Strategy Strategy

	rt    *tensor.Runtime
	mem   *alloc.Allocator
	model *nn.GPT2
	opt   *nn.AdamW

	losses []float32 // of the step's micro-batches, filled by the device
	norm   []float32
}

// Result is what one step gave.
type Result struct {
	Step     int
	Loss     float64 // mean over the batch, before the update
	GradNorm float64 // before clipping
	Rate     float64 // learning rate
}

// New makes a trainer whose memory comes from dev. On an error, all that was
// taken is given back.
func New(dev device.Device, c Config, s Strategy) (*Trainer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if s.MicroBatch < 1 || c.Batch%s.MicroBatch != 0 || s.Recompute < 0 || s.Recompute > c.GPT2.Layers {
		return nil, fmt.Errorf("strategy %+v does not fit a batch of %d and %d blocks", s, c.Batch, c.GPT2.Layers)
	}
	mem, err := alloc.New(dev, alloc.Options{StackDepth: stackDepth})
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	t := &Trainer{Config: c, Strategy: s, mem: mem, rt: tensor.New(mem, stream),
		losses: make([]float32, c.Batch/s.MicroBatch), norm: make([]float32, 1)}
	if err := t.rt.Try(t.build); err != nil {
		return nil, fmt.Errorf("model %s does not fit %s: %w", c.Model, dev.Info().Name, t.abandon(err))
	}
	return t, nil
}

func (t *Trainer) build() {
	defer t.mem.SetSink(nil, 0) // stacks are recorded for what lives as long as the run
	t.model = nn.NewGPT2(t.rt, t.Config.GPT2, t.Config.Seed)
	t.model.Around = t.around
	t.opt = nn.NewAdamW(t.model.Parameters(), t.Config.AdamW)
}

// around recomputes the blocks that the strategy says.
func (t *Trainer) around(i int, x *tensor.Tensor, block func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if i < t.Strategy.Recompute {
		return tensor.Checkpoint(x, block)
	}
	return block(x)
}

// abandon frees everything after the model could not be built.
func (t *Trainer) abandon(cause error) error {
	return errors.Join(cause, t.rt.Sync(), t.mem.Close(), t.rt.Stream().Close())
}

// Steps is the number of steps done.
func (t *Trainer) Steps() int { return t.opt.Steps }

// Memory is where the trainer's memory comes from.
func (t *Trainer) Memory() *alloc.Allocator { return t.mem }

// Step runs one step on a batch of tokens and their targets, each of
// Batch·Seq numbers in [0, vocabulary). When it fails, the weights are those
// of before and all else that it took is given back.
func (t *Trainer) Step(tokens, targets []int32) (Result, error) {
	if err := t.check(tokens, targets); err != nil {
		return Result{}, err
	}
	r := Result{Step: t.opt.Steps + 1, Rate: t.Config.Schedule.At(t.opt.Steps + 1)}
	err := t.rt.Try(func() {
		t.gradients(tokens, targets)
		t.rt.Range("optimizer", func() { t.update(r.Rate) })
	})
	nn.ZeroGrad(t.model)
	if err == nil {
		err = t.rt.Sync()
	}
	if err != nil {
		return Result{}, fmt.Errorf("step %d (%s): %w", r.Step, t.Config.Describe(t.Strategy), err)
	}
	for _, l := range t.losses {
		r.Loss += float64(l) / float64(len(t.losses))
	}
	r.GradNorm = float64(t.norm[0])
	return r, nil
}

func (t *Trainer) check(tokens, targets []int32) error {
	want := t.Config.Batch * t.Config.Seq
	if len(tokens) != want || len(targets) != want {
		return fmt.Errorf("a batch has %d tokens and %d targets: it needs %d of each", len(tokens), len(targets), want)
	}
	for i := range tokens {
		if v := t.Config.GPT2.Vocab; uint32(tokens[i]) >= uint32(v) || uint32(targets[i]) >= uint32(v) {
			return fmt.Errorf("token %d or its target %d at %d is outside the vocabulary of %d", tokens[i], targets[i], i, v)
		}
	}
	return nil
}

// gradients adds up the gradients of the batch, a micro-batch at a time.
func (t *Trainer) gradients(tokens, targets []int32) {
	n := t.Strategy.MicroBatch * t.Config.Seq
	for i := range t.losses {
		x, y := t.input(tokens[i*n:(i+1)*n]), t.input(targets[i*n:(i+1)*n])
		var loss *tensor.Tensor
		t.rt.Range("forward", func() { loss = t.model.Loss(x, y) })
		x.Release()
		y.Release()
		loss.Download(device.BytesOf(t.losses[i : i+1]))
		loss.Backward(1 / float32(len(t.losses)))
		loss.Release()
	}
}

func (t *Trainer) input(tokens []int32) *tensor.Tensor {
	x := t.rt.Empty(tensor.Int32, trace.Input, t.Strategy.MicroBatch, t.Config.Seq)
	x.Upload(device.BytesOf(tokens))
	return x
}

// update clips and applies the gradients.
func (t *Trainer) update(rate float64) {
	scale, norm := nn.ClipGradNorm(t.model.Parameters(), t.Config.Clip)
	norm.Download(device.BytesOf(t.norm))
	t.opt.Step(rate, scale)
	scale.Release()
	norm.Release()
}

// Close frees the model and reports what was left.
func (t *Trainer) Close() error {
	nn.Release(t.model)
	t.opt.Release()
	return t.abandon(nil)
}
