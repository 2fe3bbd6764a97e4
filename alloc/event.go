package alloc

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"github.com/headroom-go/headroom/trace"
)

// SetSink sends all further events to sink, and to no other one, with stacks
// of up to stackDepth frames. A nil sink ends the sending. If stackDepth is
// more than 0, live blocks know where they were allocated from now on, sink or
// not.
func (a *Allocator) SetSink(sink trace.Sink, stackDepth int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sink, a.pcs = sink, make([]uintptr, max(stackDepth, 0))
}

// callers gives the stack of the program's call, which is so many frames above
// the function that calls this one. It is overwritten by the next.
func (a *Allocator) callers(frames int) []uintptr {
	if len(a.pcs) == 0 {
		return nil
	}
	return a.pcs[:runtime.Callers(2+frames, a.pcs)]
}

// record tells the sink of a block, for the program's call that is so many
// frames above the function that calls this one.
func (a *Allocator) record(action trace.Action, b *Block, frames int) {
	if a.sink == nil && len(a.pcs) == 0 {
		return
	}
	var pcs []uintptr
	switch action {
	case trace.Alloc:
		if b.stack == nil && a.sampled(b.asked) {
			pcs = a.callers(frames + 1)
			b.stack = a.stacks.Of(pcs)
		}
	case trace.FreeRequested:
		if b.stack != nil || a.options.StackRate == 0 {
			pcs = a.callers(frames + 1)
		}
	}
	if a.sink != nil {
		a.sink.Record(trace.Event{Action: action, Purpose: b.purpose, Stream: b.stream.id, Addr: b.addr, Size: b.asked, TimeUS: a.time, PCs: pcs})
	}
}

// sampled says whether the stack of an allocation is recorded: of large ones
// always, of others one for each StackRate bytes.
func (a *Allocator) sampled(size uint64) bool {
	if size < a.quiet {
		a.quiet -= size
		return false
	}
	a.quiet = a.options.StackRate
	return true
}

// recordRange tells the sink of memory taken or given back. It belongs to no
// stream; its events say 0, as the segments do.
func (a *Allocator) recordRange(action trace.Action, addr, size uint64) {
	if a.sink != nil {
		a.sink.Record(trace.Event{Action: action, Addr: addr, Size: size, TimeUS: a.time})
	}
}

// note tells the sink of a rung of the ladder that was taken for size bytes.
func (a *Allocator) note(rung string, stream int, size uint64) {
	if a.sink != nil {
		a.sink.Record(trace.Event{Action: trace.UserDefined, Stream: stream, Size: size, TimeUS: a.time, Note: rung})
	}
}

// lock takes the lock. An operation is shorter than it takes to put a goroutine
// to sleep, so it is tried for a while first.
func (a *Allocator) lock() {
	for range 1000 {
		if a.mu.TryLock() {
			return
		}
	}
	a.mu.Lock()
}

// begin begins a public operation. All its events have one time: reading the
// clock takes longer than the rest of an allocation.
func (a *Allocator) begin() {
	a.lock()
	if a.sink != nil {
		a.time = a.TimeUS()
	}
}

// TimeUS is the clock of the events, in microseconds since 1970, for those who
// set marks between them.
func (a *Allocator) TimeUS() int64 { return a.startUS + time.Since(a.start).Microseconds() }

// Snapshot gives what is reserved now, as the tools of package inspect take it:
// WritePprof makes a profile of live memory by call site of it, if stacks are
// recorded. Its traces are empty.
func (a *Allocator) Snapshot() *trace.Snapshot {
	return &trace.Snapshot{Segments: a.Segments(), Settings: a.Settings()}
}

// Segments gives what is reserved now, in the order of addresses, for a
// trace.Snapshot. On virtual memory each range of backed addresses is one, and
// each view in use; what it uses of other ranges is no part of those.
func (a *Allocator) Segments() []trace.Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []trace.Segment
	for _, seg := range a.segments {
		for b := seg.first; b != nil; b = b.next {
			if b.state == unbacked || b.state == lent {
				continue
			}
			if b.prev == nil || b.prev.state == unbacked || b.prev.state == lent {
				all = append(all, trace.Segment{Addr: b.addr, Small: seg.pool.small, Expandable: seg.pages != nil})
			}
			s := &all[len(all)-1]
			s.Size += b.size
			s.Blocks = append(s.Blocks, b.traced())
		}
	}
	for w := range a.views.all {
		if b := &w.block; b.state != free {
			all = append(all, trace.Segment{Addr: b.addr, Size: b.size, Expandable: true, Blocks: []trace.Block{b.traced()}})
		}
	}
	slices.SortFunc(all, func(x, y trace.Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	return all
}

// Settings gives what a trace.Snapshot tells of the allocator.
func (a *Allocator) Settings() trace.Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return trace.Settings{Known: true, Backend: "headroom", MaxSplitSize: -1, Expandable: a.page > 0, PinnedThreads: 1}
}

// traced gives the block as a snapshot holds it.
func (b *Block) traced() trace.Block {
	t := trace.Block{Addr: b.addr, Size: b.size, State: trace.Live, Requested: b.asked, Purpose: b.purpose, Stack: b.stack}
	switch b.state {
	case pending:
		t.State = trace.Pending
	case free:
		t = trace.Block{Addr: b.addr, Size: b.size, State: trace.Free}
	}
	return t
}
