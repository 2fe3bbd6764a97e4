package plan_test

import (
	"context"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// TestTensorPredictedIsMeasured: the peak of each rank along tensor is what its plan
// says, which knows no other rank, where all fits and where values are made again.
func TestTensorPredictedIsMeasured(t *testing.T) {
	if invariant.Enabled {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	all := families()
	gpt2, masked, moe := config(nn.GPT2Config{Vocab: 250, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64), all["masked"], all["moe"]
	masked.BERT.Heads, moe.MoE.Heads = 2, 2
	kinds := map[string]bool{}
	var mu sync.Mutex
	for _, v := range []struct {
		c             train.Config
		ranks, tensor int
		budget        string
	}{{gpt2, 4, 4, "host:64MiB"}, {gpt2, 2, 2, "host:4MiB"}, {gpt2, 4, 2, "host:3MiB"}, {masked, 2, 2, "host:64MiB"}, {moe, 2, 2, "host:64MiB"}} {
		c, err := v.c.Share(v.ranks / v.tensor)
		if err != nil {
			t.Fatal(err)
		}
		p := train.Parallel{Mesh: train.Mesh{Tensor: v.tensor}, Shard: train.ShardState}
		eachRank(t, v.ranks, v.budget, p, func(dev device.Device, of train.Parallel) error {
			o := quick
			o.Parallel = of
			o.Parallel.Group = dist.Null(of.Group.Rank(), v.ranks)
			p, err := plan.Search(context.Background(), dev.Info(), c, o)
			if err != nil {
				return err
			}
			mu.Lock()
			kinds[p.Chosen.Description] = true
			mu.Unlock()
			return steps(dev, c, p.Chosen.Strategy, of, func(tr *train.Trainer) {
				s := tr.Memory().Stats()
				if s.PeakLive != p.Chosen.PeakBytes || s.PeakReserved != p.Chosen.ReservedBytes {
					t.Errorf("%+v, rank %d (%s): measured peak %d and reserved %d, predicted %d and %d", v, of.Group.Rank(),
						p.Chosen.Description, s.PeakLive, s.PeakReserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
				}
			})
		})
	}
	if len(kinds) < 2 {
		t.Errorf("%d different strategies were chosen: %v", len(kinds), kinds)
	}
}
