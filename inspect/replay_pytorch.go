package inspect

import (
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// replayer plays a history on the model.
type replayer struct {
	h        *History
	m        *model
	result   *Result
	recorded bool     // the settings are the recorded ones
	follow   bool     // the record says when memory is given back
	failed   bool     // a request failed that did not fail in the record
	measures bool     // the leases learn the sizes of their blocks
	blocks   []*block // by lease; nil: not there, or not any more
	retried  bool     // the request to come has given all cached memory back
	late     []int    // completed frees for which the request to come has to wait
	observe  func(event int, s alloc.Stats)

	// Under the recorded settings, since the last request:
	offered []change // segments and pages that the record took
	want    []change // all changes of the record
	made    []change // all changes of the model
	places  *driver  // for what the record has no address for
}

func newReplayer(h *History, conf Conf, capacity uint64) *replayer {
	r := &replayer{h: h, blocks: make([]*block, len(h.Leases)), places: newDriver()}
	r.recorded = conf == h.Conf && h.snapshot.Settings.Backend == "" && (capacity == 0 || h.reservedAtStart() <= capacity)
	r.follow = r.recorded && capacity == 0
	r.result = &Result{Device: h.device, Policy: PyTorch, AllocConf: conf.String()}
	if r.recorded {
		r.places = newDriverBeside(h.spans)
		r.m = newModel(conf, capacity, r)
		r.m.anyAddresses = true
		r.m.onChange = func(c change) { r.made = append(r.made, c) }
	} else {
		r.m = newModel(conf, capacity, r.places)
	}
	return r
}

// run plays everything, up to the first request that fails here only.
func (r *replayer) run() *Result {
	r.start()
	for i := range r.h.Len() {
		if r.play(i); r.failed {
			break
		}
		r.result.Events = i + 1
		if f := &r.m.figures; r.observe != nil {
			r.observe(i, alloc.Stats{Live: f.live, Pending: f.pending, Cached: f.reserved - f.live - f.pending, Reserved: f.reserved})
		}
	}
	switch {
	case !r.recorded:
		r.differs("the settings, the capacity or the allocator are not the recorded ones")
	case r.failed:
		r.differs("the replay ended at a request that did not fit")
	default:
		r.compareEnd()
	}
	r.sum()
	return r.result
}

// sum fills in the figures at the end.
func (r *replayer) sum() {
	f := &r.m.figures
	r.result.PeakLiveBytes, r.result.PeakRequestedBytes, r.result.PeakReservedBytes = f.peakLive, f.peakRequested, f.peakReserved
	r.result.FinalLiveBytes, r.result.FinalReservedBytes = f.live, f.reserved
	r.result.Retries += f.retries
	r.result.Exact = r.result.Mismatch == ""
}

func (r *replayer) play(i int) {
	switch e := r.h.trace.Entry(i); e.Action {
	case trace.Alloc:
		r.alloc(i)
	case trace.FreeRequested, trace.FreeCompleted:
		if !r.follow && r.h.awaited[i] {
			r.late = append(r.late, i)
		} else if k := r.h.lease[i]; k >= 0 {
			r.free(i, int(k))
		}
	case trace.SegmentAlloc, trace.SegmentMap:
		r.offer(i, changeOf(&e))
	case trace.SegmentFree, trace.SegmentUnmap:
		r.want = append(r.want, changeOf(&e))
		if b := r.h.bursts[i]; b != nil {
			r.burst(b)
		}
	case trace.OOM:
		r.oom(i, &e)
	}
}

// offer notes that the record took memory for the request to come. If pending
// frees became complete right before, the allocator may have waited for them
// in a retry that gave nothing back, so the search is not repeated.
func (r *replayer) offer(i int, c change) {
	if r.follow && len(r.offered) == 0 && i > 0 && r.h.trace.Entry(i-1).Action == trace.FreeCompleted {
		k := r.h.lease[i-1]
		r.retried = r.retried || k >= 0 && r.h.Leases[k].Freed() < i-2
	}
	r.offered, r.want = append(r.offered, c), append(r.want, c)
}

func changeOf(e *trace.Entry) change { return change{e.Action, e.Stream, e.Addr, e.Size} }

// alloc serves the request of event i.
func (r *replayer) alloc(i int) {
	if k, ok := r.h.stale[i]; ok {
		r.free(i, int(k))
	}
	k := int(r.h.lease[i])
	taken := r.take(k)
	r.completeLate()
	if !taken {
		r.fail(i, r.h.Leases[k].Size, r.h.Leases[k].Stream(), r.h.Leases[k].Pool())
		return
	}
	if b, l := r.blocks[k], &r.h.Leases[k]; r.recorded && b.addr != l.Addr {
		r.differs("event %d: %s handed out at %#x, recorded at %#x", i, size.Format(l.Size), b.addr, l.Addr)
	} else if r.measures {
		l.Block = b.size
	}
	r.compare(i)
}

// take gives a lease its block, or says that there is no memory.
func (r *replayer) take(k int) bool {
	l := &r.h.Leases[k]
	malloc := r.m.malloc
	if r.retried {
		malloc = r.m.mallocNew
	}
	b := malloc(l.Size, l.Stream(), l.Pool())
	r.retried = false
	if b == nil {
		return false
	}
	b.owner = k + 1
	r.blocks[k] = b
	return true
}

// free does what event i does to a lease: the program's free, its completion,
// or both. The allocator may have waited for the completion before.
func (r *replayer) free(i, k int) {
	b := r.blocks[k]
	if b == nil || b.owner != k+1 {
		return
	}
	if b.state == isLive && r.h.Leases[k].Freed() <= i {
		r.m.free(b)
	}
	if b.state == isPending && r.h.Leases[k].Done() <= i {
		r.m.complete(b)
		r.blocks[k] = nil
	}
}

// completeLate completes the frees that the last request could have waited for.
func (r *replayer) completeLate() {
	for _, i := range r.late {
		r.free(i, int(r.h.lease[i]))
	}
	r.late = r.late[:0]
}

// burst gives memory back: as recorded, or if the program asked for it.
func (r *replayer) burst(b *burst) {
	if r.measures && !b.program && r.h.trace.Entry(b.end).Stack == nil {
		b.program = r.served(b.end)
	}
	if b.program {
		r.result.EmptyCaches++
	}
	if !r.follow {
		if b.program {
			r.m.releaseCached()
		}
		return
	}
	r.mapOffered()
	if b.unmaps {
		r.m.releaseCached()
	} else {
		for i := b.first; i < b.end; i++ {
			r.giveBack(i)
		}
	}
	if b.takes && !b.program && !r.m.releasable() {
		r.retried = true
		r.result.Retries++
	}
}

// served says whether what is cached serves the next request from event i on.
// Then memory was not given back for it.
func (r *replayer) served(i int) bool {
	for ; i < r.h.Len(); i++ {
		if e := r.h.trace.Entry(i); e.Action == trace.Alloc || e.Action == trace.OOM {
			request := r.m.request(e.Size, e.Stream, e.Pool)
			return r.m.fit(&request) != nil
		}
	}
	return false
}

// mapOffered maps the pages that the record mapped for a request that they were
// not enough for.
func (r *replayer) mapOffered() {
	for _, c := range r.offered {
		if c.action != trace.SegmentMap {
			continue
		}
		for _, pair := range r.m.pools {
			for i := range pair {
				if b := pair[i].unmapped.ceiling(c.stream, 0, c.addr); b != nil && b.addr == c.addr && b.seg.stream == c.stream {
					r.m.mapPages(b, c.size)
				}
			}
		}
	}
	r.offered = r.offered[:0]
}

// giveBack gives the segment of event i back.
func (r *replayer) giveBack(i int) {
	e := r.h.trace.Entry(i)
	seg := r.m.byAddr[e.Addr]
	if seg == nil || seg.page > 0 || seg.size != e.Size || seg.first.state != isFree || !seg.first.whole() {
		r.differs("event %d: the segment of %s at %#x, given back in the record, is not there and free", i, size.Format(e.Size), e.Addr)
		return
	}
	r.m.releaseSegment(seg.first)
}

// oom plays a request that failed in the record. Where it is served, the
// program would have gone on; how is not known, so it is given back at once.
func (r *replayer) oom(i int, e *trace.Entry) {
	switch b := r.tryAgain(e); {
	case b != nil:
		r.result.AvoidedOOMs++
		r.m.free(b)
		r.m.complete(b)
	case r.follow:
		r.note(i, e.Size, e.Stream, e.Pool).FreeBytes = e.Addr
		if e.Pool == (trace.PoolID{}) {
			r.result.Retries++
		}
	default:
		r.note(i, e.Size, e.Stream, e.Pool)
	}
	r.completeLate()
	r.compare(i)
}

// tryAgain asks for what failed in the record, unless the record is followed.
func (r *replayer) tryAgain(e *trace.Entry) *block {
	if r.follow {
		r.mapOffered()
		return nil
	}
	return r.m.malloc(e.Size, e.Stream, e.Pool)
}

// fail ends the replay at event i.
func (r *replayer) fail(i int, bytes uint64, stream int, id trace.PoolID) {
	r.failed = true
	r.note(i, bytes, stream, id).Recorded = false
}

// note makes the report of a request that failed, which is the result's if it
// is the first.
func (r *replayer) note(i int, bytes uint64, stream int, id trace.PoolID) *OOM {
	f, request := &r.m.figures, r.m.request(bytes, stream, id)
	o := &OOM{Event: i, Recorded: true, RequestBytes: bytes, SegmentBytes: request.segment, LiveBytes: f.live, PendingBytes: f.pending,
		CachedBytes: f.reserved - f.live - f.pending, ReservedBytes: f.reserved}
	if limit := min(r.m.capacity, r.m.allowed); limit != NoLimit {
		o.CapacityBytes, o.FreeBytes = limit, limit-min(limit, f.reserved)
	}
	if b := request.pool.free.floor(stream, NoLimit, 0); b != nil && b.seg.stream == stream {
		o.LargestCachedBytes = b.size
	}
	if r.result.OOM == nil {
		r.result.OOM = o
	}
	return o
}

// differs notes the first difference from the record.
func (r *replayer) differs(format string, args ...any) {
	if r.result.Mismatch == "" {
		r.result.Mismatch = fmt.Sprintf(format, args...)
	}
}

// compare checks that the model took and gave back what the record did since
// the last request.
func (r *replayer) compare(i int) {
	if r.recorded && !slices.Equal(r.made, r.want) {
		r.differs("event %d: the record %s, the replay %s", i, describe(r.want), describe(r.made))
	}
	r.offered, r.want, r.made = r.offered[:0], r.want[:0], r.made[:0]
}

// describe lists at most three changes.
func describe(list []change) string {
	if len(list) == 0 {
		return "took nothing"
	}
	text := ""
	for i, c := range list {
		if i == 3 {
			return fmt.Sprintf("%s and %d more", text, len(list)-i)
		}
		text += fmt.Sprintf("[%s %s at %#x]", c.action, size.Format(c.size), c.addr)
	}
	return text
}

// plain, expandable and release make the replayer the placer of its model: a
// segment goes where the record put it.
func (r *replayer) plain(size uint64, stream int) (uint64, bool) {
	for i, c := range r.offered {
		if c.action == trace.SegmentAlloc && c.size == size && c.stream == stream && c.addr+c.size > c.addr {
			r.offered = slices.Delete(r.offered, i, i+1)
			return c.addr, true
		}
	}
	return r.places.plain(size, stream)
}

func (r *replayer) expandable(size uint64) (uint64, bool) {
	for _, c := range r.offered {
		if c.action == trace.SegmentMap && c.addr+size > c.addr {
			return c.addr, true
		}
	}
	return r.places.expandable(size)
}

func (r *replayer) release(addr, size uint64) { r.places.release(addr, size) }

// ends: how far the addresses of an expandable segment reach is not recorded.
// Where the record maps pages elsewhere, they are used up.
func (r *replayer) ends(addr uint64) bool {
	for _, c := range r.offered {
		if c.action == trace.SegmentMap {
			return c.addr != addr
		}
	}
	return false
}
