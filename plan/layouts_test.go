package plan_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// slowLayouts plans every layout in turn, and gives the least time and how many
// layouts there are.
func slowLayouts(t *testing.T, info device.Info, c train.Config, ranks int, o plan.Options) (best float64, n int) {
	t.Helper()
	schedules := []train.Schedule{train.OneFOneB, train.ZeroBubble}
	best = math.Inf(1)
	for i := range ranks * ranks * ranks {
		p := train.Parallel{Group: dist.Null(0, ranks), Mesh: train.Mesh{Pipeline: 1 + i%ranks, Expert: 1 + i/ranks%ranks, Tensor: 1 + i/ranks/ranks}}
		places, err := p.Mesh.Places(ranks)
		mine, failed := c.Share(max(places, 1))
		if errors.Join(err, failed, c.Splits(p.Mesh)) != nil {
			continue
		}
		for p.Shard = range train.ShardParameters + 1 {
			if places == 1 && p.Shard > 0 {
				continue
			}
			for _, p.Schedule = range schedules[:min(len(schedules), p.Mesh.Pipeline)] {
				n++
				o.Parallel = p
				seconds := 0.0
				plans, err := plan.SearchStages(t.Context(), info, mine, o)
				for _, of := range plans {
					s := of.Chosen
					seconds = max(seconds, s.Seconds*p.Stretch(mine.Batch/s.Strategy.MicroBatch))
				}
				if err == nil {
					best = min(best, seconds)
				}
			}
		}
	}
	return best, n
}

// TestLayouts: the best layout is that of a loop over all of them, with room for all
// and with little, and what is said not to be faster is not.
func TestLayouts(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	moe := families()["moe"]
	moe.Batch, moe.Test = 4, false
	text := config(nn.GPT2Config{Vocab: 256, Context: 32, Width: 64, Layers: 2, Heads: 4}, 4, 32)
	for _, test := range []struct {
		name   string
		c      train.Config
		ranks  int
		budget string
		rate   float64 // of links
	}{
		{"roomy", text, 4, "null:64MiB", 0},
		{"tight", text, 2, "null:1152KiB", 0},
		{"slow links", text, 2, "null:64MiB", 1e7},
		{"experts", moe, 2, "null:64MiB", 0},
	} {
		dev, err := device.Open(test.budget)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		info := dev.Info()
		info.Granularity = 64 << 10
		o := quick
		if o.Rates = plan.RatesOf(info); test.rate > 0 {
			o.Rates.LinkBytesPerSecond = test.rate
		}
		list, err := plan.Layouts(test.c, test.ranks, train.Parallel{}, train.Parallel{Schedule: train.ZeroBubble})
		if err != nil {
			t.Fatal(err)
		}
		want, n := slowLayouts(t, info, test.c, test.ranks, o)
		all, err := plan.SearchLayouts(t.Context(), info, list, o)
		if err != nil || len(all) != n || all[0].Seconds != want {
			t.Fatalf("%s: error %v; layouts %+v, where of %d the best takes %v s", test.name, err, all, n, want)
		}
		for _, l := range all {
			if !l.Searched && l.BoundSeconds < want || l.Fits && (l.Seconds < want || l.Seconds < l.BoundSeconds*(1-1e-9) || l.ReservedBytes > info.Capacity) {
				t.Errorf("%s: %+v, where the best takes %v s", test.name, l, want)
			}
		}
	}
}

// TestNoLayout: of what fits in no layout it is said what would.
func TestNoLayout(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 32, Width: 64, Layers: 2, Heads: 4}, 2, 32)
	info := device.Info{Kind: device.Null, Capacity: 256 << 10, Granularity: 64 << 10, Virtual: true}
	list, err := plan.Layouts(c, 2, train.Parallel{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = plan.SearchLayouts(t.Context(), info, list, quick)
	none := new(plan.NoLayoutError)
	if !errors.As(err, &none) || none.Failed.LeastBytes <= info.Capacity {
		t.Fatalf("error %v", err)
	}
	info.Capacity = none.Failed.LeastBytes
	if all, err := plan.SearchLayouts(t.Context(), info, list, quick); err != nil || !all[0].Fits {
		t.Errorf("with the least, %d bytes: %v", info.Capacity, err)
	}
	if _, err := plan.Layouts(families()["resnet"], 2, train.Parallel{}); err == nil || !strings.Contains(err.Error(), "normalises over the whole batch") {
		t.Errorf("of images: error %v", err)
	}
}

// TestTimeOfLinks: gradients that are reduced beside backward cost nothing where links
// are fast, and all they take but what backward hides where they are slow. Weights
// that are gathered cost the other half.
func TestTimeOfLinks(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 4, 64)
	c.Clip = 0
	info := device.Info{Kind: device.Null, Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}
	seconds := func(rate float64, ranks int, s train.Shard) float64 {
		o := quick
		o.Rates = plan.Rates{FlopsPerSecond: 1e9, BytesPerSecond: 1e18, LaunchSeconds: 1e-12, LinkBytesPerSecond: rate}
		if ranks > 1 {
			o.Parallel = train.Parallel{Group: dist.Null(0, ranks), Shard: s}
		}
		trial, err := plan.Try(info, info.Capacity, c, c.Plain(), o)
		if err != nil || !trial.Fits {
			t.Fatalf("%+v, %v", trial, err)
		}
		return trial.Seconds
	}
	params := 4 * float64(256*64+64*64+4*(12*64*64+13*64)+2*64)
	alone := seconds(1, 1, 0)
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 0.02*want {
			t.Errorf("%s: %v s, want %v", what, got, want)
		}
	}
	near("with fast links", seconds(1e18, 4, train.ShardNothing), alone)
	const slow = 1e4 // takes far longer than to compute
	near("with slow links", seconds(slow, 4, train.ShardNothing), 2*params*3/4/slow)
	near("with slow links and the state sharded", seconds(slow, 4, train.ShardState), 2*params*3/4/slow)
	hidden := params * 2 / (alone / 3) // reductions take a third of the step
	if got := seconds(hidden, 2, train.ShardNothing); got > alone*1.1 || got <= alone {
		t.Errorf("reductions that take a third of the step: %v s, alone %v", got, alone)
	}
}
