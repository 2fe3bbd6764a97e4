package inspect

import (
	"reflect"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// realTrace is the whole history of a training job: BERT-large, sequences of
// one length, PyTorch 2.11 with its default settings.
func realTrace(t testing.TB) *trace.Snapshot {
	t.Helper()
	s, err := trace.ReadFile("testdata/bert_fixed.pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRealTrace compares the replay with what torch.cuda.memory_stats told at
// the end of the job.
func TestRealTrace(t *testing.T) {
	s := realTrace(t)
	h := NewHistory(s, 0)
	got, err := h.Replay(Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Policy: PyTorch, Events: 36491, PeakLiveBytes: 15858110464, PeakRequestedBytes: 15856683076, PeakReservedBytes: 16741564416,
		FinalLiveBytes: 4091136512, FinalReservedBytes: 16741564416, Exact: true}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, want %+v", *got, want)
	}
	// The simulated driver puts segments in other places, but in the same order.
	other := DefaultConf()
	other.MaxNonSplitRounding++ // without max_split_size it does nothing
	got, err = h.Replay(Options{Conf: &other})
	if err != nil || got.PeakReservedBytes != want.PeakReservedBytes || got.Exact {
		t.Errorf("%+v, %v", got, err)
	}
	if end := h.At(h.Len()); !sameLayout(end.Segments, h.finalSegments()) {
		t.Error("the state at the end is not the snapshot's")
	}
}

// TestRealWindow replays what a ring buffer would have kept of the job.
func TestRealWindow(t *testing.T) {
	s := realTrace(t)
	whole := s.Traces[0]
	for _, from := range []int{1, 1000, 12345, 30000, 36490} {
		s.Traces[0] = window(whole, from)
		got, err := Replay(s, Options{})
		if err != nil || !got.Exact {
			t.Errorf("from event %d: %+v, %v", from, got, err)
		}
	}
}
