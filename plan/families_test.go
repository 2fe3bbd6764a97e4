package plan_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// families are steps of every kind of model and task.
func families() map[string]train.Config {
	base := config(nn.GPT2Config{}, 16, 0)
	bert := base
	bert.BERT = nn.BERTConfig{Vocab: 258, Width: 64, Layers: 4, Heads: 4, Hidden: 128, Context: 48, Types: 2, Dropout: 0.1, AttentionDropout: 0.1, Eps: 1e-12}
	bert.Seq = 48
	masked, classes, resnet, moe := bert, bert, base, base
	masked.Task = train.Hidden
	classes.Task, classes.Labels, classes.Test = train.Classes, 5, true
	resnet.ResNet = nn.ResNetConfig{Layers: [4]int{5, 1, 1, 1}, Width: 8, Channels: 3, Classes: 10, SmallImages: true}
	resnet.Image, resnet.Batch, resnet.Test = [2]int{20, 24}, 24, true
	resnet.AdamW, resnet.SGD = nn.AdamWOptions{}, nn.SGDOptions{Momentum: 0.9}
	moe.MoE = nn.MoEConfig{Vocab: 256, Width: 64, Layers: 3, Experts: 4, TopK: 2, Hidden: 128, Heads: 4, Context: 48, Balance: 0.01, Capacity: 1.25}
	moe.Seq, moe.Test = 48, true
	return map[string]train.Config{"masked": masked, "classes": classes, "resnet": resnet, "moe": moe}
}

// TestFamiliesPredictedIsMeasured: for every family the peaks of live and of
// reserved memory under what was chosen are those that were predicted, to the
// byte, from the device that no strategy is needed on to the least that any
// fits, with evaluations between the steps where the configuration has them.
func TestFamiliesPredictedIsMeasured(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	for name, c := range families() {
		t.Run(name, func(t *testing.T) {
			kinds := map[string]bool{}
			for i, budget := range []string{"host:128MiB", "host:16MiB", "host:14MiB", "host:12MiB", "host:10MiB", "host:8MiB", "host:6MiB"} {
				if invariant.Slow && i%3 > 0 { // checking them takes its time
					continue
				}
				dev, err := device.Open(budget)
				if err != nil {
					t.Fatal(err)
				}
				p, err := plan.Search(context.Background(), dev.Info(), c, quick)
				if err == nil {
					kinds[p.Chosen.Description] = true
					peak, reserved := measureFamily(t, dev, c, p.Chosen.Strategy)
					if peak != p.Chosen.PeakBytes || reserved != p.Chosen.ReservedBytes || reserved > p.BudgetBytes {
						t.Errorf("%s, %s: measured peak %d and reserved %d, predicted %d and %d", budget, p.Chosen.Description, peak, reserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
					}
				} else if !errors.As(err, new(*plan.TooSmallError)) {
					t.Error(err)
				}
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			}
			if len(kinds) < 2 && !invariant.Slow {
				t.Errorf("one strategy was chosen for all budgets: %v", kinds)
			}
		})
	}
}

// TestRecomputeSaves: however many blocks are recomputed, each family's step
// needs no more memory than without, and with all of them less.
func TestRecomputeSaves(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	info := device.Info{Granularity: 2 << 20, Virtual: true}
	for name, c := range families() {
		var peaks []uint64
		for r := range c.Blocks() + 1 {
			trial, err := plan.Try(info, 1<<40, c, train.Strategy{MicroBatch: c.Batch, Recompute: r}, quick)
			if err != nil {
				t.Fatal(err)
			}
			peaks = append(peaks, trial.PeakBytes)
		}
		for r := 1; r < len(peaks); r++ {
			if peaks[r] > peaks[0] {
				t.Errorf("%s: recomputing %d blocks takes %d bytes, none %d", name, r, peaks[r], peaks[0])
			}
		}
		if peaks[len(peaks)-1] >= peaks[0] {
			t.Errorf("%s: recompute saves nothing: %v", name, peaks)
		}
	}
}

// TestStepsNeedNoDriver: in a budget that needs values made again, a step's blocks
// soon lie where they lay before, and no page is mapped for them.
func TestStepsNeedNoDriver(t *testing.T) {
	c := families()["resnet"]
	c.Test = false
	info := device.Info{Granularity: 64 << 10, Virtual: true, Alias: true}
	plain, err := plan.Try(info, 1<<40, c, c.Plain(), quick)
	if err != nil {
		t.Fatal(err)
	}
	info.Capacity = plain.PeakBytes * 4 / 5
	p, err := plan.Search(t.Context(), info, c, quick)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := device.OpenNullLike(info, info.Capacity, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := train.New(dev, c, p.Chosen.Strategy)
	if err != nil {
		t.Fatal(err)
	}
	var before, after alloc.Stats
	for range 6 {
		before = tr.Memory().Stats()
		if _, err := tr.Step(c.NewBatch()...); err != nil {
			t.Fatal(err)
		}
		after = tr.Memory().Stats()
	}
	if p.Chosen.Strategy == c.Plain() || after.Stitches == 0 || after.PeakLive != p.Chosen.PeakBytes || after.PeakReserved != p.Chosen.ReservedBytes {
		t.Errorf("%s: peak %d and reserved %d, predicted %d and %d; %d stitches", p.Chosen.Description, after.PeakLive, after.PeakReserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes, after.Stitches)
	}
	if after.Maps != before.Maps || after.ViewMaps != before.ViewMaps || after.Repeats-before.Repeats != after.Allocs-before.Allocs {
		t.Errorf("%s: in the sixth step %d pages were moved and %d mapped for stitches, %d of %d blocks lie where they lay before",
			p.Chosen.Description, after.Maps-before.Maps, after.ViewMaps-before.ViewMaps, after.Repeats-before.Repeats, after.Allocs-before.Allocs)
	}
}

// counting is a set of 11 samples whose numbers count up.
type counting struct{ fields []train.Field }

func (s counting) Len() int { return 11 }

func (s counting) Sample(i int, arrays ...any) error {
	for k, f := range s.fields {
		if numbers, ok := arrays[k].([]int32); ok {
			for j := range numbers {
				numbers[j] = int32((i + 7*j) % f.Below)
			}
		}
	}
	return nil
}

func measureFamily(t *testing.T, dev device.Device, c train.Config, s train.Strategy) (peak, reserved uint64) {
	t.Helper()
	tr, err := train.New(dev, c, s)
	if err != nil {
		t.Fatal(err)
	}
	batch := c.NewBatch()
	for k, f := range c.Fields() {
		if numbers, ok := batch[k].([]int32); ok {
			for j := range numbers {
				numbers[j] = int32(j % f.Below)
			}
		}
	}
	for i := range c.Schedule.Steps {
		if _, err := tr.Step(batch...); err != nil {
			t.Fatal(err)
		}
		if c.Test && i > 1 {
			if _, err := tr.Evaluate(counting{c.Fields()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	stats := tr.Memory().Stats()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	return stats.PeakLive, stats.PeakReserved
}

// TestFamiliesLargestBatch runs the batch that was found, and finds that one
// more does not fit.
func TestFamiliesLargestBatch(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	for name, c := range families() {
		dev, err := device.Open("host:16MiB")
		if err != nil {
			t.Fatal(err)
		}
		m, err := plan.LargestBatch(context.Background(), dev.Info(), c, false, quick)
		if err != nil {
			t.Fatal(err)
		}
		c.Batch = m.Size
		if _, reserved := measureFamily(t, dev, c, c.Plain()); reserved != m.Fits.ReservedBytes {
			t.Errorf("%s: batch %d reserves %d bytes, predicted %d", name, m.Size, reserved, m.Fits.ReservedBytes)
		}
		c.Batch++
		if trial, err := plan.Try(dev.Info(), dev.Info().Capacity, c, c.Plain(), quick); err != nil || trial.Fits {
			t.Errorf("%s: batch %d fits, too (%v)", name, c.Batch, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFamiliesBudgets: from the plain step's peak down the peak is the one that
// was foretold and inside the budget, also where values are moved away, and
// losses are those of the plain step: bit for bit where the batch is whole.
func TestFamiliesBudgets(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	away := quick
	away.Away = plan.Away{Tiers: []plan.Tier{{Bytes: 1 << 30, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9}}}
	all := families()
	all["gpt2"] = config(nn.GPT2Config{Vocab: 256, Context: 48, Width: 64, Layers: 4, Heads: 4}, 16, 48)
	for name, c := range all {
		if invariant.Slow && name != "gpt2" { // checking them takes its time
			continue
		}
		c.Test, c.Schedule.Steps = false, 3
		c.BERT.Dropout, c.BERT.AttentionDropout = 0, 0
		dev := hostOf(t, 1<<30)
		plain, err := plan.Try(dev.Info(), 1<<30, c, c.Plain(), quick)
		if err != nil {
			t.Fatal(err)
		}
		want := lossesOf(t, dev, c, plain)
		for percent, o := range map[uint64]plan.Options{100: quick, 60: quick, 40: away, 30: quick, 29: away} {
			if invariant.Slow && percent != 29 { // checking them takes its time
				continue
			}
			dev := hostOf(t, (plain.PeakBytes*percent/100+2<<20-1)&^(2<<20-1))
			p, err := plan.Search(context.Background(), dev.Info(), c, o)
			if errors.As(err, new(*plan.TooSmallError)) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, loss := range lossesOf(t, dev, c, p.Chosen) {
				off := math.Abs(loss/want[i] - 1)
				if p.Chosen.Strategy.MicroBatch == c.Batch && off > 0 || !(off < 1e-5) {
					t.Errorf("%s, %d %%, %s: loss %v, plain %v", name, percent, p.Chosen.Description, loss, want[i])
				}
			}
		}
	}
}

func hostOf(t *testing.T, capacity uint64) device.Device {
	t.Helper()
	dev, err := device.OpenHost(device.HostOptions{Capacity: capacity})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// lossesOf runs a trial, compares its peaks, gives the losses and closes dev.
func lossesOf(t *testing.T, dev device.Device, c train.Config, trial plan.Trial) (losses []float64) {
	t.Helper()
	tr, err := train.New(dev, c, trial.Strategy)
	if err != nil {
		t.Fatal(err)
	}
	tr.Strict = true
	if err := tr.UseStore(goMemory, nil); err != nil {
		t.Fatal(err)
	}
	batch := c.NewBatch()
	for k, f := range c.Fields() {
		if numbers, ok := batch[k].([]int32); ok {
			for j := range numbers {
				numbers[j] = int32(7 * j % f.Below)
			}
		}
	}
	for range c.Schedule.Steps {
		r, err := tr.Step(batch...)
		if err != nil {
			t.Fatalf("%s: %v", trial.Description, err)
		}
		losses = append(losses, r.Loss)
	}
	stats := tr.Memory().Stats()
	if stats.PeakLive != trial.PeakBytes || stats.PeakReserved != trial.ReservedBytes {
		t.Errorf("%s: peak %d, reserved %d, foretold %d and %d", trial.Description, stats.PeakLive, stats.PeakReserved, trial.PeakBytes, trial.ReservedBytes)
	}
	if err := errors.Join(tr.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	return losses
}

// goMemory is a tensor.Store.
var goMemory = tensor.HostStore(func(size uint64) (buf []byte, giveBack func(), err error) {
	return make([]byte, size), func() {}, nil
})
