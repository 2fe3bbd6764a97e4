package plan

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// TestTimeline counts steps whose lanes wait for each other, by hand.
func TestTimeline(t *testing.T) {
	type doing struct{ device, copy, host float64 }
	for i, test := range []struct {
		steps []doing
		want  float64
	}{
		{[]doing{{device: 3}, {device: 4}}, 7},
		{[]doing{{device: 3}, {copy: 1}, {device: 4}, {copy: 2}, {host: 5}}, 14},         // only the last gradient shows
		{[]doing{{device: 1}, {copy: 3}, {device: 1}, {copy: 3}, {host: 5}}, 12},         // copies follow each other
		{[]doing{{device: 1}, {copy: 1}, {host: 2}, {host: 2}, {copy: 1}, {copy: 1}}, 6}, // weights go back beside the update
		{[]doing{{device: 1}, {copy: 1}, {host: 1}, {host: 1}, {copy: 3}, {copy: 3}}, 8}, // … or are waited for
	} {
		var line timeline
		for _, s := range test.steps {
			line.device += s.device
			line.host += s.host
			if s.copy > 0 {
				line.copy(s.copy)
			}
		}
		if got := line.seconds(); got != test.want {
			t.Errorf("step %d takes %v, want %v", i, got, test.want)
		}
	}
}

// TestTimeOutside: an optimizer outside a GPU costs what the host takes longer
// where copies are free, copies that are slow are all that counts, and in
// between a step takes less than the sum and more than each.
func TestTimeOutside(t *testing.T) {
	c := train.Config{GPT2: nn.GPT2Config{Vocab: 1000, Context: 64, Width: 128, Layers: 4, Heads: 4}, Batch: 4, Seq: 64,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 3}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	info := device.Info{Kind: device.CUDA, Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}
	seconds := func(rate float64, workers int, s train.Strategy) float64 {
		trial, err := Try(info, info.Capacity, c, s, Options{Away: Away{Tiers: []Tier{{Bytes: 1 << 30, OutBytesPerSecond: rate, BackBytesPerSecond: rate}}, Workers: workers}})
		if err != nil || !trial.Fits {
			t.Fatalf("%+v, %v", trial, err)
		}
		return trial.Seconds
	}
	near := func(x, y float64) bool { return math.Abs(x-y) < 0.1*y }
	outside := train.Strategy{MicroBatch: 4, StateAway: true}
	weights := 4 * float64(967_040)
	plain, free := seconds(1e18, 1, c.Plain()), seconds(1e18, 1, outside)
	update := free - plain
	if few := seconds(1e18, 4, outside) - plain; few < update/4 || few > update/3 { // launches take as long
		t.Errorf("the update takes %v s with one worker, %v with four", update, few)
	}
	if all := seconds(1e6, 1, outside); !near(all, 2*weights/1e6) {
		t.Errorf("a step with slow copies takes %v s, the copies %v", all, 2*weights/1e6)
	}
	rate := weights / update // gradients take as long as the update, and so do weights
	if some := seconds(rate, 1, outside); some < 2*update || some > plain+2.1*update {
		t.Errorf("a step takes %v s, where the update takes %v and copies as much each way", some, update)
	}
	between := train.Strategy{MicroBatch: 1, StateAway: true, GradientsAway: true}
	if all := seconds(1e6, 1, between); !near(all, 8*weights/1e6) { // four times out, three in, and weights
		t.Errorf("a step with gradients outside takes %v s, the copies %v", all, 8*weights/1e6)
	}
}
