package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	sizes "github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

var (
	budgetModels = flag.String("budgets", "", "models for TestBudgets: all, or some of gpt2, bert, resnet, moe, gpt2-mini")
	budgetParts  = flag.String("budget-parts", "100,80,60,40,30,20", "budgets of TestBudgets, in percent of the plain step's peak")
	budgetRounds = flag.Int("budget-rounds", 9, "steps that TestBudgets measures of each strategy, after one that it does not")
)

// Memory outside the device, and its rates: one core of a server.
var outside = plan.Tier{Bytes: 4 << 30, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9}

// budgetConfig is the step of a model, small with many samples, so that what
// waits for backward is most of its memory. Nothing is dropped out, so that
// micro-batches give the same losses.
func budgetConfig(t *testing.T, name string) train.Config {
	c := train.Config{Model: name, Batch: 32, Seq: 64, Seed: 1, Clip: 1, Schedule: nn.Cosine{Peak: 1e-4, Steps: 100},
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}}
	var err error
	switch name {
	case "gpt2":
		c.GPT2 = nn.GPT2Config{Vocab: 256, Context: 64, Width: 96, Layers: 6, Heads: 4}
	case "gpt2-mini":
		c.Seq = 256
		c.GPT2, err = nn.LookupGPT2("gpt2-mini")
	case "bert":
		c.Task = train.Hidden
		c.BERT = nn.BERTConfig{Vocab: 258, Width: 96, Layers: 6, Heads: 4, Hidden: 384, Context: 64, Types: 2, Eps: 1e-12}
	case "resnet":
		c.Task, c.Seq, c.Image = train.Classes, 0, [2]int{28, 28}
		c.ResNet = nn.ResNetConfig{Layers: [4]int{8, 2, 2, 2}, Width: 8, Channels: 1, Classes: 10, SmallImages: true}
	case "moe":
		c.MoE = nn.MoEConfig{Vocab: 256, Width: 64, Layers: 4, Experts: 4, TopK: 2, Hidden: 128, Heads: 4, Context: 64, Balance: 0.01, Capacity: 1.25}
	default:
		t.Fatalf("-budgets %s: want gpt2, bert, resnet, moe or gpt2-mini", name)
	}
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBudgets runs, for budgets from the plain step's peak down, what the
// planner chose, beside fixed recipes in their largest micro-batches that fit:
// every block computed again, √N segments, all values away. It prints the peak of
// memory, the time that rates measured before foretell, and the time that
// steps take, each strategy's turn by turn. It fails where a peak or a loss
// is not the one foretold, or a recipe is faster by more than the noise.
func TestBudgets(t *testing.T) {
	if *budgetModels == "" {
		t.Skip("no -budgets")
	}
	names := strings.Split(*budgetModels, ",")
	if *budgetModels == "all" {
		names = []string{"gpt2", "bert", "resnet", "moe"}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { testBudgets(t, budgetConfig(t, name)) })
	}
}

func testBudgets(t *testing.T, c train.Config) {
	all, err := device.OpenHost(device.HostOptions{Capacity: 4 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	o := plan.Options{Rates: calibrate(t, wallTime, all, c), Work: 300_000}
	plain, err := plan.Try(all.Info(), all.Info().Capacity, c, c.Plain(), o)
	if err != nil {
		t.Fatal(err)
	}
	least := leastBudget(t, all.Info(), c, o)
	t.Logf("load %s; plain: peak %s, %.1f ms by the estimate; the least that a plan is found for is %s, %.0f %%", loadAverage(), sizes.Format(plain.PeakBytes), 1e3*plain.Seconds,
		sizes.Format(least), 100*float64(least)/float64(plain.PeakBytes))
	t.Logf("budget  strategy          micro  peak foretold  measured   estimate   measured   the same as multiples of plain")
	for _, percent := range percents(t, *budgetParts) {
		info := withBudget(all.Info(), percent, plain)
		g := group{t: t, c: c, percent: percent, info: info, o: o, clock: wallTime}
		g.add(plain, "plain", all.Info().Capacity)
		g.plan("planned", o)
		g.recipes()
		away := o
		away.Away = plan.Away{Tiers: []plan.Tier{outside}}
		g.plan("planned, --away", away)
		g.measure()
		g.check()
	}
}

// percents reads numbers with commas between them.
func percents(t *testing.T, text string) (list []float64) {
	for part := range strings.SplitSeq(text, ",") {
		var percent float64
		if _, err := fmt.Sscan(part, &percent); err != nil {
			t.Fatal(err)
		}
		list = append(list, percent)
	}
	return list
}

// withBudget is info with so many percent of the plain step's peak.
func withBudget(info device.Info, percent float64, plain plan.Trial) device.Info {
	unit := float64(info.Granularity)
	info.Capacity = uint64(math.Ceil(percent/100*float64(plain.PeakBytes)/unit) * unit)
	return info
}

// calibrate measures with the whole batch, a quarter and a sixteenth.
func calibrate(t *testing.T, clock func() time.Duration, dev device.Device, c train.Config) plan.Rates {
	r, err := plan.CalibrateBy(clock, dev, c, c.Plain())
	for parts := 4; err == nil && parts <= 16 && c.Divisible(); parts *= 4 {
		var more plan.Rates
		more, err = plan.CalibrateBy(clock, dev, c, train.Strategy{MicroBatch: c.Batch / parts})
		r.Add(more)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// leastBudget is what a search names that has a page.
func leastBudget(t *testing.T, info device.Info, c train.Config, o plan.Options) uint64 {
	info.Capacity = info.Granularity
	_, err := plan.Search(context.Background(), info, c, o)
	var small *plan.TooSmallError
	if !errors.As(err, &small) {
		t.Fatalf("a budget of a page: %v", err)
	}
	return small.LeastBytes
}

// opened is when the program began, for wallTime.
var opened = time.Now()

func wallTime() time.Duration { return time.Since(opened) }

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// group is the strategies of a budget.
type group struct {
	t       *testing.T
	c       train.Config
	percent float64
	info    device.Info // with the budget
	o       plan.Options
	clock   func() time.Duration
	workers int // of the device; 0: one for each processor
	entries []*entry
}

// entry is a strategy and what it did.
type entry struct {
	name           string
	trial          plan.Trial
	capacity       uint64
	trainer        *train.Trainer
	close          func() error
	took           []float64 // seconds of each step
	losses         []float64
	peak, reserved uint64
}

func (g *group) add(trial plan.Trial, name string, capacity uint64) {
	g.entries = append(g.entries, &entry{name: name, trial: trial, capacity: capacity})
}

func (g *group) plan(name string, o plan.Options) {
	start := time.Now()
	p, err := plan.Search(context.Background(), g.info, g.c, o)
	if errors.As(err, new(*plan.TooSmallError)) {
		g.t.Logf("%3.0f %%   %-16s  does not fit", g.percent, name)
		return
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Logf("%3.0f %%   %-16s  found in %.1f s: %s", g.percent, name, time.Since(start).Seconds(), p.Chosen.Description)
	g.add(p.Chosen, name, g.info.Capacity)
}

// recipes adds the fixed ones.
func (g *group) recipes() {
	g.recipe("every block", everyBlock)
	g.recipe("√N segments", segments)
	g.recipe("all away", allAway)
}

// recipe adds a fixed strategy with its largest micro-batch that fits.
func (g *group) recipe(name string, make func(g *group, micro int) train.Strategy) {
	for micro := g.c.Batch; micro > 0; micro-- {
		if g.c.Batch%micro > 0 || micro < g.c.Batch && !g.c.Divisible() {
			continue
		}
		trial, err := plan.Try(g.info, g.info.Capacity, g.c, make(g, micro), g.o)
		if err != nil {
			g.t.Fatal(err)
		}
		if !trial.Fits {
			continue
		}
		if trial.AwayBytes > 0 { // copies run beside what is computed
			_, bytes := g.away(micro)
			trial.Seconds = max(trial.Seconds, float64(bytes)*float64(g.c.Batch/micro)*(1/outside.OutBytesPerSecond+1/outside.BackBytesPerSecond))
		}
		g.add(trial, name, g.info.Capacity)
		return
	}
}

// measure opens all and runs their steps in turn.
func (g *group) measure() {
	for _, e := range g.entries {
		if err := e.open(g.c, g.workers); err != nil {
			g.t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1 + *budgetRounds {
		batch := numbers(g.c, random)
		for _, e := range g.entries {
			start := g.clock()
			r, err := e.trainer.Step(batch...)
			if err != nil {
				g.t.Fatal(err)
			}
			e.took = append(e.took, (g.clock() - start).Seconds())
			e.losses = append(e.losses, r.Loss)
		}
	}
	for _, e := range g.entries {
		stats := e.trainer.Memory().Stats()
		e.peak, e.reserved = stats.PeakLive, stats.PeakReserved
		e.took = e.took[1:]
		if err := e.close(); err != nil {
			g.t.Error(err)
		}
	}
}

func (e *entry) open(c train.Config, workers int) error {
	dev, err := device.OpenHost(device.HostOptions{Capacity: e.capacity, Workers: workers})
	if err != nil {
		return err
	}
	if e.trainer, err = train.New(dev, c, e.trial.Strategy); err != nil {
		return err
	}
	e.trainer.Strict = true
	e.close = func() error { return errors.Join(e.trainer.Close(), dev.Close()) }
	if !e.trial.Strategy.Away() {
		return nil
	}
	place, err := spill.Memory(nil, outside.Bytes)
	if err != nil {
		return err
	}
	end := e.close
	e.close = func() error { return errors.Join(end(), place.Close()) }
	return e.trainer.UseStore(place, nil)
}

// numbers is a random batch.
func numbers(c train.Config, random *rand.Rand) []any {
	batch := c.NewBatch()
	for k, f := range c.Fields() {
		switch array := batch[k].(type) {
		case []int32:
			for i := range array {
				array[i] = random.Int32N(int32(f.Below))
			}
		case []float32:
			for i := range array {
				array[i] = float32(random.NormFloat64())
			}
		}
	}
	return batch
}

func (e *entry) seconds() float64 { return middle(e.took) }

// middle is the median.
func middle(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// check prints the group's lines and compares.
func (g *group) check() {
	plain := g.entries[0]
	for _, e := range g.entries {
		g.t.Logf("%3.0f %%   %-16s  %5d  %13d %9d  %7.1f ms %7.1f ms  %.3f %.3f %+5.1f %%", g.percent, e.name, e.trial.Strategy.MicroBatch, e.trial.PeakBytes, e.peak,
			1e3*e.trial.Seconds, 1e3*e.seconds(), e.trial.Seconds/plain.trial.Seconds, e.seconds()/plain.seconds(), 100*(e.trial.Seconds/plain.trial.Seconds/(e.seconds()/plain.seconds())-1))
		if e.peak != e.trial.PeakBytes || e.reserved != e.trial.ReservedBytes || e.reserved > e.capacity {
			g.t.Errorf("%s: peak %d, reserved %d, foretold %d and %d, budget %d", e.name, e.peak, e.reserved, e.trial.PeakBytes, e.trial.ReservedBytes, e.capacity)
		}
		for i, l := range e.losses {
			off := math.Abs(l/plain.losses[i] - 1)
			if whole := e.trial.Strategy.MicroBatch == g.c.Batch; whole && off != 0 || !(off < 1e-5) {
				g.t.Errorf("%s: loss %d is %v, plain %v", e.name, i, l, plain.losses[i])
			}
		}
	}
	g.compare("planned", "every block", "√N segments")
	g.compare("planned, --away", "every block", "√N segments", "all away")
}

// noise is by how much medians of the same strategy differ on a busy machine.
const noise = 1.10

// compare looks for recipes that are faster than the plan.
func (g *group) compare(planned string, recipes ...string) {
	find := func(name string) *entry {
		if i := slices.IndexFunc(g.entries, func(e *entry) bool { return e.name == name }); i >= 0 {
			return g.entries[i]
		}
		return nil
	}
	p := find(planned)
	for _, name := range recipes {
		r := find(name)
		switch {
		case r == nil:
		case p == nil:
			g.t.Errorf("%s: does not fit, %s does", planned, name)
		case p.trial.PeakBytes == r.trial.PeakBytes && p.trial.Seconds == r.trial.Seconds: // the same
		case p.trial.Seconds > r.trial.Seconds:
			g.t.Errorf("%s: estimate %.4f s, %s %.4f s", planned, p.trial.Seconds, name, r.trial.Seconds)
		case p.seconds() > noise*r.seconds():
			g.t.Errorf("%s: %.4f s measured, %s %.4f s", planned, p.seconds(), name, r.seconds())
		}
	}
}
