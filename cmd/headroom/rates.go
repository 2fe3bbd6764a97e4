package main

import (
	"context"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// options are those of a search: memory outside the device and, with --rates,
// the rates that were measured before.
func (j *jobFlags) options() (plan.Options, error) {
	o := j.away.options(j.device)
	if j.rates == "" {
		return o, nil
	}
	var err error
	o.Rates, err = plan.ReadRates(j.rates)
	return o, err
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
