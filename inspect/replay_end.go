package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// layout gives the segments of the model as a snapshot would, by address.
func (m *model) layout(device int) []trace.Segment {
	var out []trace.Segment
	for _, seg := range m.segments {
		open := false
		for b := seg.first; b != nil; b = b.next {
			if b.state == isUnmapped {
				open = false
				continue
			}
			if !open {
				out = append(out, trace.Segment{Device: device, Stream: seg.stream, Addr: b.addr, Small: seg.pool.small, Expandable: seg.page > 0, Pool: seg.pool.id})
				open = true
			}
			s := &out[len(out)-1]
			s.Size += b.size
			s.Blocks = append(s.Blocks, trace.Block{Addr: b.addr, Size: b.size, Requested: b.requested, State: b.traceState()})
		}
	}
	slices.SortFunc(out, func(a, b trace.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

func (b *block) traceState() trace.State {
	switch b.state {
	case isLive:
		return trace.Live
	case isPending:
		return trace.Pending
	}
	return trace.Free
}

// compareEnd checks that the model's segments are those of the snapshot.
func (r *replayer) compareEnd() {
	if r.h.snapshot.Cut != nil {
		r.differs("the file is cut, so the end of the record is not known")
		return
	}
	if r.h.Len() == 0 {
		r.differs("there are no events, so that there is nothing to compare")
		return
	}
	r.compare(r.h.Len())
	want := r.h.finalSegments()
	got := r.m.layout(r.h.device)
	for i := range min(len(got), len(want)) {
		if text := differenceOf(&got[i], &want[i]); text != "" {
			r.differs("at the end %s", text)
			return
		}
	}
	if len(got) != len(want) {
		r.differs("at the end there are %d segments, recorded are %d", len(got), len(want))
	}
}

// finalSegments are those of the snapshot on this device, by address.
func (h *History) finalSegments() []trace.Segment {
	var out []trace.Segment
	for _, s := range h.snapshot.Segments {
		if s.Device == h.device {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b trace.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// differenceOf says in what two segments differ; empty if in nothing.
func differenceOf(got, want *trace.Segment) string {
	if got.Addr != want.Addr || got.Size != want.Size || got.Stream != want.Stream || got.Small != want.Small || got.Pool != want.Pool {
		return fmt.Sprintf("there is a segment of %s at %#x, recorded is one of %s at %#x", size.Format(got.Size), got.Addr, size.Format(want.Size), want.Addr)
	}
	if len(got.Blocks) != len(want.Blocks) {
		return fmt.Sprintf("the segment at %#x has %d blocks, recorded are %d", got.Addr, len(got.Blocks), len(want.Blocks))
	}
	for i := range got.Blocks {
		g, w := &got.Blocks[i], &want.Blocks[i]
		if g.Addr != w.Addr || g.Size != w.Size || g.State != w.State || g.State != trace.Free && g.Requested != w.Requested {
			return fmt.Sprintf("the block at %#x has %d bytes (%v, %d requested), recorded are %d bytes at %#x (%v, %d requested)",
				g.Addr, g.Size, g.State, g.Requested, w.Size, w.Addr, w.State, w.Requested)
		}
	}
	return ""
}
