package inspect

import (
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// longRecord is a program of steps in which most blocks live for a short time
// and some stay, recorded on one stream.
func longRecord(events int) *trace.Snapshot {
	r := newRecorder(DefaultConf(), 0)
	r.m.onChange = nil // few segments: their events don't matter
	for i := 0; r.t.Len() < events; i++ {
		r.alloc(512<<(scatter(uint64(i))%15), 0, trace.PoolID{})
		if n := len(r.blocks); n > 20000 || n > 500 && i%16 > 0 {
			r.free(int(scatter(uint64(i)+1)%uint64(n)), true)
		}
	}
	return r.snapshot()
}

// BenchmarkReplay replays the trace of a real training job and reports events
// per second.
func BenchmarkReplay(b *testing.B) {
	s := realTrace(b)
	expandable := DefaultConf()
	expandable.Expandable = true
	h := NewHistory(s, 0)
	for _, c := range []struct {
		name string
		o    Options
	}{{"recorded", Options{}}, {"expandable", Options{Conf: &expandable}}, {"headroom", Options{Policy: Headroom}}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := h.Replay(c.o); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(h.Len())*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkNewHistory(b *testing.B) {
	s := realTrace(b)
	for b.Loop() {
		NewHistory(s, 0)
	}
	b.ReportMetric(float64(s.Traces[0].Len())*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkSeek gives the state at moments of a trace of a million events.
func BenchmarkSeek(b *testing.B) {
	h := NewHistory(longRecord(1_000_000), 0)
	n := 0
	for b.Loop() {
		h.At(n)
		n = (n + 777_777) % h.Len()
	}
}
