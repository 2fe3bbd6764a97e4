package inspect

import (
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

func load(t testing.TB, name string) *trace.Snapshot {
	t.Helper()
	s, err := trace.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRecordedJobs replays two jobs that PyTorch 2.11 ran on an H200: the
// model finds every address and block again, and the peaks are the counters
// that PyTorch kept.
func TestRecordedJobs(t *testing.T) {
	for name, want := range map[string]Result{
		"leak_cache.pickle.gz": {PeakLiveBytes: 5_212_784_128, PeakRequestedBytes: 5_179_938_024, PeakReservedBytes: 5_242_880_000},
		"bert_ckpt.pickle.gz":  {PeakLiveBytes: 7_726_925_312, PeakRequestedBytes: 7_725_579_572, PeakReservedBytes: 9_286_189_056},
	} {
		r, err := Replay(load(t, name), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Exact || r.PeakLiveBytes != want.PeakLiveBytes || r.PeakRequestedBytes != want.PeakRequestedBytes || r.PeakReservedBytes != want.PeakReservedBytes {
			t.Errorf("%s: %+v, want exact with %+v", name, r, want)
		}
	}
}

// TestRecordedLeak explains an evaluation that keeps its outputs on the device.
func TestRecordedLeak(t *testing.T) {
	r, err := explainWorst(load(t, "leak_cache.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"119.23MiB more lives after every step", "modeling_bert.py:495 forward (called from finetune.py:38 <module>)"} {
		if r.Verdict != Leak || !strings.Contains(r.Summary, want) {
			t.Errorf("%s: %s, want %s with %q", r.Verdict, r.Summary, Leak, want)
		}
	}
}

// TestRecordedHealth: jobs that repeat themselves are called healthy, whether
// little or much of what they reserved was free. Other settings are tried where
// it was much, and the record is not of Headroom's allocator. The window keeps
// the replays short.
func TestRecordedHealth(t *testing.T) {
	few, many := load(t, "bert_fixed.pickle.gz"), load(t, "bert_ckpt.pickle.gz")
	many.Traces[0] = window(many.Traces[0], many.Traces[0].Len()-1000)
	own := &trace.Snapshot{Segments: many.Segments, Traces: many.Traces, Settings: many.Settings}
	own.Settings.Backend = "headroom"
	for name, s := range map[string]*trace.Snapshot{"bert_fixed": few, "the end of bert_ckpt": many, "the same by Headroom": own} {
		r, err := explainWorst(s)
		if err != nil || r.Verdict != Healthy {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		tried := slices.ContainsFunc(slices.Concat(r.Actions, r.Unhelpful), func(s string) bool { return strings.Contains(s, "Headroom's allocator would have reserved") })
		if tried != (s == many) {
			t.Errorf("%s: other settings tried: %v\n%v\n%v", name, tried, r.Actions, r.Unhelpful)
		}
	}
}
