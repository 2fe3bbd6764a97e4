package plan

import (
	"errors"
	"hash/fnv"
	"math"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// clockwork is a device that computes nothing and whose time is its launches': those
// of each kernel take a factor of the roofline's time that only it knows.
type clockwork struct {
	info device.Info
	now  time.Duration
	busy float64 // by what all takes longer
}

func (c *clockwork) took(l *device.Launch) time.Duration {
	h := fnv.New32()
	h.Write([]byte(l.Kernel.Name))
	r := HostRates(1)
	factor := math.Exp2(float64(h.Sum32()%1000)/250 - 1) // from a half to eight
	return time.Duration(c.busy * factor * r.roof(l.Flops, l.Bytes) * float64(time.Second))
}

// run trains c with s and gives what was learned, and what an undisturbed step takes.
func (c *clockwork) run(t *testing.T, config train.Config, s train.Strategy) (*Learner, float64) {
	t.Helper()
	dev, err := device.OpenNullLike(c.info, 1<<40, func(l *device.Launch) { c.now += c.took(l) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLearner(dev)
	l.watch.clock = func() time.Duration { return c.now }
	tr, err := train.New(l.Device(), config, s)
	if err != nil {
		t.Fatal(err)
	}
	var step time.Duration
	for i := range 20 {
		if i%5 == 4 { // as behind a checkpoint's step
			if _, err := tr.Evaluate(blank{s.MicroBatch}); err != nil {
				t.Fatal(err)
			}
		}
		start := c.now
		if _, err := tr.Step(config.NewBatch()...); err != nil {
			t.Fatal(err)
		}
		step = c.now - start
		l.Step(config.Describe(s), step.Seconds())
	}
	if err := errors.Join(tr.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	if got := l.Median(config.Describe(s)); !near(got, step.Seconds()) {
		t.Errorf("the median step took %v s, want %v", got, step.Seconds())
	}
	return l, step.Seconds()
}

// off is by which factor the estimate with r is wrong.
func (c *clockwork) off(t *testing.T, config train.Config, s train.Strategy, r Rates, took float64) float64 {
	t.Helper()
	trial, err := Try(c.info, 1<<40, config, s, Options{Rates: r})
	if err != nil {
		t.Fatal(err)
	}
	return math.Exp(math.Abs(math.Log(trial.Seconds / took)))
}

// TestLearn: after a run the estimate of its step is right, and that of others nearly:
// of another strategy, and another batch. A run on a busy machine spoils half of it, and
// the next repairs that.
func TestLearn(t *testing.T) {
	c := train.Config{Model: "test", GPT2: nn.GPT2Config{Vocab: 64, Context: 16, Width: 32, Layers: 2, Heads: 2}, Batch: 8, Seq: 16, Seed: 1, Clip: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 20}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	w := &clockwork{info: device.Info{Granularity: 2 << 20, Virtual: true, Workers: 1}, busy: 1}
	larger, recomputed := c, train.Strategy{MicroBatch: 4, Recompute: 2}
	larger.Batch = 16
	l, took := w.run(t, c, c.Plain())
	_, tookRecomputed := w.run(t, c, recomputed)
	_, tookLarger := w.run(t, larger, larger.Plain())
	r := HostRates(1)
	offs := func() [3]float64 {
		return [3]float64{w.off(t, c, c.Plain(), r, took), w.off(t, c, recomputed, r, tookRecomputed), w.off(t, larger, larger.Plain(), r, tookLarger)}
	}
	before := offs()
	r.Learn(l.Rates())
	after := offs()
	for i := range before {
		if before[i] < 1.2 || after[i] > 1.1 {
			t.Errorf("estimates are off by factors %v before, %v after", before, after)
		}
	}
	if after[0] > 1+1e-6 {
		t.Errorf("the estimate of the step that was measured is off by a factor %v", after[0])
	}
	w.busy = 4
	l, _ = w.run(t, c, c.Plain())
	r.Learn(l.Rates())
	if got := offs()[0]; math.Abs(got-2) > 1e-3 {
		t.Errorf("after a run that was four times slower, the estimate is off by %v, want 2", got)
	}
	w.busy = 1
	for range 3 {
		l, _ = w.run(t, c, c.Plain())
		r.Learn(l.Rates())
	}
	if got := offs()[0]; got > 1.1 {
		t.Errorf("after three runs more, the estimate is still off by %v", got)
	}
}

// TestLearnsNothing: of steps that differ, or that were never undisturbed, nothing is
// learned, and the file stays within its bounds.
func TestLearnsNothing(t *testing.T) {
	l := NewLearner(nil)
	l.kinds["differ"] = &kindOfStep{[]time.Duration{9}, [][]launched{{{"gemm", 1, 1, 5}}, {{"relu", 1, 1, 5}}}}
	l.kinds["never"] = &kindOfStep{nil, [][]launched{{{"gemm", 1, 1, 5}}}}
	if r := l.Rates(); len(r.Kernels) != 0 || l.Median("never") != 0 {
		t.Errorf("learned %v", r.Kernels)
	}
	r := HostRates(1)
	for i := range uint64(2 * mostTimings) {
		r.Learn(Rates{Kernels: map[string][]Timing{"gemm": {{Flops: 1 << 20 * (i + 1), Bytes: 1 << 20, Seconds: 1}}}})
	}
	if n := len(r.Kernels["gemm"]); n != mostTimings || r.check() != nil {
		t.Errorf("%d timings: %v", n, r.check())
	}
}
