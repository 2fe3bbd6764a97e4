package inspect

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// TestReplayIsExact records random programs under all settings and replays
// them under the recorded ones: with the record telling when memory is given
// back, and with the capacity alone.
func TestReplayIsExact(t *testing.T) {
	for i, text := range exactConfs() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) {
				capacity := (160 + 40*seed) * mib
				r := randomRecord(text, seed, capacity, 600)
				h := NewHistory(r.snapshot(), 0)
				for _, capacity := range []uint64{0, capacity} {
					if capacity > 0 && r.m.conf.Expandable {
						continue // a failed request may have left a segment without pages, which is not recorded
					}
					got, err := h.Replay(Options{Capacity: capacity})
					if err != nil {
						t.Fatal(err)
					}
					f := r.m.figures
					if !got.Exact || got.Events != r.t.Len() || got.PeakLiveBytes != f.peakLive || got.PeakRequestedBytes != f.peakRequested ||
						got.PeakReservedBytes != f.peakReserved || got.FinalLiveBytes != f.live || got.FinalReservedBytes != f.reserved {
						t.Errorf("capacity %d: replay %+v, record of %d events %+v", capacity, got, r.t.Len(), f)
					}
					if tells := capacity > 0 || r.m.conf.MaxSplit == NoLimit && r.m.conf.GCThreshold == 0 && !r.m.conf.Expandable; tells && got.Retries != f.retries {
						t.Errorf("capacity %d: %d retries, recorded %d", capacity, got.Retries, f.retries)
					}
					checkFirstOOM(t, r, got)
				}
			})
		}
	}
}

// exactConfs are those of oracleConfs that do not bound the addresses of
// expandable segments: their number is not recorded.
func exactConfs() []string {
	return slices.DeleteFunc(slices.Clone(oracleConfs), func(s string) bool { return strings.Contains(s, "reserve") })
}

// TestAddressesRunOut replays a record in which an expandable segment had no
// addresses left, so that there is a second one.
func TestAddressesRunOut(t *testing.T) {
	conf, err := ParseConf("expandable_segments:True")
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder(conf, 100*mib)
	r.m.anyAddresses = false
	r.alloc(70*mib, 0, trace.PoolID{})
	r.alloc(10*mib, 0, trace.PoolID{})
	r.free(0, true)
	r.empty()
	r.alloc(75*mib, 0, trace.PoolID{})
	if len(r.m.segments) != 2 {
		t.Fatalf("%d segments", len(r.m.segments))
	}
	got, err := Replay(r.snapshot(), Options{})
	if err != nil || !got.Exact {
		t.Errorf("%+v, %v", got, err)
	}
}

func checkFirstOOM(t *testing.T, r *recorder, got *Result) {
	t.Helper()
	for i, e := range r.t.All() {
		if e.Action == trace.OOM {
			if got.OOM == nil || got.OOM.Event != i || got.OOM.RequestBytes != e.Size || !got.OOM.Recorded {
				t.Errorf("first failure %+v, recorded at event %d", got.OOM, i)
			}
			return
		}
	}
	if got.OOM != nil {
		t.Errorf("failure %+v, none recorded", got.OOM)
	}
}

// TestReplayOfWindow replays what a ring buffer leaves of a record. Where the
// state at its start can be told, the replay is exact.
func TestReplayOfWindow(t *testing.T) {
	exact, windows := 0, 0
	for i, text := range exactConfs() {
		r := randomRecord(text, uint64(i), 200*mib, 400)
		whole := NewHistory(r.snapshot(), 0)
		for from := 1; from < r.t.Len(); from += 37 {
			s := r.snapshot()
			s.Traces[0] = window(r.t, from)
			h := NewHistory(s, 0)
			got, err := h.Replay(Options{})
			if err != nil {
				t.Fatal(err)
			}
			windows++
			if got.Exact {
				exact++
			}
			if same := sameLayout(h.At(0).Segments, whole.At(from).Segments); same && !got.Exact && r.outside[from] {
				t.Errorf("%q from event %d: the start is right, but %s", text, from, got.Mismatch)
			}
		}
	}
	if exact*10 < windows*9 {
		t.Errorf("%d of %d windows are exact", exact, windows)
	}
}

// window gives the events from one on.
func window(t *trace.Trace, from int) *trace.Trace {
	w := &trace.Trace{}
	for i, e := range t.All() {
		if i >= from {
			w.Append(e)
		}
	}
	return w
}

// TestWhatIf compares replays under other settings with the program itself run
// under them.
func TestWhatIf(t *testing.T) {
	for i, recorded := range oracleConfs {
		r := randomRecord(recorded, uint64(i), 0, 500)
		h := NewHistory(r.snapshot(), 0)
		for _, other := range oracleConfs {
			c, err := ParseConf(other)
			if err != nil {
				t.Fatal(err)
			}
			c.MemoryFraction = 1
			if c == h.Conf {
				continue
			}
			got, err := h.Replay(Options{Conf: &c})
			if err != nil {
				t.Fatal(err)
			}
			want := r.play(c)
			if got.PeakReservedBytes != want.peakReserved || got.PeakLiveBytes != want.peakLive || got.FinalReservedBytes != want.reserved {
				t.Errorf("recorded under %q, replayed under %q: %+v, want %+v", recorded, other, got, want)
			}
			if got.Exact {
				t.Errorf("recorded under %q, replayed under %q: exact", recorded, other)
			}
		}
	}
}

// TestReplayHeadroom replays on Headroom's own allocator.
func TestReplayHeadroom(t *testing.T) {
	r := randomRecord("", 3, 0, 400)
	h := NewHistory(r.snapshot(), 0)
	got, err := h.Replay(Options{Policy: Headroom})
	if err != nil {
		t.Fatal(err)
	}
	if got.OOM != nil || got.Events != r.t.Len() || got.PeakRequestedBytes != r.m.figures.peakRequested || got.PeakReservedBytes >= r.m.figures.peakReserved {
		t.Errorf("on Headroom's allocator %+v, on PyTorch's %+v", got, r.m.figures)
	}
	got, err = h.Replay(Options{Policy: Headroom, Capacity: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if got.OOM == nil || got.OOM.Recorded || got.Events != got.OOM.Event || got.OOM.RequestBytes > 64*mib+got.OOM.LiveBytes || got.PeakReservedBytes > 64*mib {
		t.Errorf("with 64 MiB: %+v", got)
	}
}

// TestAvoidedOOM replays a request that failed where it is served.
func TestAvoidedOOM(t *testing.T) {
	r := newRecorder(DefaultConf(), 100*mib)
	r.alloc(60*mib, 0, trace.PoolID{})
	r.alloc(50*mib, 0, trace.PoolID{})
	r.free(0, true)
	for _, o := range []Options{{Capacity: 120 * mib}, {Policy: Headroom, Capacity: 120 * mib}} {
		got, err := Replay(r.snapshot(), o)
		if err != nil || got.OOM != nil || got.AvoidedOOMs != 1 || got.PeakReservedBytes != 110*mib || got.Events != 5 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	got, err := Replay(r.snapshot(), Options{Policy: Headroom, Capacity: 100 * mib})
	if err != nil || got.OOM == nil || !got.OOM.Recorded || got.OOM.Event != 2 || got.Events != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestReplayStops replays on a smaller device, to the first request that fails.
func TestReplayStops(t *testing.T) {
	r := newRecorder(DefaultConf(), 0)
	r.alloc(60*mib, 0, trace.PoolID{})
	r.alloc(50*mib, 0, trace.PoolID{})
	r.free(0, true)
	got, err := Replay(r.snapshot(), Options{Capacity: 100 * mib})
	if err != nil {
		t.Fatal(err)
	}
	want := &OOM{Event: 3, RequestBytes: 50 * mib, SegmentBytes: 50 * mib, FreeBytes: 40 * mib, LiveBytes: 60 * mib, ReservedBytes: 60 * mib, CapacityBytes: 100 * mib}
	if got.Exact || got.Events != 3 || !reflect.DeepEqual(got.OOM, want) {
		t.Errorf("%+v with %+v", got, got.OOM)
	}
	// A window that begins with more than the device has.
	s := r.snapshot()
	s.Traces[0] = window(r.t, 4)
	got, err = Replay(s, Options{Capacity: 100 * mib})
	if err != nil || got.OOM == nil || got.OOM.Event != -1 || got.Events != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReplayOptions(t *testing.T) {
	s := randomRecord("", 1, 0, 20).snapshot()
	conf := func(text string) *Conf {
		c, err := ParseConf(text)
		if err != nil {
			t.Fatal(err)
		}
		return &c
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Device: 1}, "device 1 is not in the snapshot"},
		{Options{Device: -1}, "device -1 is not in the snapshot"},
		{Options{Policy: Headroom, Capacity: 1 << 50}, "a capacity of 1PiB is more than"},
		{Options{Policy: "best"}, `policy "best" is n`},
		{Options{Conf: conf("backend:cudaMallocAsync")}, "only native can be replayed"},
		{Options{Conf: conf("per_process_memory_fraction:0.5")}, "say how much it has"},
	} {
		if _, err := Replay(s, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	for _, o := range []Options{{}, {Policy: PyTorch}, {Conf: conf("garbage_collection_threshold:0.5")}} {
		if _, err := Replay(s, o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	got, err := Replay(s, Options{Conf: conf("garbage_collection_threshold:0.5")})
	if err != nil || len(got.Notes) != 2 || !strings.Contains(got.Notes[0], "per_process_memory_fraction") || !strings.Contains(got.Notes[1], "within about 1 %") {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = Replay(&trace.Snapshot{}, Options{})
	if err != nil || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "no events") || got.Events != 0 || got.Exact {
		t.Errorf("an empty snapshot: %+v, %v", got, err)
	}
}

// TestResultJSON holds the keys that other programs read.
func TestResultJSON(t *testing.T) {
	b, err := json.Marshal(Result{OOM: &OOM{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("device policy alloc_conf events peak_live_bytes peak_requested_bytes peak_reserved_bytes final_live_bytes exact retries oom event request_bytes") {
		if !strings.Contains(string(b), `"`+key+`":`) {
			t.Errorf("%s has no %q", b, key)
		}
	}
}

// TestBursts tells why memory was given back, with and without stacks.
func TestBursts(t *testing.T) {
	r := newRecorder(DefaultConf(), 100*mib)
	for range 2 {
		r.alloc(60*mib, 0, trace.PoolID{})
		r.free(0, true)
	}
	r.empty()                          // the program's, nothing after it is short of memory
	r.alloc(30*mib, 0, trace.PoolID{}) //
	r.free(0, true)                    //
	r.alloc(80*mib, 0, trace.PoolID{}) // a retry
	r.alloc(40*mib, 0, trace.PoolID{}) // fails: nothing to give back
	for _, stacks := range []bool{true, false} {
		s := r.snapshot()
		if !stacks {
			bare := &trace.Trace{}
			for _, e := range r.t.All() {
				e.Stack = nil
				bare.Append(e)
			}
			s.Traces[0] = bare
		}
		got, err := Replay(s, Options{})
		if err != nil || !got.Exact || got.EmptyCaches != 1 || got.Retries != 2 {
			t.Errorf("stacks %v: %+v, %v", stacks, got, err)
		}
	}
}
