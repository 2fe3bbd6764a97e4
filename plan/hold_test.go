package plan_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// heldCount is how many results s holds.
func heldCount(s train.Strategy) int {
	_, _, held := s.Values.Count()
	return held
}

// TestHeld: of every family, in float32 and mixed precision, results are held from where
// the plain step fits on, more of them the more room there is; the peaks are those that
// were foretold and within the budget, and losses are the plain step's bit for bit.
func TestHeld(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	all := families()
	delete(all, "classes") // as masked, but for the loss
	all["gpt2"] = config(nn.GPT2Config{Vocab: 256, Context: 48, Width: 64, Layers: 4, Heads: 4}, 16, 48)
	for name, c := range all {
		c.Test, c.Schedule.Steps = false, 3
		for _, test := range []struct {
			precision tensor.DType
			parts     []uint64 // quarters of what holding everything takes
		}{{tensor.Float32, []uint64{0, 4}}, {tensor.BFloat16, []uint64{1, 3}}} {
			c.Precision = test.precision
			info := device.Info{Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}
			roomy, err := plan.Search(context.Background(), info, c, oneCore())
			if err != nil {
				t.Fatal(err)
			}
			plain := lossesOf(t, hostOf(t, 1<<30), c, roomy.Plain)
			last, most := 0, heldCount(roomy.Chosen.Strategy)
			if most == 0 {
				t.Errorf("%s, %v: nothing is held with memory for all: %s", name, c.Precision, roomy.Chosen.Description)
			}
			for _, part := range test.parts {
				budget := roomy.Plain.ReservedBytes + (roomy.Chosen.ReservedBytes-roomy.Plain.ReservedBytes)*part/4
				budget -= budget % info.Granularity
				info.Capacity = budget
				p, err := plan.Search(context.Background(), info, c, oneCore())
				if err != nil {
					t.Fatal(err)
				}
				n := heldCount(p.Chosen.Strategy)
				if n < last || n > 0 && p.Chosen.Seconds*1.01 > p.Plain.Seconds || part == 4 && n < most {
					t.Errorf("%s, %v: %d of %d results are held in %d bytes, %d in less; %v s, plain %v s", name, c.Precision, n, most, budget, last, p.Chosen.Seconds, p.Plain.Seconds)
				}
				last = n
				if p.Chosen.ReservedBytes > budget {
					t.Errorf("%s, %v, %s reserves %d of %d bytes", name, c.Precision, p.Chosen.Description, p.Chosen.ReservedBytes, budget)
				}
				losses := lossesOf(t, hostOf(t, budget), c, p.Chosen)
				if !slices.Equal(losses, plain) {
					t.Errorf("%s, %v, %s: losses %v, plain %v", name, c.Precision, p.Chosen.Description, losses, plain)
				}
			}
		}
	}
}

// TestHeldIsWorthIt: where recipes take less than a hundredth of the step, as they do
// where memory is fast beside arithmetic, the step stays plain.
func TestHeldIsWorthIt(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 48, Width: 256, Layers: 2, Heads: 4}, 4, 48)
	info := device.Info{Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}
	for _, test := range []struct {
		bytes float64 // a second
		held  bool
	}{{12e9, true}, {12e14, false}} {
		o := oneCore()
		o.Rates.BytesPerSecond, o.Rates.LaunchSeconds = test.bytes, 1e-12
		p, err := plan.Search(context.Background(), info, c, o)
		if err != nil {
			t.Fatal(err)
		}
		if held := heldCount(p.Chosen.Strategy) > 0; held != test.held || !held && (p.Chosen.Strategy != c.Plain() || len(p.Tried) > 1) {
			t.Errorf("at %g bytes/s: %s (%d tried), %v s, plain %v s", test.bytes, p.Chosen.Description, len(p.Tried), p.Chosen.Seconds, p.Plain.Seconds)
		}
	}
}

// TestHeldInFile: a plan that holds results is what was written when it is read, and is
// refused where it was changed to what can't be.
func TestHeldInFile(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 48, Width: 64, Layers: 2, Heads: 4}, 4, 48)
	info := device.Info{Capacity: 64 << 20, Granularity: 2 << 20, Virtual: true}
	p, err := plan.Search(context.Background(), info, c, oneCore())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := p.Write(path); err != nil {
		t.Fatal(err)
	}
	read, err := plan.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := heldCount(read.Chosen.Strategy); n == 0 || n != heldCount(p.Chosen.Strategy) || read.For(info, c) != nil {
		t.Errorf("%d results are held, %d were (%v)", n, heldCount(p.Chosen.Strategy), read.For(info, c))
	}
	values := read.Chosen.Strategy.Values
	values.Waits[slices.IndexFunc(values.Waits, func(w tensor.Wait) bool { return w.Held })].Reads = []int{0}
	if err := read.For(info, c); err == nil || !strings.Contains(err.Error(), "is held, and yet waits otherwise") {
		t.Errorf("a changed plan: %v", err)
	}
}
