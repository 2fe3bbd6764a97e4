package tensor

// Gradients of weights that are put off.
//
// Backward through a product y = x·W gives two products of the same size: that of
// x's gradient, for which all operations before it wait, and that of W's, for which
// only the update does. BackwardDeferring does the first alone and keeps for the
// second what it reads: x, as a handle on the value or on what it was made again to,
// and y's gradient. Everything else goes with backward, as ever. The leaf W counts
// such a product as one more operation that reads it, so that its gradient is
// complete when the last one is done.
//
// Qi et al., "Zero Bubble Pipeline Parallelism" (2024), call the two parts B and W.

// Deferred is the products that a BackwardDeferring has put off.
type Deferred struct {
	rt    *Runtime
	parts []deferred
}

// deferred is one of them.
type deferred struct {
	n    *node // that put it off; what it saved is gone
	to   *slot // of a leaf
	x, g *Tensor
	add  func(to *slot, x, g *Tensor)
}

// BackwardDeferring is Backward that puts off the products which give gradients of
// weights of Linear. Run, or a Try that fails, ends what it keeps for them.
func BackwardDeferring(results, gradients []*Tensor) *Deferred {
	rt := results[0].rt
	d := &Deferred{rt: rt}
	defer func() { rt.deferred = nil }()
	rt.deferred = d
	Backward(results, gradients)
	return d
}

// Run adds what was put off to the gradients, in the order of backward, and frees
// what each product needed behind it.
func (d *Deferred) Run() {
	d.rt.Range("weights", func() {
		for _, p := range d.parts {
			p.run()
		}
	})
	d.parts = nil
}

// weightGrad adds to the gradient of input i what add makes of x, a handle that it
// takes over, and the result's gradient: now, or later where backward is to put it off.
func (n *node) weightGrad(i int, x, g *Tensor, add func(to *slot, x, g *Tensor)) {
	e, later := n.inputs[i], g.rt.deferred
	if later == nil || e.node != nil {
		add(e.to, x, g)
		x.Release()
		return
	}
	g = g.Detach()
	x.held, g.held = true, true
	e.to.uses++
	g.node = &node{refs: 1, inputs: []edge{e}} // reads the leaf until g goes, with a Rewind at the latest
	later.parts = append(later.parts, deferred{n, e.to, x, g, add})
}

func (p deferred) run() {
	rt := p.g.rt
	if w := rt.waiting; w != nil {
		w.stepBack(p.n)
	}
	if r := rt.recorder(); r != nil {
		r.kept(p.x.st)
	}
	open := rt.begin(Range{Kind: OpBackward, Name: p.n.name, Node: p.n.number})
	p.add(p.to, p.x, p.g)
	releaseAll(p.x, p.g)
	rt.endRanges(open)
	edge{to: p.to}.complete()
}
