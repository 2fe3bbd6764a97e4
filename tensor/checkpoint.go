package tensor

import "slices"

// Checkpoint runs f on x and keeps, of all that backward needs, only x: the
// first saved value that backward asks for runs f again, which finds all of
// them. f must compute the same operations from x and from parameters alone
// both times. Checkpoints may be nested.
//
// The method is Chen et al., "Training Deep Nets with Sublinear Memory Cost"
// (2016). The second run makes the same random choices as the first, and
// leaves running statistics alone. As in PyTorch's non-reentrant form, the graph of the first run
// stays; the second run only refills the saved values and stops as soon as
// the last one is there, so that what follows it (in a transformer block, the
// last matrix product) is not computed again.
func Checkpoint(x *Tensor, f func(*Tensor) *Tensor) *Tensor {
	rt := x.rt
	if rt.noGrad {
		return f(x)
	}
	c := &checkpoint{rt: rt, f: f, draws: rt.draws, seed: rt.seed, needsGrad: x.NeedsGrad(), source: x.node}
	c.input = (&node{name: "checkpoint"}).save(x)
	var y *Tensor
	rt.WithSaver(c, func() { y = f(x) })
	c.whole = true
	if c.held == 0 {
		c.input.drop()
	}
	return y
}

// checkpoint is the Saver of one Checkpoint: in the first run it counts the
// values, in the second it keeps them.
type checkpoint struct {
	rt        *Runtime
	f         func(*Tensor) *Tensor
	input     *saved
	needsGrad bool
	seed      uint64 // of the random choices, with those made before
	draws     uint64
	source    *node // of the input in the first run
	values    []remade
	held      int  // values not dropped yet
	whole     bool // the first run is over
	again     int  // values found by the second run so far
}

// remade is a saved value of a checkpoint: known by its shape until the
// second run, and held from then until its Drop.
type remade struct {
	shape   []int
	value   *Tensor
	dropped bool
}

// holder is the Packed of the i-th value.
type holder struct {
	c *checkpoint
	i int
}

func (c *checkpoint) Pack(t *Tensor) Packed {
	if c.whole {
		fail("checkpoint: a value %v was saved after its function had returned", t)
	}
	c.values = append(c.values, remade{shape: t.shape})
	c.held++
	return &holder{c, len(c.values) - 1}
}

func (h *holder) Unpack() *Tensor {
	v := &h.c.values[h.i]
	if v.value == nil {
		h.c.run()
	}
	return v.value.Detach()
}

func (h *holder) Drop() {
	v := &h.c.values[h.i]
	if v.dropped {
		return
	}
	v.dropped = true
	if v.value != nil {
		v.value.drop()
		v.value = nil
	}
	if h.c.held--; h.c.held == 0 && h.c.whole {
		h.c.input.drop()
	}
}

// enough is what the second run panics with when it has found all values.
type enough struct{ c *checkpoint }

// run is the second run.
func (c *checkpoint) run() {
	rt := c.rt
	defer rt.endRanges(rt.begin(Range{Kind: SecondRun, Name: "second run"}))
	x := c.input.take()
	if c.needsGrad {
		x.RequireGrad()
	}
	mark := rt.Mark()
	defer rt.setMode(rt.noGrad, rt.saver)
	rt.setMode(false, (*refill)(c))
	defer func(rerun bool, seed, draws uint64) { rt.rerun, rt.seed, rt.draws = rerun, seed, draws }(rt.rerun, rt.seed, rt.draws)
	rt.rerun, rt.seed, rt.draws = true, c.seed, c.draws
	c.again = 0
	if y := c.untilEnough(x); y != nil {
		fail("checkpoint: the second run of the function saved %d values, the first %d", c.again, len(c.values))
	}
	c.keepOnly(mark)
	x.Release()
}

// keepOnly releases what the second run made since m, but for the values.
func (c *checkpoint) keepOnly(m Mark) {
	for _, v := range c.values {
		if v.value != nil {
			v.value.unlink()
		}
	}
	c.rt.Rewind(m)
	for _, v := range c.values {
		if v.value != nil {
			c.rt.link(v.value)
			v.value.held = true
		}
	}
}

// untilEnough runs f and returns nil when it was stopped.
func (c *checkpoint) untilEnough(x *Tensor) (y *Tensor) {
	open := c.rt.ranges
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(enough); !ok || e.c != c {
				panic(r)
			}
			c.rt.endRanges(open)
			c.rt.dropUnbound()
		}
	}()
	return c.f(x)
}

// refill is the Saver of the second run.
type refill checkpoint

func (r *refill) Pack(t *Tensor) Packed {
	v := &r.values[r.again]
	if !slices.Equal(v.shape, t.shape) {
		fail("checkpoint: the second run of the function saved %v as value %d, the first a value of shape %v", t, r.again, v.shape)
	}
	if !v.dropped {
		v.value = t.Detach()
	}
	if r.again++; r.again == len(r.values) {
		panic(enough{(*checkpoint)(r)})
	}
	return gone{}
}

// gone is the Packed of a value in a graph that will not run backward.
type gone struct{}

func (gone) Unpack() *Tensor { panic("tensor: backward through the second run of a checkpoint") }
func (gone) Drop()           {}
