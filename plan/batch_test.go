package plan_test

import (
	"context"
	"errors"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// TestLargestBatch compares the search with trying every batch, on ten devices
// and models, and runs what it found.
func TestLargestBatch(t *testing.T) {
	small := nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}
	deep := nn.GPT2Config{Vocab: 100, Context: 32, Width: 32, Layers: 9, Heads: 2}
	for i, test := range []struct {
		device    string
		model     nn.GPT2Config
		seq       int
		recompute int
	}{
		{"host:10MiB", small, 64, 0}, {"host:12MiB", small, 64, 0}, {"host:16MiB", small, 64, 4}, {"host:20MiB", small, 33, 0}, {"host:14MiB", small, 50, 2},
		{"host:6MiB", deep, 32, 0}, {"host:8MiB", deep, 32, 9}, {"host:10MiB", deep, 17, 3}, {"null:12MiB", deep, 32, 1}, {"null:16MiB", small, 48, 0},
	} {
		if invariant.Enabled && i%4 > 0 { // checking them takes its time
			continue
		}
		c := config(test.model, 1, test.seq)
		dev, err := device.Open(test.device)
		if err != nil {
			t.Fatal(err)
		}
		m, err := plan.LargestBatch(context.Background(), dev.Info(), c, test.recompute)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for n := 1; n <= m.Batch+8; n++ {
			c.Batch = n
			trial, err := plan.Try(dev.Info(), dev.Info().Capacity, c, train.Strategy{MicroBatch: n, Recompute: test.recompute})
			if err != nil {
				t.Fatal(err)
			}
			if trial.Fits {
				want = n
			}
		}
		if m.Batch != want {
			t.Errorf("%s, recompute %d: batch %d, by trying all %d", test.device, test.recompute, m.Batch, want)
		}
		c.Batch = m.Batch
		if _, reserved := measure(t, dev, c, m.Fits.Strategy); reserved+m.MarginBytes != dev.Info().Capacity {
			t.Errorf("%s: %d bytes reserved, margin %d", test.device, reserved, m.MarginBytes)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := plan.LargestBatch(context.Background(), device.Info{Kind: device.Null, Capacity: 1 << 20, Granularity: 64 << 10, Virtual: true}, config(small, 1, 64), 0)
	if small := (*plan.TooSmallError)(nil); !errors.As(err, &small) {
		t.Errorf("one sample in 1 MiB: %v", err)
	}
}
