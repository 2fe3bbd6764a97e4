package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
)

func planCommand() *cobra.Command {
	f := &planFlags{}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say whether a training step fits, and with which strategies",
		Long: `Plan runs the training step on a null device, which hands out addresses and
computes nothing, and shows what was tried: the peak of memory of each strategy,
to the byte, and its time by the operations' bytes and flops.`,
		Example: `  headroom plan --model gpt2 --batch 8 --seq 1024 --device null:24GiB
  headroom plan --model gpt2 --batch auto --seq 1024 --device null:24GiB
  headroom plan --model resnet50 --batch 64 --device null:8GiB
  headroom plan --model bert-base --task classes --classes 5 --device null:8GiB
  headroom plan --device host:128MiB --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.plan(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().IntVar(&f.image, "image", 0, "height and width of images (default by model: resnet-mini 28, others 224)")
	cmd.Flags().IntVar(&f.classes, "classes", 0, "how many classes there are (default by model: resnet-mini 10, other resnets 1000, bert 2)")
	return cmd
}

// planFlags are the flags of plan; a run takes the sizes from its data.
type planFlags struct {
	jobFlags
	sizes
}

func (j *planFlags) plan(ctx context.Context, w, stderr io.Writer) error {
	c, _, err := j.config()
	if err == nil {
		err = j.sizes.set(&c)
	}
	if err != nil {
		return err
	}
	c.Schedule = nn.Cosine{Peak: 1e-3, Steps: 1}
	if err := c.Validate(); err != nil {
		return usageError{err}
	}
	dev, err := j.open()
	if err != nil {
		return err
	}
	var p *plan.Plan
	if err = j.findBatch(ctx, dev.Info(), &c, stderr); err == nil {
		p, err = plan.Search(ctx, dev.Info(), c)
	}
	if err := errors.Join(err, dev.Close()); err != nil {
		return planError(err)
	}
	if j.json {
		return json.NewEncoder(w).Encode(p)
	}
	return writePlan(newPage(w), p)
}

// writePlan shows what was tried, the choice marked.
func writePlan(p *page, of *plan.Plan) error {
	p.line(plain, "device  %s, %s; a plain step needs %s", of.Device, bytesText(of.BudgetBytes), bytesText(of.Plain.PeakBytes))
	rows := [][]string{{"  strategy", "peak", "reserved", "flops a step", "estimate"}}
	for _, trial := range of.Tried {
		if !trial.Fits {
			rows = append(rows, []string{"  " + trial.Description, "does not fit"})
			continue
		}
		mark := " "
		if trial.Strategy == of.Chosen.Strategy {
			mark = "*"
		}
		rows = append(rows, []string{mark + " " + trial.Description, size.Format(trial.PeakBytes), size.Format(trial.ReservedBytes), fmt.Sprintf("%.3g", float64(trial.Flops)), fmt.Sprintf("%.2f s", trial.Seconds)})
	}
	p.table("mllll", rows...)
	return p.err
}
