package plan_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// away is room outside the device, for a quick search.
func away(bytes uint64) plan.Options {
	o := quick
	o.Away = plan.Away{Tiers: []plan.Tier{{Bytes: bytes, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9}}}
	return o
}

// TestOutsidePredictedIsMeasured: with room outside the device, budgets that no
// strategy fits otherwise are fitted with the optimizer there, and the peaks
// are those that were predicted.
func TestOutsidePredictedIsMeasured(t *testing.T) {
	all := families()
	all["gpt2"] = config(nn.GPT2Config{Vocab: 1000, Context: 64, Width: 128, Layers: 4, Heads: 4}, 4, 64)
	outside := 0
	for _, test := range []struct{ name, budget string }{
		{"gpt2", "host:12MiB"}, {"gpt2", "host:8MiB"}, {"moe", "host:4MiB"}, {"masked", "host:4MiB"}, {"resnet", "host:6MiB"},
	} {
		if invariant.Slow && test.budget != "host:8MiB" {
			continue
		}
		c := all[test.name]
		dev, err := device.Open(test.budget)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Search(context.Background(), dev.Info(), c, away(64<<20))
		if err == nil {
			t.Logf("%s in %s: %s", test.name, test.budget, p.Chosen.Description)
			if p.Chosen.Strategy.StateAway {
				outside++
			}
			peak, reserved := measureOutside(t, dev, c, p.Chosen.Strategy)
			if peak != p.Chosen.PeakBytes || reserved != p.Chosen.ReservedBytes || reserved > p.BudgetBytes {
				t.Errorf("%s, %s: measured peak %d and reserved %d, predicted %d and %d", test.budget, p.Chosen.Description, peak, reserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
			}
		} else if small := new(plan.TooSmallError); !errors.As(err, &small) {
			t.Error(err)
		} else {
			t.Logf("%s in %s: %v", test.name, test.budget, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	if outside == 0 {
		t.Error("the optimizer was never outside")
	}
}

// TestGradientsOutside compares the peaks of a step whose gradients wait outside
// the device between micro-batches with those that were predicted.
func TestGradientsOutside(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 1000, Context: 64, Width: 128, Layers: 4, Heads: 4}, 4, 64)
	dev, err := device.Open("host:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := train.Strategy{MicroBatch: 1, StateAway: true, GradientsAway: true}
	want, err := plan.Try(dev.Info(), dev.Info().Capacity, c, s, quick)
	if err != nil {
		t.Fatal(err)
	}
	if peak, reserved := measureOutside(t, dev, c, s); peak != want.PeakBytes || reserved != want.ReservedBytes {
		t.Errorf("measured peak %d and reserved %d, predicted %d and %d", peak, reserved, want.PeakBytes, want.ReservedBytes)
	}
}

// TestNoRoomOutside: where the optimizer finds no room outside the device, no
// plan puts it there.
func TestNoRoomOutside(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 1000, Context: 64, Width: 128, Layers: 4, Heads: 4}, 1, 64)
	info := device.Info{Capacity: 10 << 20, Granularity: 2 << 20, Virtual: true}
	p, err := plan.Search(context.Background(), info, c, away(4<<20))
	if !errors.As(err, new(*plan.TooSmallError)) {
		t.Errorf("%+v, %v", p, err)
	}
}

func measureOutside(t *testing.T, dev device.Device, c train.Config, s train.Strategy) (peak, reserved uint64) {
	t.Helper()
	place, err := spill.Memory(nil, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := train.New(dev, c, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.UseStore(place, nil); err != nil {
		t.Fatal(err)
	}
	tr.Strict = true
	for i := range c.Schedule.Steps {
		if _, err := tr.Step(c.NewBatch()...); err != nil {
			t.Fatal(err)
		}
		if c.Test && i > 1 {
			if _, err := tr.Evaluate(counting{c.Fields()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	stats := tr.Memory().Stats()
	if err := errors.Join(tr.Close(), place.Close()); err != nil {
		t.Error(err)
	}
	return stats.PeakLive, stats.PeakReserved
}

// TestAwayAs trains with values in fewer bits outside the device: losses are
// those of all bits within the tolerance of the form, and the peaks are those
// that were predicted.
func TestAwayAs(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	for as, tolerance := range map[tensor.AwayForm]float64{tensor.AwayBFloat16: 1e-3, tensor.AwayInt8: 1e-2} {
		if invariant.Slow && as != tensor.AwayInt8 {
			continue
		}
		dev, err := device.Open("host:6MiB")
		if err != nil {
			t.Fatal(err)
		}
		o := away(64 << 20)
		o.Away.As = as
		prog, err := plan.Search(context.Background(), dev.Info(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		s := prog.Chosen.Strategy
		if s.Values == nil || s.Values.AwayAs != as {
			t.Fatalf("chosen %s", prog.Chosen.Description)
		}
		got, peak := lossesOutside(t, dev, c, s)
		if peak != prog.Chosen.PeakBytes {
			t.Errorf("%s: measured peak %d, predicted %d", as, peak, prog.Chosen.PeakBytes)
		}
		exact := *s.Values
		exact.AwayAs, s.Values = tensor.AwayExact, &exact
		want, _ := lossesOutside(t, nil, c, s)
		same := true
		for i := range want {
			same = same && got[i] == want[i]
			if math.Abs(got[i]-want[i]) > tolerance*want[i] {
				t.Errorf("%s: losses %v, want %v", as, got, want)
			}
		}
		if same {
			t.Errorf("%s changed nothing", as)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// lossesOutside trains on dev, or on a device with room for all.
func lossesOutside(t *testing.T, dev device.Device, c train.Config, s train.Strategy) (losses []float64, peak uint64) {
	t.Helper()
	place, err := spill.Memory(nil, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	if dev == nil {
		if dev, err = device.Open("host:64MiB"); err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
	}
	tr, err := train.New(dev, c, s)
	if err == nil {
		err = tr.UseStore(place, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr.Strict = true
	batch := c.NewBatch()
	for i, f := range c.Fields() {
		for k := range batch[i].([]int32) {
			batch[i].([]int32)[k] = int32(k * k % f.Below)
		}
	}
	for range c.Schedule.Steps {
		r, err := tr.Step(batch...)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, r.Loss)
	}
	peak = tr.Memory().Stats().PeakLive
	if err := errors.Join(tr.Close(), place.Close()); err != nil {
		t.Error(err)
	}
	return losses, peak
}
