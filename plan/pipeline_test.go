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

// TestStagesPredictedIsMeasured: the peak of each stage is what its plan says, where
// all fits and where little does, under every schedule.
func TestStagesPredictedIsMeasured(t *testing.T) {
	if invariant.Enabled {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	all := families()
	all["gpt2"] = config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	kinds := map[string]bool{}
	var mu sync.Mutex
	for _, v := range []struct {
		name, budget string
		ranks        int
		p            train.Parallel
	}{
		{"gpt2", "host:64MiB", 4, train.Parallel{Mesh: train.Mesh{Pipeline: 4}}},
		{"gpt2", "host:4MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.GPipe}},
		{"gpt2", "host:4MiB", 4, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Shard: train.ShardGradients}},
		{"gpt2", "host:4MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved, Shard: train.ShardState}},
		{"moe", "host:64MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}}},
		{"masked", "host:64MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}}},
	} {
		places, err := v.p.Mesh.Places(v.ranks)
		if err != nil {
			t.Fatal(err)
		}
		c, err := all[v.name].Share(places)
		if err != nil {
			t.Fatal(err)
		}
		eachRank(t, v.ranks, v.budget, v.p, func(dev device.Device, of train.Parallel) error {
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
	if len(kinds) < 3 {
		t.Errorf("%d different strategies were chosen: %v", len(kinds), kinds)
	}
	t.Log(kinds)
}
