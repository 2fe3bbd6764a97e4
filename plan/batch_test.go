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
		device string
		model  nn.GPT2Config
		seq    int
	}{
		{"host:10MiB", small, 64}, {"host:12MiB", small, 64}, {"host:16MiB", small, 64}, {"host:20MiB", small, 33}, {"host:14MiB", small, 50},
		{"host:6MiB", deep, 32}, {"host:8MiB", deep, 32}, {"host:10MiB", deep, 17}, {"null:12MiB", deep, 32}, {"null:16MiB", small, 48},
	} {
		if invariant.Slow && i%4 > 0 { // checking them takes its time
			continue
		}
		c := config(test.model, 1, test.seq)
		dev, err := device.Open(test.device)
		if err != nil {
			t.Fatal(err)
		}
		m, err := plan.LargestBatch(context.Background(), dev.Info(), c, false, quick)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for n := 1; n <= m.Size+8; n++ {
			c.Batch = n
			trial, err := plan.Try(dev.Info(), dev.Info().Capacity, c, train.Strategy{MicroBatch: n}, quick)
			if err != nil {
				t.Fatal(err)
			}
			if trial.Fits {
				want = n
			}
		}
		if m.Size != want {
			t.Errorf("%s: batch %d, by trying all %d", test.device, m.Size, want)
		}
		c.Batch = m.Size
		if _, reserved := measure(t, dev, c, m.Fits.Strategy); reserved+m.MarginBytes != dev.Info().Capacity {
			t.Errorf("%s: %d bytes reserved, margin %d", test.device, reserved, m.MarginBytes)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := plan.LargestBatch(context.Background(), device.Info{Kind: device.Null, Capacity: 1 << 20, Granularity: 64 << 10, Virtual: true}, config(small, 1, 64), false, quick)
	if small := (*plan.TooSmallError)(nil); !errors.As(err, &small) {
		t.Errorf("one sample in 1 MiB: %v", err)
	}
}

// TestLargestWithValuesMadeAgain finds larger batches and longer sequences
// where values may be made again, and runs them.
func TestLargestWithValuesMadeAgain(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking dozens of plans takes minutes, and other tests plan with invariants")
	}
	deep := nn.GPT2Config{Vocab: 100, Context: 256, Width: 32, Layers: 9, Heads: 2}
	dev, err := device.Open("host:12MiB")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for name, find := range map[string]func(again bool) (plan.Largest, train.Config, error){
		"batch": func(again bool) (plan.Largest, train.Config, error) {
			c := config(deep, 1, 32)
			l, err := plan.LargestBatch(context.Background(), dev.Info(), c, again, quick)
			c.Batch = l.Size
			return l, c, err
		},
		"sequence": func(again bool) (plan.Largest, train.Config, error) {
			c := config(deep, 16, 1)
			l, err := plan.LargestSeq(context.Background(), dev.Info(), c, again, quick)
			c.Seq = l.Size
			return l, c, err
		},
	} {
		plain, _, err := find(false)
		if err != nil {
			t.Fatal(err)
		}
		again, c, err := find(true)
		if err != nil {
			t.Fatal(err)
		}
		if again.Size*4 < plain.Size*5 {
			t.Errorf("%s: %d with values made again, %d without", name, again.Size, plain.Size)
		}
		if _, reserved := measure(t, dev, c, again.Fits.Strategy); reserved+again.MarginBytes != dev.Info().Capacity {
			t.Errorf("%s: %d bytes reserved, margin %d", name, reserved, again.MarginBytes)
		}
	}
}
