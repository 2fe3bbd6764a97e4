package train

import (
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// How a training is spread over ranks.
//
// Every rank has the whole model, or on a Mesh its split of it, and computes its
// place's part of the batch; the gradients of a step are the mean over the places,
// which is what one device would have with as many micro-batches. The replicas of a
// parameter, between which its gradient is reduced, are the ranks along data and
// expert, and those of an expert's parameter the ranks along data alone: the
// tokens of all places along expert have come to it, so that its gradient is their
// sum already. Along tensor boxes are different, and what all have whole gets the
// same gradient on each, but for what reads a rank's tokens alone (Partial): its
// gradients are added up at the end of a step. Between replicas gradients are reduced
// where they lie, some at a time (a bucket), on a stream of their own, as soon
// as backward has completed them in the last micro-batch, while it goes on.
//
// Of what a rank needs beside the model, it may have only its part
// (Rajbhandari et al., "ZeRO", 2020). Every parameter is cut, so that each rank
// has an equal part of it:
//
//	ShardNothing    all-reduce; every rank updates everything
//	ShardState      reduce-scatter; each rank updates its part, for which alone
//	                it keeps the optimizer's state; all-gather of the weights
//	ShardGradients  the same, and of the gradients of a bucket only the part is
//	                kept; they are reduced after every micro-batch
//	ShardParameters the same, and of the weights, too (on_demand.go)
//
// Buckets are the same on all ranks and are reduced in the same order, that of
// the parameters from the last to the first (of chunks of layers in a pipeline, that in
// which these compute), also where a rank completes them
// in another one or gets no gradient for some (an expert without tokens). A
// parameter without a gradient on any rank is left as it is, as on one device.
//
// A rank whose memory runs out can't try again alone, as the others wait for what it
// computes. It abandons the attempt on all ranks (dist.Group), whatever these are at,
// and all go a rung down together. Before the update, which changes the model, all
// ranks agree that none has abandoned the attempt, and behind that none does. Any other
// failure of a rank fails the job, and so does a lack of memory in the update.
//
// Ranks along tensor come to the same collectives in the same order, as they run
// the same operations on values of the same sizes, where their micro-batches and
// the blocks that they recompute are the same, which they make sure of. Values that
// they keep, make again or move away each by its own plan are none that takes a
// collective to make.

// Shard says of what each rank keeps only a part.
type Shard uint8

// What is sharded. ShardState, ShardGradients and ShardParameters are stages 1, 2
// and 3 of ZeRO.
const (
	ShardNothing Shard = iota
	ShardState
	ShardGradients
	ShardParameters
)

// Parallel spreads a run over the ranks of a group.
type Parallel struct {
	Group dist.Group
	Mesh  Mesh
	Shard Shard

	// Bucket is how many bytes of gradients are reduced together, and of weights
	// gathered, at least; 0 stands for 16 MiB, or a 16th of the model if that is less.
	Bucket uint64

	Schedule Schedule // of the ranks along pipeline
	Chunks   int      // of layers that each of these has, of Interleaved; 0: 2
}

// Share is the configuration of a part of c: of its batch, what one of so many
// places computes (Mesh.Places; without a mesh every rank is one). Trainer.Job is
// the reverse.
func (c Config) Share(places int) (Config, error) {
	if places > 1 && !c.Divisible() {
		return c, fmt.Errorf("model %s normalises over the whole batch: it can't be shared by %d ranks", c.Model, places)
	}
	if places < 1 || c.Batch%places != 0 {
		return c, fmt.Errorf("a batch of %d can't be shared by %d ranks: it must be a multiple of that", c.Batch, places)
	}
	c.Batch /= places
	return c, nil
}

// parallel is a trainer's side of a Parallel. The methods of a nil one do what
// a rank alone does.
type parallel struct {
	Parallel
	at     place
	rt     *tensor.Runtime
	stream device.Stream // of collectives during backward
	pipe   *stages       // nil: the rank has all layers
	pieces []*cut        // of each parameter, in the order of reduction
	sparse bool          // not every parameter gets a gradient
	lender *lender       // of whole parameters; nil where this rank has them
	cuts   map[*tensor.Tensor]*cut

	buckets [][][]*cut // of each chunk of layers
	left    [][]*cut   // to be reduced in this pass
	open    bool       // buckets are reduced as they are complete
	pending pending
}

// cut is a parameter and this rank's part of it.
type cut struct {
	param  *nn.Parameter
	group  dist.Group    // its replicas
	part   *nn.Parameter // may have no elements; nil where nothing is sharded
	lo, hi int
	done   bool // its gradient is complete in this micro-batch
	had    bool // it got one in this step, on this rank

	over    device.Event // of the gathering of its whole; nil when that is over
	version int          // of the whole when it was gathered
}

// pending is a bucket that is being reduced.
type pending struct {
	bucket []*cut
	parts  []*tensor.Tensor // of the gradients, under ShardGradients
	over   device.Event     // nil for no bucket
}

// newParallel begins a trainer's side of p; nil for one alone.
func newParallel(dev device.Device, p Parallel) (*parallel, error) {
	if p.Group == nil {
		return nil, nil
	}
	at, err := newPlace(p.Group, p.Mesh)
	if err != nil {
		return nil, err
	}
	l := &parallel{Parallel: p, at: at, cuts: map[*tensor.Tensor]*cut{}}
	if l.stream, err = dev.NewStream(); err == nil {
		l.pipe, err = newStages(dev, at.pipeline, p.Schedule, p.chunks())
	}
	return l, err
}

// place is the rank's place in the mesh.
func (l *parallel) place() place {
	if l == nil {
		return place{}
	}
	return l.at
}

// replicas are the ranks that have a parameter, too, and other samples.
func (l *parallel) replicas(p *nn.Parameter) dist.Group {
	if p.Expert {
		return l.at.data
	}
	return l.at.replicas
}

// once says whether this is the one of the ranks along tensor that a parameter
// which all of them have counts on; a box counts on each. What the first and the
// last stage have counts on the first.
func (l *parallel) once(p *nn.Parameter) bool {
	if p.Tied && l.at.pipeline.Rank() > 0 {
		return false
	}
	return l.at.tensor == nil || l.at.tensor.Rank() == 0 || p.Whole != nil
}

// first says whether no rank before this one has the parameter.
func (l *parallel) first(p *nn.Parameter) bool {
	return l == nil || l.replicas(p).Rank() == 0 && l.once(p)
}

// take cuts the parameters of a model's chunks, and puts them into buckets. sparse
// says that some may be without a gradient.
func (l *parallel) take(rt *tensor.Runtime, chunks []model, sparse bool) {
	if l == nil {
		return
	}
	if l.rt, l.sparse = rt, sparse; l.pipe != nil {
		l.pipe.rt = rt
	}
	if l.Bucket == 0 {
		l.Bucket = min(16<<20, 4*uint64(nn.Count(joined(chunks)))/16)
	}
	names := map[*tensor.Tensor]*nn.Parameter{} // the first of each
	for _, p := range joined(chunks).Parameters() {
		if names[p.Tensor] == nil {
			names[p.Tensor] = p
		}
	}
	l.buckets = make([][][]*cut, len(chunks))
	for i, m := range slices.Backward(chunks) {
		l.buckets[i] = l.fill(m, names)
	}
}

// fill puts the parameters of a chunk, the last first, into buckets, and takes them out
// of names.
func (l *parallel) fill(m model, names map[*tensor.Tensor]*nn.Parameter) (buckets [][]*cut) {
	size := uint64(0)
	for _, p := range slices.Backward(m.Parameters()) {
		if p = names[p.Tensor]; p == nil {
			continue
		}
		delete(names, p.Tensor)
		c := l.cuts[p.Tensor]
		if c == nil {
			c = l.slice(p)
		}
		if l.pieces = append(l.pieces, c); size == 0 {
			buckets = append(buckets, nil)
		}
		last := len(buckets) - 1
		buckets[last] = append(buckets[last], c)
		if size += p.Bytes(); size >= l.Bucket {
			size = 0
		}
	}
	return buckets
}

// slice cuts a parameter.
func (l *parallel) slice(p *nn.Parameter) *cut {
	c := &cut{param: p, group: l.replicas(p)}
	c.lo, c.hi = dist.Part(p.Len(), c.group.Size(), c.group.Rank())
	_, room := dist.Part(p.Len(), c.group.Size(), 0) // all ranks take what the first one needs, so that their plans are the same
	switch {
	case l.Shard == ShardNothing:
	case l.Shard == ShardParameters && c.group.Size() > 1:
		c.part = &nn.Parameter{Name: p.Name, Tensor: l.rt.ParameterPart(c.hi-c.lo, room)}
	default:
		c.part = &nn.Parameter{Name: p.Name, Tensor: p.Part(c.lo, c.hi, room)}
	}
	p.OnGradient(func() { l.complete(c) })
	return c
}

// updated are the parameters, or parts of them, that this rank updates, of all.
func (l *parallel) updated(all []*nn.Parameter) []*nn.Parameter {
	if l == nil || l.Shard == ShardNothing {
		return all
	}
	var parts []*nn.Parameter
	for i := len(l.pieces) - 1; i >= 0; i-- {
		if part := l.pieces[i].part; part != nil {
			parts = append(parts, part)
		}
	}
	return parts
}

// decays is nn.DecaysMatrices, of parts too.
func (l *parallel) decays() func(p *nn.Parameter) bool {
	if l == nil {
		return nn.DecaysMatrices
	}
	matrix := map[string]bool{}
	for _, c := range l.pieces {
		matrix[c.param.Name] = nn.DecaysMatrices(c.param)
	}
	return func(p *nn.Parameter) bool { return matrix[p.Name] }
}

// expect begins the micro-batches of a step.
func (l *parallel) expect() {
	if l == nil {
		return
	}
	l.left, l.open = nil, false
	for _, c := range l.pieces {
		c.had = false
	}
}

// begin is called before a micro-batch, in a pipeline before the last of its passes
// through a chunk of the rank's layers.
func (l *parallel) begin(chunk int, last bool) {
	if l == nil || !last && l.Shard < ShardGradients {
		return
	}
	l.open, l.left = true, l.buckets[chunk]
	for _, b := range l.left {
		for _, c := range b {
			c.done = l.pipe != nil && !c.param.Awaited()
		}
	}
}

// complete is called when backward has completed a parameter's gradient.
func (l *parallel) complete(c *cut) {
	if !l.open {
		return
	}
	c.done = true
	for len(l.left) > 0 && whole(l.left[0]) {
		l.reduce()
	}
}

func whole(bucket []*cut) bool {
	for _, c := range bucket {
		if !c.done {
			return false
		}
	}
	return true
}

// end is called after the backward pass that begin was called for: what is left is
// reduced. What comes after that waits for it where it may add to the same gradients,
// or is the update.
func (l *parallel) end(chunk int) {
	if l == nil || !l.open {
		return
	}
	for len(l.left) > 0 {
		l.reduce()
	}
	if chunk == 0 || l.Shard >= ShardGradients {
		l.settle()
	}
	l.open = false
}

// reduce queues the next bucket. Under ShardGradients the gradients of the one
// before are freed first, so that those of two buckets live at most.
func (l *parallel) reduce() {
	bucket := l.left[0]
	l.left = l.left[1:]
	if l.Shard >= ShardGradients {
		l.settle()
	}
	now := pending{bucket: bucket}
	whole, part := bufs{}, bufs{}
	for _, c := range bucket {
		c.had = c.had || c.param.Grad() != nil
		c.param.NeedGrad()
		if c.param.Expert && l.at.expert != nil { // the mean over data is over too few places
			c.param.ScaleGrad(1 / float32(l.at.expert.Size()))
		}
		g := buf(c.param.Grad())
		p := g.Range(c.lo, c.hi)
		if l.Shard >= ShardGradients {
			t := c.part.EmptyGrad()
			now.parts = append(now.parts, t)
			p = buf(t)
		}
		whole[c.group], part[c.group] = append(whole[c.group], g), append(part[c.group], p)
	}
	l.stream.Wait(l.rt.Stream().Record())
	l.eachGroup(func(g dist.Group) {
		switch {
		case len(whole[g]) == 0:
		case l.Shard == ShardNothing:
			g.AllReduce(l.stream, dist.Mean, whole[g]...)
		default:
			g.ReduceScatter(l.stream, dist.Mean, part[g], whole[g])
		}
	})
	now.over = l.stream.Record()
	l.pending = now
}

// bufs are those of parameters, by their replicas.
type bufs map[dist.Group][]dist.Buf

// eachGroup calls f for the replicas of parameters, and for those of experts where
// they are others.
func (l *parallel) eachGroup(f func(g dist.Group)) {
	if f(l.at.replicas); l.at.expert != nil {
		f(l.at.data)
	}
}

// attempt begins a step, or the next try of one, on all ranks.
func (l *parallel) attempt() error {
	if l == nil {
		return nil
	}
	return l.Group.Attempt()
}

// together runs what a step computes before it changes anything, and fails with what
// that has lost. It comes to an end on all ranks or on none: one whose memory runs out,
// or which loses a value, abandons the attempt for all, unless it is strict.
func (l *parallel) together(strict bool, f func() (lost error)) {
	if l != nil {
		defer l.abandon(strict)
	}
	err := f()
	if err == nil {
		err = l.arrive()
	}
	if err != nil {
		tensor.Fail(err)
	}
}

// arrive waits until all ranks have computed what comes before, behind which none
// abandons the attempt.
func (l *parallel) arrive() error {
	if l == nil {
		return nil
	}
	if err := l.rt.Sync(); err != nil {
		return err
	}
	return l.Group.Barrier()
}

// abandon ends the attempt on all ranks where this one, which is failing, can try again.
func (l *parallel) abandon(strict bool) {
	r := recover()
	if r == nil {
		return
	}
	err := tensor.Failure(r)
	if !strict && (errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, tensor.ErrLost)) {
		l.Group.Abandon(err) // before Try waits for what is queued
	}
	panic(r)
}

// abandoned says whether err is that of an attempt which was abandoned.
func abandoned(err error) bool {
	var known *dist.Error
	return errors.As(err, &known) && known.Abandoned
}

// clear makes a rank ready for the next attempt after one that was abandoned.
func (l *parallel) clear() {
	if l == nil || !abandoned(l.Group.Err()) {
		return
	}
	l.rt.Stream().Clear()
	l.stream.Clear()
	l.pipe.clear()
	l.lender.forget()
}

// settle makes what is queued from now on come after the bucket in progress,
// and keeps of its gradients what is to be kept.
func (l *parallel) settle() {
	p := l.pending
	if p.over == nil {
		return
	}
	l.pending = pending{}
	l.rt.Stream().Wait(p.over) // and so for all buckets before it
	for i, t := range p.parts {
		c := p.bucket[i]
		c.param.ZeroGrad()
		c.part.SetGrad(t)
	}
}

// join ends what a step has queued, also one that failed: then the handles are
// gone.
func (l *parallel) join() {
	if l == nil {
		return
	}
	l.rt.Stream().Wait(l.stream.Record())
	l.pipe.join()
	l.open, l.pending = false, pending{}
	l.lender.clear()
}

// ready gives what this rank updates its gradients, after taking those away
// that no rank had.
func (l *parallel) ready() {
	if l == nil {
		return
	}
	l.dropUnused()
	for _, c := range l.pieces {
		if g := c.param.Grad(); l.Shard == ShardState && g != nil {
			c.part.SetGrad(g.Part(c.lo, c.hi, 0))
		}
	}
	l.sumPartial()
	l.sumTied()
}

// mine is what this rank has of c's gradient when all are reduced.
func (l *parallel) mine(c *cut) *nn.Parameter {
	if l.Shard > ShardNothing {
		return c.part
	}
	return c.param
}

// sumPartial adds up the gradients of what each rank along tensor has one of its own
// tokens of.
func (l *parallel) sumPartial() {
	var grads []dist.Buf
	for _, c := range l.pieces {
		if c.param.Partial {
			grads = append(grads, buf(l.mine(c).Grad()))
		}
	}
	if len(grads) > 0 {
		l.at.tensor.AllReduce(l.rt.Stream(), dist.Sum, grads...)
	}
}

// dropUnused takes zeros away that stand for the gradient of a parameter which
// had none on any of its replicas.
func (l *parallel) dropUnused() {
	if !l.sparse || !l.rt.Holds() {
		return
	}
	l.eachGroup(func(g dist.Group) {
		had := make([]float32, len(l.pieces))
		for i, c := range l.pieces {
			if c.had {
				had[i] = 1
			}
		}
		if l.agreeIn(g, dist.Max, had...) != nil { // the group keeps the error
			return
		}
		for i, c := range l.pieces {
			if had[i] > 0 || c.group != g {
				continue
			}
			if c.param.ZeroGrad(); c.part != nil {
				c.part.ZeroGrad()
			}
		}
	})
}

// zeroGrad frees the gradients of parts.
func (l *parallel) zeroGrad() {
	if l == nil {
		return
	}
	for _, c := range l.pieces {
		if c.part != nil {
			c.part.ZeroGrad()
		}
	}
}

// clip is ClipScale of the gradients of what this rank updates; the norm is that
// of all, of which every element counts once.
func (l *parallel) clip(params []*nn.Parameter, limit float32) (scale, norm *tensor.Tensor) {
	if l == nil || l.Shard == ShardNothing && l.at.replicas == l.Group {
		return nn.ClipGradNorm(params, limit)
	}
	var grads []*tensor.Tensor
	for _, c := range slices.Backward(l.pieces) {
		p := c.part
		if l.Shard == ShardNothing && c.group.Rank() == 0 {
			p = c.param
		}
		if p != nil && p.Len() > 0 && p.Grad() != nil && l.once(c.param) {
			grads = append(grads, p.Grad())
		}
	}
	return l.rt.ClipScaleAcross(grads, limit, func(squares *tensor.Tensor) {
		l.Group.AllReduce(l.rt.Stream(), dist.Sum, buf(squares))
	})
}

// gather gives all ranks the weights that each has updated.
func (l *parallel) gather() {
	if l == nil || l.Shard == ShardNothing || l.Shard == ShardParameters {
		return
	}
	whole, part := bufs{}, bufs{}
	for _, c := range l.pieces {
		w := buf(c.param.Tensor)
		whole[c.group], part[c.group] = append(whole[c.group], w), append(part[c.group], w.Range(c.lo, c.hi))
	}
	l.eachGroup(func(g dist.Group) {
		if len(whole[g]) > 0 {
			g.AllGather(l.rt.Stream(), whole[g], part[g])
		}
	})
}

// agree combines values, which all ranks have, across them.
func (l *parallel) agree(op dist.Op, values ...float32) error {
	if l == nil {
		return nil
	}
	return l.agreeIn(l.Group, op, values...)
}

// agreeIn is agree among the ranks of a group.
func (l *parallel) agreeIn(g dist.Group, op dist.Op, values ...float32) error {
	err := l.rt.Try(func() {
		t := l.rt.Empty(tensor.Float32, trace.Workspace, len(values))
		defer t.Release()
		t.Upload(device.BytesOf(values))
		g.AllReduce(l.rt.Stream(), op, buf(t))
		t.Download(device.BytesOf(values))
	})
	return l.failure(errors.Join(err, l.rt.Sync()))
}

// failure is what the job failed with, or the attempt was abandoned with; where there
// is nothing, err fails the job.
func (l *parallel) failure(err error) error {
	if l == nil {
		return err
	}
	if known := l.Group.Err(); known != nil {
		return known
	}
	return l.fail(err)
}

// fail fails the job with err, if that is not nil, and gives what it failed with.
func (l *parallel) fail(err error) error {
	if l == nil || err == nil {
		return err
	}
	l.Group.Fail(err)
	if failed := l.Group.Err(); failed != nil {
		return failed
	}
	return err
}

// seed tells the random choices of places apart; those of the first are a lone
// trainer's. Ranks along tensor draw the same; a layer that has only its part of the
// tokens, or of the heads, must tell its choices apart itself.
func (l *parallel) seed() uint64 {
	if l == nil {
		return 0
	}
	seed := uint64(l.at.replicas.Rank()) << 32
	if l.pipe != nil {
		seed |= uint64(l.pipe.group.Rank()) << 48
	}
	return seed
}

// forget gives up the parts of a model that could not be built.
func (l *parallel) forget() {
	if l != nil {
		l.pieces = nil
	}
}

// close ends the collectives' stream and the parts.
func (l *parallel) close() error {
	if l == nil {
		return nil
	}
	for _, c := range l.pieces {
		if c.part != nil {
			c.part.Release()
		}
	}
	return errors.Join(l.stream.Close(), l.pipe.close())
}

// buf is a dense tensor's memory.
func buf(t *tensor.Tensor) dist.Buf { return dist.Buf{Ptr: t.Ptr(), Len: t.Len(), Type: t.DType()} }
