package train_test

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// deep are families of models with blocks for four stages.
func deep() map[string]train.Config {
	all := families()
	delete(all, "resnet")
	for name, c := range all {
		c.Batch = 8
		c.GPT2.Layers, c.BERT.Layers, c.MoE.Layers = min(c.GPT2.Layers, 1)*4, min(c.BERT.Layers, 1)*5, min(c.MoE.Layers, 1)*4
		all[name] = c
	}
	return all
}

// TestPipelineChangesNothing: ranks that have each a part of the layers have the
// losses of one device under every schedule, also where the batch is shared out
// besides, with shards and recompute.
func TestPipelineChangesNothing(t *testing.T) {
	all := deep()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		if c.Schedule.Steps = 12; invariant.Enabled {
			c.Schedule.Steps = 2
		}
		want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		for _, v := range []struct {
			ranks, stages, micro, recompute int
			shard                           train.Shard
			schedule                        train.Schedule
		}{
			{2, 2, 2, 0, train.ShardNothing, train.OneFOneB},
			{2, 2, 1, 0, train.ShardState, train.Interleaved},
			{4, 4, 1, 1, train.ShardState, train.OneFOneB},
			{4, 4, 2, 0, train.ShardNothing, train.GPipe},
			{4, 2, 1, 2, train.ShardGradients, train.OneFOneB},
			{4, 2, 2, 0, train.ShardState, train.GPipe},
			{4, 2, 1, 0, train.ShardState, train.Interleaved},
		} {
			p := train.Parallel{Mesh: train.Mesh{Pipeline: v.stages}, Shard: v.shard, Schedule: v.schedule}
			got := trained(t, v.ranks, c, train.Strategy{MicroBatch: v.micro, Recompute: v.recompute}, p, t.TempDir())
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
					t.Errorf("%s, %+v: losses %v, want %v", name, v, got, want)
					break
				}
			}
		}
	}
}
