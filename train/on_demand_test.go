package train_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// TestShardedWeightsDepart loads weights where each rank keeps a part of them, and
// changes the strategy between steps, and so the order in which weights are read:
// the losses are those of one device.
func TestShardedWeightsDepart(t *testing.T) {
	c := families()["gpt2"]
	c.Schedule.Steps = 6
	from := noisy(t, t.TempDir(), c, c.Plain())
	if _, err := from.Do(context.Background()); err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(from.Dir, "model.safetensors")
	c.Seed++
	change := func(r *train.Run, got *[]float64) error {
		r.OnStep = func(p train.Progress) {
			*got = append(*got, p.Loss)
			r.Trainer.Strategy.Recompute = []int{c.Blocks(), 0, 1}[p.Step%3]
		}
		err := r.Trainer.LoadWeights(weights)
		if err == nil {
			_, err = r.Do(context.Background())
		}
		return err
	}
	var want []float64
	if err := change(noisy(t, t.TempDir(), c, c.Plain()), &want); err != nil {
		t.Fatal(err)
	}
	got, dir := make([][]float64, 2), t.TempDir()
	ranksOf(t, 2, c, train.Strategy{MicroBatch: 2}, train.Parallel{Shard: train.ShardParameters}, dir, func(rank int, r *train.Run) error {
		return change(r, &got[rank])
	})
	for i, w := range want {
		if len(got[1]) != len(want) || math.Abs(got[1][i]-w) > 1e-5*w {
			t.Fatalf("losses %v, want %v", got[1], want)
		}
	}
}

// TestShardedWeightsOverlap looks at the order in which the second step queues its
// work: the weights of the next bucket are gathered before the products of this one,
// and both times that they are read, in forward and in backward.
func TestShardedWeightsOverlap(t *testing.T) {
	c := families()["gpt2"]
	var names []string
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true, OnLaunch: func(l *device.Launch) { names = append(names, l.Kernel.Name) }})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := train.NewParallel(dev, c, train.Strategy{MicroBatch: c.Batch}, train.Parallel{Group: dist.Null(0, 2), Bucket: smallBucket, Shard: train.ShardParameters})
	if err != nil {
		t.Fatal(err)
	}
	gathers := func() (at []int) {
		names = nil
		if _, err := tr.Step(c.NewBatch()...); err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if name == "all_gather" {
				at = append(at, i)
			}
		}
		return at
	}
	first, second := gathers(), gathers()
	if len(first) < 2*len(second) {
		t.Errorf("%d collectives gather weights one by one, %d in buckets", len(first), len(second))
	}
	if len(second) < 6 || second[0] != slices.Index(names, "embedding")-2 || second[1] != second[0]+1 {
		t.Errorf("weights are gathered at %v of %q", second, names)
	}
	for i, at := range second[2:] { // each but the first alone, behind the last operation of another bucket
		if at <= second[i+1]+1 {
			t.Errorf("bucket %d is gathered at %d, the one before at %d", i+2, at, second[i+1])
		}
	}
	if err := errors.Join(tr.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// TestShardedWeightsDiffer: ranks with different plans of what is made again, which
// would read weights in different orders, say so.
func TestShardedWeightsDiffer(t *testing.T) {
	c, dir := families()["gpt2"], t.TempDir()
	for rank, err := range eachRank(2, func(g dist.Group) error {
		s := train.Strategy{MicroBatch: 2}
		if g.Rank() == 1 {
			s.Values = &tensor.Schedule{Waits: []tensor.Wait{{Op: "embedding", Reads: []int{0}}}}
		}
		return trainer(g, host(t), c, s, train.Parallel{Shard: train.ShardParameters}, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}).Do(context.Background())
			return err
		})
	}) {
		if err == nil || !strings.Contains(err.Error(), "different plans of what is kept and what is made again") {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
}
