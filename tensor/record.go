package tensor

import (
	"cmp"
	"math"
	"slices"
)

// Record is what a planner needs to know of a program: its operations, the
// values that wait between them and the other memory that lives meanwhile, as
// it ran on this runtime's device. Operations are known by their place in Ops.
//
//	memory during an operation ≤ Start + its Workspace
//	    + Σ Bytes of the values that are there + Σ Bytes of Others made, held or freed
type Record struct {
	Ops    []RecordedOp    // forward in the order of the program, then backward as it came
	Values []RecordedValue // the results that can wait under a Schedule
	Others []RecordedOther // memory that lives for more than one operation
	Start  int64           // bytes that were live before

	Recipes []RecordedRecipe // the results that a Schedule may hold; not among Values

	rt     *Runtime
	base   int64               // bytes now of all but Values
	most   []int64             // of base during each operation
	events []memoryEvent       // of the operation in progress
	alive  map[*storage]int    // memory that no Schedule moves: the operation that made it
	begun  func(operation int) // told of every operation before it runs

	recipes   map[*node]int    // places in Recipes
	originals map[*storage]int // the same, of results that the program has
}

// RecordedOp is one operation, forward or backward.
type RecordedOp struct {
	Name      string
	Node      int   // number of its Wait in a Schedule
	Back      bool  // it is the backward of Node
	Workspace int64 // bytes that it takes and gives back
	Reads     []int // backward: the values that it reads of those that waited, in order
	Remade    bool  // forward: the result can be made again …
	From      []int // … from these values, in order, and from memory that lives anyway
}

// RecordedValue is the result of an operation.
type RecordedValue struct {
	Op    int   // that made it
	Bytes int64 // of its block
	Freed int   // the operation during which the program let it go
	Saved bool  // somebody reads it in backward
}

// RecordedOther is memory that no Schedule moves.
type RecordedOther struct {
	Bytes       int64
	Made, Freed int // operations; Freed is len(Ops) for what is left at the end
}

// RecordedRecipe is a result that is made again for those who save it, unless a Schedule
// holds it: then its memory stays from Freed, where it would go, to Last.
type RecordedRecipe struct {
	Op    int    // that made it …
	Node  uint64 // … and its number, as a Range of its recipe has it
	Bytes int64  // of its block
	Freed int    // the operation during which the program let it go
	Last  int    // the operation that has it made again last
}

type memoryEvent struct {
	st    *storage
	bytes int64 // taken; less than 0: given back
}

// Record runs f, which computes one result and its gradients, and tells what
// it did. Values wait as without a Schedule. begun, if not nil, is told the
// number of every operation before it runs.
func (rt *Runtime) Record(begun func(op int), f func()) *Record {
	r := &Record{rt: rt, begun: begun, Start: int64(rt.mem.Stats().Live), alive: map[*storage]int{},
		recipes: map[*node]int{}, originals: map[*storage]int{}}
	defer func(w *waiting) { rt.waiting = w }(rt.waiting)
	rt.waiting = &waiting{record: r}
	f()
	r.finish()
	return r
}

// heldThroughout is the Wait of a value that is kept for all reads.
func heldThroughout(op string) *Wait { return &Wait{Op: op, Reads: []int{math.MaxInt}} }

// forward enters the operation of a new node.
func (r *Record) forward(n *node, number int) *Wait {
	n.op = r.enter(RecordedOp{Name: n.name, Node: number})
	return heldThroughout(n.name)
}

// backward enters the backward of n.
func (r *Record) backward(n *node) {
	r.enter(RecordedOp{Name: n.name, Node: r.Ops[n.op].Node, Back: true})
}

func (r *Record) enter(op RecordedOp) int {
	r.settle()
	at := len(r.Ops)
	r.Ops = append(r.Ops, op)
	if r.begun != nil {
		r.begun(at)
	}
	return at
}

// settle ends the operation in progress: only now it is known which of the
// memory taken is a value's.
func (r *Record) settle() {
	now := len(r.Ops) - 1
	most := r.base
	for _, e := range r.events {
		if _, other := r.alive[e.st]; e.st.home != nil && !other {
			continue
		}
		r.base += e.bytes
		most = max(most, r.base)
		if e.bytes > 0 {
			r.alive[e.st] = max(now, 0)
		} else if made, ok := r.alive[e.st]; ok {
			delete(r.alive, e.st)
			if made < now {
				r.Others = append(r.Others, RecordedOther{-e.bytes, made, now})
			}
		}
	}
	r.events = r.events[:0]
	if now >= 0 {
		r.most = append(r.most, most)
	}
}

// finish enters what is left, and finds the workspaces.
func (r *Record) finish() {
	r.settle()
	for st, made := range r.alive {
		r.Others = append(r.Others, RecordedOther{st.bytes(), made, len(r.Ops)})
	}
	for _, i := range r.originals {
		r.Recipes[i].Freed = len(r.Ops) - 1
	}
	slices.SortFunc(r.Others, func(a, b RecordedOther) int {
		return cmp.Or(cmp.Compare(a.Made, b.Made), cmp.Compare(a.Freed, b.Freed), cmp.Compare(a.Bytes, b.Bytes))
	})
	others := make([]int64, len(r.Ops)+2)
	for _, o := range r.Others {
		others[o.Made] += o.Bytes
		others[o.Freed+1] -= o.Bytes
	}
	sum := int64(0)
	for i := range r.Ops {
		sum += others[i]
		r.Ops[i].Workspace = max(0, r.most[i]-sum)
	}
	r.alive, r.events, r.most, r.recipes, r.originals = nil, nil, nil, nil, nil
}

// took enters memory that st takes (bytes > 0) or gives back.
func (r *Record) took(st *storage, bytes int64) {
	r.events = append(r.events, memoryEvent{st, bytes})
}

// value enters the result of n.
func (r *Record) value(n *node, out *Tensor) int {
	r.Values = append(r.Values, RecordedValue{Op: n.op, Bytes: out.st.bytes(), Freed: n.op})
	return len(r.Values) - 1
}

// dropped enters that a handle on st has ended.
func (r *Record) dropped(st *storage) {
	if st.refs == 0 {
		r.took(st, -st.bytes())
	}
	if i, ok := r.originals[st]; ok && st.refs == 0 {
		r.Recipes[i].Freed = len(r.Ops) - 1
		delete(r.originals, st)
	}
	if h := st.home; h != nil && !h.asked && (st.refs == 0 || st.refs == 1 && h.value != nil) {
		r.Values[h.number].Freed = len(r.Ops) - 1 // the program holds it no longer
	}
}

// read enters that the operation in progress reads h's value.
func (r *Record) read(h *home) {
	op := &r.Ops[len(r.Ops)-1]
	op.Reads = append(op.Reads, h.number)
	h.asked = true
}

// kept enters that the operation in progress finds st where backward has kept it
// since the last operation that read it as a value: since then no Schedule moves it.
func (r *Record) kept(st *storage) {
	if _, known := r.alive[st]; known || st.home == nil || !st.home.asked {
		return
	}
	since := len(r.Ops)
	for !slices.Contains(r.Ops[since-1].Reads, st.home.number) {
		since--
	}
	r.alive[st] = since
	r.base += st.bytes()
	for i := range r.most[since:] {
		r.most[since+i] += st.bytes()
	}
}

// recipe enters that t is kept by its recipe. What all devices make together is
// theirs to make in one order. A nil r does nothing.
func (r *Record) recipe(t *Tensor) {
	if r == nil || t.node.wait == nil || t.node.joint() {
		return
	}
	if _, known := r.recipes[t.node]; !known {
		r.recipes[t.node], r.originals[t.st] = len(r.Recipes), len(r.Recipes)
		r.Recipes = append(r.Recipes, RecordedRecipe{Op: t.node.op, Node: t.node.number, Bytes: t.st.bytes()})
	}
}

// madeAgain enters that n's recipe runs. A nil r does nothing.
func (r *Record) madeAgain(n *node) {
	if r == nil {
		return
	}
	if i, known := r.recipes[n]; known {
		r.Recipes[i].Last = len(r.Ops) - 1
	}
}

// remake enters what n's result can be made again from.
func (r *Record) remake(n *node, inputs []*Tensor) {
	op := &r.Ops[n.op]
	op.Remade = true
	for _, t := range inputs {
		if t != nil {
			op.From = append(op.From, sourcesOf(t)...)
		}
	}
}

// sourcesOf lists the values that are read where t is saved and asked for.
func sourcesOf(t *Tensor) []int {
	if t.rt.byRecipe(t) {
		return t.node.sources()
	}
	if h := t.st.home; h != nil {
		return []int{h.number}
	}
	return nil
}

// sources lists the values that n's recipe reads.
func (n *node) sources() (values []int) {
	for _, s := range n.saved {
		switch {
		case s.recipe != nil:
			values = append(values, s.recipe.sources()...)
		case s.home != nil:
			values = append(values, s.home.number)
		}
	}
	return values
}
