package inspect

import (
	"math/rand/v2"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// recorder runs a program on the model and records it as PyTorch does.
type recorder struct {
	m       *model
	t       *trace.Trace
	keep    bool              // fill in layouts
	layouts [][]trace.Segment // after as many events; nil inside a call of the allocator
	outside []bool            // after as many events: outside calls of the allocator
	changes []change
	pools   []trace.PoolID // of the changes
	stack   *trace.Stack
	calls   []call
	waiting int // blocks that are pending
	blocks  []*recordedBlock
	known   map[uint64]trace.PoolID // pools of segments, by address
}

// call is what the program does, for another model.
type call struct {
	action byte // a alloc, f free, c complete, e empty_cache
	block  int
	size   uint64
	stream int
	pool   trace.PoolID
}

type recordedBlock struct {
	b          *block
	call       int
	addr, size uint64
	stream     int
	pool       trace.PoolID
	pending    bool
}

func newRecorder(c Conf, capacity uint64) *recorder {
	r := &recorder{m: newModel(c, capacity, newDriver()), t: &trace.Trace{}, layouts: [][]trace.Segment{{}}, outside: []bool{true}}
	r.m.anyAddresses = true
	r.known = map[uint64]trace.PoolID{}
	r.m.onChange = func(c change) {
		for _, seg := range r.m.segments {
			if seg.addr <= c.addr && c.addr < seg.addr+seg.size {
				r.known[c.addr] = seg.pool.id
			}
		}
		r.changes, r.pools = append(r.changes, c), append(r.pools, r.known[c.addr])
	}
	return r
}

func (r *recorder) event(a trace.Action, addr, size uint64, stream int, pool trace.PoolID) {
	r.t.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, Stream: stream}, Pool: pool, Stack: r.stack})
	r.layouts, r.outside = append(r.layouts, nil), append(r.outside, false)
}

// settle records what the model did in a call, before the event of the call.
func (r *recorder) settle() {
	if len(r.m.pending) < r.waiting { // a retry or empty_cache waited
		for _, x := range r.blocks {
			if x.pending && x.b.owner != x.call+1 {
				r.completed(x)
			}
		}
		r.blocks = slices.DeleteFunc(r.blocks, func(x *recordedBlock) bool { return x.b == nil })
	}
	for i, c := range r.changes {
		r.event(c.action, c.addr, c.size, c.stream, r.pools[i])
	}
	r.changes, r.pools = nil, nil
}

func (r *recorder) completed(x *recordedBlock) {
	r.event(trace.FreeCompleted, x.addr, x.size, x.stream, x.pool)
	r.calls = append(r.calls, call{action: 'c', block: x.call})
	x.b = nil
	r.waiting--
}

// done ends a call.
func (r *recorder) done() {
	r.outside[r.t.Len()] = true
	if r.keep {
		r.layouts[r.t.Len()] = r.m.layout(0)
	}
}

func (r *recorder) alloc(size uint64, stream int, pool trace.PoolID) {
	r.stack = trace.NewStack([]trace.Frame{{File: "program.py", Line: 1 + r.t.Len(), Func: "alloc"}})
	b := r.m.malloc(size, stream, pool)
	r.settle()
	if b != nil {
		b.owner = len(r.calls) + 1
	}
	if b == nil {
		r.event(trace.OOM, 0, r.m.conf.Round(size), stream, pool)
	} else {
		r.blocks = append(r.blocks, &recordedBlock{b: b, call: len(r.calls), addr: b.addr, size: size, stream: stream, pool: pool})
		r.calls = append(r.calls, call{'a', len(r.calls), size, stream, pool})
		r.event(trace.Alloc, b.addr, size, stream, pool)
	}
	r.done()
}

// free gives block i back, and says that its memory may be used again if now.
func (r *recorder) free(i int, now bool) {
	x := r.blocks[i]
	if !x.pending {
		x.pending = true
		r.waiting++
		r.m.free(x.b)
		r.calls = append(r.calls, call{action: 'f', block: x.call})
		r.event(trace.FreeRequested, x.addr, x.size, x.stream, x.pool)
		r.done()
	}
	if now {
		r.m.complete(x.b)
		r.completed(x)
		last := len(r.blocks) - 1
		r.blocks[i] = r.blocks[last]
		r.blocks = r.blocks[:last]
		r.done()
	}
}

func (r *recorder) empty() {
	r.stack = trace.NewStack([]trace.Frame{{File: "program.py", Line: 1 + r.t.Len(), Func: "empty_cache"}})
	r.m.releaseCached()
	seen := len(r.changes) > 0 // else no event tells of it
	r.settle()
	if seen {
		r.calls = append(r.calls, call{action: 'e'})
	}
	r.done()
}

// snapshot gives the record at its end.
func (r *recorder) snapshot() *trace.Snapshot {
	c := &r.m.conf
	settings := trace.Settings{Known: true, Conf: c.String(), MaxSplitSize: -1, GCThreshold: c.GCThreshold, Expandable: c.Expandable, RoundupDivisions: c.Divisions}
	if c.MaxSplit != NoLimit {
		settings.MaxSplitSize = int64(c.MaxSplit)
	}
	return &trace.Snapshot{Segments: r.m.layout(0), Traces: []*trace.Trace{r.t}, Settings: settings}
}

// randomRecord records a program of random calls.
func randomRecord(text string, seed, capacity uint64, calls int) *recorder {
	r := randomProgram(text, capacity)
	r.random(seed, calls)
	return r
}

func randomProgram(text string, capacity uint64) *recorder {
	c, err := ParseConf(text)
	if err != nil {
		panic(err)
	}
	return newRecorder(c, capacity)
}

// random makes random calls.
func (r *recorder) random(seed uint64, calls int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for range calls {
		switch n := rng.IntN(100); {
		case n < 45 && len(r.blocks) > 0:
			r.free(rng.IntN(len(r.blocks)), n > 5)
		case n == 99:
			r.empty()
		default:
			r.alloc(randomSize(rng), rng.IntN(8)/6, trace.PoolID{0, uint64(rng.IntN(12) / 11)})
		}
	}
}

// play runs the calls of a record on another model, which never fails.
func (r *recorder) play(c Conf) figures {
	m := newModel(c, 0, newDriver())
	blocks := map[int]*block{}
	for i, x := range r.calls {
		b := blocks[x.block]
		switch {
		case x.action == 'a':
			b = m.malloc(x.size, x.stream, x.pool)
			b.owner = i + 1
			blocks[i] = b
		case x.action == 'e':
			m.releaseCached()
		case b.owner == x.block+1 && x.action == 'f' && b.state == isLive:
			m.free(b)
		case b.owner == x.block+1 && x.action == 'c' && b.state == isPending:
			m.complete(b)
		}
	}
	return m.figures
}
