package device_test

import (
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestClock counts by hand what streams that wait for each other take.
func TestClock(t *testing.T) {
	clock := &device.Clock{Seconds: func(l *device.Launch) float64 { return float64(l.Flops) }}
	dev, err := device.OpenNullLike(device.Info{Granularity: 2 << 20}, 1<<30, nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	streams := make([]device.Stream, 2)
	for i := range streams {
		if streams[i], err = dev.NewStream(); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
	}
	a, b := streams[0], streams[1]
	work := func(s device.Stream, seconds uint64) {
		s.Launch(&device.Launch{Kernel: &device.Kernel{Name: "work"}, Flops: seconds})
	}
	expect := func(what string, want float64) {
		t.Helper()
		if got := clock.Now(); got != want {
			t.Errorf("%s: %v s, want %v", what, got, want)
		}
	}
	work(a, 3)
	work(b, 2)
	expect("side by side", 3)
	work(b, 4)
	expect("one after the other", 6)
	a.Wait(b.Record())
	work(a, 1)
	expect("after an event", 7)
	b.Wait(a.Record())
	old := a.Record()
	clock.Restart()
	expect("begun anew", 0)
	work(b, 2)
	expect("with all streams idle", 2)
	a.Wait(old)
	work(a, 1)
	expect("after an event of before", 2)
	a.Wait(b.Record())
	work(a, 1)
	expect("after one of now", 3)
}
