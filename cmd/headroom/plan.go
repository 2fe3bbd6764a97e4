package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

func planCommand() *cobra.Command {
	f := &planFlags{shard: shardFlag{train.ShardState}}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say whether a training step fits, and with which strategies",
		Long: `Plan runs the training step on a null device, which hands out addresses and
computes nothing, and shows what was tried: the peak of memory of each strategy,
to the byte, and its time by the operations' bytes and flops or, with --calibrate
or --rates, by what operations were measured to take.

For several devices whose layout no flag gives it compares the layouts, as flags
for train: the fastest that fits is marked. Of one that can't be faster than that
it shows what a plain step takes or, where that doesn't fit, how long it would
take at least.`,
		Example: `  headroom plan --model gpt2 --batch 8 --seq 1024 --device null:24GiB
  headroom plan --model gpt2 --batch 8 --seq 1024 --devices 4xnull:4GiB --shard gradients
  headroom plan --model gpt2 --batch 8 --seq 1024 --devices 4xnull:4GiB
  headroom plan --model gpt2 --batch auto --seq 1024 --device null:24GiB
  headroom plan --model gpt2 --batch 8 --seq 1024 --device cuda:0 --precision auto
  headroom plan --model resnet50 --batch 64 --device null:8GiB
  headroom plan --model bert-base --task classes --classes 5 --device null:8GiB
  headroom plan --model gpt2 --batch 8 --seq 1024 --device null:8GiB --out plan.json
  headroom plan --model gpt2 --batch 8 --seq 1024 --device null:8GiB --curve --svg curve.svg
  headroom plan --model bert-large --seq 512 --device null:16GiB --max-batch
  headroom plan --device host:128MiB --calibrate --rates rates.json
  headroom plan --device host:128MiB --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.ordered = cmd.Flags().Changed("schedule")
			f.laidOut = slices.ContainsFunc([]string{"tensor", "pipeline", "expert", "shard"}, cmd.Flags().Changed)
			return f.plan(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().IntVar(&f.image, "image", 0, "height and width of images (default by model: resnet-mini 28, others 224)")
	cmd.Flags().IntVar(&f.classes, "classes", 0, "how many classes there are (default by model: resnet-mini 10, other resnets 1000, bert 2)")
	fl := cmd.Flags()
	fl.StringVar(&f.devices, "devices", "", "`DEVICES` to spread the step over, as for train, such as 4xnull:8GiB: with --tensor, --pipeline, --expert or --shard the plan is of the first rank, or of every stage, of that one layout, and without them layouts are compared")
	f.mesh.add(fl)
	fl.Var(&f.shard, "shard", "what each of several ranks keeps only a part of: nothing, state, gradients or parameters")
	fl.StringVar(&f.out, "out", "", "`FILE` to write the plan to, for train --plan and headroom diff")
	fl.BoolVar(&f.calibrate, "calibrate", false, "run some steps on the device first, and estimate from what they take")
	fl.BoolVar(&f.curve, "curve", false, "show time against memory, from a plain step's down to the least")
	fl.StringVar(&f.svg, "svg", "", "`FILE` for a picture of the curve")
	fl.BoolVar(&f.maxBatch, "max-batch", false, "find the largest batch that fits in one piece, also with values made again")
	fl.BoolVar(&f.maxSeq, "max-seq", false, "find the longest sequence that fits in one piece, also with values made again")
	return cmd
}

// planFlags are the flags of plan; a run takes the sizes from its data.
type planFlags struct {
	jobFlags
	sizes
	devices          string
	mesh             meshFlags
	shard            shardFlag
	laidOut          bool // a flag says how the ranks are laid out
	ordered          bool // and one in which order stages compute
	layouts          []plan.Layout
	out, svg         string
	curve, calibrate bool
	maxBatch, maxSeq bool
	progress         *progress
}

func (j *planFlags) plan(ctx context.Context, w, stderr io.Writer) error {
	c, _, err := j.config()
	if err == nil {
		err = j.sizes.set(&c)
	}
	if err != nil {
		return err
	}
	if j.precision.auto && (j.devices != "" || j.calibrate || j.maxBatch || j.maxSeq || j.curve) {
		return usagef("--precision auto is for a step on one device: give a type for --devices, --calibrate, --max-batch, --max-seq and --curve")
	}
	if err := j.oneQuestion(c); err != nil {
		return err
	}
	c.Schedule = nn.Cosine{Peak: 1e-3, Steps: 1}
	if err := c.Validate(); err != nil {
		return usageError{err}
	}
	parallel, err := j.spread(&c)
	if err != nil {
		return err
	}
	dev, err := j.open()
	if err != nil {
		return err
	}
	o, err := j.options(dev.Info(), j.calibrate)
	o.Parallel = parallel
	if err == nil {
		err = j.findBatch(ctx, dev.Info(), &c, stderr)
	}
	j.progress, o.OnTrial = planning(stderr)
	defer j.progress.end()
	if err == nil && j.calibrate {
		err = j.measure(ctx, dev, c, &o)
	}
	if err == nil {
		err = j.answer(ctx, dev.Info(), c, o, w)
	}
	if small := new(plan.TooSmallError); j.json && errors.As(err, &small) { // an answer, too
		err = errors.Join(err, json.NewEncoder(w).Encode(small))
	}
	return errors.Join(err, dev.Close())
}

// oneQuestion refuses flags that ask for two answers, or for what an answer has not.
func (j *planFlags) oneQuestion(c train.Config) error {
	switch {
	case j.maxBatch && (j.maxSeq || j.curve) || j.maxSeq && j.curve:
		return usagef("--max-batch, --max-seq and --curve are different questions: give one of them")
	case j.maxBatch && j.batch.auto:
		return usagef("--max-batch and --batch auto look for the same in different ways: give one of them")
	case j.maxSeq && c.Context() == 0:
		return usagef("--max-seq: model %s has no sequences", c.Model)
	case j.curve && j.out != "":
		return usagef("--out %s is for one plan, and --curve shows many: give --device the memory of one of them, and leave --curve out", j.out)
	case !j.curve && j.svg != "":
		return usagef("--svg %s is a picture of the curve: give --curve, too", j.svg)
	}
	return nil
}

// spread makes the step the first rank's of those on --devices, or lists how it could
// be laid out.
func (j *planFlags) spread(c *train.Config) (p train.Parallel, err error) {
	ranks := splitDevices(j.devices)
	if len(ranks) == 0 {
		_, err := j.mesh.share(*c, 1, j.shard.Shard)
		return p, err
	}
	if j.batch.auto || j.calibrate || j.maxBatch || j.maxSeq || j.out != "" {
		return p, usagef("--devices answers how a step of a given batch fits, and how --curve runs")
	}
	if err := alike(ranks); err != nil {
		return p, err
	}
	j.device = ranks[0]
	if !j.laidOut && !j.curve {
		if j.layouts, err = plan.Layouts(*c, len(ranks), j.orders()...); err != nil {
			err = usageError{err}
		}
		return p, err
	}
	if *c, err = j.mesh.share(*c, len(ranks), j.shard.Shard); err != nil {
		return p, err
	}
	return j.mesh.parallel(dist.Null(0, len(ranks)), j.shard.Shard), nil
}

// alike says which of some devices a plan for the first would not be for.
func alike(devices []string) error {
	number := regexp.MustCompile(`^cuda:\d+`)
	for _, d := range devices {
		if first := devices[0]; number.ReplaceAllString(d, "") != number.ReplaceAllString(first, "") {
			return usagef("--devices: a plan is for devices with as much memory, and %s is not like %s: plan with the smallest of them for all", d, first)
		}
	}
	return nil
}

// orders are those that pipelines among the layouts may have.
func (j *planFlags) orders() []train.Parallel {
	all := []train.Parallel{j.mesh.parallel(nil, 0)}
	if !j.ordered {
		all = append(all, train.Parallel{Schedule: train.ZeroBubble})
	}
	return all
}

// answer is what was asked about a step of c.
func (j *planFlags) answer(ctx context.Context, info device.Info, c train.Config, o plan.Options, w io.Writer) error {
	switch {
	case j.maxBatch:
		l, err := plan.LargestBatch(ctx, info, c, true, o)
		return j.show(w, l, j.keep(l.Plan, err), func(p *page) error { return writeLargest(p, "batch", l) })
	case j.maxSeq:
		l, err := plan.LargestSeq(ctx, info, c, true, o)
		return j.show(w, l, j.keep(l.Plan, err), func(p *page) error { return writeLargest(p, "sequence", l) })
	case j.curve:
		points, err := plan.Curve(ctx, info, c, c.Batch, 16, o)
		if err == nil && j.svg != "" {
			err = atomicfile.Write(j.svg, func(w io.Writer) error { return plan.WriteCurve(w, points) })
		}
		return j.show(w, points, err, func(p *page) error { return writeCurve(p, points) })
	case j.layouts != nil:
		all, err := plan.SearchLayouts(ctx, info, j.layouts, o)
		return j.show(w, all, err, func(p *page) error { return writeLayouts(p, info, all) })
	}
	if j.mesh.Pipeline > 1 {
		stages, err := plan.SearchStages(ctx, info, c, o)
		return j.show(w, stages, err, func(to *page) error { return j.writeStages(to, stages, c, o.Parallel) })
	}
	p, err := j.search(ctx, info, c, o)
	return j.show(w, p, j.keep(p, err), func(to *page) error { return j.writePlan(to, p) })
}

// keep writes a plan that was found to --out.
func (j *planFlags) keep(p *plan.Plan, err error) error {
	if err != nil || j.out == "" {
		return err
	}
	return p.Write(j.out)
}

// show prints a result as JSON or as text.
func (j *planFlags) show(w io.Writer, result any, err error, text func(p *page) error) error {
	j.progress.end()
	switch {
	case err != nil:
		return err
	case j.json:
		return json.NewEncoder(w).Encode(result)
	}
	p := newPage(w)
	if err := text(p); err != nil || j.rates != "" || !strings.HasPrefix(j.device, "null:") {
		return err
	}
	p.fact("times", "are those of one core of a server, since %s has no speed; --rates FILE takes those that a device was measured to take", j.device)
	return p.err
}

func writeLargest(p *page, what string, l plan.Largest) error {
	p.line(plain, "the largest %s that fits is %d: %s", what, l.Size, l.Fits.Description)
	p.line(plain, "peak %s, reserved %s, which leaves %s; %.2f s a step by the estimate", size.Format(l.Fits.PeakBytes), size.Format(l.Fits.ReservedBytes), size.Format(l.MarginBytes), l.Fits.Seconds)
	return p.err
}

// writeCurve shows time against memory.
func writeCurve(p *page, points []plan.Trial) error {
	rows := [][]string{{"peak", "of plain", "reserved", "estimate", "of plain", "strategy"}}
	for _, t := range points {
		rows = append(rows, []string{size.Format(t.PeakBytes), percent(float64(t.PeakBytes), float64(points[0].PeakBytes)), size.Format(t.ReservedBytes),
			fmt.Sprintf("%.3g s", t.Seconds), percent(t.Seconds, points[0].Seconds), t.Description})
	}
	p.table("rrrrrl", rows...)
	return p.err
}

func percent(x, of float64) string { return fmt.Sprintf("%.1f %%", 100*x/of) }

// writeStages shows the choice for each stage of a pipeline, of a step of c.
func (j *planFlags) writeStages(p *page, stages []*plan.Plan, c train.Config, of train.Parallel) error {
	p.line(plain, "device  %s, %s each", stages[0].Device, bytesText(stages[0].BudgetBytes))
	micros, slowest := c.Batch/stages[0].Chosen.Strategy.MicroBatch, 0.0
	for _, s := range stages {
		slowest = max(slowest, s.Chosen.Seconds)
	}
	stretch := of.Stretch(micros)
	p.line(plain, "order   %s of %d micro-batches: the slowest rank waits %s of the time, %.3g s a step", &j.mesh.schedule, micros, percent(stretch-1, stretch), slowest*stretch)
	rows := [][]string{append([]string{"stage"}, trialTitles...)}
	for i, s := range stages {
		rows = append(rows, append([]string{fmt.Sprint(i)}, trialCells(s.Chosen)...))
	}
	p.table("rrrrrw", rows...)
	return p.err
}

// trialTitles stand over the cells of a trial.
var trialTitles = []string{"peak", "reserved", "flops a step", "estimate", "strategy"}

func trialCells(t plan.Trial) []string {
	if !t.Fits {
		return []string{"", "", "", "", t.Description + ": does not fit"}
	}
	return []string{size.Format(t.PeakBytes), size.Format(t.ReservedBytes), fmt.Sprintf("%.3g", float64(t.Flops)), fmt.Sprintf("%.2f s", t.Seconds), t.Description}
}

// writeLayouts shows how ranks can be laid out, the fastest one marked.
func writeLayouts(p *page, info device.Info, all []plan.Layout) error {
	p.line(plain, "device  %s, %s each", info.Name, bytesText(info.Capacity))
	rows := [][]string{{"  layout", "peak", "reserved", "estimate", "strategy"}}
	for i, l := range all {
		mark := "  "
		if i == 0 {
			mark = "* "
		}
		row := []string{mark + layoutFlags(l), "", "", "", ""}
		switch {
		case l.Fits:
			row = []string{row[0], size.Format(l.PeakBytes), size.Format(l.ReservedBytes), fmt.Sprintf("%.3g s", l.Seconds), l.Description}
		case l.Searched:
			row[4] = "does not fit"
		default:
			row[3] = fmt.Sprintf("over %.3g s", l.BoundSeconds)
		}
		rows = append(rows, row)
	}
	p.table("lrrrw", rows...)
	return p.err
}

// layoutFlags are the flags for train that lay ranks out so.
func layoutFlags(l plan.Layout) string {
	var words []string
	for _, f := range []struct {
		name string
		n    int
	}{{"pipeline", l.Mesh.Pipeline}, {"expert", l.Mesh.Expert}, {"tensor", l.Mesh.Tensor}} {
		if f.n > 1 {
			words = append(words, fmt.Sprintf("--%s %d", f.name, f.n))
		}
	}
	if l.Schedule > 0 {
		words = append(words, "--schedule "+l.Schedule.String())
	}
	if l.Chunks > 0 {
		words = append(words, fmt.Sprintf("--chunks %d", l.Chunks))
	}
	shard := shardFlag{l.Shard}
	return strings.Join(append(words, "--shard "+shard.String()), " ")
}

// writePlan shows what was tried, the choice marked.
func (j *jobFlags) writePlan(p *page, of *plan.Plan) error {
	if j.precision.auto {
		p.fact("precision", "%s, the faster of float32 and bfloat16 that fits, by the estimate", of.Precision)
	}
	p.fact("device", "%s, %s; a plain step needs %s", of.Device, bytesText(of.BudgetBytes), bytesText(of.Plain.PeakBytes))
	rows := [][]string{append([]string{""}, trialTitles...)}
	for _, trial := range of.Tried {
		mark := ""
		if trial.Fits && trial.Strategy == of.Chosen.Strategy {
			mark = "*"
		}
		rows = append(rows, append([]string{mark}, trialCells(trial)...))
	}
	p.table("lrrrrw", rows...)
	return p.err
}
