package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// options are those of a search on a device: memory outside it and, with --rates,
// the rates that are known of it. With anew, the file may yet have to be written.
func (j *jobFlags) options(info device.Info, anew bool) (plan.Options, error) {
	if j.rates == "" {
		return j.away.options(j.device), nil
	}
	rates, err := plan.ReadRates(j.rates, info)
	if anew && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return plan.Options{}, usageError{err}
	}
	j.away.know(rates.Away)
	o := j.away.options(j.device)
	o.Rates = rates
	return o, nil
}

// measureAway finds how fast copies to places outside the device are and, with
// --rates, keeps it there. Several ranks take what is known, so that their plans are
// alike.
func (f *trainFlags) measureAway(ctx context.Context, dev device.Device, stderr io.Writer) error {
	if f.seat.ranks() > 1 {
		return nil
	}
	if _, err := f.options(dev.Info(), true); err != nil { // what is known is not measured again
		return err
	}
	found, err := f.away.measure(ctx, dev, stderr)
	if err != nil || !found || f.rates == "" {
		return err
	}
	return f.keepRates(dev.Info(), func(r *plan.Rates) { r.Away = f.away.rates })
}

// measure runs steps of what would be chosen, and adds their rates to o's, until
// a size of micro-batches is chosen that was measured. With --rates they are
// kept.
func (j *planFlags) measure(ctx context.Context, dev device.Device, c train.Config, o *plan.Options) error {
	if dev.Info().Kind == device.Null {
		return usagef("--calibrate: %s computes nothing that could be measured", j.device)
	}
	for measured := map[int]bool{}; ; {
		p, err := plan.Search(ctx, dev.Info(), c, *o)
		if err != nil {
			return err
		}
		s := p.Chosen.Strategy
		if measured[s.MicroBatch] {
			break
		}
		measured[s.MicroBatch] = true
		r, err := plan.Calibrate(dev, c, s)
		if err != nil {
			return err
		}
		if o.Rates.FlopsPerSecond == 0 {
			o.Rates = r
		}
		o.Rates.Add(r)
	}
	if j.rates == "" {
		return nil
	}
	return o.Rates.Write(j.rates)
}

// measureLink finds how fast ranks exchange data, after a run with --rates: so that it
// doesn't change the plan of the run itself, which is the same on all ranks.
func (f *trainFlags) measureLink(dev device.Device, s train.Summary, stderr io.Writer) error {
	if f.rates == "" || f.seat.ranks() == 1 || s.Interrupted {
		return nil
	}
	speed, err := dist.Speed(f.seat.group, dev)
	if err != nil || !f.seat.first() {
		return err
	}
	fact(stderr, "rates", "ranks exchange %.3g GB/s, which %s now has", speed/1e9, f.rates)
	return f.keepRates(dev.Info(), func(r *plan.Rates) { r.LinkBytesPerSecond = speed })
}

// keepRates changes the file of rates, or begins it with what is taken for the device.
func (f *trainFlags) keepRates(info device.Info, change func(r *plan.Rates)) error {
	o, err := f.options(info, true)
	if err != nil {
		return err
	}
	if o.Rates.FlopsPerSecond == 0 {
		o.Rates = plan.RatesOf(info)
	}
	change(&o.Rates)
	return o.Rates.Write(f.rates)
}

// learner measures the steps of a run with --rates on one device; nil: nothing does.
func (f *trainFlags) learner(dev device.Device) *plan.Learner {
	if f.rates == "" || f.seat.ranks() > 1 {
		return nil
	}
	return plan.NewLearner(dev)
}

// teach tells what became of a step.
func teach(l *plan.Learner, t *train.Trainer, p train.Progress) {
	switch {
	case l == nil:
	case len(p.Events) > 0:
		l.Step("with events", p.Seconds)
	default:
		l.Step(kindOf(t, p.Seq), p.Seconds)
	}
}

// kindOf names the steps that are like the last one.
func kindOf(t *train.Trainer, seq int) string {
	return fmt.Sprintf("%d tokens, %s", seq, t.Config.Describe(t.Strategy))
}

// learn corrects the file of rates by what the run measured. It is read again, since
// another run may have written it meanwhile. A run that was interrupted leaves it as it
// is: so it goes on by the same plan.
func (f *trainFlags) learn(l *plan.Learner, info device.Info, s train.Summary, w io.Writer) error {
	if l == nil || s.Interrupted {
		return nil
	}
	measured := l.Rates()
	if len(measured.Kernels) == 0 {
		_, err := fmt.Fprintf(w, "rates   %s stays as it is: the run had too few steps to measure\n", f.rates)
		return err
	}
	if err := f.keepRates(info, func(r *plan.Rates) { r.Learn(measured) }); err != nil {
		return fmt.Errorf("the rates that the run measured could not be kept (its results are): %w", err)
	}
	text := ""
	if s.StepSeconds > 0 {
		text = fmt.Sprintf(": a step was foretold to take %.3g s and took %.3g s", s.EstimatedStepSeconds, s.StepSeconds)
	}
	_, err := fmt.Fprintf(w, "rates   %s is corrected by this run%s\n", f.rates, text)
	return err
}
