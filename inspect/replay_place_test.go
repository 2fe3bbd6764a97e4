package inspect

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// placementOptions are replays that get their addresses in different ways: from
// the record, from the record but for when memory is given back, and from the
// simulated device.
func placementOptions(r *recorder, capacity uint64) map[string]Options {
	other := r.m.conf
	other.Expandable = !other.Expandable
	return map[string]Options{"recorded": {}, "recorded, with a capacity": {Capacity: capacity}, "simulated": {Conf: &other}}
}

// TestPlacement looks at the model after every event of replays: every block
// that the program holds lies in a segment for its stream and pool, no two
// segments share an address, and under the recorded settings every block and
// segment is where it was recorded.
func TestPlacement(t *testing.T) {
	const capacity = 300 * mib
	for i, text := range exactConfs() {
		r := randomRecord(text, uint64(i)+100, capacity, 300)
		for name, o := range placementOptions(r, capacity) {
			if o.Capacity > 0 && r.m.conf.Expandable {
				continue // see TestReplayIsExact
			}
			for _, from := range []int{0, r.t.Len() / 2} {
				s := r.snapshot()
				s.Traces[0] = window(r.t, from)
				what := fmt.Sprintf("%q, %s, from event %d", text, name, from)
				checkPlacements(t, what, NewHistory(s, 0), o, func(n int) bool { return r.outside[from+n] })
			}
		}
	}
}

// TestPlacementWithoutSegments replays a record that tells nothing of segments
// but those at its end: what they do not hold is placed beside them.
func TestPlacementWithoutSegments(t *testing.T) {
	for seed := range uint64(10) {
		r := randomRecord([]string{"", "expandable_segments:True"}[seed%2], seed, 0, 300)
		s := r.snapshot()
		s.Traces[0] = &trace.Trace{}
		for _, e := range r.t.All() {
			if e.Action < trace.SegmentAlloc || e.Action > trace.SegmentUnmap {
				s.Traces[0].Append(e)
			}
		}
		checkPlacements(t, fmt.Sprint("seed ", seed), NewHistory(s, 0), Options{}, func(int) bool { return false })
	}
}

// checkPlacements replays one event after the other. Quiet says after how many
// events the allocator was at rest, so that the states can be compared.
func checkPlacements(t *testing.T, what string, h *History, o Options, quiet func(n int) bool) {
	t.Helper()
	conf := h.Conf
	if o.Conf != nil {
		conf = *o.Conf
	}
	r := newReplayer(h, conf, o.Capacity)
	r.start()
	exact := newReplayer(h, conf, o.Capacity).run().Exact
	for n := 0; ; n++ {
		if err := checkModel(r.m); err != nil {
			t.Fatalf("%s: after %d events: %v", what, n, err)
		}
		checkSegments(t, fmt.Sprintf("%s: after %d events", what, n), r)
		if state := h.At(n); exact && quiet(n) && !sameLayout(r.m.layout(0), state.Segments) {
			t.Fatalf("%s: after %d events\n%+v\nrecorded\n%+v", what, n, r.m.layout(0), state.Segments)
		}
		if n == h.Len() || r.failed {
			return
		}
		r.play(n)
	}
}

// checkSegments checks where blocks and segments lie.
func checkSegments(t *testing.T, what string, r *replayer) {
	t.Helper()
	segments := r.m.layout(0)
	for i := 1; i < len(segments); i++ {
		if a, b := segments[i-1], segments[i]; a.Addr+a.Size > b.Addr {
			t.Fatalf("%s: segments of %d bytes at %#x and of %d at %#x share addresses", what, a.Size, a.Addr, b.Size, b.Addr)
		}
	}
	for k, b := range r.blocks {
		if b == nil || b.owner != k+1 {
			continue
		}
		l, seg := &r.h.Leases[k], b.seg
		in := seg.addr <= b.addr && b.end() <= seg.addr+seg.size && slices.Contains(r.m.segments, seg)
		if !in || b.size < l.Size || b.state != isLive && b.state != isPending || seg.stream != l.Stream() || seg.pool.id != l.Pool() {
			t.Fatalf("%s: block %+v of lease %+v in segment %+v", what, b, l, seg)
		}
	}
}
