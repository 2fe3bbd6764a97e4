package watch

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// seen is a scan that the oracle remembers.
type seen struct {
	time time.Time
	used uint64
	busy *int
}

// TestHistoryAgainstOracle: courses equal what a list of all scans says.
func TestHistoryAgainstOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 5 {
		var h history
		var all []seen
		now := time.Unix(1_800_000_000+int64(r.IntN(100)), 0)
		for range 4000 {
			now = now.Add(time.Duration(1+r.IntN(60)) * time.Second)
			if r.IntN(500) == 0 {
				now = now.Add(time.Duration(r.IntN(3*3600)) * time.Second)
			}
			s := seen{now, uint64(r.IntN(1000)), nil}
			if r.IntN(5) > 0 {
				s.busy = new(r.IntN(101))
			}
			all = append(all, s)
			h.add(s.time, s.used, s.busy)
		}
		for _, c := range []struct {
			span, width time.Duration
			n           int
		}{{time.Hour, fineWidth, 60}, {time.Hour, fineWidth, 360}, {24 * time.Hour, coarseWidth, 60}, {24 * time.Hour, coarseWidth, 1440}, {10 * time.Minute, fineWidth, 7}} {
			got := h.course(now, c.span, c.n)
			for i, s := range got {
				if want := courseOf(all, now, c.span, c.width, i, c.n); !same(s, want) {
					t.Fatalf("%v, part %d of %d: %+v, want %+v", c.span, i, c.n, s, want)
				}
			}
		}
	}
}

// courseOf is part i of n of a course, by all scans.
func courseOf(all []seen, now time.Time, span, width time.Duration, i, n int) Sample {
	slots := int64(span / width)
	first := now.UnixNano()/int64(width) - slots + 1
	s := Sample{Utilisation: -1}
	var busy, known float64
	for _, x := range all {
		slot := x.time.UnixNano()/int64(width) - first
		if slot < slots*int64(i)/int64(n) || slot >= slots*int64(i+1)/int64(n) {
			continue
		}
		s.Known, s.UsedBytes = true, max(s.UsedBytes, x.used)
		if x.busy != nil {
			busy, known = busy+float64(*x.busy), known+1
		}
	}
	if known > 0 {
		s.Utilisation = busy / known
	}
	return s
}

func same(a, b Sample) bool {
	return a.Known == b.Known && a.UsedBytes == b.UsedBytes && math.Abs(a.Utilisation-b.Utilisation) < 1e-9
}

func TestCourseOfNothing(t *testing.T) {
	var h history
	for _, s := range h.course(time.Unix(0, 0), time.Hour, 10) {
		if s.Known {
			t.Errorf("%+v", s)
		}
	}
	h.add(time.Unix(0, 0), 7, nil)
	for i, s := range h.course(time.Unix(0, 0), time.Hour, 500) { // more parts than stretches
		if s.Known && s.UsedBytes != 7 || i == 499 && !s.Known {
			t.Errorf("part %d: %+v", i, s)
		}
	}
}

// TestHistoryIsBounded: 24 hours of a device are under 100 KiB, and a year is no more.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	now := time.Unix(1_800_000_000, 0)
	for range 200_000 {
		now = now.Add(3 * time.Minute)
		h.add(now, 1, nil)
	}
	if bytes := (cap(h.fine.slots) + cap(h.coarse.slots)) * int(reflect.TypeFor[rollup]().Size()); bytes > 100<<10 {
		t.Errorf("a history holds %d bytes", bytes)
	}
	if n := len(h.window(now)); n > int(growWindow/fineWidth)+1 {
		t.Errorf("%d points", n)
	}
}

func TestGrowth(t *testing.T) {
	m, w := newMachine(), New(Options{})
	m.run(t, "gpu 0 80GiB", "start 0 7 10GiB ann train.py", "grow 0 7 60MiB", "start 0 8 5GiB bob serve.py")
	m.scans(w, 60, nil)
	m.scans(w, 300, func(s Scan, _ []Change) {
		for _, p := range w.Report().Devices[0].Processes {
			minutes := float64(p.GrownBytes) / (60 << 20)
			if p.PID == 8 && p.GrownBytes != 0 || p.PID == 7 && (minutes < 9 || minutes > 12) {
				t.Fatalf("%v: PID %d grew by %d", s.Time, p.PID, p.GrownBytes)
			}
		}
	})
	if n := len(w.tracks[0].growth[7]); n > 10 {
		t.Errorf("%d memories of a process", n)
	}
}
