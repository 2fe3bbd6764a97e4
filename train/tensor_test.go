package train_test

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// cuttable are the families that can be split along tensor, with 4 heads.
func cuttable() map[string]train.Config {
	all := families()
	delete(all, "resnet")
	for name, c := range all {
		switch {
		case c.BERT.Heads > 0:
			c.BERT.Heads = 4
		case c.MoE.Heads > 0:
			c.MoE.Heads = 4
		default:
			c.GPT2.Heads = 4
		}
		c.Batch, c.Schedule.Steps = 8, 12
		if invariant.Slow {
			c.Schedule.Steps = 1
		}
		all[name] = c
	}
	return all
}

// TestTensorChangesNothing: ranks that have boxes of the same layers have the
// losses of one device, beside ranks with other samples too, with micro-batches,
// recompute and any shard.
func TestTensorChangesNothing(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(cuttable())) {
		t.Run(name, func(t *testing.T) {
			c := cuttable()[name]
			want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
			for _, v := range []struct {
				ranks, tensor int
				shard         train.Shard
				s             train.Strategy
			}{
				{2, 2, train.ShardNothing, c.Plain()},
				{4, 4, train.ShardState, train.Strategy{MicroBatch: 4, Recompute: c.Blocks()}},
				{4, 2, train.ShardNothing, train.Strategy{MicroBatch: 2, Recompute: 1}},
				{4, 2, train.ShardGradients, train.Strategy{MicroBatch: 4}},
				{2, 2, train.ShardState, again(t, c, train.Mesh{Tensor: 2})},
			} {
				got := trained(t, v.ranks, c, v.s, train.Parallel{Mesh: train.Mesh{Tensor: v.tensor}, Shard: v.shard}, t.TempDir())
				if d := apart(got, want); d > 1e-5 {
					t.Errorf("%+v: losses %v, want %v: %.1e apart", v, got, want, d)
				}
			}
		})
	}
}

// TestTensorDropout: what all ranks along tensor have is dropped as on one device;
// the heads of different ranks drop different weights of attention.
func TestTensorDropout(t *testing.T) {
	c := cuttable()["masked"]
	c.BERT.Dropout, c.Schedule.Steps = 0.2, 3
	along := train.Parallel{Mesh: train.Mesh{Tensor: 2}}
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	if got := trained(t, 2, c, train.Strategy{MicroBatch: 8, Recompute: 1}, along, t.TempDir()); apart(got, want) > 1e-5 {
		t.Errorf("losses %v, want %v", got, want)
	}
	c.BERT.AttentionDropout = 0.2
	plain := trained(t, 2, c, c.Plain(), along, t.TempDir())
	if again := trained(t, 2, c, train.Strategy{MicroBatch: 8, Recompute: 3}, along, t.TempDir()); !slices.Equal(plain, again) {
		t.Errorf("losses %v, with recompute %v", plain, again)
	}
}

// TestTensorFails: ranks along tensor with other strategies say so, and where memory
// runs out on one within a step all end with its number; none waits for ever.
func TestTensorFails(t *testing.T) {
	c, dir, along := cuttable()["gpt2"], t.TempDir(), train.Parallel{Mesh: train.Mesh{Tensor: 2}}
	for rank, err := range eachRank(2, func(g dist.Group) error {
		return trainer(g, host(t), c, train.Strategy{MicroBatch: 4, Recompute: g.Rank()}, along, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}).Do(t.Context())
			return err
		})
	}) {
		if err == nil || !strings.Contains(err.Error(), "recompute 0 to 1 blocks") {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
	if invariant.Slow {
		return // memory comes in segments too large to take most of them away
	}
	c.GPT2.Width, c.GPT2.Layers = 64, 6
	c.Batch, c.Seq, c.GPT2.Context = 16, 64, 64
	for rank, err := range runShort(t, c, along, 16, 1000, func(int, train.Progress) {}) {
		if err == nil || !strings.Contains(err.Error(), "rank 1: ") || !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
}

// apart is the greatest relative difference of losses.
func apart(got, want []float64) (most float64) {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	for i, w := range want {
		most = max(most, math.Abs(got[i]-w)/w)
	}
	return most
}

// again is a strategy under which all values are made again that can be.
func again(t *testing.T, c train.Config, m train.Mesh) train.Strategy {
	t.Helper()
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	s := train.Strategy{MicroBatch: c.Batch}
	err = trainer(dist.Null(0, m.Tensor), dev, c, s, train.Parallel{Mesh: m}, func(tr *train.Trainer) error {
		r, err := tr.Record(nil, c.NewBatch()...)
		if err == nil {
			s.Values = r.Keep(func(string) bool { return false })
		}
		return err
	})
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Values.Waits); n < 40 {
		t.Errorf("%d operations were recorded", n)
	}
	return s
}

// TestTensorSaves: what 4 ranks along tensor saved after two steps is loaded by
// others, and saved again the same to the last bit; they go on with the losses of a
// run that was not cut. Its file for other programs is that of one device.
func TestTensorSaves(t *testing.T) {
	for _, name := range []string{"gpt2", "masked"} {
		c := cuttable()[name]
		c.Schedule.Steps = 4
		want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		dir := t.TempDir()
		cutRanks(t, 4, c, c.Plain(), train.Parallel{Mesh: train.Mesh{Tensor: 4}, Shard: train.ShardState}, dir, 2)
		if parts := partsIn(t, dir); len(parts) != 3 {
			t.Errorf("%s: the parts %q", name, parts)
		}
		saved := alone(t, dir, c)
		for _, to := range []struct{ ranks, tensor int }{{1, 1}, {2, 2}, {2, 1}, {4, 2}} {
			p := train.Parallel{Mesh: train.Mesh{Tensor: to.tensor}, Shard: train.ShardState}
			got := goesOn(t, to.ranks, c, train.Strategy{MicroBatch: c.Batch / to.ranks}, p, dir, func(again string) {
				if !bytes.Equal(alone(t, again, c), saved) {
					t.Errorf("%s: saved on tensor 4 and on %+v: the arrays differ", name, to)
				}
			})
			if d := apart(got, want[2:]); d > 1e-5 {
				t.Errorf("%s: on tensor 4, then %+v: losses %v, want %v", name, to, got, want[2:])
			}
		}
		whole := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(whole, train.CheckpointFile), saved, 0o644), train.Export(whole), train.Export(dir)); err != nil {
			t.Fatal(err)
		}
		model := filepath.Join(dir, "model.safetensors")
		if a, b := read(t, model), read(t, filepath.Join(whole, "model.safetensors")); !bytes.Equal(a, b) {
			t.Errorf("%s: the exported models differ", name)
		}
		score := func(r *train.Run) (train.Score, error) {
			if err := r.Trainer.LoadWeights(model); err != nil {
				return train.Score{}, err
			}
			return r.Trainer.Evaluate(&noise{fields: c.Fields(), n: 5})
		}
		judged, err := score(noisy(t, "", c, c.Plain()))
		if err != nil {
			t.Fatal(err)
		}
		ranksOf(t, 2, c, c.Plain(), train.Parallel{Mesh: train.Mesh{Tensor: 2}}, "", func(rank int, r *train.Run) error {
			got, err := score(r)
			if math.Abs(got.Loss-judged.Loss) > 1e-6*judged.Loss {
				t.Errorf("%s: with weights from a file rank %d has the score %+v, one device %+v", name, rank, got, judged)
			}
			return err
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
