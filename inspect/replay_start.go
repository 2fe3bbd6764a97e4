package inspect

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// start puts into the model what is there before the first event: as it lies
// in the record or, under other settings, block by block.
func (r *replayer) start() {
	early := r.h.LiveAt(0)
	if r.recorded {
		state := r.h.At(0)
		r.load(&state)
		r.m.figures.notePeaks()
		early = slices.DeleteFunc(early, func(k int) bool { return r.blocks[k] != nil })
		if len(early) > 0 {
			r.differs("%d blocks from before the first event lie in no known segment", len(early))
		}
	}
	for _, k := range early {
		if l := &r.h.Leases[k]; !r.take(k) {
			r.fail(-1, l.Size, l.Stream(), l.Pool())
			return
		} else if l.Freed() < 0 {
			r.m.free(r.blocks[k])
		}
	}
	if r.measures {
		r.keepSizes()
	}
	r.made = r.made[:0]
}

// keepSizes gives the leases from before the first event the sizes that their
// blocks have at the start: what follows a block may change, the block does not.
func (r *replayer) keepSizes() {
	for k, b := range r.blocks {
		if l := &r.h.Leases[k]; b != nil && b.addr == l.Addr {
			l.Block = b.size
		}
	}
}

// held is a recorded segment with the leases of its blocks.
type held struct {
	trace.Segment
	leases []int
}

// family is what the segments of one expandable segment have in common.
type family struct {
	stream int
	pool   trace.PoolID
	small  bool
}

// load copies a state into the model.
func (r *replayer) load(state *State) {
	leases := state.Leases
	families := map[family][]held{}
	var order []family
	for _, s := range state.Segments {
		n := 0
		for i := range s.Blocks {
			if s.Blocks[i].State != trace.Free {
				n++
			}
		}
		x := held{s, leases[:n]}
		leases = leases[n:]
		if !s.Expandable {
			r.loadPlain(x)
			continue
		}
		f := family{s.Stream, s.Pool, s.Small}
		if families[f] == nil {
			order = append(order, f)
		}
		families[f] = append(families[f], x)
	}
	for _, f := range order {
		r.loadFamily(f, families[f])
	}
}

func (r *replayer) loadPlain(s held) {
	b := r.m.newSegment(segment{pool: r.m.pool(s.Pool, s.Small), stream: s.Stream, addr: s.Addr, size: s.Size}, isFree)
	r.fill(b, s)
}

// fill cuts a block into those of the segment that it holds.
func (r *replayer) fill(b *block, s held) {
	m := r.m
	m.figures.reserved += s.Size
	for i := range s.Blocks {
		x := &s.Blocks[i]
		var rest *block
		if end := x.Addr + x.Size; end < b.end() {
			rest = m.split(b, end)
		}
		if x.State == trace.Free {
			m.enter(b)
		} else {
			k := s.leases[0]
			s.leases = s.leases[1:]
			r.hold(b, k)
		}
		b = rest
	}
}

// hold makes a block that of a lease.
func (r *replayer) hold(b *block, k int) {
	l := &r.h.Leases[k]
	b.state, b.requested, b.owner = isLive, l.Size, k+1
	r.m.figures.live += b.size
	r.m.figures.requested += l.Size
	r.blocks[k] = b
	if l.Freed() < 0 {
		r.m.free(b)
	}
}

// loadFamily loads the mapped ranges of one stream and pool. They are parts of
// one expandable segment as long as its addresses reach so far. What does not
// lie on its pages is loaded as if it were plain.
func (r *replayer) loadFamily(f family, parts []held) {
	page := r.h.Conf.page(f.small)
	size := r.m.addresses(page)
	for base := r.h.base(f, parts[0].Addr, size); len(parts) > 0; {
		var fits []held
		for at := base; len(parts) > 0 && base+size > base && inPages(&parts[0].Segment, at, base, size, page); parts = parts[1:] {
			fits = append(fits, parts[0])
			at = parts[0].Addr + parts[0].Size
		}
		if len(fits) > 0 {
			r.loadExpandable(segment{pool: r.m.pool(f.pool, f.small), stream: f.stream, addr: base, size: size, page: page}, fits)
		} else {
			r.loadPlain(parts[0])
			parts = parts[1:]
		}
		if len(parts) > 0 {
			base = parts[0].Addr
		}
	}
}

// inPages says whether a segment is whole pages of [base, base+size), from at on.
func inPages(s *trace.Segment, at, base, size, page uint64) bool {
	return s.Addr >= at && (s.Addr-base)%page == 0 && s.Size%page == 0 && s.Addr-base+s.Size <= size
}

// loadExpandable makes an expandable segment in which the parts are mapped.
func (r *replayer) loadExpandable(seg segment, parts []held) {
	m := r.m
	b := m.newSegment(seg, isUnmapped)
	for _, part := range parts {
		if part.Addr > b.addr {
			rest := m.split(b, part.Addr)
			m.enter(b)
			b = rest
		}
		var rest *block
		if end := part.Addr + part.Size; end < b.end() {
			rest = m.split(b, end)
		}
		b.state = isFree
		r.fill(b, part)
		b = rest
	}
	if b != nil {
		m.enter(b)
	}
}

// base is where the expandable segment begins of which first is the lowest
// mapped address at the start: the lowest address at which anything is mapped
// in the trace, until all of it is unmapped and a new segment may come.
func (h *History) base(f family, first, size uint64) uint64 {
	var spans []*span
	for i := range h.spans {
		s := &h.spans[i]
		if s.expandable && (family{s.stream, s.pool, s.small}) == f && s.addr <= first && first-s.addr < size {
			spans = append(spans, s)
		}
	}
	base := first
	mapped := h.mapped(f)
	for _, s := range spans {
		if s.from < mapped {
			base = min(base, s.addr)
		}
	}
	return base
}

// mapped is the event until which something of the family is mapped without a
// break.
func (h *History) mapped(f family) int {
	type step struct {
		event int
		bytes int64
	}
	var steps []step
	for i := range h.spans {
		if s := &h.spans[i]; s.expandable && (family{s.stream, s.pool, s.small}) == f {
			steps = append(steps, step{s.from, int64(s.size)}, step{s.to, -int64(s.size)})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.event, b.event), cmp.Compare(b.bytes, a.bytes)) })
	var sum int64
	for _, s := range steps {
		if sum += s.bytes; sum <= 0 {
			return s.event
		}
	}
	return h.Len()
}
