package tensor

import (
	"container/heap"
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// slot is where the gradient of one value is collected.
type slot struct {
	rt      *Runtime
	dtype   DType
	shape   []int
	purpose trace.Purpose
	grad    *Tensor // dense; nil until the first contribution

	// Of leaves alone, that a Twin or the program looks after.
	uses   int    // operations not ended yet that read the leaf
	before func() // called before each contribution; may set grad
	after  func() // called in backward when no contribution is left to come
}

func (s *slot) clear() {
	if s.grad != nil {
		s.grad.Release() // which sets grad to nil
	}
}

// set makes g, a handle that the slot takes over, the gradient.
func (s *slot) set(g *Tensor) *Tensor {
	s.grad, g.owner = g, s
	return g
}

// take gives the gradient up to the caller.
func (s *slot) take() *Tensor {
	g := s.grad
	if g != nil {
		s.grad, g.owner = nil, nil
	}
	return g
}

// target is the memory to write a contribution into, and whether to add to
// what is there. Memory that is shared is replaced by a copy first.
func (s *slot) target() (dst *Tensor, accumulate bool) {
	if s.before != nil {
		s.before()
	}
	if s.grad != nil && s.grad.st.refs == 1 {
		return s.grad, true
	}
	old := s.take()
	s.set(s.rt.Empty(s.dtype, s.purpose, s.shape...))
	if old == nil {
		return s.grad, false
	}
	s.rt.stream.Copy(s.grad.ptr().Ptr, old.ptr().Ptr, old.Bytes())
	old.Release()
	return s.grad, true
}

// add contributes g, a dense gradient, taking over the handle. The memory is
// shared where nothing was collected yet, but for leaves, whose gradient is
// their own, and where g is of another type.
func (s *slot) add(g *Tensor) {
	if s.grad == nil && s.purpose != trace.Gradient && g.dtype == s.dtype {
		s.set(g)
		return
	}
	dst, acc := s.target()
	kernel.Scale(s.rt.stream, dst.Len(), dst.ptr(), g.ptr(), 1, acc)
	g.Release()
}

// edge leads from a node to the gradient of one of its inputs.
type edge struct {
	to   *slot // nil where no gradient is wanted
	node *node // nil for leaves
}

// node is one recorded operation.
type node struct {
	name     string
	number   uint64
	refs     int // handles on the result, nodes that use it, recipes
	inputs   []edge
	saved    []*saved
	backward func(g *Tensor) // g is the result's gradient, dense; the caller releases it
	again    func() *Tensor  // makes the result again from saved values; nil if that is dear
	shared   *shared         // what again gives; nil for what each reader makes for itself
	together bool            // again is a collective
	held     bool            // a Schedule says that the result is kept, though it could be made again
	chain    int             // results, each a residual of the next, that again makes; of a batch normalisation
	remade   func() *Tensor  // makes it again under a Schedule; nil where none asks for it
	wait     *Wait           // how the result waits; nil where no Schedule says so
	op       int             // in the Record in the making
	place    int             // among the operations under the Schedule
	weak     bool            // what is saved now is for making the result again, if need be
	result   slot
	queued   bool
}

// node begins the record of an operation that computes with its inputs, which
// must be floating-point (nil ones are left out of account, with an edge that leads
// nowhere). It returns nil if nothing is to be recorded.
func (rt *Runtime) node(name string, inputs ...*Tensor) *node {
	for _, t := range inputs {
		if t != nil && !t.dtype.Float() {
			fail("%s of %v: only floating-point numbers are computed with", name, t)
		}
	}
	return rt.viewNode(name, inputs...)
}

// viewNode is node for operations that move elements of any type.
func (rt *Runtime) viewNode(name string, inputs ...*Tensor) *node {
	need := false
	for _, t := range inputs {
		if t != nil {
			t.use()
			need = need || t.NeedsGrad()
		}
	}
	record := need && !rt.noGrad
	r := Range{Kind: OpForward, Name: name}
	if record {
		rt.nodes++
		r.Node = rt.nodes
	}
	rt.begin(r)
	if !record {
		return nil
	}
	rt.dropUnbound()
	n := &node{name: name, number: rt.nodes, inputs: make([]edge, len(inputs))}
	for i, t := range inputs {
		n.inputs[i] = edgeTo(t)
	}
	rt.unbound = n
	rt.enter(n)
	return n
}

// dropUnbound ends the record of an operation that did not come to its result.
func (rt *Runtime) dropUnbound() {
	if n := rt.unbound; n != nil {
		rt.unbound = nil
		n.end()
	}
}

func edgeTo(t *Tensor) edge {
	switch {
	case t == nil || !t.NeedsGrad():
		return edge{}
	case t.leaf != nil:
		t.leaf.uses++
		return edge{to: t.leaf}
	}
	t.node.refs++
	return edge{&t.node.result, t.node}
}

// bind makes out the result of n, which may be nil, and ends the operation:
// who calls node calls bind.
func (n *node) bind(out *Tensor, backward func(g *Tensor)) *Tensor {
	if rt := out.rt; rt.ranges > 0 {
		rt.endRanges(rt.ranges - 1)
	}
	if n == nil {
		return out
	}
	n.backward = backward
	out.rt.unbound = nil
	n.result = slot{rt: out.rt, dtype: out.dtype, shape: out.shape, purpose: trace.Activation}
	n.owns(out)
	n.refs++
	out.node = n
	return out
}

// wants says whether the gradient of input i is wanted.
func (n *node) wants(i int) bool { return n.inputs[i].to != nil }

// into is where the gradient of input i is to be written, dense, and whether
// to add.
func (n *node) into(i int) (dst *Tensor, accumulate bool) { return n.inputs[i].to.target() }

// over is like into, but lets the kernel write over src, a value of the same
// shape and type that backward is about to release, where that is its last use and
// nothing was collected yet.
func (n *node) over(i int, src *Tensor) (dst *Tensor, accumulate bool) {
	s := n.inputs[i].to
	if s.grad == nil && s.purpose != trace.Gradient && src.st.refs == 1 && src.dense() && src.dtype == s.dtype {
		return s.set(src.view(s.shape, denseStrides(s.shape), src.offset)), false
	}
	return s.target()
}

// pass hands g on as the gradient of input i.
func (n *node) pass(i int, g *Tensor) {
	if s := n.inputs[i].to; s != nil {
		s.add(g.view(s.shape, denseStrides(s.shape), g.offset))
	}
}

// unref ends one hold on n; the last one frees what it saved and its hold on
// its inputs.
func (n *node) unref() {
	if n.refs--; n.refs == 0 {
		n.end()
	}
}

// end frees what n keeps. The record is over: a second end does nothing.
func (n *node) end() {
	for _, s := range n.saved {
		s.drop()
	}
	inputs := n.inputs
	n.saved, n.inputs, n.again, n.remade = nil, nil, nil, nil
	n.result.clear()
	for _, e := range inputs {
		switch {
		case e.node != nil:
			e.node.unref()
		case e.to != nil:
			e.to.uses--
		}
	}
}

// Backward adds seed × the gradient of t, a single element, to the gradient
// of every leaf that t came from. Each operation's saved values are freed as
// soon as it has run, so that a second Backward through it fails.
func (t *Tensor) Backward(seed float32) { t.backward(seed, false) }

// BackwardRetain is Backward that keeps the graph with all that it saved, so
// that another one may follow and gives the same gradients. What a checkpoint
// has computed again stays, too.
func (t *Tensor) BackwardRetain(seed float32) { t.backward(seed, true) }

func (t *Tensor) backward(seed float32, retain bool) {
	t.recorded()
	if t.Len() != 1 {
		fail("Backward from %v: only a single element has a gradient", t)
	}
	t.rt.backward([]*Tensor{t}, retain, func() { t.node.result.add(t.rt.Full(seed, t.shape...)) })
}

// Backward is the method of that name for results of any shape, with the gradient
// of each: dense, of its shape and type, and a handle that Backward takes over. A
// result may be a handle on a past alone (Past).
func Backward(results, gradients []*Tensor) {
	for i, t := range results {
		if g := gradients[i]; !slices.Equal(g.shape, t.shape) || g.dtype != t.dtype || !g.dense() {
			fail("gradient %v of %v", g, t)
		}
		t.recorded()
	}
	results[0].rt.backward(results, false, func() {
		for i, t := range results {
			t.node.result.add(gradients[i])
		}
	})
}

// recorded panics unless an operation made t.
func (t *Tensor) recorded() {
	t.use()
	if t.node == nil {
		fail("Backward from %v, which no recorded operation made", t)
	}
}

// backward runs backward from results, whose gradients begin enters.
func (rt *Runtime) backward(results []*Tensor, retain bool, begin func()) {
	defer rt.outsideAutocast()()
	defer rt.endRanges(rt.begin(Range{Kind: BackwardPass, Name: "backward", From: results[0]}))
	defer func(before bool) { rt.retain = before }(rt.retain)
	rt.retain = retain
	rt.NoGrad(func() {
		rt.WithSaver(nil, func() {
			begin()
			rt.run(results)
		})
	})
}

// run works off the nodes under results, the newest first. Where one panics it lets
// all go that are queued, so that they end, and leaves know of nothing left to come.
func (rt *Runtime) run(results []*Tensor) {
	ready := &nodeHeap{}
	for _, t := range results {
		ready.queue(t.node)
	}
	var now *node
	defer func() {
		if now != nil {
			now.unref()
		}
		for _, n := range *ready {
			n.queued = false
			n.unref()
		}
	}()
	for ready.Len() > 0 {
		now = heap.Pop(ready).(*node)
		now.queued = false
		now.step(ready)
		now.unref()
		now = nil
	}
}

// queue enters n, with a hold on it, so that ending a consumer does not end its
// inputs.
func (h *nodeHeap) queue(n *node) {
	if !n.queued {
		n.queued = true
		n.refs++
		heap.Push(h, n)
	}
}

// step runs n's backward and queues the inputs that got a gradient.
func (n *node) step(ready *nodeHeap) {
	if n.backward == nil {
		fail("backward through %s a second time: what it saved is gone", n.name)
	}
	if w := n.result.rt.waiting; w != nil {
		w.stepBack(n)
	}
	g := n.result.take()
	rt := g.rt
	open := rt.begin(Range{Kind: OpBackward, Name: n.name, Node: n.number})
	n.backward(g)
	g.Release()
	rt.endRanges(open)
	for _, e := range n.inputs {
		if e.node != nil {
			ready.queue(e.node)
		}
	}
	if !rt.retain {
		n.backward = nil
		inputs := n.inputs
		n.end()
		for i, e := range inputs {
			if slices.IndexFunc(inputs, func(o edge) bool { return o.to == e.to }) == i { // once, also where it is read twice
				e.complete()
			}
		}
	}
}

// complete tells a leaf that its gradient is, where e was the last to add to it.
func (e edge) complete() {
	if s := e.to; e.node == nil && s != nil && s.uses == 0 && s.grad != nil && s.after != nil {
		s.after()
	}
}

// nodeHeap gives the node with the highest number first.
type nodeHeap []*node

func (h nodeHeap) Len() int           { return len(h) }
func (h nodeHeap) Less(i, j int) bool { return h[i].number > h[j].number }
func (h nodeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nodeHeap) Push(x any)        { *h = append(*h, x.(*node)) }
func (h *nodeHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}
