package train_test

import (
	"context"
	"math"
	"testing"

	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// TestPrecisions trains in 16 bits: the losses stay near those in float32, and
// a run that is cut and resumed gives the same ones.
func TestPrecisions(t *testing.T) {
	c := config()
	want := losses(t, newRun(t, c, c.Plain()))
	for d, tolerance := range map[tensor.DType]float64{tensor.BFloat16: 5e-3, tensor.Float16: 2e-3} {
		c.Precision = d
		got := losses(t, newRun(t, c, c.Plain()))
		for i := range want {
			if math.Abs(got[i]-want[i]) > tolerance*want[i] {
				t.Errorf("%v: losses %v, in float32 %v", d, got, want)
				break
			}
		}
		cut := newRun(t, c, c.Plain())
		resumed := cutAfter(t, cut, 3)
		cp, err := train.OpenCheckpoint(cut.Dir)
		if err != nil {
			t.Fatal(err)
		}
		r := runIn(t, cut.Dir, c, train.Strategy{MicroBatch: 2, Recompute: 1})
		if err := r.Resume(cp); err != nil {
			t.Fatal(err)
		}
		resumed = append(resumed, losses(t, r)...)
		for i := range got {
			if math.Abs(resumed[i]-got[i]) > tolerance*got[i] {
				t.Errorf("%v: losses %v after a resume, undisturbed %v", d, resumed, got)
				break
			}
		}
		cp.Close()
	}
}

// TestOverflowGoesOn starts where float16 overflows at once: steps are left out
// and done again, precision goes up, and the run comes to its end.
func TestOverflowGoesOn(t *testing.T) {
	c := config()
	c.Precision = tensor.Float16
	c.Schedule.Peak, c.Schedule.Floor = 300, 300 // which makes the logits large
	c.Schedule.Warmup, c.Schedule.Steps, c.Clip = 1, 4, 1e30
	r := newRun(t, c, c.Plain())
	kinds := map[string]int{}
	skipped := 0
	r.OnStep = func(p train.Progress) {
		if p.Skipped {
			skipped++
		}
		for _, e := range p.Events {
			kinds[e.Kind]++
			t.Log(p.Step, e.Text)
		}
	}
	out, err := r.Do(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if out.Steps != 4 || skipped == 0 || kinds["skip"] != skipped || kinds["precision"] == 0 {
		t.Errorf("%d steps, %d skipped, events %v", out.Steps, skipped, kinds)
	}
}
