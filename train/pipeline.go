package train

import (
	"cmp"
	"fmt"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// How a step goes through a pipeline.
//
// A rank along pipeline has consecutive layers (nn/stage.go), or several chunks of
// them, and computes every micro-batch of its place's samples: from what the stage
// before gave, forward, and from the gradient of what it gave itself, backward, as
// the schedule says. Both are sent and received on a stream of their own, so that
// the next computation doesn't wait for a message, and what has arrived waits for
// its computation. A result is let go when the message after it is sent; backward
// needs its past alone.
//
// The loss is the sum of what the stages add to it, which for all but the last is
// their part of the balance of experts.

// stages is a trainer's side of a pipeline.
type stages struct {
	pipeline // of the step in progress
	group    dist.Group
	tied     dist.Group // the first and the last rank, of one of them
	rt       *tensor.Runtime
	stream   device.Stream // of messages
	message  message

	sent    *tensor.Tensor // the last one, which may be on its way
	arrival device.Event   // of that
}

// newStages begins a trainer's side of the pipeline along g; nil for no pipeline.
func newStages(dev device.Device, g dist.Group, s Schedule, chunks int) (p *stages, err error) {
	if g == nil {
		return nil, nil
	}
	p = &stages{group: g, pipeline: pipeline{schedule: s, ranks: g.Size(), chunks: chunks}}
	if last := g.Size() - 1; g.Rank() == 0 || g.Rank() == last {
		if p.tied, err = g.Sub("tied", 0, last); err != nil {
			return nil, err
		}
	}
	p.stream, err = dev.NewStream()
	return p, err
}

// chunks is how many each rank has.
func (p Parallel) chunks() int {
	if p.Mesh.Pipeline > 1 && p.Schedule == Interleaved {
		return cmp.Or(p.Chunks, 2)
	}
	return 1
}

// Check says if a model of c, which splits along p's mesh, can't be cut for p's
// schedule.
func (p Parallel) Check(c Config) error {
	if p.Schedule > ZeroBubble || p.Chunks < 0 || p.Chunks > 1 && p.Schedule != Interleaved {
		return fmt.Errorf("schedule %d with %d chunks: only interleaved stages have several", p.Schedule, p.Chunks)
	}
	if p.chunks() == 1 {
		return nil
	}
	if n := p.chunks(); n > c.Blocks()/p.Mesh.Pipeline {
		return fmt.Errorf("model %s has %d blocks, which can't be %d × %d chunks: let fewer ranks have each a part of the layers, or each fewer chunks", c.Model, c.Blocks(), p.Mesh.Pipeline, n)
	}
	return nil
}

// pipeline is the rank's side of one, nil where it has all layers.
func (l *parallel) pipeline() *stages {
	if l == nil {
		return nil
	}
	return l.pipe
}

// build makes the models that a rank has, each some layers of the whole.
func (p *stages) build(b *nn.Builder, one func() model) (chunks []model) {
	if p == nil {
		return []model{one()}
	}
	for chunk := range p.chunks {
		b.Split.Stage, b.Split.Stages = p.stage(p.group.Rank(), chunk), p.depth()
		chunks = append(chunks, one())
	}
	return chunks
}

// loss is that of a step, of which mean is the mean over what ranks and chunks add.
func (p *stages) loss(mean float64) float64 {
	if p == nil {
		return mean
	}
	return mean * float64(p.depth())
}

// joined are the chunks of a rank as one.
type joined []model

func (j joined) Parameters() (all []*nn.Parameter) {
	for _, m := range j {
		all = append(all, m.Parameters()...)
	}
	return all
}

// flight is a micro-batch on its way through a chunk.
type flight struct {
	in       []*tensor.Tensor // the fields; of a later stage what arrived in the place of the first
	arrived  device.Event     // what the next computation needs; nil for what needs nothing
	results  []*tensor.Tensor // where backward begins: the loss, or the pasts of result and loss
	gradient *tensor.Tensor   // of the result
	out      *tensor.Tensor   // to be sent: a result, or the gradient of what arrived
	later    *tensor.Deferred // what backward has put off
}

// voyage is micro-batches from first up to but not including last of a step that
// has more of them.
type voyage struct {
	t       *Trainer
	batch   []any
	first   int
	micros  int // of the whole step
	flights map[action]*flight
	follow  []func(func()) // by micro-batch from first on
	losses  []*tensor.Tensor
}

// flow adds the gradients of micro-batches from first up to but not including last,
// and gives the losses of all chunks' micro-batches; nil for one that adds nothing.
func (t *Trainer) flow(s *tensor.Schedule, batch []any, first, last, micros int) []*tensor.Tensor {
	p := t.par.pipe
	p.pipeline.micro = last - first
	p.message = t.message(t.Config.Batch / micros)
	v := &voyage{t: t, batch: batch, first: first, micros: micros, flights: map[action]*flight{}, losses: make([]*tensor.Tensor, p.chunks*micros)}
	for range last - first {
		part, end := func(f func()) { f() }, func() {}
		if s != nil {
			part, end = t.rt.Following(s)
		}
		defer end()
		v.follow = append(v.follow, part)
	}
	for _, a := range p.program(p.group.Rank()) {
		v.do(a)
	}
	p.settle()
	return v.losses
}

// message is what goes from stage to stage.
type message struct {
	shape []int
	dtype tensor.DType
}

// message is that of so many samples: of ranks along tensor, of which each sends its
// tokens, and all alike.
func (t *Trainer) message(samples int) message {
	d := tensor.Float32
	if t.mixed() {
		d = t.precision.Type
	}
	return message{[]int{samples, t.Config.Seq / max(t.par.Mesh.Tensor, 1), t.stages[0].width}, d}
}

// do is one action.
func (v *voyage) do(a action) {
	key := action{chunk: a.chunk, micro: a.micro}
	if v.flights[key] == nil {
		v.flights[key] = &flight{}
	}
	f, p := v.flights[key], v.t.par.pipe
	switch {
	case a.do == send:
		p.send(f.out, a)
		f.out = nil
	case a.do == receive:
		x := p.receive(a)
		if f.arrived = p.stream.Record(); a.phase == backward {
			f.gradient = x
		} else {
			f.in = []*tensor.Tensor{x}
		}
	default:
		if f.arrived != nil {
			v.t.rt.Stream().Wait(f.arrived)
			f.arrived = nil
		}
		v.follow[a.micro](func() {
			switch a.phase {
			case forward:
				v.forward(f, a)
			case backward:
				v.backward(f, a)
			case weights:
				v.weights(f, a)
			}
		})
	}
}

// forward computes the chunk's result, or its loss.
func (v *voyage) forward(f *flight, a action) {
	t, m := v.t, v.t.stages[a.chunk]
	var x, y, loss *tensor.Tensor
	if f.in != nil {
		x = f.in[0].RequireGrad()
	}
	f.in = t.upload(v.batch, v.first+a.micro, t.Config.Batch/v.micros, x)
	if t.par.pipe.ends(a) {
		loss = t.forward(m, f.in)
	} else {
		t.rt.Range("forward", func() { t.casting(func() { y, loss = m.through(f.in) }) })
		f.out, f.results = y, []*tensor.Tensor{y.Past()}
	}
	if loss != nil {
		f.results = append(f.results, loss.Past())
	}
	v.losses[a.chunk*v.micros+v.first+a.micro] = loss
}

// backward adds the chunk's gradients; those of what arrived are to be sent.
func (v *voyage) backward(f *flight, a action) {
	t := v.t
	t.par.reading(fmt.Sprintf("step, chunk %d", a.chunk), func() {
		t.par.during(a, v.last(a), func() {
			v.gradients(f, a)
			release(f.results)
			if g := f.in[0].Grad(); g != nil {
				f.out = g.Retain()
				f.in[0].ZeroGrad() // the value may wait for gradients of weights
			}
			release(f.in) // only now: recompute in backward needs some of them again
		})
	})
}

// gradients runs backward, of which it may put some off.
func (v *voyage) gradients(f *flight, a action) {
	var gradients []*tensor.Tensor
	if f.gradient != nil {
		gradients = append(gradients, f.gradient)
	}
	if len(gradients) < len(f.results) {
		gradients = append(gradients, v.t.rt.Full(v.t.weight(v.first+a.micro), f.results[len(gradients)].Shape()...))
	}
	if v.t.par.pipe.defers() {
		f.later = tensor.BackwardDeferring(f.results, gradients)
	} else {
		tensor.Backward(f.results, gradients)
	}
}

// weights adds the gradients that backward has put off.
func (v *voyage) weights(f *flight, a action) { v.t.par.during(a, v.last(a), f.later.Run) }

// last says whether a is of the step's last micro-batch.
func (v *voyage) last(a action) bool { return v.first+a.micro == v.micros-1 }

// during reduces gradients that a pass completes. One that puts some off leaves the
// reduction of all to that which makes up for it.
func (l *parallel) during(a action, last bool, pass func()) {
	if a.phase == backward && l.pipe.defers() {
		pass()
		return
	}
	l.begin(a.chunk, last)
	pass()
	l.end(a.chunk)
}

// defers says whether this rank's backward passes put gradients of weights off.
func (p *stages) defers() bool { return p.splits(p.group.Rank()) }

// ends says whether a is of the last stage.
func (p *stages) ends(a action) bool {
	return p == nil || p.stage(p.group.Rank(), a.chunk) == p.depth()-1
}

// to is the rank that needs a's result.
func (p *stages) to(a action) int {
	next, _, _ := p.follower(p.group.Rank(), a)
	return next
}

// from is the rank that gives what a needs.
func (p *stages) from(a action) int { return p.sender(p.group.Rank(), a) }

// send queues sending x, which it releases once what is computed comes after that.
func (p *stages) send(x *tensor.Tensor, a action) {
	p.settle()
	p.stream.Wait(p.rt.Stream().Record())
	dist.Send(p.group, p.stream, p.to(a), buf(x))
	p.sent, p.arrival = x, p.stream.Record()
}

// settle makes what is computed from now on come after the message in progress.
func (p *stages) settle() {
	if p.sent != nil {
		p.rt.Stream().Wait(p.arrival)
		p.sent.Release()
		p.sent = nil
	}
}

// receive queues receiving what a needs.
func (p *stages) receive(a action) *tensor.Tensor {
	x := p.rt.Empty(p.message.dtype, trace.Activation, p.message.shape...)
	p.stream.Wait(p.rt.Stream().Record())
	dist.Receive(p.group, p.stream, p.from(a), buf(x))
	return x
}

// join ends what a step has queued, also one that failed.
func (p *stages) join() {
	if p != nil {
		p.sent = nil
		p.rt.Stream().Wait(p.stream.Record())
	}
}

// clear makes the messages' stream ready for the next attempt.
func (p *stages) clear() {
	if p != nil {
		p.stream.Clear()
	}
}

// close ends the messages' stream.
func (p *stages) close() error {
	if p == nil {
		return nil
	}
	return p.stream.Close()
}

// sumTied adds up the gradients that the first and the last stage have of what both
// have.
func (l *parallel) sumTied() {
	if l.pipe == nil || l.pipe.tied == nil {
		return
	}
	for _, c := range l.pieces {
		if c.param.Tied {
			l.pipe.tied.AllReduce(l.rt.Stream(), dist.Sum, buf(l.mine(c).Grad()))
		}
	}
}

// rate gives what the model's score follows from, or nil where another stage has it.
func (t *Trainer) rate(arrays []any) (y *tensor.Tensor) {
	p, micro := t.par.pipeline(), t.Strategy.MicroBatch
	if p != nil {
		p.message = t.message(micro)
		defer p.settle()
	}
	for chunk, m := range t.stages {
		a := action{chunk: chunk}
		in := t.upload(arrays, 0, micro, p.arrived(a))
		if p.ends(a) {
			t.casting(func() { y = m.rate(in) })
		} else {
			p.send(t.through(m, in), a)
		}
		release(in)
	}
	return y
}

// through gives a stage's result alone.
func (t *Trainer) through(m model, in []*tensor.Tensor) (y *tensor.Tensor) {
	t.casting(func() {
		var loss *tensor.Tensor
		if y, loss = m.through(in); loss != nil {
			loss.Release()
		}
	})
	return y
}

// arrived waits for what a needs; nil of the first stage.
func (p *stages) arrived(a action) *tensor.Tensor {
	if p == nil || p.stage(p.group.Rank(), a.chunk) == 0 {
		return nil
	}
	x := p.receive(a)
	p.rt.Stream().Wait(p.stream.Record())
	return x
}
