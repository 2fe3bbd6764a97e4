package alloc

// Note [Repeating steps]
//
// A step of a program asks for the same sizes in the same order as the one
// before. Best fit alone does not give it the same places: what was stitched
// for a late request is taken by an early one of the same size in the next
// step, which leaves other holes, for which other pages are stitched, and so on
// without end: near the capacity as many in each step as there are.
//
// So from the first Step on, the allocator remembers where it served each
// request of a step, and serves it there again if that is free. A step of which
// every request is served so needs nothing of the driver, and leaves all as it
// was at its beginning.
//
// Steps are kept as a tree: below a request are those that once came next. So a
// program whose steps have several shapes has a branch for each. One that
// departs from all that it did before is served as if nothing were known, on a
// new branch, until its next step.

// turn is a request of a step, after those on the way to it in the tree, and
// where it was served last.
type turn struct {
	size  uint64
	addr  uint64
	seg   *segment // nil: it never was
	view  *view    // that it was the block of; nil for a part of seg
	next  *turn    // one of those that came after it
	other *turn    // another one that came in its place
}

// steps remembers steps.
type steps struct {
	root   *turn // before the first request; nil: no step has ended yet
	last   *turn // of this step; nil: it is not remembered
	turns  int   // below root
	unused []turn
}

// Programs that never repeat would fill memory with what they did: when it is
// more than this, it is forgotten.
const (
	maxTurns  = 1 << 18
	maxOthers = 64
)

// begin begins a step.
func (s *steps) begin() {
	if s.root == nil {
		s.root = &turn{}
	}
	s.last = s.root
}

// forget ends what is remembered; the next step begins anew.
func (s *steps) forget() { *s = steps{} }

// next gives the turn of the next request of a step that is remembered, or nil
// where it is too much to go on.
func (s *steps) next(size uint64) *turn {
	others := 0
	for t := s.last.next; t != nil; t = t.other {
		if t.size == size {
			s.last = t
			return t
		}
		others++
	}
	if others == maxOthers || s.turns == maxTurns {
		s.forget()
		return nil
	}
	return s.add(size)
}

// add adds a turn after the last one.
func (s *steps) add(size uint64) *turn {
	if len(s.unused) == 0 {
		s.unused = make([]turn, 64)
	}
	t := &s.unused[0]
	s.unused = s.unused[1:]
	s.turns++
	t.size, t.other = size, s.last.next
	s.last.next, s.last = t, t
	return t
}

// note says that b was handed out at the turn, which may be nil.
func (t *turn) note(b *Block) {
	if t != nil {
		t.addr, t.seg, t.view = b.addr, b.seg, b.view
	}
}

// again gives the block that r had at its turn in an earlier step, if it is
// free.
func (a *Allocator) again(r *request, w when) *Block {
	t := r.turn
	if t == nil || t.seg == nil {
		return nil
	}
	if v := t.view; v != nil {
		b := v.serve(r, w)
		if b != nil {
			a.stats.Repeats++
		}
		return b
	}
	b := t.seg.freeAt(t.addr, t.size)
	if b == nil || w == atOnce && !b.ready(r.stream) {
		return nil
	}
	a.stats.Repeats++
	return a.cut(b, t.addr, t.addr+t.size)
}

// freeAt gives the free block that holds size bytes at an address, or nil.
func (s *segment) freeAt(addr, size uint64) *Block {
	if s.first == nil { // its addresses were given back
		return nil
	}
	if b := s.at(addr); b.state == free && b.end() >= addr+size {
		return b
	}
	return nil
}

// ready says whether a stream may use the block, which is free, at once.
func (b *Block) ready(s *stream) bool {
	c := class(b.uses)
	return c == clean || c == ownClass+s.id
}
