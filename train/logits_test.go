package train_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// TestLogitsInParts: how many rows of logits are made at a time changes no bit of the
// losses, nor of what is saved.
func TestLogitsInParts(t *testing.T) {
	for _, precision := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		c := config()
		c.Batch, c.Precision = 40, precision // 640 tokens
		dir := t.TempDir()
		want := losses(t, runIn(t, dir, c, c.Plain()))
		s := c.Plain()
		s.LogitRows = tensor.LogitRows
		other := t.TempDir()
		if got := losses(t, runIn(t, other, c, s)); !slices.Equal(got, want) {
			t.Errorf("%s: losses %v, want %v", precision, got, want)
		}
		sameFiles(t, dir, other, train.CheckpointFile)
	}
}

// TestLogitsOfRanks: ranks along tensor that would exchange sums for other parts find
// it out before the first step.
func TestLogitsOfRanks(t *testing.T) {
	c, p := config(), train.Parallel{Mesh: train.Mesh{Tensor: 2}}
	for rank, err := range eachRank(2, func(g dist.Group) error {
		s := c.Plain()
		s.LogitRows = g.Rank() * tensor.LogitRows
		return trainer(g, host(t), c, s, p, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: t.TempDir()}).Do(context.Background())
			return err
		})
	}) {
		if err == nil || !strings.Contains(err.Error(), "logits of 0 to 256 tokens") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestBadLogits: parts that there are not are refused.
func TestBadLogits(t *testing.T) {
	c := config()
	for _, rows := range []int{-tensor.LogitRows, 1, tensor.LogitRows + 1} {
		if err := c.Allows(train.Strategy{MicroBatch: c.Batch, LogitRows: rows}); err == nil {
			t.Errorf("logits of %d tokens at a time: no error", rows)
		}
	}
	c = families()["resnet"]
	if err := c.Allows(train.Strategy{MicroBatch: c.Batch, LogitRows: tensor.LogitRows}); err == nil {
		t.Error("a ResNet makes logits of tokens")
	}
}
