package train_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// spreadExperts are runs of a small mixture of experts on ranks.
var spreadExperts = []struct {
	ranks, expert int
	shard         train.Shard
	micro         int
	again         bool // recompute
}{
	{2, 2, train.ShardState, 4, false}, {4, 4, train.ShardGradients, 1, true}, {4, 2, train.ShardState, 1, true}, {4, 2, train.ShardNothing, 2, false},
	{4, 2, train.ShardParameters, 2, true},
}

// TestSpreadExperts: ranks that share the experts out have the losses of one
// device, also one whose experts get no tokens.
func TestSpreadExperts(t *testing.T) {
	for _, idle := range []bool{false, true} {
		if idle && invariant.Slow {
			continue
		}
		c := families()["moe"]
		c.Batch, c.Schedule.Steps = 8, 12
		if idle { // eight tokens of a sequence for eight experts
			c.MoE.Experts, c.MoE.TopK, c.MoE.Capacity = 8, 1, 4
		}
		if invariant.Slow {
			c.Schedule.Steps = 2
		}
		want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		for _, v := range spreadExperts {
			s := train.Strategy{MicroBatch: v.micro}
			if v.again {
				s.Recompute = c.Blocks()
			}
			got := trained(t, v.ranks, c, s, train.Parallel{Shard: v.shard, Mesh: train.Mesh{Expert: v.expert}}, t.TempDir())
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
					t.Errorf("%+v: losses %v, want %v", v, got, want)
					break
				}
			}
		}
	}
}

// TestSpreadExpertsSave saves on four ranks along expert: one device, two ranks along
// it and two along data read it, and save the same bits again.
func TestSpreadExpertsSave(t *testing.T) {
	c := families()["moe"]
	c.Batch, c.Schedule.Steps = 8, 4
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardGradients} {
		dir := t.TempDir()
		cutRanks(t, 4, c, train.Strategy{MicroBatch: 2}, train.Parallel{Shard: shard, Mesh: train.Mesh{Expert: 4}}, dir, 2)
		saved := alone(t, dir, c)
		for _, mesh := range []train.Mesh{{}, {Expert: 2}} {
			goesOn(t, 2, c, train.Strategy{MicroBatch: 4}, train.Parallel{Shard: train.ShardState, Mesh: mesh}, dir, func(again string) {
				if !bytes.Equal(alone(t, again, c), saved) {
					t.Errorf("shard %d: saved by 4 ranks along expert, and by 2 on %+v: the arrays differ", shard, mesh)
				}
			})
		}
	}
}

// TestSpreadExpertsEvaluate: a test set of fewer samples than ranks has the score
// that one device has.
func TestSpreadExpertsEvaluate(t *testing.T) {
	c := families()["moe"]
	for _, samples := range []int{7, 3} {
		set := &noise{fields: c.Fields(), n: samples}
		want, err := noisy(t, t.TempDir(), c, c.Plain()).Trainer.Evaluate(set)
		if err != nil {
			t.Fatal(err)
		}
		ranksOf(t, 4, c, train.Strategy{MicroBatch: 1}, train.Parallel{Mesh: train.Mesh{Expert: 4}}, "", func(rank int, r *train.Run) error {
			got, err := r.Trainer.Evaluate(set)
			if got.Samples != samples || math.Abs(got.Loss-want.Loss) > 1e-6*want.Loss {
				t.Errorf("%d samples: rank %d has %+v, want %+v", samples, rank, got, want)
			}
			return err
		})
	}
}

// TestSpreadExpertsDiffer: experts that don't divide, ranks with other micro-batches
// and ranks that recompute something else are errors that say so.
func TestSpreadExpertsDiffer(t *testing.T) {
	c := families()["moe"]
	if err := c.Splits(train.Mesh{Expert: 3}); err == nil || !strings.Contains(err.Error(), "4 experts (num_local_experts) can't be shared by 3 ranks") {
		t.Errorf("error %v", err)
	}
	for want, of := range map[string]func(rank int) train.Strategy{
		"micro-batches of 1 to 2 samples": func(rank int) train.Strategy { return train.Strategy{MicroBatch: 1 + rank} },
		"recompute 0 to 1 blocks":         func(rank int) train.Strategy { return train.Strategy{MicroBatch: 1, Recompute: rank} },
	} {
		for rank, err := range eachRank(2, func(g dist.Group) error {
			p := train.Parallel{Mesh: train.Mesh{Expert: 2}}
			return trainer(g, host(t), c, of(g.Rank()), p, func(tr *train.Trainer) error {
				_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: t.TempDir()}).Do(t.Context())
				return err
			})
		}) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: error %v, want %q", rank, err, want)
			}
		}
	}
}
