package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// headroomReplayer plays a history on Headroom's allocator over a null device.
type headroomReplayer struct {
	h         *History
	dev       device.Device
	a         *alloc.Allocator
	result    *Result
	blocks    []*alloc.Block // by lease
	streams   map[int]device.Stream
	requested uint64
	capacity  uint64 // 0: any number
	observe   func(event int, s alloc.Stats)
}

// mostStreams bounds a replay. The allocator keeps some KiB for each stream, and
// programs use a few.
const mostStreams = 1 << 10

// streams is the number of streams that blocks were allocated on.
func (h *History) streams() int {
	seen := map[int]bool{}
	for i := range h.Leases {
		seen[h.Leases[i].Stream()] = true
	}
	return len(seen)
}

// maxCapacity stands for a device that never fails. The allocator keeps a
// handle for each 2 MiB in use, so a larger one might take all memory here.
const maxCapacity = 1 << 40

func (h *History) replayHeadroom(o Options) (*Result, error) {
	capacity := o.Capacity
	if capacity == 0 {
		capacity = maxCapacity
	} else if capacity > maxCapacity {
		return nil, fmt.Errorf("a capacity of %s is more than a replay on %s's allocator holds, which is %s", size.Format(capacity), Headroom, size.Format(maxCapacity))
	}
	if n := h.streams(); n > mostStreams {
		return nil, fmt.Errorf("the record uses %d streams, and a replay on %s's allocator takes at most %d", n, Headroom, mostStreams)
	}
	dev, err := device.OpenNull(device.NullOptions{Capacity: capacity, Virtual: true, Alias: true})
	if err != nil {
		return nil, err
	}
	a, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	if o.Policy == Planned {
		if err := h.plan(a, dev.Info().Granularity); err != nil {
			return nil, errors.Join(err, a.Close(), dev.Close())
		}
	}
	r := &headroomReplayer{h: h, dev: dev, a: a, capacity: o.Capacity, observe: o.Observe, blocks: make([]*alloc.Block, len(h.Leases)), streams: map[int]device.Stream{},
		result: &Result{Device: h.device, Policy: o.Policy, Mismatch: "the allocator is not the recorded one"}}
	err = r.run()
	r.sum()
	return r.result, errors.Join(err, r.close())
}

// planTime bounds the search for a plan.
const planTime = 20 * time.Second

// plan lets an allocator follow a plan made from the whole trace.
func (h *History) plan(a *alloc.Allocator, page uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), planTime)
	defer cancel()
	plan, err := alloc.MakePlan(ctx, h.lifetimes(), page)
	if err != nil {
		return err
	}
	return a.Follow(plan)
}

// lifetimes lists the requests in the order in which they are played: at time
// 0 what was there before, at time i + 1 that of event i.
func (h *History) lifetimes() []alloc.Lifetime {
	var list []alloc.Lifetime
	add := func(k, start int) {
		l := &h.Leases[k]
		end := h.Len() + 1
		if l.Done() >= 0 && l.Done() < h.Len() {
			end = l.Done() + 1
		}
		list = append(list, alloc.Lifetime{Size: max(l.Size, 1), Start: start, End: max(end, start+1)})
	}
	for _, k := range h.LiveAt(0) {
		add(k, 0)
	}
	for i := range h.Len() {
		switch e := h.trace.Entry(i); e.Action {
		case trace.Alloc:
			add(int(h.lease[i]), i+1)
		case trace.OOM:
			list = append(list, alloc.Lifetime{Size: max(e.Size, 1), Start: i + 1, End: i + 2})
		}
	}
	return list
}

// run plays everything, up to the first request that fails here only.
func (r *headroomReplayer) run() error {
	if err := r.start(); err != nil {
		return r.note(-1, err)
	}
	for i := range r.h.Len() {
		if err := r.play(i); err != nil {
			if err = r.note(i, err); err != nil || !r.recordedOOM(i) {
				return err
			}
		}
		r.result.Events = i + 1
		if r.observe != nil {
			r.observe(i, r.a.Stats())
		}
	}
	return nil
}

// recordedOOM says whether event i is a request that failed in the record.
func (r *headroomReplayer) recordedOOM(i int) bool {
	return i >= 0 && r.h.trace.Entry(i).Action == trace.OOM
}

// note makes the report of an out-of-memory error, which is the result's if it
// is the first. It gives other errors back.
func (r *headroomReplayer) note(i int, err error) error {
	var oom *alloc.OutOfMemoryError
	if !errors.As(err, &oom) {
		return err
	}
	if r.result.OOM == nil {
		r.result.OOM = &OOM{Event: i, Recorded: r.recordedOOM(i), RequestBytes: oom.Asked, FreeBytes: oom.Capacity - oom.Reserved, LiveBytes: oom.Live, PendingBytes: oom.Pending,
			CachedBytes: oom.Cached, LargestCachedBytes: oom.LargestFree, ReservedBytes: oom.Reserved, CapacityBytes: r.capacity}
	}
	return nil
}

// sum fills in the figures at the end.
func (r *headroomReplayer) sum() {
	s := r.a.Stats()
	r.result.PeakLiveBytes, r.result.PeakReservedBytes = s.PeakLive, s.PeakReserved
	r.result.FinalLiveBytes, r.result.FinalReservedBytes = s.Live, s.Reserved
}

// start allocates what is there before the first event.
func (r *headroomReplayer) start() error {
	for _, k := range r.h.LiveAt(0) {
		if err := r.take(k); err != nil {
			return err
		}
	}
	return nil
}

func (r *headroomReplayer) play(i int) error {
	k := int(r.h.lease[i])
	switch e := r.h.trace.Entry(i); e.Action {
	case trace.Alloc:
		if stale, ok := r.h.stale[i]; ok {
			r.free(i, int(stale))
		}
		return r.take(k)
	case trace.FreeRequested, trace.FreeCompleted:
		if k >= 0 {
			r.free(i, k)
		}
	case trace.OOM:
		return r.oom(&e)
	}
	return nil
}

func (r *headroomReplayer) take(k int) error {
	l := &r.h.Leases[k]
	b, err := r.alloc(l.Size, l.Purpose, l.Stream())
	if err != nil {
		return err
	}
	r.blocks[k] = b
	r.requested += l.Size
	r.result.PeakRequestedBytes = max(r.result.PeakRequestedBytes, r.requested)
	return nil
}

// alloc allocates at least one byte, on the null stream that stands for a
// recorded one.
func (r *headroomReplayer) alloc(bytes uint64, p trace.Purpose, stream int) (*alloc.Block, error) {
	s := r.streams[stream]
	if s == nil {
		var err error
		if s, err = r.dev.NewStream(); err != nil {
			return nil, fmt.Errorf("stream %d: %w", stream, err)
		}
		r.streams[stream] = s
	}
	return r.a.Alloc(min(max(bytes, 1), math.MaxInt64), p, s)
}

// free gives a lease back once the record says that all work on it is done.
func (r *headroomReplayer) free(i, k int) {
	l := &r.h.Leases[k]
	if r.blocks[k] == nil || l.Done() > i {
		return
	}
	r.blocks[k].Free()
	r.blocks[k] = nil
	r.requested -= l.Size
}

// oom plays a request that failed in the record.
func (r *headroomReplayer) oom(e *trace.Entry) error {
	b, err := r.alloc(e.Size, trace.Other, e.Stream)
	if err != nil {
		return err
	}
	r.result.AvoidedOOMs++
	b.Free()
	return nil
}

// close ends the replay: it frees what is left, which the allocator asks for.
func (r *headroomReplayer) close() error {
	for _, b := range r.blocks {
		if b != nil {
			b.Free()
		}
	}
	err := r.a.Close()
	for _, s := range r.streams {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, r.dev.Close())
}
