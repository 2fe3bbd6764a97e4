package plan_test

import (
	"errors"
	"maps"
	"strings"
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
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	all := families()
	gpt2, masked, moe := config(nn.GPT2Config{Vocab: 250, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64), all["masked"], all["moe"]
	masked.BERT.Heads, moe.MoE.Heads = 2, 2
	kinds := map[string]bool{}
	for _, v := range []struct {
		c             train.Config
		ranks, tensor int
		budget        string
	}{{gpt2, 4, 4, "host:64MiB"}, {gpt2, 2, 2, "host:4MiB"}, {gpt2, 4, 2, "host:3MiB"}, {masked, 2, 2, "host:64MiB"}, {moe, 2, 2, "host:64MiB"}} {
		p := train.Parallel{Mesh: train.Mesh{Tensor: v.tensor}, Shard: train.ShardState}
		maps.Copy(kinds, predicted(t, v.c, v.ranks, v.budget, p))
	}
	if len(kinds) < 2 {
		t.Errorf("%d different strategies were chosen: %v", len(kinds), kinds)
	}
}

// TestTensorPlansAgree: ranks along tensor recompute the same blocks, also under a budget
// of which the first one, who has a word more, must recompute more.
func TestTensorPlansAgree(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking its plans takes a minute: TestPredictedIsMeasured plans with invariants")
	}
	c := config(nn.GPT2Config{Vocab: 65, Context: 1024, Width: 256, Layers: 4, Heads: 2}, 1, 1024)
	info := device.Info{Kind: device.Null, Granularity: 2 << 10, Virtual: true}
	at := func(rank int) plan.Options {
		o := quick
		o.Parallel = train.Parallel{Group: dist.Null(rank, 2), Mesh: train.Mesh{Tensor: 2}}
		return o
	}
	var needs [2]uint64
	for rank := range needs {
		trial, err := plan.Try(info, 1<<30, c, train.Strategy{MicroBatch: 1, Recompute: 2}, at(rank))
		if err != nil {
			t.Fatal(err)
		}
		needs[rank] = trial.ReservedBytes
	}
	if needs[0] <= needs[1] {
		t.Errorf("with 2 blocks recomputed the first rank needs %d bytes, the second %d", needs[0], needs[1])
	}
	info.Capacity = needs[1]
	for rank := range needs {
		p, err := plan.Search(t.Context(), info, c, at(rank))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Chosen; got.Strategy.Recompute != 3 || !got.Fits || rank == 1 && got.PeakBytes >= needs[1] {
			t.Errorf("rank %d recomputes %d blocks at a peak of %d bytes (fits: %v), want 3 within %d", rank, got.Strategy.Recompute, got.PeakBytes, got.Fits, info.Capacity)
		}
	}
}

// TestTensorMemory compares what each of T ranks holds with the formulas, in bytes,
// for a GPT-2 of L layers of width W, a vocabulary of V words and N tokens of a batch:
//
//	parameters        4·(L·12·W² + V·W)/T, and what all have: 4·L·(6 + 7/T)·W and positions
//	kept for a layer  N·W·40/T, and the row sums of attention
func TestTensorMemory(t *testing.T) {
	const layers, width, vocab, seq, batch, heads = 4, 128, 512, 64, 4, 8
	for _, n := range []int{1, 2, 4, 8} {
		var peak [2]map[string]float64 // with so many layers, and with twice as many
		for i := range peak {
			c := config(nn.GPT2Config{Vocab: vocab, Context: seq, Width: width, Layers: layers * (1 + i), Heads: heads}, batch, seq)
			peak[i] = peaksOnNull(t, c, train.Parallel{Group: dist.Null(0, n), Mesh: train.Mesh{Tensor: n}})
		}
		const w, l, tokens = float64(width), float64(layers), float64(batch * seq)
		ranks := float64(n)
		want := map[string]float64{
			"parameter":  4 * (l*12*w*w/ranks + vocab*w/ranks + l*(6+7/ranks)*w + seq*w + 2*w),
			"activation": l * ((tokens*w*40 + 4*tokens*heads) / ranks),
		}
		got := map[string]float64{"parameter": peak[0]["parameter"], "activation": peak[1]["activation"] - peak[0]["activation"]}
		for name, v := range want {
			t.Logf("%d ranks: %-10s %9.0f bytes, the formula says %9.0f", n, name, got[name], v)
			if got[name] < v || got[name] > 1.01*v+layers*16*512 { // blocks are multiples of 512 bytes
				t.Errorf("%d ranks: %s %.0f bytes, want %.0f", n, name, got[name], v)
			}
		}
	}
}

// peaksOnNull are the peaks of a step by purpose.
func peaksOnNull(t *testing.T, c train.Config, p train.Parallel) map[string]float64 {
	t.Helper()
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	peaks := map[string]float64{}
	err = steps(dev, c, c.Plain(), p, func(tr *train.Trainer) {
		for _, row := range tr.Memory().Stats().Table() {
			if name, ok := strings.CutSuffix(row.Name, "_peak_bytes"); ok {
				peaks[name] = float64(row.Value)
			}
		}
	})
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	return peaks
}
