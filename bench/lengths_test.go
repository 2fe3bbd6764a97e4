package bench

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

var (
	lengthSteps   = flag.Int("lengths-steps", 0, "steps that TestLengths measures")
	lengthPercent = flag.Uint64("lengths-percent", 40, "the budget of TestLengths, in percent of the longest plain step's peak")
)

// racer is a run that takes part in TestLengths: its steps alternate with those of
// the others.
type racer struct {
	train.Varied
	name     string
	shapes   []train.Shape
	turn     chan struct{}
	took     map[taken][]float64 // seconds
	last     float64             // loss
	peak     uint64
	seconds  float64 // of all steps, each at the least that such a step took
	foretold float64 // of all steps, by the estimate
	settled  float64 // as seconds, of as many steps with what was chosen in the end
}

// taken is a step of a length with a strategy.
type taken struct{ seq, micro int }

// Next waits for the turn.
func (r *racer) Next(fields ...any) error {
	<-r.turn
	return r.Varied.Next(fields...)
}

// TestLengths trains on texts of log-normal lengths in batches by length: with the
// plan of each length, what is close to it tried in the run, and with each fixed
// setting of micro-batches and blocks that are computed again that fits the longest
// (and the longest one's plan for all). Steps alternate. It prints the time of all
// steps, with those that tried, as a ratio to the best fixed setting's. Of steps of one
// length with one strategy the least time counts, since other work on the machine
// only adds.
func TestLengths(t *testing.T) {
	if *lengthSteps == 0 {
		t.Skip("no -lengths-steps")
	}
	c := train.Config{Model: "gpt2", Batch: 8, Seq: 256, Lengths: 3, Seed: 1, Clip: 1, Schedule: nn.Cosine{Peak: 1e-4, Steps: *lengthSteps + warmSteps},
		GPT2:  nn.GPT2Config{Vocab: 256, Context: 256, Width: 64, Layers: 4, Heads: 4},
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}}
	texts := logNormal(2000, c.Seq)
	info := device.Info{Kind: device.Host, Name: "host", Granularity: 2 << 20, Virtual: true, Workers: 2}
	longest := c
	longest.Lengths = 0
	plain, err := plan.Try(info, 1<<46, longest, c.Plain(), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	info.Capacity = plain.PeakBytes * *lengthPercent / 100
	feed := func() *train.ByLength {
		f, err := train.NewByLength(texts, nil, c, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	lengths := feed().Lengths()
	o := plan.Options{Rates: ratesOf(t, c)}
	planned, err := plan.SearchLengths(context.Background(), info, c, lengths, o)
	if err != nil {
		t.Fatal(err)
	}
	racers := []*racer{{name: "a plan for each", shapes: planned.Shapes}}
	for _, s := range append(fixedSettings(t, info, longest, o), planned.Plans[len(lengths)-1].Chosen.Strategy) {
		racers = append(racers, &racer{name: longest.Describe(s), shapes: sameFor(t, info, longest, lengths, s, o)})
	}
	for _, r := range racers {
		r.Varied, r.turn, r.took = feed(), make(chan struct{}, 1), map[taken][]float64{}
	}
	race(t, racers, info.Capacity, c)
	best := math.Inf(1)
	foretold := math.Inf(1)
	for i, r := range racers {
		for of, took := range r.took {
			r.seconds += float64(len(took)) * slices.Min(took)
			r.settled += float64(len(took)) * r.least(of.seq)
		}
		if i > 0 {
			best, foretold = min(best, r.seconds), min(foretold, r.foretold)
		}
	}
	t.Logf("lengths %d, %.1f %% padding; budget %d bytes; load %s", lengths, 100*feed().Waste(), info.Capacity, loadAverage())
	for i, p := range planned.Plans {
		t.Logf("%d tokens: %s, and %d beside it", lengths[i], p.Chosen.Description, len(planned.Shapes[i].Choices)-1)
	}
	for _, r := range racers {
		t.Logf("%-45s %8.2f s  %.3f of the best fixed, %.3f by the estimate; reserved %d, loss %.4f", r.name, r.seconds, r.seconds/best, r.foretold/foretold, r.peak, r.last)
		if r.settled != r.seconds {
			t.Logf("%-45s %8.2f s  %.3f of the best fixed", "  without what it tried", r.settled, r.settled/best)
		}
		if r.peak > info.Capacity || math.Abs(r.last/racers[0].last-1) > 1e-3 {
			t.Errorf("%s: peak %d of %d, loss %v", r.name, r.peak, info.Capacity, r.last)
		}
	}
	if racers[0].seconds > best {
		t.Errorf("the best fixed setting is faster: %.2f s against %.2f s", best, racers[0].seconds)
	}
}

// warmSteps are not measured: memory is touched for the first time, and a snapshot
// is written.
const warmSteps = 3

// logNormal makes texts of which half have less than a third of the greatest length.
func logNormal(n, longest int) data.Lists {
	r := rand.New(rand.NewPCG(1, 2))
	var lists data.Lists
	for range n {
		length := math.Exp(math.Log(float64(longest)/3) + 0.7*r.NormFloat64())
		text := make([]int32, min(max(int(length), 4), longest))
		for i := range text {
			text[i] = r.Int32N(256)
		}
		lists = append(lists, text)
	}
	return lists
}

// ratesOf measures the rates of a step of the longest texts, without a limit.
func ratesOf(t *testing.T, c train.Config) plan.Rates {
	c.Lengths = 0
	dev, err := device.Open("host:4GiB")
	if err != nil {
		t.Fatal(err)
	}
	var r plan.Rates
	for _, micro := range []int{c.Batch, c.Batch / 4} {
		of, err := plan.Calibrate(dev, c, train.Strategy{MicroBatch: micro})
		if err != nil {
			t.Fatal(err)
		}
		if micro == c.Batch {
			r = of
		}
		r.Add(of)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	return r
}

// fixedSettings are those that fit a step of the longest texts: with none, half and
// all of the blocks computed again in the largest micro-batches, and with none in
// half of these.
func fixedSettings(t *testing.T, info device.Info, c train.Config, o plan.Options) (list []train.Strategy) {
	for _, blocks := range []int{0, c.Blocks() / 2, c.Blocks()} {
		found := 0
		for micro := c.Batch; micro > 0 && found < 2; micro /= 2 {
			s := train.Strategy{MicroBatch: micro, Recompute: blocks}
			trial, err := plan.Try(info, info.Capacity, c, s, o)
			if err != nil {
				t.Fatal(err)
			}
			if trial.Fits && (found == 0 || blocks == 0) {
				list = append(list, s)
			}
			if trial.Fits {
				found++
			}
		}
	}
	return list
}

// sameFor are shapes with one strategy.
func sameFor(t *testing.T, info device.Info, c train.Config, lengths []int, s train.Strategy, o plan.Options) (shapes []train.Shape) {
	for _, n := range lengths {
		c.Seq = n
		trial, err := plan.Try(info, info.Capacity, c, s, o)
		if err != nil {
			t.Fatal(err)
		}
		shapes = append(shapes, train.Shape{Seq: n, Choices: []train.Choice{{Strategy: s, Seconds: trial.Seconds}}})
	}
	return shapes
}

// race lets all run, a step each in turn.
func race(t *testing.T, racers []*racer, capacity uint64, c train.Config) {
	ends := make(chan error, len(racers))
	for i, r := range racers {
		next := racers[(i+1)%len(racers)]
		go func() { ends <- r.run(t.TempDir(), capacity, c, func() { next.turn <- struct{}{} }) }()
	}
	racers[0].turn <- struct{}{}
	var errs []error
	for range racers {
		errs = append(errs, <-ends)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// run trains to the end, and calls pass behind each step.
func (r *racer) run(dir string, capacity uint64, c train.Config, pass func()) (err error) {
	dev, err := device.OpenHost(device.HostOptions{Capacity: capacity})
	if err != nil {
		return err
	}
	longest := slices.MaxFunc(r.shapes, func(a, b train.Shape) int { return a.Seq - b.Seq })
	tr, err := train.New(dev, c, longest.Choices[0].Strategy)
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	tr.Strict = true
	run := &train.Run{Trainer: tr, Feed: r, Shapes: r.shapes, Dir: dir}
	run.OnStep = func(p train.Progress) {
		if p.Step > warmSteps {
			kind := taken{p.Seq, tr.Strategy.MicroBatch}
			r.took[kind] = append(r.took[kind], p.Seconds)
			r.foretold += r.estimate(kind)
		}
		r.last = p.Loss
		pass()
	}
	out, err := run.Do(context.Background())
	r.peak = out.ReservedBytes
	return errors.Join(err, tr.Close(), dev.Close())
}

// least is the time of a step of a length with the fastest strategy that it took.
func (r *racer) least(seq int) float64 {
	least := math.Inf(1)
	for of, took := range r.took {
		if of.seq == seq {
			least = min(least, slices.Min(took))
		}
	}
	return least
}

// estimate is that of such a step.
func (r *racer) estimate(of taken) float64 {
	for _, s := range r.shapes {
		for _, c := range s.Choices {
			if s.Seq == of.seq && c.Strategy.MicroBatch == of.micro {
				return c.Seconds
			}
		}
	}
	return 0
}
