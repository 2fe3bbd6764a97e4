package inspect

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// oracle is the rules once more, with lists that are searched from end to end
// and no books: everything is counted when it is needed.
type oracle struct {
	conf              Conf
	capacity, allowed uint64
	place             placer
	segments          []*oracleSegment
	changes           []change
	lookups           map[oraclePool]uint64
	retries           int
}

type oraclePool struct {
	id    trace.PoolID
	small bool
}

type oracleSegment struct {
	pool             oraclePool
	stream           int
	addr, size, page uint64
	blocks           []*oracleBlock
}

type oracleBlock struct {
	seg        *oracleSegment
	addr, size uint64
	state      blockState
	asked      uint64
	born       uint64
}

func (o *oracle) reserved() (sum uint64) {
	for _, s := range o.segments {
		for _, b := range s.blocks {
			if b.state != isUnmapped {
				sum += b.size
			}
		}
	}
	return sum
}

// list gives the pool's blocks in a state, by stream, size (if free), address.
func (o *oracle) list(p oraclePool, state blockState) []*oracleBlock {
	var out []*oracleBlock
	for _, s := range o.segments {
		for _, b := range s.blocks {
			if s.pool == p && b.state == state {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(a, b *oracleBlock) int {
		bySize := cmp.Compare(a.size, b.size)
		if state == isUnmapped {
			bySize = 0
		}
		return cmp.Or(cmp.Compare(uint64(a.seg.stream), uint64(b.seg.stream)), bySize, cmp.Compare(a.addr, b.addr))
	})
	return out
}

// next and prev give the block's neighbours, or nil.
func (b *oracleBlock) next() *oracleBlock { return b.neighbour(1) }
func (b *oracleBlock) prev() *oracleBlock { return b.neighbour(-1) }
func (b *oracleBlock) neighbour(d int) *oracleBlock {
	i := slices.Index(b.seg.blocks, b) + d
	if i < 0 || i == len(b.seg.blocks) {
		return nil
	}
	return b.seg.blocks[i]
}

// cut makes [from, to) of b a block of its own with a new state, and joins
// what is equal. All that is free and was touched is as good as new.
func (o *oracle) cut(b *oracleBlock, from, to uint64, state blockState) *oracleBlock {
	i := slices.Index(b.seg.blocks, b)
	parts := []*oracleBlock{
		{seg: b.seg, addr: b.addr, size: from - b.addr, state: b.state, born: o.lookups[b.seg.pool]},
		{seg: b.seg, addr: from, size: to - from, state: state, born: o.lookups[b.seg.pool]},
		{seg: b.seg, addr: to, size: b.addr + b.size - to, state: b.state, born: o.lookups[b.seg.pool]},
	}
	parts = slices.DeleteFunc(parts, func(p *oracleBlock) bool { return p.size == 0 })
	b.seg.blocks = slices.Replace(b.seg.blocks, i, i+1, parts...)
	var joined []*oracleBlock
	for _, p := range b.seg.blocks {
		last := len(joined) - 1
		if last >= 0 && joined[last].state == p.state && (p.state == isFree || p.state == isUnmapped) {
			joined[last].size += p.size
			joined[last].born = o.lookups[b.seg.pool]
		} else {
			joined = append(joined, p)
		}
	}
	b.seg.blocks = joined
	return joined[slices.IndexFunc(joined, func(p *oracleBlock) bool { return p.addr <= from && from < p.addr+p.size })]
}

func (o *oracle) collecting() bool { return o.conf.GCThreshold > 0 && o.allowed < NoLimit }

func (o *oracle) round(size uint64) uint64 {
	d := uint64(0)
	for i, n := range o.conf.Divisions {
		if size >= mib<<i || i == 0 {
			d = n
		}
	}
	if d < 2 || size <= 512*d {
		return max((size+511)/512*512, 512)
	}
	p := uint64(1)
	for p*2 <= size {
		p *= 2
	}
	v := p
	for v < size {
		v += p / d
	}
	return v
}

func (o *oracle) malloc(size uint64, stream int, id trace.PoolID) *oracleBlock {
	n := o.round(size)
	p := oraclePool{id, n <= mib}
	b := o.find(p, stream, n)
	if b == nil && o.collecting() {
		o.collect()
	}
	for attempt := 1; b == nil && attempt <= 3; attempt++ {
		switch attempt {
		case 2:
			if !o.releaseOversize(p, stream, n) {
				continue
			}
		case 3:
			if id != (trace.PoolID{}) {
				return nil
			}
			o.release()
			o.retries++
		}
		b = o.grow(p, stream, n)
	}
	if b == nil {
		return nil
	}
	rest := b.size - n
	if p.small || o.conf.Expandable {
		if rest < 512 {
			n = b.size
		}
	} else if rest <= mib || n >= o.conf.MaxSplit {
		n = b.size
	}
	b = o.cut(b, b.addr, b.addr+n, isLive)
	b.asked = size
	return b
}

func (o *oracle) find(p oraclePool, stream int, n uint64) *oracleBlock {
	if o.collecting() {
		o.lookups[p]++
	}
	fits := slices.DeleteFunc(o.list(p, isFree), func(b *oracleBlock) bool { return b.seg.stream != stream || b.size < n })
	if len(fits) > 0 && fits[0].seg.page > 0 && !o.conf.Expandable {
		i := slices.IndexFunc(fits, func(b *oracleBlock) bool { return b.seg.page == 0 })
		if i < 0 {
			return nil
		}
		fits = fits[i:]
	}
	room := func(b *oracleBlock) uint64 {
		if x := b.next(); x != nil && x.state == isUnmapped {
			return b.size + x.size
		}
		return b.size
	}
	for len(fits) > 1 && fits[0].seg.page > 0 && o.conf.Expandable && room(fits[1]) < room(fits[0]) {
		fits = fits[1:]
	}
	if len(fits) == 0 || n < o.conf.MaxSplit && fits[0].size >= o.conf.MaxSplit || n >= o.conf.MaxSplit && fits[0].size >= n+o.conf.MaxNonSplitRounding {
		return nil
	}
	return fits[0]
}

func (o *oracle) collect() {
	threshold := uint64(o.conf.GCThreshold * float64(o.allowed))
	if o.reserved() <= threshold {
		return
	}
	target, p := o.reserved()-threshold, oraclePool{}
	for released := uint64(0); released < target; {
		var old []*oracleBlock
		sum := uint64(0)
		for _, b := range o.list(p, isFree) {
			if len(b.seg.blocks) == 1 {
				old = append(old, b)
				sum += o.lookups[p] - b.born
			}
		}
		before := released
		for _, b := range old {
			if b.seg.page == 0 && float64(o.lookups[p]-b.born) >= float64(sum)/float64(len(old)) {
				released += b.size
				o.drop(b.seg)
			}
		}
		if released == before {
			return
		}
	}
}

// drop gives a plain segment back.
func (o *oracle) drop(s *oracleSegment) {
	o.segments = slices.DeleteFunc(o.segments, func(x *oracleSegment) bool { return x == s })
	o.place.release(s.addr, s.size)
	o.changes = append(o.changes, change{trace.SegmentFree, s.stream, s.addr, s.size})
}

func (o *oracle) releaseOversize(p oraclePool, stream int, n uint64) bool {
	if o.conf.MaxSplit == NoLimit {
		return false
	}
	need := max(n, o.conf.MaxSplit)
	var large []*oracleBlock // on this stream, of max_split_size or more, by size
	for _, b := range o.list(p, isFree) {
		if b.seg.stream == stream && b.size >= o.conf.MaxSplit {
			large = append(large, b)
		}
	}
	if i := slices.IndexFunc(large, func(b *oracleBlock) bool { return b.size >= need }); i >= 0 && large[i].seg.page == 0 {
		if len(large[i].seg.blocks) == 1 {
			o.drop(large[i].seg)
		}
		return true
	} else if i >= 0 {
		large = large[:i]
	}
	sum := uint64(0)
	for _, b := range slices.Backward(large) {
		if sum < need && b.seg.page == 0 {
			sum += b.size
			if len(b.seg.blocks) == 1 {
				o.drop(b.seg)
			}
		}
	}
	return sum >= need
}

// release is what a retry and empty_cache do.
func (o *oracle) release() {
	for _, s := range o.segments {
		for _, b := range slices.Clone(s.blocks) {
			if b.state == isPending {
				o.cut(b, b.addr, b.addr+b.size, isFree)
			}
		}
	}
	for _, p := range []oraclePool{{}, {small: true}} {
		free := o.list(p, isFree)
		for _, b := range free {
			if b.seg.page == 0 && len(b.seg.blocks) == 1 {
				o.drop(b.seg)
			}
		}
		for _, b := range free {
			if b.seg.page > 0 {
				o.unmap(b)
			}
		}
	}
}

func (o *oracle) unmap(b *oracleBlock) {
	s := b.seg
	var pages []uint64
	for page := s.addr; page < s.addr+s.size; page += s.page {
		if page >= b.addr && page+s.page <= b.addr+b.size {
			pages = append(pages, page)
		}
	}
	if len(pages) == 0 {
		return
	}
	from, to := pages[0], pages[len(pages)-1]+s.page
	o.cut(b, from, to, isUnmapped)
	if len(s.blocks) == 1 {
		o.segments = slices.DeleteFunc(o.segments, func(x *oracleSegment) bool { return x == s })
		o.place.release(s.addr, s.size)
	}
	o.changes = append(o.changes, change{trace.SegmentUnmap, s.stream, from, to - from})
}

func (o *oracle) grow(p oraclePool, stream int, n uint64) *oracleBlock {
	size := uint64(2 * mib)
	if n > mib {
		size = o.conf.LargeSegment
	}
	if n >= 10*mib {
		size = (n + 2*mib - 1) / (2 * mib) * (2 * mib)
	}
	if o.reserved()+size > o.allowed {
		return nil
	}
	if o.conf.Expandable {
		return o.expand(p, stream, n)
	}
	if o.reserved()+size > o.capacity {
		return nil
	}
	addr, _ := o.place.plain(size, stream)
	s := o.add(&oracleSegment{pool: p, stream: stream, addr: addr, size: size}, isFree)
	o.changes = append(o.changes, change{trace.SegmentAlloc, stream, addr, size})
	return s.blocks[0]
}

func (o *oracle) add(s *oracleSegment, state blockState) *oracleSegment {
	s.blocks = []*oracleBlock{{seg: s, addr: s.addr, size: s.size, state: state}}
	o.segments = append(o.segments, s)
	return s
}

func (o *oracle) expand(p oraclePool, stream int, n uint64) *oracleBlock {
	var start *oracleBlock
	for _, b := range o.list(p, isUnmapped) {
		first := b
		if x := b.prev(); x != nil && x.state == isFree {
			first = x
		}
		sum := uint64(0)
		for x := first; x != nil && (x.state == isFree || x.state == isUnmapped); x = x.next() {
			sum += x.size
		}
		if b.seg.stream == stream && sum >= n {
			start = first
			break
		}
	}
	if start == nil {
		page := uint64(2 * mib)
		if !p.small {
			page = o.conf.LargeSegment
		}
		size := o.conf.addresses(o.capacity, page)
		if size < n {
			return nil
		}
		addr, _ := o.place.expandable(size)
		start = o.add(&oracleSegment{pool: p, stream: stream, addr: addr, size: size, page: page}, isUnmapped).blocks[0]
	}
	s, from := start.seg, start.addr
	for {
		i := slices.IndexFunc(s.blocks, func(b *oracleBlock) bool { return b.addr <= from && from < b.addr+b.size })
		b := s.blocks[i]
		if b.state == isFree && b.size >= n {
			return b
		}
		missing := n
		if b.state == isFree {
			missing -= b.size
			b = s.blocks[i+1]
		}
		size := (missing + s.page - 1) / s.page * s.page
		size = min(size, b.size)
		if o.reserved()+size > o.capacity {
			return nil
		}
		addr := b.addr
		o.cut(b, addr, addr+size, isFree)
		o.changes = append(o.changes, change{trace.SegmentMap, stream, addr, size})
	}
}

// layout gives the segments as a snapshot would.
func (o *oracle) layout() []trace.Segment {
	var out []trace.Segment
	for _, s := range o.segments {
		before := isUnmapped
		for _, b := range s.blocks {
			if b.state != isUnmapped && before == isUnmapped {
				out = append(out, trace.Segment{Stream: s.stream, Addr: b.addr, Small: s.pool.small, Expandable: s.page > 0, Pool: s.pool.id})
			}
			before = b.state
			if b.state != isUnmapped {
				x := &out[len(out)-1]
				x.Size += b.size
				x.Blocks = append(x.Blocks, trace.Block{Addr: b.addr, Size: b.size, Requested: b.asked,
					State: map[blockState]trace.State{isFree: trace.Free, isLive: trace.Live, isPending: trace.Pending}[b.state]})
			}
		}
	}
	slices.SortFunc(out, func(a, b trace.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// oracleConfs are settings that the random programs run under.
var oracleConfs = []string{
	"",
	"roundup_power2_divisions:4",
	"roundup_power2_divisions:[1:8,4:2,>:1]",
	"max_split_size_mb:24",
	"max_split_size_mb:32,max_non_split_rounding_mb:40,large_segment_size_mb:32",
	"garbage_collection_threshold:0.5,per_process_memory_fraction:0.7",
	"garbage_collection_threshold:0.3,per_process_memory_fraction:0.9,max_split_size_mb:20",
	"expandable_segments:True",
	"expandable_segments:True,large_segment_size_mb:12,roundup_power2_divisions:[2:4,>:2]",
	"expandable_segments:True,max_split_size_mb:24",
	"expandable_segments:True,garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
	"expandable_segments:True,expandable_segments_reserve:0.3",
}

// TestModelAgainstOracle plays random programs on the model and on the oracle
// and compares everything after every step.
func TestModelAgainstOracle(t *testing.T) {
	for i, text := range oracleConfs {
		failures := 0
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) { failures += againstOracle(t, text, seed) })
		}
		if failures == 0 {
			t.Errorf("%q: no request failed, so the last steps of the ladder were not seen", text)
		}
	}
}

// twins is a model and an oracle that are told the same.
type twins struct {
	t             *testing.T
	rng           *rand.Rand
	m             *model
	o             *oracle
	made          []change
	live, pending []twin
	failures      int
}

type twin struct {
	b *block
	o *oracleBlock
}

// againstOracle plays one program and counts the requests that failed.
func againstOracle(t *testing.T, text string, seed uint64) int {
	conf, err := ParseConf(text)
	if err != nil {
		t.Fatal(err)
	}
	x := &twins{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	capacity := uint64(100+x.rng.IntN(300)) * mib
	x.m = newModel(conf, capacity, newDriver())
	x.o = &oracle{conf: conf, capacity: capacity, allowed: x.m.allowed, place: newDriver(), lookups: map[oraclePool]uint64{}}
	x.m.onChange = func(c change) { x.made = append(x.made, c) }
	for step := range 250 {
		x.compare(step, x.step())
	}
	if len(x.made) == 0 {
		t.Fatal("the program took nothing")
	}
	return x.failures
}

// step does one thing and says which.
func (x *twins) step() string {
	switch n := x.rng.IntN(100); {
	case n < 40 && len(x.live) > 0:
		p := x.take(&x.live)
		x.m.free(p.b)
		p.o.state = isPending
		if n < 10 {
			x.pending = append(x.pending, p)
			return "free, pending"
		}
		x.complete(p)
		return "free"
	case n < 50 && len(x.pending) > 0:
		x.complete(x.take(&x.pending))
		return "complete"
	case n < 52:
		x.m.releaseCached()
		x.o.release()
		x.pending = nil
		return "empty"
	}
	return x.alloc()
}

// take takes any twin out of a list.
func (x *twins) take(list *[]twin) twin {
	i := x.rng.IntN(len(*list))
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

func (x *twins) complete(p twin) {
	x.m.complete(p.b)
	x.o.cut(p.o, p.o.addr, p.o.addr+p.o.size, isFree)
}

func (x *twins) alloc() string {
	size, stream, id := randomSize(x.rng), x.rng.IntN(8)/6, trace.PoolID{0, uint64(x.rng.IntN(10) / 9)}
	action := fmt.Sprintf("alloc %d on %d of %v", size, stream, id)
	retries := x.m.figures.retries
	b, o := x.m.malloc(size, stream, id), x.o.malloc(size, stream, id)
	if (b == nil) != (o == nil) || b != nil && (b.addr != o.addr || b.size != o.size) {
		x.t.Fatalf("%s: model gives %+v, oracle %+v", action, b, o)
	}
	if x.m.figures.retries > retries {
		x.pending = nil // it waited for them
	}
	if b == nil {
		x.failures++
	} else {
		x.live = append(x.live, twin{b, o})
	}
	return action
}

func (x *twins) compare(step int, action string) {
	if err := checkModel(x.m); err != nil {
		x.t.Fatalf("step %d, %s: %v", step, action, err)
	}
	if got, want := x.m.layout(0), x.o.layout(); !reflect.DeepEqual(got, want) {
		x.t.Fatalf("step %d, %s: model\n%+v\noracle\n%+v", step, action, got, want)
	}
	if !slices.Equal(x.made, x.o.changes) || x.m.figures.retries != x.o.retries || x.m.figures.reserved != x.o.reserved() {
		x.t.Fatalf("step %d, %s: model took %v, %d retries, oracle %v, %d", step, action, x.made, x.m.figures.retries, x.o.changes, x.o.retries)
	}
}

// randomSize gives sizes of all classes.
func randomSize(rng *rand.Rand) uint64 {
	switch rng.IntN(4) {
	case 0:
		return 1 + rng.Uint64N(mib)
	case 1:
		return mib + rng.Uint64N(9*mib)
	case 2:
		return 512 * (1 + rng.Uint64N(4096))
	}
	return 8*mib + rng.Uint64N(40*mib)
}
