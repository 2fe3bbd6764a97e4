package profile

import (
	"slices"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Profiler records what a runtime does, from Start to Stop. It is the
// runtime's observer and the sink of its allocator's events, so that nobody
// else may be meanwhile.
//
// Time is cut at every border, the beginning or end of a range or module; what
// lies between two borders belongs to the innermost range, to the innermost
// module, and to all that they lie in.
type Profiler struct {
	rt     *tensor.Runtime
	events *trace.Recorder
	marks  *Annotations
	clock  func() time.Duration

	mu        sync.Mutex // allocators tell events from any goroutine
	last      time.Duration
	live      uint64 // bytes asked for
	profile   Profile
	operators map[operator]*Row
	modules   map[string]*Row
	open      []frame
	path      []string            // of modules; never changed, only replaced
	made      map[uint64][]string // by number of the node: the path that its operation ran in
}

// operator is what a row of operators is known by.
type operator struct {
	phase Phase
	name  string
}

// frame is an open range.
type frame struct {
	row  *Row
	path []string // of modules before it began
	kind tensor.RangeKind
}

// outside is where the time goes that lies in no range, or in no module.
const outside = "outside"

// Start begins a profile of what rt does.
func Start(rt *tensor.Runtime) *Profiler {
	start := time.Now()
	return startWith(rt, func() time.Duration { return time.Since(start) })
}

func startWith(rt *tensor.Runtime, clock func() time.Duration) *Profiler {
	mem := rt.Allocator()
	p := &Profiler{rt: rt, events: trace.NewRecorder(0), marks: NewAnnotations(mem), clock: clock,
		live: mem.Stats().Requested, operators: map[operator]*Row{}, modules: map[string]*Row{}, made: map[uint64][]string{}}
	p.open = []frame{{row: p.operator(InRange, outside)}}
	p.raise()
	mem.SetSink(p, 0)
	rt.Observe(p)
	_ = rt.Sync() // as in border
	p.last = clock()
	return p
}

// Stop ends the recording and gives the profile.
func (p *Profiler) Stop() *Profile {
	p.rt.Observe(nil)
	p.border(func() {})
	p.rt.Allocator().SetSink(nil, 0)
	out := &p.profile
	for _, r := range p.operators {
		if r.Self > 0 || r.Calls > 0 || r.Kept > 0 {
			out.Operators = append(out.Operators, *r)
		}
	}
	for _, r := range p.modules {
		out.Modules = append(out.Modules, *r)
	}
	Sort(out.Operators, "self")
	Sort(out.Modules, "self")
	return out
}

// Snapshot gives the record of the memory with the parts of the step, after
// Stop and before anything else is allocated or freed.
func (p *Profiler) Snapshot() *trace.Snapshot {
	mem := p.rt.Allocator()
	return &trace.Snapshot{Segments: mem.Segments(), Traces: []*trace.Trace{p.events.Trace()}, Settings: mem.Settings(), Annotations: p.marks.List}
}

// border waits for the device, gives the time since the last border to whom it
// belongs, and runs f, whose own time is nobody's.
func (p *Profiler) border(f func()) {
	_ = p.rt.Sync() // its error stays, and comes again from the step's own Sync
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := p.clock() - p.last
	p.profile.Total += passed
	p.operatorNow().Self += passed
	p.moduleNow().Self += passed
	for _, r := range p.rows() {
		r.Within += passed
	}
	f()
	p.last = p.clock()
}

// operator and module give the rows of these names.
func (p *Profiler) operator(phase Phase, name string) *Row {
	return rowOf(p.operators, operator{phase, name}, Row{Name: name, Phase: phase})
}

func (p *Profiler) module(name string) *Row { return rowOf(p.modules, name, Row{Name: name}) }

func rowOf[K comparable](rows map[K]*Row, k K, fresh Row) *Row {
	if rows[k] == nil {
		rows[k] = &fresh
	}
	return rows[k]
}

func (p *Profiler) operatorNow() *Row { return p.open[len(p.open)-1].row }
func (p *Profiler) moduleNow() *Row   { return p.module(innermost(p.path)) }

func innermost(path []string) string {
	if len(path) == 0 {
		return outside
	}
	return path[len(path)-1]
}

// rows are those of all open ranges and modules, each once.
func (p *Profiler) rows() []*Row {
	rows := []*Row{p.moduleNow()}
	enter := func(r *Row) {
		if !slices.Contains(rows, r) {
			rows = append(rows, r)
		}
	}
	for _, f := range p.open {
		enter(f.row)
	}
	for _, name := range p.path {
		enter(p.module(name))
	}
	return rows
}

// raise enters what is live now into the peaks.
func (p *Profiler) raise() {
	p.profile.PeakBytes = max(p.profile.PeakBytes, p.live)
	for _, r := range p.rows() {
		r.Peak = max(r.Peak, p.live)
	}
}

// Begin is called by the runtime.
func (p *Profiler) Begin(r tensor.Range) {
	p.marks.Begin(r)
	p.border(func() {
		if r.Kind == tensor.BackwardPass {
			p.keep(r.From.Kept())
		}
		f := frame{row: p.operator(p.phase(r.Kind), r.Name), path: p.path, kind: r.Kind}
		switch {
		case r.Kind == tensor.OpBackward:
			p.path = p.made[r.Node]
		case r.Kind == tensor.SecondRun: // calls its modules again
			p.path = nil
		case r.Kind == tensor.OpForward && r.Node != 0:
			p.made[r.Node] = p.path
		}
		f.row.Calls++
		p.open = append(p.open, f)
		p.raise()
	})
}

// End is called by the runtime. Modules that a panic has left end, too.
func (p *Profiler) End() {
	p.border(func() {
		last := len(p.open) - 1
		p.path = p.open[last].path
		p.open = p.open[:last]
	})
	p.marks.End()
}

func (p *Profiler) phase(k tensor.RangeKind) Phase {
	switch k {
	case tensor.OpBackward:
		return Backward
	case tensor.OpUpdate:
		return Optimizer
	case tensor.Recipe:
		return Recompute
	case tensor.OpForward:
		if slices.ContainsFunc(p.open, func(f frame) bool { return f.kind == tensor.SecondRun }) {
			return Recompute
		}
		return Forward
	}
	return InRange
}

// Enter says that a module begins, and Leave that the innermost one ends:
// calls for nn.Hooks.
func (p *Profiler) Enter(module string) {
	p.marks.Enter(module)
	p.border(func() {
		p.path = append(slices.Clip(p.path), module)
		p.module(module).Calls++
		p.raise()
	})
}

// Leave ends what Enter began.
func (p *Profiler) Leave() {
	p.border(func() { p.path = p.path[:len(p.path)-1] })
	p.marks.Leave()
}

// keep enters what a graph keeps for backward.
func (p *Profiler) keep(all []tensor.Kept) {
	var sum uint64
	rows := map[*Row]uint64{}
	for _, k := range all {
		sum += k.Bytes
		rows[p.operator(Forward, k.Op)] += k.Bytes
		rows[p.module(innermost(p.made[k.Node]))] += k.Bytes
	}
	p.profile.KeptBytes = max(p.profile.KeptBytes, sum)
	for r, bytes := range rows {
		r.Kept = max(r.Kept, bytes)
	}
}

// Record is called by the allocator.
func (p *Profiler) Record(e trace.Event) {
	p.events.Record(e)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Action {
	case trace.Alloc:
		p.live += e.Size
		p.operatorNow().Allocated += e.Size
		p.moduleNow().Allocated += e.Size
		p.raise()
	case trace.FreeRequested:
		p.live -= e.Size
	}
}

// Launched tells of a launch, for device.NullOptions.OnLaunch: then rows say
// how much is computed and moved, which other devices don't tell.
func (p *Profiler) Launched(l *device.Launch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range []*Row{p.operatorNow(), p.moduleNow()} {
		r.Launches++
		r.Flops += l.Flops
		r.Moved += l.Bytes
	}
}
