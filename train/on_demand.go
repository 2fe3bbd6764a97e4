package train

import (
	"slices"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// Weights of which each rank keeps a part (ShardParameters, stage 3 of ZeRO).
//
// A whole parameter has memory while operations read it: in forward, in backward and
// in second runs. A program reads its parameters in the same order each time. The
// first pass finds the order out, and gathers each parameter when it is read. Then
// the order is cut into units, of at least as many bytes as a bucket. Where the first
// parameter of a unit is read, what neither this unit nor the next one has goes, and
// the next one is gathered, on the stream of collectives, while this one is computed
// with:
//
//	order    wte wpe ln_1 | c_attn c_proj | ln_2 c_fc | c_proj … ln_f wte | c_proj …
//	         gone         | in use        | coming    | not there yet
//
// The last few parameters that were read stay, too, since the operation in progress
// may read them. A parameter that is read in several places, as GPT-2's embedding, is
// in the order several times. A pass that departs from the order goes on as a first
// one does.
//
// All ranks gather the same in the same order: they run the same program, with the
// same strategy, on values of the same sizes.

// readTogether is how many parameters one operation reads at most.
const readTogether = 4

// lender has whole parameters put together while they are read.
type lender struct {
	l      *parallel
	there  []*cut           // the whole ones, in the order in which they came
	recent []*cut           // the last that were read, the newest last
	passes map[string]*pass // of each kind of program that came to its end
	now    *pass            // in progress; nil for none
	kind   string
	busy   bool // its own accesses are no reads
}

// pass is the order in which a program reads parameters.
type pass struct {
	order []*cut
	units []int // the place in order where each begins; nil while it is being found out
	at    int   // the next read
	lost  bool  // the program departed from the order
}

// adopt is told of each parameter as it is made: from then on this rank has its part
// of it alone, unless it has no replicas.
func (l *parallel) adopt(rt *tensor.Runtime) func(p *nn.Parameter) {
	if l == nil || l.Shard < ShardParameters {
		return nil
	}
	l.rt, l.lender = rt, &lender{l: l, passes: map[string]*pass{}}
	return func(p *nn.Parameter) {
		if l.replicas(p).Size() == 1 {
			return
		}
		c := l.slice(p)
		l.cuts[p.Tensor] = c
		l.lender.keep(c)
		p.OnDemand(func() { l.lender.use(c) })
	}
}

// keep copies this rank's part of what is whole.
func (w *lender) keep(c *cut) {
	if c.hi > c.lo {
		w.l.rt.Stream().Copy(c.part.Ptr(), buf(c.param.Tensor).Range(c.lo, c.hi).Ptr, c.part.Bytes())
	}
}

// reading runs f, a kind of program that reads or writes parameters.
func (l *parallel) reading(kind string, f func()) {
	if l == nil || l.lender == nil {
		f()
		return
	}
	defer l.lender.clear()
	l.lender.begin(kind)
	f()
	l.lender.end()
}

// forget forgets the orders of reading. Of an attempt that was abandoned some ranks
// have seen more than others.
func (w *lender) forget() {
	if w != nil {
		w.passes, w.now = map[string]*pass{}, nil
	}
}

// begin begins a pass of a kind of program.
func (w *lender) begin(kind string) {
	if w == nil {
		return
	}
	w.clear()
	if w.kind, w.now = kind, w.passes[kind]; w.now == nil {
		w.now = &pass{}
	}
	w.now.at, w.now.lost = 0, false
}

// end ends a pass that came to its end.
func (w *lender) end() {
	if w == nil {
		return
	}
	w.clear()
	switch p := w.now; {
	case p.units == nil:
		p.cut(w.l.Bucket)
		w.passes[w.kind] = p
	case p.lost || p.at < len(p.order): // the next one finds out another order
		delete(w.passes, w.kind)
	}
	w.now = nil
}

// cut cuts the order into units of at least so many bytes.
func (p *pass) cut(bytes uint64) {
	size := bytes
	p.units = nil
	for i, c := range p.order {
		if size >= bytes {
			p.units, size = append(p.units, i), 0
		}
		size += c.param.Bytes()
	}
}

// unit is the i-th.
func (p *pass) unit(i int) []*cut {
	if i >= len(p.units) {
		return nil
	}
	end := len(p.order)
	if i+1 < len(p.units) {
		end = p.units[i+1]
	}
	return p.order[p.units[i]:end]
}

// read enters that c is read. known says whether that is what the order says; a unit
// that begins with it is given with the next one.
func (p *pass) read(c *cut) (known bool, unit, next []*cut) {
	switch {
	case p == nil || p.lost:
		return false, nil, nil
	case p.units == nil:
		p.order = append(p.order, c)
		return false, nil, nil
	case p.at == len(p.order) || p.order[p.at] != c:
		p.lost = true
		return false, nil, nil
	}
	i, begins := slices.BinarySearch(p.units, p.at)
	if p.at++; begins {
		unit, next = p.unit(i), p.unit(i+1)
	}
	return true, unit, next
}

// use is called before each access to c's memory.
func (w *lender) use(c *cut) {
	if w.busy {
		return
	}
	w.busy = true
	defer func() { w.busy = false }()
	if i := slices.Index(w.recent, c); i >= 0 {
		w.recent = append(slices.Delete(w.recent, i, i+1), c)
		return
	}
	if len(w.recent) == readTogether {
		w.recent = slices.Delete(w.recent, 0, 1)
	}
	known, unit, next := w.now.read(c)
	if !known {
		unit = []*cut{c}
	}
	if unit != nil {
		w.dropAllBut(w.recent, unit, next)
		w.fetch(unit)
		w.fetch(next)
	}
	w.arrive(c)
	w.recent = append(w.recent, c)
}

// dropAllBut lets all go that is there and in none of the lists.
func (w *lender) dropAllBut(lists ...[]*cut) {
	w.there = slices.DeleteFunc(w.there, func(c *cut) bool {
		for _, list := range lists {
			if slices.Contains(list, c) {
				return false
			}
		}
		w.drop(c)
		return true
	})
}

// clear lets all go.
func (w *lender) clear() {
	if w == nil {
		return
	}
	w.busy = true
	defer func() { w.busy = false }()
	for _, c := range w.there {
		w.drop(c)
	}
	w.there, w.recent = nil, nil
}

// drop lets c go; what was written to it goes to its part.
func (w *lender) drop(c *cut) {
	w.arrive(c)
	if c.param.Version() != c.version {
		w.keep(c)
	}
	c.param.Vacate()
}

// fetch has those gathered that are not there.
func (w *lender) fetch(cs []*cut) {
	whole, part := bufs{}, bufs{}
	var coming []*cut
	for _, c := range cs {
		if c.param.Occupied() {
			continue
		}
		c.param.Occupy()
		c.version = c.param.Version()
		w.there, coming = append(w.there, c), append(coming, c)
		whole[c.group], part[c.group] = append(whole[c.group], buf(c.param.Tensor)), append(part[c.group], buf(c.part.Tensor))
	}
	if len(coming) == 0 {
		return
	}
	s := w.l.stream
	s.Wait(w.l.rt.Stream().Record())
	w.l.eachGroup(func(g dist.Group) {
		if len(whole[g]) > 0 {
			g.AllGather(s, whole[g], part[g])
		}
	})
	over := s.Record()
	for _, c := range coming {
		c.over = over
	}
}

// arrive makes what is queued from now on come after c has been gathered.
func (w *lender) arrive(c *cut) {
	if c.over != nil {
		w.l.rt.Stream().Wait(c.over)
		c.over = nil
	}
}
