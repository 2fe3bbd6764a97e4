package train_test

import (
	"bytes"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/tensor"
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
	if invariant.Slow { // checking takes its time
		all = map[string]train.Config{"moe": all["moe"]}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		if c.Schedule.Steps = 12; invariant.Slow {
			c.Schedule.Steps = 1
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
			{2, 2, 1, 1, train.ShardNothing, train.ZeroBubble},
			{4, 4, 1, 0, train.ShardState, train.ZeroBubble},
			{4, 2, 2, 0, train.ShardState, train.ZeroBubble},
			{4, 2, 1, 2, train.ShardGradients, train.ZeroBubble},
			{4, 2, 1, 0, train.ShardGradients, train.Interleaved},
			{4, 2, 1, 1, train.ShardParameters, train.Interleaved},
		} {
			if invariant.Slow && (v.ranks != 4 || v.stages != 2) {
				continue
			}
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

// TestPipelinePrecision: under autocast stages send each other float32, or of BERT
// what it computes in, and losses are those of one device up to the rounding of 16 bits.
func TestPipelinePrecision(t *testing.T) {
	for _, name := range []string{"gpt2", "masked", "moe"} {
		c := deep()[name]
		c.Precision, c.Schedule.Steps = tensor.BFloat16, 2
		want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		for _, s := range []train.Schedule{train.OneFOneB, train.ZeroBubble} {
			got := trained(t, 2, c, train.Strategy{MicroBatch: 4}, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: s}, t.TempDir())
			if d := apart(got, want); d > 2e-3 {
				t.Errorf("%s, %v: losses %v, want %v: %.1e apart", name, s, got, want, d)
			}
		}
	}
}

// TestPipelineSaves: what four stages saved is, to the last bit, what other ranks
// that go on from it save again, and they have the losses of a run that was not cut.
func TestPipelineSaves(t *testing.T) {
	c := deep()["masked"] // with tied weights
	c.Schedule.Steps = 3
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	dir := t.TempDir()
	cutRanks(t, 4, c, train.Strategy{MicroBatch: 2}, train.Parallel{Mesh: train.Mesh{Pipeline: 4}, Shard: train.ShardState}, dir, 2)
	saved := alone(t, dir, c)
	for _, v := range []struct {
		ranks int
		p     train.Parallel
	}{
		{1, train.Parallel{}},
		{2, train.Parallel{Shard: train.ShardState}},
		{2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved}},
		{4, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Shard: train.ShardGradients}},
	} {
		if invariant.Slow && v.p.Schedule != train.Interleaved {
			continue
		}
		got := goesOn(t, v.ranks, c, train.Strategy{MicroBatch: 2}, v.p, dir, func(again string) {
			if !bytes.Equal(alone(t, again, c), saved) {
				t.Errorf("%+v: the arrays differ", v)
			}
		})
		if len(got) != 1 || math.Abs(got[0]-want[2]) > 1e-5*want[2] {
			t.Errorf("%+v: losses %v, want %v", v, got, want[2:])
		}
	}
}

// TestPipelineEvaluates: all stages have the score that one device has.
func TestPipelineEvaluates(t *testing.T) {
	for _, name := range []string{"classes", "moe"} {
		c := deep()[name]
		set := &noise{fields: c.Fields(), n: 7}
		want, err := noisy(t, t.TempDir(), c, c.Plain()).Trainer.Evaluate(set)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []train.Schedule{train.OneFOneB, train.Interleaved} {
			if invariant.Slow && s == train.OneFOneB {
				continue
			}
			ranksOf(t, 4, c, train.Strategy{MicroBatch: 2}, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: s}, "", func(rank int, r *train.Run) error {
				got, err := r.Trainer.Evaluate(set)
				if got.Samples != 7 || math.Abs(got.Loss-want.Loss) > 1e-6*want.Loss || math.Abs(got.Accuracy-want.Accuracy) > 1e-6 {
					t.Errorf("%s: rank %d has %+v, want %+v", name, rank, got, want)
				}
				return err
			})
		}
	}
}

// TestPipelineShort takes memory away from one stage, so that it runs out at
// several moments of a schedule: both stages go down together, and have the losses
// of one device.
func TestPipelineShort(t *testing.T) {
	if invariant.Slow {
		t.Skip("under the race detector memory comes in segments too large to take some of them away")
	}
	c := config()
	c.GPT2.Width, c.GPT2.Layers = 64, 6
	c.Batch, c.Seq, c.GPT2.Context, c.Schedule.Steps = 8, 64, 64, 3
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	for _, p := range []train.Parallel{{Mesh: train.Mesh{Pipeline: 2}, Shard: train.ShardGradients}, {Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved}, {Mesh: train.Mesh{Pipeline: 2}, Schedule: train.ZeroBubble}} {
		for victim := range 2 {
			for part := 5; part <= 6; part++ {
				retries, dir := make([]int, 2), t.TempDir()
				for rank, err := range eachRank(2, func(g dist.Group) error {
					dev := &shared{Device: host(t), limit: math.MaxUint64, sizes: map[device.Ptr]uint64{}}
					return trainer(g, dev, c, train.Strategy{MicroBatch: 4}, p, func(tr *train.Trainer) error {
						weights := dev.taken
						r := &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}
						r.OnStep = func(p train.Progress) {
							if p.Step == 1 && g.Rank() == victim {
								dev.limit = weights + (dev.taken-weights)*uint64(part)/10
								if _, err := tr.Memory().Trim(0); err != nil {
									t.Error(err)
								}
							}
							for _, e := range p.Events {
								if e.Kind == "retry" {
									retries[g.Rank()]++
								}
							}
							if w := want[p.Step-1]; math.Abs(p.Loss-w) > 1e-4*w {
								t.Errorf("%+v, rank %d, %d tenths: loss %v, want %v", p, victim, part, p.Loss, w)
							}
						}
						_, err := r.Do(context.Background())
						return err
					})
				}) {
					if err != nil {
						t.Errorf("%+v, rank %d has %d tenths: rank %d: %v", p, victim, part, rank, err)
					}
				}
				if retries[0] != retries[1] || retries[0] == 0 {
					t.Errorf("%+v, rank %d has %d tenths: ranks retried %v times", p, victim, part, retries)
				}
			}
		}
	}
}

// TestPipelineRefuses names what can't be cut.
func TestPipelineRefuses(t *testing.T) {
	c := deep()["gpt2"]
	for want, p := range map[string]train.Parallel{
		"has 4 blocks, which 5 ranks along pipeline": {Mesh: train.Mesh{Pipeline: 5}},
		"4 blocks, which can't be 2 × 3 chunks":      {Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved, Chunks: 3},
		"can't be 2 × 9223372036854775807 chunks":    {Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved, Chunks: math.MaxInt64},
		"only interleaved stages have several":       {Mesh: train.Mesh{Pipeline: 2}, Chunks: 2},
	} {
		p.Group = dist.Null(0, p.Mesh.Pipeline)
		if _, err := train.NewParallel(host(t), c, c.Plain(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	dir := t.TempDir()
	for rank, err := range eachRank(2, func(g dist.Group) error {
		return trainer(g, host(t), c, train.Strategy{MicroBatch: 1 + g.Rank()}, train.Parallel{Mesh: train.Mesh{Pipeline: 2}}, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}).Do(context.Background())
			return err
		})
	}) {
		if err == nil || !strings.Contains(err.Error(), "micro-batches of 1 to 2 samples") {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
}
