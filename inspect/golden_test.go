package inspect

import (
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
	r, err := ExplainSnapshot(load(t, "leak_cache.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"119.23MiB more lives after every step", "modeling_bert.py:495 forward (called from finetune.py:38 <module>)"} {
		if r.Verdict != Leak || !strings.Contains(r.Summary, want) {
			t.Errorf("%s: %s, want %s with %q", r.Verdict, r.Summary, Leak, want)
		}
	}
	r, err = ExplainSnapshot(load(t, "bert_ckpt.pickle.gz"))
	if err != nil || r.Verdict != Healthy {
		t.Errorf("a healthy job: %+v, %v", r, err)
	}
}
