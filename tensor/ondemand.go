package tensor

import "github.com/headroom-go/headroom/trace"

// Parameters that have memory only while they are read: of which each of several
// devices keeps a part, and gets the others' when it needs them. All handles on such
// a parameter, also those that wait for backward, stay what they are.

// OnDemand takes t's memory away, a parameter's. From now on use is called before
// each access to it, and must see to it that there is some (Occupy). It is not to go
// (Vacate) before the operation that reads it is queued: an operation reads four
// parameters at most.
func (t *Tensor) OnDemand(use func()) {
	if !t.st.persistent || !t.dense() {
		fail("%v on demand: want a whole parameter", t)
	}
	t.Vacate()
	t.st.use = use
}

// Occupied says whether t, a parameter on demand, has memory.
func (t *Tensor) Occupied() bool { return t.st.block != nil }

// Occupy gives t, a parameter on demand without memory, some with undefined content.
func (t *Tensor) Occupy() {
	t.st.block = t.rt.block(int(t.Bytes()), trace.Parameter)
	if r := t.rt.recorder(); r != nil {
		r.took(t.st, t.st.bytes())
	}
}

// Vacate frees t's memory for what is queued from now on.
func (t *Tensor) Vacate() {
	if r := t.rt.recorder(); r != nil {
		r.took(t.st, -t.st.bytes())
	}
	t.st.block.Free()
	t.st.block = nil
}

// Version counts the changes in place of t's memory.
func (t *Tensor) Version() int { return t.st.version }
