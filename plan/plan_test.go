package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// quick searches for a moment, not a second.
var quick = plan.Options{Work: quickWork()}

func quickWork() int {
	if invariant.Slow { // checking races takes its time
		return 30_000
	}
	return 300_000
}

func config(g nn.GPT2Config, batch, seq int) train.Config {
	return train.Config{Model: "test", GPT2: g, Batch: batch, Seq: seq, Seed: 1, Clip: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 5}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
}

// TestPredictedIsMeasured runs, for several budgets and shapes, what the plan
// chose: the peaks of live and of reserved memory are those that were
// predicted, to the byte, and inside the budget.
func TestPredictedIsMeasured(t *testing.T) {
	small := nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}
	wide := nn.GPT2Config{Vocab: 1000, Context: 32, Width: 96, Layers: 2, Heads: 3}
	deep := nn.GPT2Config{Vocab: 256, Context: 48, Width: 32, Layers: 9, Heads: 2}
	chosen := map[string]bool{}
	for _, test := range []struct {
		budget     string
		model      nn.GPT2Config
		batch, seq int
	}{
		{"host:64MiB", small, 8, 64},
		{"host:10MiB,shared", small, 16, 64}, // where pages may be mapped twice
		{"host:10MiB,shared", wide, 16, 32},
		{"host:14MiB", small, 16, 64},
		{"host:8MiB", small, 16, 64},
		{"host:6MiB", small, 6, 50},
		{"host:10MiB", wide, 16, 32},
		{"host:8MiB", wide, 16, 32},
		{"host:8MiB", deep, 24, 48},
		{"host:4MiB", deep, 1, 48},
		{"host:43MiB", nn.GPT2Config{Vocab: 256, Context: 128, Width: 128, Layers: 4, Heads: 4}, 31, 79}, // its reserved memory grows in step 3
	} {
		if invariant.Slow && test.batch == 31 { // checking it takes a minute
			continue
		}
		c := config(test.model, test.batch, test.seq)
		dev, err := device.Open(test.budget)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Logf("%s: %v", test.budget, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Search(context.Background(), dev.Info(), c, quick)
		if err != nil {
			t.Fatalf("%s: %v", test.budget, err)
		}
		chosen[p.Chosen.Description] = true
		t.Logf("%s: %s", test.budget, p.Chosen.Description)
		peak, reserved := measure(t, dev, c, p.Chosen.Strategy)
		if peak != p.Chosen.PeakBytes || reserved != p.Chosen.ReservedBytes {
			t.Errorf("%s, %s: measured peak %d and reserved %d, predicted %d and %d", test.budget, p.Chosen.Description, peak, reserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
		}
		if reserved > p.BudgetBytes || peak > reserved {
			t.Errorf("%s: peak %d, reserved %d, budget %d", test.budget, peak, reserved, p.BudgetBytes)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(chosen) < 5 {
		t.Errorf("only %d different strategies were chosen: %v", len(chosen), chosen)
	}
}

func measure(t *testing.T, dev device.Device, c train.Config, s train.Strategy) (peak, reserved uint64) {
	t.Helper()
	tr, err := train.New(dev, c, s)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, c.Batch*c.Seq)
	for i := range tokens {
		tokens[i] = int32(i * 7 % c.GPT2.Vocab)
	}
	for range c.Schedule.Steps {
		if _, err := tr.Step(tokens, tokens); err != nil {
			t.Fatal(err)
		}
	}
	stats := tr.Memory().Stats()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	return stats.PeakLive, stats.PeakReserved
}

// TestLeastBudget: the least that the error names is the least that works.
func TestLeastBudget(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	info := device.Info{Name: "null", Capacity: 1 << 20, Granularity: 2 << 20, Virtual: true} // which has no room for the weights alone
	_, err := plan.Search(context.Background(), info, c, quick)
	var small *plan.TooSmallError
	if !errors.As(err, &small) || !strings.Contains(err.Error(), "it needs at least") {
		t.Fatalf("got error %v", err)
	}
	info.Capacity = small.LeastBytes
	if _, err := plan.Search(context.Background(), info, c, quick); err != nil {
		t.Errorf("with the least that was named: %v", err)
	}
	info.Capacity -= 2 * info.Granularity // the search is no proof: with a page less, luck may find one
	if _, err := plan.Search(context.Background(), info, c, quick); !errors.As(err, &small) {
		t.Errorf("with two pages less: %v", err)
	}
}

// TestMoreMemoryIsNeverSlower: along a growing budget the estimate falls, from
// the thriftiest strategy to the plain one.
func TestMoreMemoryIsNeverSlower(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	c := config(nn.GPT2Config{Vocab: 256, Context: 128, Width: 64, Layers: 6, Heads: 4}, 12, 128)
	last, plain := 0.0, false
	for capacity := uint64(10 << 20); !plain; capacity += 2 << 20 {
		p, err := plan.Search(context.Background(), device.Info{Capacity: capacity, Granularity: 2 << 20, Virtual: true}, c, quick)
		if errors.As(err, new(*plan.TooSmallError)) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if last > 0 && p.Chosen.Seconds > last {
			t.Errorf("capacity %d: %v s, with less it was %v s", capacity, p.Chosen.Seconds, last)
		}
		last, plain = p.Chosen.Seconds, p.Chosen.Strategy == c.Plain()
	}
}

func TestSearchStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	if _, err := plan.Search(ctx, device.Info{Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}, c, quick); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
}

// TestEstimateOfGPU: a GPU is not taken for a host without threads.
func TestEstimateOfGPU(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 128, Layers: 2, Heads: 4}, 32, 64)
	host := device.Info{Kind: device.Host, Capacity: 4 << 30, Granularity: 2 << 20, Virtual: true, Workers: 16}
	gpu := device.Info{Kind: device.CUDA, Capacity: 4 << 30, Granularity: 2 << 20, Virtual: true, Alias: true}
	slow, err := plan.Try(host, host.Capacity, c, train.Strategy{MicroBatch: 32}, quick)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := plan.Try(gpu, gpu.Capacity, c, train.Strategy{MicroBatch: 32}, quick)
	if err != nil || !fast.Fits || fast.Flops != slow.Flops || fast.Seconds*5 > slow.Seconds {
		t.Errorf("a GPU takes %v s for what takes a host of 16 threads %v s (%v)", fast.Seconds, slow.Seconds, err)
	}
}
