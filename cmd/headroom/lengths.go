package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// checkLengths says what --lengths does not go with, if anything.
func (f *trainFlags) checkLengths(c train.Config) error {
	if c.Lengths == 0 {
		return nil
	}
	switch {
	case f.seat.ranks() > 1:
		return usagef("--lengths is for one device: several ranks take steps of one length")
	case len(f.away.places) > 0:
		return usagef("--lengths does not go with --away yet: leave one of them out")
	case f.precision.auto:
		return usagef("--lengths does not go with --precision auto yet: give a type")
	case f.plan != "":
		return usagef("--plan %s is of one length: with --lengths each has a plan, which is searched", f.plan)
	}
	return nil
}

// findPlans is findPlan, of a run with --lengths for each length that its data
// have. Then the plan is that of the longest, with the peak of all.
func (f *trainFlags) findPlans(ctx context.Context, info device.Info, c train.Config, feed train.Feed, stderr io.Writer) (*plan.Plan, *plan.Lengths, error) {
	v, ok := feed.(train.Varied)
	if !ok {
		p, err := f.findPlan(ctx, info, c, stderr)
		return p, nil, err
	}
	o, err := f.options(info, true)
	if err != nil {
		return nil, nil, err
	}
	lengths := slices.Clone(v.Lengths())
	if c.Test && lengths[len(lengths)-1] < c.Seq {
		lengths = append(lengths, c.Seq)
	}
	show, tell := planning(stderr)
	o.OnTrial = tell
	defer show.end()
	l, err := plan.SearchLengths(ctx, info, c, lengths, o)
	if err != nil {
		return nil, nil, err
	}
	p := *l.Plans[len(lengths)-1]
	p.Chosen.PeakBytes, p.Chosen.ReservedBytes = l.PeakBytes, l.ReservedBytes
	return &p, l, nil
}

// writeLengths shows the plan of each length.
func writeLengths(p *page, l *plan.Lengths) error {
	first := l.Plans[0]
	p.line(plain, "device  %s, %s", first.Device, bytesText(first.BudgetBytes))
	rows := [][]string{{"tokens", "peak", "reserved", "estimate", "strategy", "tried beside it"}}
	for i, of := range l.Plans {
		beside := ""
		for k, c := range l.Shapes[i].Choices[1:] {
			if k > 0 {
				beside += ", "
			}
			beside += fmt.Sprintf("micro-batches of %d", c.Strategy.MicroBatch)
		}
		rows = append(rows, []string{fmt.Sprint(l.Shapes[i].Seq), size.Format(of.Chosen.PeakBytes), size.Format(of.Chosen.ReservedBytes), fmt.Sprintf("%.3g s", of.Chosen.Seconds), of.Chosen.Description, beside})
	}
	p.table("rrrrll", rows...)
	return p.err
}

// writeFound shows what was planned.
func (f *trainFlags) writeFound(w io.Writer, p *plan.Plan, l *plan.Lengths) error {
	if l != nil {
		return writeLengths(newPage(w), l)
	}
	return f.writePlan(newPage(w), p)
}

// shapes are those of a run.
func shapes(l *plan.Lengths) []train.Shape {
	if l == nil {
		return nil
	}
	return l.Shapes
}

// lengthSummaries say what became of each length.
func lengthSummaries(c train.Config, l *plan.Lengths, states []train.LengthState) (list []train.LengthSummary) {
	for i, s := range states {
		chosen := l.Shapes[i].Choices[s.Chosen]
		c.Seq = s.Seq
		list = append(list, train.LengthSummary{Seq: s.Seq, Steps: s.Steps, Strategy: c.Describe(chosen.Strategy), EstimatedSeconds: chosen.Seconds, StepSeconds: s.Measured[s.Chosen].Seconds})
	}
	return list
}
