package tensor

// Saver decides how values that backward needs are kept. It is asked for
// every value that an operation saves while it is in force, except for
// parameters, which live anyway, and for values that are kept by their recipe.
type Saver interface {
	// Pack takes charge of t until Drop. It may Retain t, or let it go and
	// find it again by other means.
	Pack(t *Tensor) Packed
}

// Packed is one value in a Saver's charge.
type Packed interface {
	// Unpack gives a new handle on the value: the same shape, strides and
	// bits. It may be called several times.
	Unpack() *Tensor
	// Drop says that nobody will ask again.
	Drop()
}

// saved is a value that a node keeps for backward. Exactly one of its four
// forms is set.
type saved struct {
	plain   *Tensor  // a handle of our own, with no past
	packed  Packed   // in a Saver's charge
	recipe  *node    // makes the value again
	home    *home    // where it waits under a Schedule …
	weak    bool     // … asked only where something else is made again
	own     bool     // … which is the result of the operation that saved it
	view    *Tensor  // … seen so: shape, strides and offset of a handle that is no more
	st      *storage // that the value was in when it was saved,
	version int      // … at this version
	by      string   // the operation that saved it
}

// save keeps t for n's backward.
func (n *node) save(t *Tensor) *saved {
	s := &saved{by: n.name, st: t.st, version: t.st.version}
	rt, mark := t.rt, t.rt.Mark()
	switch {
	case rt.byRecipe(t):
		s.recipe = t.node
		s.recipe.refs++
		s.recipe.shared.enter()
		rt.recorder().recipe(t)
	case rt.saver == nil && t.st.home != nil:
		n.saveHome(s, t)
	case rt.saver != nil && !t.st.persistent:
		s.packed = rt.saver.Pack(t)
	default:
		s.plain = t.Detach()
	}
	rt.hold(mark)
	n.saved = append(n.saved, s)
	return s
}

// saveResult keeps y, n's own result, for n's backward.
func (n *node) saveResult(y *Tensor) *saved {
	n.owns(y)
	return n.save(y)
}

// byRecipe says whether t is kept by its recipe: where it has one, and is not held.
func (rt *Runtime) byRecipe(t *Tensor) bool {
	return rt.hasRecipe(t) && !(t.node.held && rt.saver == nil)
}

// hasRecipe says whether t can be kept by a recipe. The input of a checkpoint
// can't, since the second run gets it without a past.
func (rt *Runtime) hasRecipe(t *Tensor) bool {
	if t.node == nil || t.node.again == nil {
		return false
	}
	c, in := rt.saver.(*checkpoint)
	return !in || c.source != t.node
}

// get gives a new handle on the value.
func (s *saved) get() *Tensor {
	if s.recipe == nil && s.packed == nil && s.home == nil && s.plain == nil {
		fail("backward through %s a second time: what it saved is gone", s.by)
	}
	if s.packed == nil && s.st.version != s.version {
		fail("a value that %s saved for backward was changed in place: it is at version %d, was saved at %d", s.by, s.st.version, s.version)
	}
	switch {
	case s.recipe != nil:
		return s.recipe.makeAgain()
	case s.packed != nil:
		return s.packed.Unpack()
	case s.home != nil:
		return s.atHome()
	}
	return s.plain.Detach()
}

// makeAgain runs n's recipe.
func (n *node) makeAgain() *Tensor {
	rt := n.result.rt
	defer rt.endRanges(rt.begin(Range{Kind: Recipe, Name: n.name, Node: n.number}))
	rt.recorder().madeAgain(n)
	return n.again()
}

// take is get followed by drop: for the last use, so that the caller may be
// the only owner. A backward that keeps the graph does not drop.
func (s *saved) take() *Tensor {
	t := s.get()
	if !t.rt.retain {
		s.drop()
	}
	return t
}

// drop gives the value up. It may be called again.
func (s *saved) drop() {
	switch {
	case s.recipe != nil:
		s.recipe.shared.leave()
		s.recipe.unref()
	case s.packed != nil:
		s.packed.Drop()
	case s.home != nil:
		s.leaveHome()
	case s.plain != nil:
		s.plain.drop()
	}
	s.plain, s.packed, s.recipe, s.home = nil, nil, nil, nil
}
