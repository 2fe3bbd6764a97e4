package plan_test

import (
	"context"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
)

// TestCurve holds the points of a curve against each other: less memory takes
// longer. With room outside the device the least is less, with the optimizer
// there, and no point is slower than one without that room.
func TestCurve(t *testing.T) {
	if invariant.Slow {
		t.Skip("other tests plan with invariants")
	}
	c := config(nn.GPT2Config{Vocab: 1000, Context: 64, Width: 64, Layers: 3, Heads: 4}, 4, 64)
	info := device.Info{Kind: device.Null, Capacity: 64 << 20, Granularity: 2 << 20, Virtual: true}
	inside, err := plan.Curve(context.Background(), info, c, 2, 6, quick)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := plan.Curve(context.Background(), info, c, 2, 6, away(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, points := range [][]plan.Trial{inside, outside} {
		for i := range points {
			if i > 1 && (points[i].PeakBytes >= points[i-1].PeakBytes || points[i].Seconds <= points[i-1].Seconds) {
				t.Errorf("%d bytes in %v s after %d in %v s", points[i].PeakBytes, points[i].Seconds, points[i-1].PeakBytes, points[i-1].Seconds)
			}
		}
	}
	least, was := outside[len(outside)-1], inside[len(inside)-1]
	if !least.Strategy.StateAway || least.PeakBytes >= was.PeakBytes {
		t.Errorf("the least is %s with %d bytes, without room outside %s with %d", least.Description, least.PeakBytes, was.Description, was.PeakBytes)
	}
}

// TestLargestOutside finds a larger batch with the optimizer outside the device.
func TestLargestOutside(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 1000, Context: 64, Width: 128, Layers: 2, Heads: 4}, 1, 64)
	info := device.Info{Kind: device.Null, Capacity: 16 << 20, Granularity: 2 << 20, Virtual: true}
	inside, err := plan.LargestBatch(context.Background(), info, c, false, quick)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := plan.LargestBatch(context.Background(), info, c, false, away(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	if !outside.Fits.Strategy.StateAway || outside.Size <= inside.Size {
		t.Errorf("batch %d (%s), without room outside %d", outside.Size, outside.Fits.Description, inside.Size)
	}
}
