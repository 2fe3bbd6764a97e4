// Package plan answers «will it fit, and with which strategies», by running
// the step on a null device.
//
// The null device has the capacity and the granularity of the one that will
// compute, and the allocator, the tape and the step are the very code that
// will run there. So a peak measured here is the peak that will be: there is
// no second model of the program. Time is estimated from the operations' bytes
// and flops, which the null device is told, and from what kernels were measured
// to take (Calibrate).
package plan

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// Trial is what one strategy would do.
type Trial struct {
	Strategy      train.Strategy `json:"strategy"`
	Description   string         `json:"description"`
	Fits          bool           `json:"fits"`
	PeakBytes     uint64         `json:"peak_bytes"`           // of live memory; 0 if it doesn't fit
	ReservedBytes uint64         `json:"reserved_bytes"`       // most taken from the device; 0 if it doesn't fit
	Flops         uint64         `json:"flops"`                // a step
	Bytes         uint64         `json:"bytes"`                // memory traffic of a step
	Seconds       float64        `json:"seconds"`              // a step, estimated; for one that doesn't fit 0
	AwayBytes     uint64         `json:"away_bytes,omitempty"` // most that wait outside the device at a time

	recipes float64 // seconds that recipes take, of the plain step; of others 0

	noRoom bool // for some of that
	moved  Tier // the mean speed of copies of values to and from their tiers; zero without any
}

// Plan is the choice for a budget and what it was chosen from.
type Plan struct {
	Step        string       `json:"step"`               // what it is of: train.Config.Fingerprint
	Precision   tensor.DType `json:"precision,omitzero"` // of that
	Device      string       `json:"device"`
	BudgetBytes uint64       `json:"budget_bytes"`
	Chosen      Trial        `json:"chosen"`
	Plain       Trial        `json:"plain"` // without a limit
	Tried       []Trial      `json:"tried"`
}

// TooSmallError is returned when no strategy fits the budget.
type TooSmallError struct {
	Model       string `json:"model"`
	BudgetBytes uint64 `json:"budget_bytes"`
	LeastBytes  uint64 `json:"least_bytes"` // the least that any strategy reserves
	Strategy    string `json:"strategy"`    // the one that does
}

func (e *TooSmallError) Error() string {
	return fmt.Sprintf("model %s does not fit %s with any strategy: it needs at least %s (%s); give it a larger device, a smaller model, a smaller batch, or shorter sequences",
		e.Model, size.Format(e.BudgetBytes), size.Format(e.LeastBytes), e.Strategy)
}

// maxTrialSteps bounds the steps of a trial. A trial goes on until everything
// repeats, which takes two or three steps, seldom more.
const maxTrialSteps = 32

// Try runs strategy s of c on a null device with info's properties and the
// given capacity, and estimates its time with o's rates. A strategy that does
// not fit is no error.
func Try(info device.Info, capacity uint64, c train.Config, s train.Strategy, o Options) (Trial, error) {
	return task{o, info, c}.try(s, capacity)
}

// task is a step to plan: of c, on a device with info's properties and capacity,
// under the options of a search.
type task struct {
	Options
	info device.Info
	c    train.Config
}

// with is the task under other options.
func (k task) with(o Options) task {
	k.Options = o
	return k
}

// within is a trial of s on the device.
func (k task) within(s train.Strategy) (Trial, error) { return k.try(s, k.info.Capacity) }

// free is a trial of s without a limit of memory.
func (k task) free(s train.Strategy) (Trial, error) { return k.try(s, unlimited) }

// try is a trial of s with so much memory, of which OnTrial is told.
func (k task) try(s train.Strategy, capacity uint64) (Trial, error) {
	trial, err := k.run(s, capacity)
	if err == nil && k.OnTrial != nil {
		k.OnTrial(trial)
	}
	return trial, err
}

func (k task) run(s train.Strategy, capacity uint64) (Trial, error) {
	trial := Trial{Strategy: s, Description: k.c.Describe(s)}
	rates, time, recipes, plain := k.rates(k.info), timeline{}, again{}, s == k.c.Plain()
	clock := device.Clock{Seconds: rates.seconds}
	count := func(l *device.Launch) {
		trial.Flops += l.Flops
		trial.Bytes += l.Bytes
		if plain && recipes.running() {
			trial.recipes += rates.seconds(l)
		}
	}
	dev, err := device.OpenNullLike(k.info, capacity, func(l *device.Launch) {
		count(l)
		time.device = clock.Now()
	}, &clock)
	if err != nil {
		return trial, err
	}
	store := openBooks(k.Away)
	host, err := k.openOutside(&time, count)
	if err != nil {
		return trial, errors.Join(err, dev.Close())
	}
	defer host.Close()
	peak, reserved, err := k.train(dev, host, s, store, &recipes, func() {
		trial.Flops, trial.Bytes, trial.recipes, time = 0, 0, 0, timeline{}
		clock.Restart()
	})
	if errors.Is(err, device.ErrOutOfMemory) {
		return Trial{Strategy: s, Description: trial.Description}, dev.Close()
	}
	if err != nil {
		return trial, err
	}
	trial.Fits, trial.PeakBytes, trial.ReservedBytes, trial.AwayBytes = true, peak, reserved, store.peak
	trial.Seconds, trial.noRoom, trial.moved = time.seconds(), store.full, store.mean()
	return trial, dev.Close()
}

// train runs steps until memory repeats itself and returns the peaks of live and
// reserved memory; it calls begin before each step, and tells of what the step does.
func (k task) train(dev, host device.Device, s train.Strategy, store *books, to tensor.Observer, begin func()) (peak, reserved uint64, err error) {
	t, err := train.NewParallel(dev, k.c, s, k.Parallel)
	if err != nil {
		return 0, 0, err
	}
	t.Strict = true
	t.Observe(to)
	if s.Away() {
		if err := t.UseStore(store, host); err != nil {
			return 0, 0, errors.Join(err, t.Close())
		}
	}
	batch := k.c.NewBatch()
	for evaluations := range 3 { // what one changes shows in the steps after it, and in the next
		if evaluations > 0 {
			if !k.c.Test {
				break
			}
			if _, err := t.Evaluate(blank{s.MicroBatch}); err != nil {
				return 0, 0, errors.Join(err, t.Close())
			}
		}
		if err := repeat(t, batch, cmp.Or(k.steps, maxTrialSteps), begin); err != nil {
			return 0, 0, errors.Join(err, t.Close())
		}
	}
	stats := t.Memory().Stats()
	return stats.PeakLive, stats.PeakReserved, t.Close()
}

// repeat steps until every block lies where it lay in the step before or, on
// devices that must move pages for that in each step, until a step moves as many
// as an earlier one and leaves memory as that did; at most so often.
func repeat(t *train.Trainer, batch []any, most int, begin func()) error {
	seen := map[[sha256.Size]byte]bool{}
	for range most {
		before := t.Memory().Stats()
		begin()
		if _, err := t.Step(batch...); err != nil {
			return err
		}
		s := t.Memory().Stats()
		again, moved := s.Repeats-before.Repeats, s.Maps-before.Maps
		at := layout(t.Memory(), again, moved)
		if again == s.Allocs-before.Allocs || seen[at] {
			break
		}
		seen[at] = true
	}
	return nil
}

// blank is a set of so many samples of zeros.
type blank struct{ n int }

func (b blank) Len() int                 { return b.n }
func (b blank) Sample(int, ...any) error { return nil }

// layout is a digest of how memory is divided after a step in which so many blocks
// lay where they lay before, and so many pages were moved.
func layout(mem *alloc.Allocator, again, moved uint64) (digest [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintln(h, again, moved, mem.Stats().Stitches) // a step that still stitches is not the last of its kind
	for _, s := range mem.Segments() {
		fmt.Fprintln(h, s.Addr, s.Size)
		for _, b := range s.Blocks {
			fmt.Fprintln(h, b.Addr, b.Size, b.State)
		}
	}
	h.Sum(digest[:0])
	return digest
}

// unlimited is a capacity that no step reaches.
const unlimited = 1 << 46

// add enters a trial, and takes it if it fits and is faster than all before.
func (p *Plan) add(t Trial) {
	p.Tried = append(p.Tried, t)
	if t.Fits && (!p.Chosen.Fits || t.Seconds < p.Chosen.Seconds) {
		p.Chosen = t
	}
}

// microBatches lists the sizes of micro-batches for the step, the greatest first.
func (k task) microBatches() []int {
	var ds []int
	if k.micro > 0 {
		return []int{k.micro}
	}
	if !k.c.Divisible() {
		return []int{k.c.Batch}
	}
	for n, d := k.c.Batch, k.c.Batch; d > 0; d-- {
		if n%d == 0 {
			ds = append(ds, d)
		}
	}
	return ds
}
