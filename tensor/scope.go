package tensor

import "slices"

// Scope runs f and releases every handle that f made, but for those that it
// returns, which are the caller's, as if f had released them itself: what
// backward needs of a returned value stays, and so do gradients. Scopes nest;
// a handle that an inner one returns is released by the outer one unless that
// returns it, too. If f panics, the handles are left to Try.
func (rt *Runtime) Scope(f func() []*Tensor) []*Tensor {
	mark := rt.Mark()
	kept := f()
	var made []*Tensor
	for t := rt.handles.prev; t.serial > uint64(mark); t = t.prev {
		if !t.held && t.owner == nil && !slices.Contains(kept, t) {
			made = append(made, t)
		}
	}
	for _, t := range made {
		t.drop()
	}
	return kept
}

// hold makes the handles since m, which a graph or its Saver keeps, none of
// the program's: no Scope releases them.
func (rt *Runtime) hold(m Mark) {
	for t := rt.handles.prev; t.serial > uint64(m); t = t.prev {
		t.held = true
	}
}
