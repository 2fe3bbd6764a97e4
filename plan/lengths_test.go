package plan_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// TestLengthsAreMeasured runs steps of all lengths in random order, with all that
// was planned for them: nothing runs out of memory, and the peak is that of the
// plan. Short steps make nothing again where long ones must.
func TestLengthsAreMeasured(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	budgets := []string{"host:8MiB", "host:9MiB"}
	if invariant.Slow { // checking races takes its time
		budgets = budgets[:1]
	}
	for _, budget := range budgets {
		dev, err := device.Open(budget)
		if err != nil {
			t.Fatal(err)
		}
		lengths := []int{8, 24, 64}
		l, err := plan.SearchLengths(context.Background(), dev.Info(), c, lengths, quick)
		if err != nil {
			t.Fatal(err)
		}
		short, long := l.Shapes[0].Choices[0].Strategy, l.Shapes[2].Choices[0].Strategy
		if again, _, _ := short.Values.Count(); again > 0 || short.MicroBatch < c.Batch || long == c.Plain() {
			t.Errorf("%s: %s for 8 tokens, %s for 64", budget, c.Describe(short), c.Describe(long))
		}
		tr, err := train.New(dev, c, long)
		if err != nil {
			t.Fatal(err)
		}
		tr.Strict = true
		r := rand.New(rand.NewPCG(1, 2))
		for range 60 {
			shape := l.Shapes[r.IntN(len(l.Shapes))]
			of := c
			of.Seq = shape.Seq
			if err := tr.At(shape.Seq, shape.Choices[r.IntN(len(shape.Choices))].Strategy); err != nil {
				t.Fatal(err)
			}
			if _, err := tr.Step(of.NewBatch()...); err != nil {
				t.Fatal(err)
			}
		}
		stats := tr.Memory().Stats()
		if stats.PeakLive != l.PeakBytes || stats.PeakReserved > dev.Info().Capacity {
			t.Errorf("%s: measured peak %d of %d predicted, reserved %d", budget, stats.PeakLive, l.PeakBytes, stats.PeakReserved)
		}
		if most := slices.MaxFunc(l.Plans, func(a, b *plan.Plan) int { return int(a.Chosen.PeakBytes) - int(b.Chosen.PeakBytes) }); l.PeakBytes < most.Chosen.PeakBytes {
			t.Errorf("%s: peak %d, one length alone has %d", budget, l.PeakBytes, most.Chosen.PeakBytes)
		}
		if err := errors.Join(tr.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestLengthsRefused: a length that fits with nothing is named, and what lengths
// can't do is said.
func TestLengthsRefused(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	info := device.Info{Name: "null", Capacity: 2 << 20, Granularity: 2 << 20, Virtual: true}
	if _, err := plan.SearchLengths(context.Background(), info, c, []int{8, 64}, quick); !errors.As(err, new(*plan.TooSmallError)) || !strings.Contains(err.Error(), "steps of ") {
		t.Errorf("too little memory: %v", err)
	}
	o := quick
	o.Parallel = train.Parallel{Group: dist.Null(0, 2)}
	if _, err := plan.SearchLengths(context.Background(), info, c, []int{8, 64}, o); err == nil || !strings.Contains(err.Error(), "one device") {
		t.Errorf("ranks: %v", err)
	}
}
