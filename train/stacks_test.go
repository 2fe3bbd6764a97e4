package train

import (
	"encoding/json"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// zeros feeds batches of zeros.
type zeros struct{}

func (zeros) Next(...any) error             { return nil }
func (zeros) State() json.RawMessage        { return json.RawMessage("0") }
func (zeros) Restore(json.RawMessage) error { return nil }

// looker looks at the memory whenever an operation begins: it counts
// activations, and those that know where they come from.
type looker struct {
	t           *Trainer
	all, placed int
}

func (l *looker) Begin(tensor.Range) {
	for _, s := range l.t.mem.Segments() {
		for _, b := range s.Blocks {
			if b.State == trace.Live && b.Purpose == trace.Activation {
				l.all++
				if b.Stack != nil {
					l.placed++
				}
			}
		}
	}
}

func (l *looker) End() {}

// TestStacks: blocks of the first step know where they come from if that is
// wanted, and not if it isn't.
func TestStacks(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		dev, err := device.Open("host:64MiB")
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Model: "tiny", GPT2: nn.GPT2Config{Vocab: 256, Context: 16, Width: 16, Layers: 1, Heads: 2}, Batch: 2, Seq: 16, Seed: 3,
			Schedule: nn.Cosine{Peak: 1e-2, Floor: 1e-3, Steps: 4}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
		tr, err := New(dev, c, c.Plain())
		if err != nil {
			t.Fatal(err)
		}
		look := &looker{t: tr}
		tr.rt.Observe(look) // until the second step, which the run observes itself
		r := &Run{Trainer: tr, Feed: zeros{}, Dir: t.TempDir(), Stacks: wanted}
		if _, err := r.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		if look.all == 0 || wanted != (look.placed == look.all) || !wanted && look.placed > 0 {
			t.Errorf("stacks wanted: %v; %d of %d activations have one", wanted, look.placed, look.all)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
