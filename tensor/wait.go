package tensor

import (
	"fmt"
	"math"
	"slices"

	"github.com/headroom-go/headroom/internal/invariant"
)

// How values wait for backward.
//
// Between the operation that made a value and the backward that reads it lies
// most of a step, and most of its memory. A Schedule says for the result of
// every operation how it passes that time: each copy of it serves so many
// reads, and is let go with the last one.
//
//	Reads [5]      kept until the fifth and last read
//	Reads [0 3 2]  let go at once; made again for the first read and kept for
//	               three; made again for the fourth and kept for two
//
// A copy behind the last in the list is kept until nobody can ask for it.
//
// Results that are cheap to make again have a recipe, by which they are kept without
// a Schedule and under one that says nothing of them. One that is Held is kept as it
// is, like the result of an operation without a recipe.
//
// A value is made again by running its operation on the values that it read
// (node.remake), which may have to be made again first. These reads count like
// those of backward. So a Schedule composes recompute at every grain: single
// values, chosen operations, whole blocks that keep but their input.
//
// A Schedule is a hint about memory. Where the program departs from it, values
// are kept longer or made again more often, and are the same. Only with AwayAs
// are those that come back others, in the bits that were left out.

// Schedule says how the results of a program's operations wait for backward.
type Schedule struct {
	Waits []Wait `json:"waits"` // of the operations that are recorded, in their order

	// Online lets values go besides, when the allocator has no memory left
	// (evict.go).
	Online bool `json:"online,omitempty"`

	// AwayAs is the form in which float32 values wait outside the device.
	AwayAs AwayForm `json:"away_as,omitempty"`
}

// Wait is how the result of one operation waits. A Wait without Reads leaves
// the value to those who save it, as without a Schedule.
type Wait struct {
	Op    string `json:"op"`              // the operation's name; that of another is not followed
	Reads []int  `json:"reads,omitempty"` // that each copy serves, first those of the original after forward
	Held  bool   `json:"held,omitempty"`  // kept, though those who save it would have it made again
	Away  bool   `json:"away,omitempty"`  // later copies are fetched from the Store, not made again
	Fetch []int  `json:"fetch,omitempty"` // for each later copy the number of backward's operation, 0 the first, before which it is fetched

	Seconds float64 `json:"seconds,omitempty"` // that the operation takes, as far as is known
}

// Count is the number of values that s lets go and makes again, of those that wait
// outside the device, and of those that it holds. s may be nil.
func (s *Schedule) Count() (again, away, held int) {
	if s == nil {
		return 0, 0, 0
	}
	for _, w := range s.Waits {
		switch {
		case w.Held:
			held++
		case w.Away:
			away++
		case len(w.Reads) > 1:
			again++
		}
	}
	return again, away, held
}

// Validate says what in s cannot be, if anything: s may come from a file.
func (s *Schedule) Validate() error {
	if s == nil {
		return nil
	}
	if err := s.AwayAs.Validate(); err != nil {
		return err
	}
	for i, w := range s.Waits {
		if err := w.validate(); err != nil {
			return fmt.Errorf("operation %d (%s) %w", i, w.Op, err)
		}
	}
	return nil
}

func (w *Wait) validate() error {
	fetches, later := len(w.Fetch), max(1, len(w.Reads))-1 // copies after the first
	switch {
	case w.Reads != nil && len(w.Reads) == 0, fetches > 0 && !w.Away, fetches > later:
		return fmt.Errorf("has %d copies and fetches %d (away: %v): want a copy at least, and no more fetched than follow the first", len(w.Reads), fetches, w.Away)
	case w.Held && (w.Reads != nil || w.Away):
		return fmt.Errorf("is held, and yet waits otherwise (reads %v, away: %v): want one of them", w.Reads, w.Away)
	case slices.ContainsFunc(slices.Concat(w.Reads, w.Fetch), func(n int) bool { return n < 0 }):
		return fmt.Errorf("has a negative number: reads %v, fetch %v", w.Reads, w.Fetch)
	case !(w.Seconds >= 0):
		return fmt.Errorf("takes %v s", w.Seconds)
	}
	return nil
}

// Follow runs f, which computes one result and its gradients, with values
// waiting as s says.
func (rt *Runtime) Follow(s *Schedule, f func()) {
	part, end := rt.Following(s)
	defer end()
	part(f)
}

// Following is Follow for a computation in several parts, between which others
// run: part runs the next one, and end is called after the last. Until then its
// values may be let go under Online, also while another computation runs.
func (rt *Runtime) Following(s *Schedule) (part func(f func()), end func()) {
	here := &waiting{waits: s.Waits, online: s.Online, form: s.AwayAs, fetches: map[int][]*home{}}
	end = func() {}
	if s.Online {
		end = rt.mem.OnShortage(here.evict)
	}
	return func(f func()) {
		defer func(w *waiting) { rt.waiting = w }(rt.waiting)
		rt.waiting = here
		f()
		rt.endDepartures()
	}, end
}

// waiting is a program that runs under a Schedule or a Record.
type waiting struct {
	waits   []Wait
	online  bool
	form    AwayForm
	record  *Record // nil under a Schedule
	ops     int     // recorded so far
	back    int     // operations that backward has come to
	fetches map[int][]*home

	place     int     // of the operation in progress, among the recorded ones
	evictable []*home // that have had a copy, under Online
}

// enter gives a new node its place in the program, if one runs under a Schedule or a
// Record. Within a Saver and in second runs nodes have none.
func (rt *Runtime) enter(n *node) {
	if w := rt.waiting; w != nil && rt.saver == nil && !rt.rerun {
		w.enter(n)
	}
}

func (w *waiting) enter(n *node) {
	at := w.ops
	w.ops++
	w.place, n.place = at, at
	switch {
	case w.record != nil:
		n.wait = w.record.forward(n, at)
	case at < len(w.waits) && w.waits[at].Op == n.name && w.waits[at].Held:
		n.held = !w.online
	case at < len(w.waits) && w.waits[at].Op == n.name && w.waits[at].Reads != nil:
		n.wait = &w.waits[at]
	case w.online:
		n.wait = heldThroughout(n.name)
	}
}

// stepBack is told of every operation before its backward runs.
func (w *waiting) stepBack(n *node) {
	w.place = n.place
	if w.record != nil {
		w.record.backward(n)
	}
	for _, h := range w.fetches[w.back] {
		if h.readers > 0 {
			h.bring()
		}
	}
	w.back++
}

// fetch enters when h's copies are fetched.
func (w *waiting) fetch(h *home) {
	for _, op := range h.maker.wait.Fetch {
		w.fetches[op] = append(w.fetches[op], h)
	}
}

// recorder is the Record in the making, or nil.
func (rt *Runtime) recorder() *Record {
	if rt.waiting == nil {
		return nil
	}
	return rt.waiting.record
}

// home is where those who saved the result of an operation find it again.
//
//	readers ≥ asking  saved values that may still ask; without those that only
//	                  something made again would ask
//	value             is there while left > 0 and asking > 0, unless it was evicted,
//	                  and always where no copy can be made again
type home struct {
	maker   *node
	shape   []int
	dtype   DType
	value   *Tensor // the present copy, dense; nil while there is none
	copies  int     // so far, the original counted
	left    int     // reads that the present copy still serves
	readers int
	asking  int
	reader  int     // place of the last operation whose backward asks
	away    *parcel // the copy outside the device
	number  int     // in the Record, if there is one
	asked   bool    // a Record has seen a read
	listed  bool    // among those that can be evicted
	check   *digest // of the original, where invariants are checked
}

// owns gives out, the result of n, a home if it is to wait under a Schedule.
// It may be called again.
func (n *node) owns(out *Tensor) {
	st := out.st
	if n == nil || n.wait == nil || n.again != nil || st.home != nil || st.maker != n || out.offset != 0 || !out.dense() {
		return
	}
	st.home = &home{maker: n, shape: out.shape, dtype: out.dtype}
	if r := out.rt.recorder(); r != nil {
		st.home.number = r.value(n, out)
	}
}

// join enters one more reader, who saves t, the original or a view of it. With
// the first one who will ask it is decided what becomes of the original.
func (h *home) join(t *Tensor, weak bool) {
	if h.readers++; weak && h.returns() {
		return
	}
	if h.asking++; h.copies > 0 {
		return
	}
	h.copies = 1
	rt := t.rt
	if r := rt.recorder(); r != nil {
		r.Values[h.number].Saved = true
	}
	whole := t.view(h.shape, denseStrides(h.shape), 0)
	if h.maker.wait.Away {
		if h.away = rt.send(whole, rt.waiting.form); h.away != nil {
			rt.waiting.fetch(h)
		}
	}
	if invariant.Enabled && h.returns() {
		h.check = digestOf(whole)
	}
	if h.left = h.maker.wait.Reads[0]; h.left > 0 || !h.returns() {
		h.value = whole
		rt.waiting.enterEvictable(h)
		return
	}
	whole.drop()
}

// returns says whether a value that was let go can be had again.
func (h *home) returns() bool { return h.maker.remade != nil || h.away != nil }

// read gives a new handle on the value.
func (h *home) read() *Tensor {
	if r := h.maker.result.rt.recorder(); r != nil {
		r.read(h)
	}
	h.bring()
	t := h.value.Detach()
	if h.away != nil {
		h.away.arrive()
	}
	if h.left--; h.left <= 0 && h.returns() {
		h.letGo()
	}
	return t
}

// bring makes sure that there is a copy.
func (h *home) bring() {
	if h.value != nil {
		return
	}
	if h.away != nil {
		h.value = h.away.fetch(h.shape, h.dtype)
	} else {
		h.value = h.maker.remade()
		h.check.compare(h.maker.name, h.value)
	}
	h.value.held = true
	h.left = math.MaxInt
	if reads := h.maker.wait.Reads; h.copies < len(reads) {
		h.left = reads[h.copies]
	}
	h.copies++
	if w := h.value.rt.waiting; w != nil {
		w.enterEvictable(h)
	}
}

func (h *home) letGo() {
	if h.value != nil {
		if h.away != nil {
			h.away.arrive()
		}
		h.value.drop()
		h.value = nil
	}
}

// leave ends what one reader may ask; after the last one nothing is kept.
func (h *home) leave(weak bool) {
	h.readers--
	if !weak {
		h.asking--
	}
	if h.readers == 0 || h.asking == 0 && h.returns() {
		h.letGo()
	}
	if h.readers == 0 && h.away != nil {
		h.away.end()
		h.away = nil
	}
}

// remake lets n's result be made again, under a Schedule that lets it go, by f
// from inputs, which n then saves; a nil input stays nil. f is the operation
// itself. Its random choices are those of the first time, and running statistics
// are left alone. Where an input takes other devices to make, n's result is not made
// again, since one device alone can't.
func (n *node) remake(f func(in []*Tensor) *Tensor, inputs ...*Tensor) {
	if n == nil || n.wait == nil || n.again != nil {
		return
	}
	rt := inputs[0].rt
	if slices.ContainsFunc(inputs, func(t *Tensor) bool { return t != nil && rt.byRecipe(t) && t.node.joint() }) {
		return
	}
	if r := rt.recorder(); r != nil {
		r.remake(n, inputs)
		return
	}
	kept := n.wait.Away || len(n.wait.Reads) == 1 && n.wait.Reads[0] > 0
	if kept && !rt.waiting.online {
		return
	}
	n.weak = kept // to be evicted; also what was to wait outside, and found no room there
	saves := make([]*saved, len(inputs))
	for i, t := range inputs {
		if t != nil {
			saves[i] = n.save(t)
		}
	}
	n.weak = false
	seed, draws, cast := rt.seed, rt.draws, rt.casts.to
	n.remade = func() (y *Tensor) {
		in := make([]*Tensor, len(saves))
		defer func() { releaseAll(in...) }()
		for i, s := range saves {
			if s != nil {
				in[i] = s.get()
			}
		}
		defer rt.endRanges(rt.begin(Range{Kind: SecondRun, Name: n.name, Node: n.number}))
		rt.repeat(seed, draws, func() { rt.Autocast(cast, func() { y = f(in) }) })
		return y
	}
}

// repeat runs f a second time: unrecorded, with the random choices that
// follow from seed and draws, and with running statistics left alone.
func (rt *Runtime) repeat(seed, draws uint64, f func()) {
	defer func(rerun bool, seed, draws uint64) { rt.rerun, rt.seed, rt.draws = rerun, seed, draws }(rt.rerun, rt.seed, rt.draws)
	rt.rerun, rt.seed, rt.draws = true, seed, draws
	rt.NoGrad(func() { rt.WithSaver(nil, f) })
}

// saveHome makes s, saved by n, a reader of t's home. A result that its own
// operation saves doesn't hold the operation, which would then hold itself.
func (n *node) saveHome(s *saved, t *Tensor) {
	h := t.st.home
	s.home, s.own, s.weak = h, h.maker == n, n.weak
	if !s.weak {
		h.reader = n.place
	}
	s.view = &Tensor{shape: t.shape, strides: t.strides, offset: t.offset}
	if !s.own {
		h.maker.refs++
	}
	h.join(t, s.weak)
}

// atHome gives a new handle on the value as it was saved.
func (s *saved) atHome() *Tensor {
	t := s.home.read()
	defer t.drop()
	return t.view(s.view.shape, s.view.strides, s.view.offset)
}

// leaveHome ends s's part in its home.
func (s *saved) leaveHome() {
	s.home.leave(s.weak)
	if !s.own {
		s.home.maker.unref()
	}
}
