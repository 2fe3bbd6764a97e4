package plan_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// TestStagesPredictedIsMeasured: the peak of each stage is what its plan says, where
// all fits and where little does, under every schedule.
func TestStagesPredictedIsMeasured(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	all := families()
	all["gpt2"] = config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
	kinds := map[string]bool{}
	for _, v := range []struct {
		name, budget string
		ranks        int
		p            train.Parallel
	}{
		{"gpt2", "host:64MiB", 4, train.Parallel{Mesh: train.Mesh{Pipeline: 4}}},
		{"gpt2", "host:4MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.GPipe}},
		{"gpt2", "host:4MiB", 4, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Shard: train.ShardGradients}},
		{"gpt2", "host:4MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.Interleaved, Shard: train.ShardState}},
		{"gpt2", "host:4MiB", 4, train.Parallel{Mesh: train.Mesh{Pipeline: 4}, Schedule: train.ZeroBubble}},
		{"moe", "host:64MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}}},
		{"masked", "host:64MiB", 2, train.Parallel{Mesh: train.Mesh{Pipeline: 2}, Schedule: train.ZeroBubble}},
	} {
		maps.Copy(kinds, predicted(t, all[v.name], v.ranks, v.budget, v.p))
	}
	if len(kinds) < 3 {
		t.Errorf("%d different strategies were chosen: %v", len(kinds), kinds)
	}
}

// TestProductsPredictedIsMeasured: so is that of ranks on several axes at once, and of
// such whose parameters are sharded besides.
func TestProductsPredictedIsMeasured(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	c := families()["moe"]
	c.MoE.Heads, c.MoE.Layers = 2, 4
	for _, p := range []train.Parallel{
		{Mesh: train.Mesh{Pipeline: 2, Tensor: 2}, Shard: train.ShardState},
		{Mesh: train.Mesh{Pipeline: 2, Expert: 2}, Shard: train.ShardGradients, Schedule: train.ZeroBubble},
		{Mesh: train.Mesh{Expert: 2, Tensor: 2}},
		{Mesh: train.Mesh{Tensor: 2}, Shard: train.ShardParameters},
		{Mesh: train.Mesh{Pipeline: 2}, Shard: train.ShardParameters},
	} {
		predicted(t, c, 4, "host:64MiB", p)
	}
}

// TestStageMemory compares what stages keep of micro-batches with the formulas, for
// A bytes that a rank keeps of one: GPipe m·A, 1F1B min(m, p−rank)·A, interleaved
// (1+(p−1−2·rank)/(p·v))·p·A, and zero-bubble (p−1−rank)·A + (rank+1)·W, of the first
// rank p·A. W is what products keep for the gradients of their weights: of a block of
// GPT-2 the inputs, 7 rows as wide as the model for each token, and the gradients of
// the results, 9. Beside that a message may be on its way in each direction, and one
// that arrived early.
func TestStageMemory(t *testing.T) {
	const stages, micros, micro = 4, 8, 2
	c := config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 8, Heads: 4}, micro, 64)
	message := 4 * micro * c.Seq * c.GPT2.Width
	peak := func(s train.Schedule, stage, batch int) int {
		c := c
		c.Batch = batch
		dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 34, Virtual: true})
		if err != nil {
			t.Fatal(err)
		}
		bytes, p := 0, train.Parallel{Group: dist.Null(stage, stages), Mesh: train.Mesh{Pipeline: stages}, Schedule: s}
		err = steps(dev, c, train.Strategy{MicroBatch: micro}, p, func(tr *train.Trainer) {
			for _, row := range tr.Memory().Stats().Table() {
				if row.Name == "activation_peak_bytes" {
					bytes = int(row.Value)
				}
			}
		})
		if err := errors.Join(err, dev.Close()); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	for stage := range stages {
		one := peak(train.GPipe, stage, micro)
		each := peak(train.GPipe, stage, 3*micro) - peak(train.GPipe, stage, 2*micro)
		held := (stages-1-stage)*each + (stage+1)*16*message*c.GPT2.Layers/stages
		if stage == 0 {
			held = stages * each
		}
		for s, want := range map[train.Schedule]int{train.GPipe: micros * each, train.OneFOneB: min(micros, stages-stage) * each, train.Interleaved: (2*stages + stages - 1 - 2*stage) * each / 2, train.ZeroBubble: held} {
			got := peak(s, stage, micros*micro) - (one - each) // without what a computation takes besides
			if over := got - want; over < -2*message || over > 4*message {
				t.Errorf("schedule %d, stage %d: %d bytes are kept, want %d (over by %d, a message has %d; of one micro-batch %d)", s, stage, got, want, over, message, each)
			}
			t.Logf("rank %d, schedule %d: %d bytes, %.2f times the %d that one micro-batch keeps; the formula says %.2f", stage, s, got, float64(got)/float64(each), each, float64(want)/float64(each))
		}
	}
}
