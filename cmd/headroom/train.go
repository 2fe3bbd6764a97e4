package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

type trainFlags struct {
	jobFlags
	data      []string
	out       string
	weights   string
	steps     int
	warmup    int
	rate      float64
	seed      uint64
	saveEvery int
	resume    bool
	profile   bool
	changed   func(name string) bool
}

func trainCommand() *cobra.Command {
	f := &trainFlags{}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a language model inside a memory budget",
		Long: `Train trains a GPT-2 model on text, on a device of a given size. It first finds
the fastest way to run the step that fits (micro-batches, recompute), with its
peak of memory, and then runs it. The result is the same, whatever the budget.

Without --data it reads a book that comes with the Go installation. The folder
given by --out gets summary.json, metrics.jsonl, memory.pickle (a snapshot of
one step for pytorch.org/memory_viz), checkpoint.safetensors (for --resume) and,
at the end, model.safetensors with config.json.`,
		Example: `  headroom train
  headroom train --device host:1GiB --model gpt2-mini --data ~/books --out runs/books
  headroom train --resume --data ~/books --out runs/books`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.changed = cmd.Flags().Changed
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	f.add(fl)
	fl.StringArrayVar(&f.data, "data", nil, "`PATH` of a file or folder of text; may be given several times (default: a book of the Go installation)")
	fl.StringVar(&f.out, "out", "", "`DIR` for the results (default: a new one below runs/)")
	fl.StringVar(&f.weights, "weights", "", "safetensors `FILE` to start from, with Hugging Face's names (default: random)")
	fl.IntVar(&f.steps, "steps", 40, "steps to train")
	fl.IntVar(&f.warmup, "warmup", 10, "steps until the learning rate is reached")
	fl.Float64Var(&f.rate, "lr", 1e-3, "highest learning rate; it falls to a tenth along a cosine")
	fl.Uint64Var(&f.seed, "seed", 1, "decides the initial weights and the order of the data")
	fl.IntVar(&f.saveEvery, "save-every", 0, "steps between checkpoints (0: only at the end)")
	fl.BoolVar(&f.resume, "resume", false, "go on from the checkpoint in --out, with its settings")
	fl.BoolVar(&f.profile, "profile", false, "write what the third step took: profile.txt, profile.json and memory.svg")
	return cmd
}

// run is the command: configuration, data, plan, training, summary.
func (f *trainFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	c, checkpoint, err := f.configure()
	if err != nil {
		return err
	}
	if checkpoint != nil {
		defer checkpoint.Close()
		if s := checkpoint.State; s.Step == c.Schedule.Steps {
			_, err := fmt.Fprintf(stdout, "the run in %s is finished: %d steps, last loss %.3f\n", f.out, s.Step, s.Last)
			return err
		}
	}
	dev, err := f.open()
	if err != nil {
		return err
	}
	if dev.Info().Kind == device.Null {
		return errors.Join(usagef("%s computes nothing, so that nothing can be trained there: headroom plan runs on it", f.device), dev.Close())
	}
	summary, err := f.onDevice(ctx, dev, c, checkpoint, stderr)
	if err := errors.Join(err, dev.Close()); err != nil {
		return err
	}
	if err := f.report(summary, stdout); err != nil || !summary.Interrupted {
		return err
	}
	if summary.Steps == 0 {
		return errors.New("interrupted before the first step was done: nothing is saved")
	}
	return fmt.Errorf("interrupted after step %d, which is saved; to go on: headroom train --resume --out %s --device %s%s", summary.Steps, quoted(f.out), f.device, f.dataFlags())
}

// configure gives the configuration of a new run or, with its checkpoint, of
// the one to go on with.
func (f *trainFlags) configure() (train.Config, *train.Checkpoint, error) {
	if f.resume {
		return f.configureResume()
	}
	c, err := f.overlay(train.Config{}, func(string) bool { return true })
	if err != nil {
		return c, nil, err
	}
	if err := c.Validate(); err != nil {
		return c, nil, usageError{err}
	}
	if f.saveEvery < 0 {
		return c, nil, usagef("--save-every %d: give a number of steps, or 0 for the end alone", f.saveEvery)
	}
	if f.out == "" {
		f.out = filepath.Join("runs", time.Now().Format("2006-01-02T15-04-05"))
	}
	if _, err := os.Stat(filepath.Join(f.out, train.CheckpointFile)); err == nil {
		return c, nil, usagef("%s already holds a checkpoint: add --resume to go on with it, or choose another --out", f.out)
	}
	return c, nil, nil
}

// configureResume opens the checkpoint in --out. Flags that were given must
// agree with it.
func (f *trainFlags) configureResume() (train.Config, *train.Checkpoint, error) {
	if f.out == "" || f.weights != "" {
		return train.Config{}, nil, usagef("--resume needs --out DIR with the run to go on with, and takes no --weights")
	}
	if f.batch.auto {
		return train.Config{}, nil, usagef("--resume goes on with the run's batch: leave --batch auto out")
	}
	cp, err := train.OpenCheckpoint(f.out)
	if err != nil {
		return train.Config{}, nil, usageError{err}
	}
	asked, err := f.overlay(cp.State.Config, f.changed)
	if err == nil {
		err = cp.State.Config.Validate()
	}
	if d := cp.Differences(asked); err == nil && len(d) > 0 {
		err = fmt.Errorf("the checkpoint in %s is of another run: %s", f.out, strings.Join(d, "; "))
	}
	if err != nil {
		cp.Close()
		return train.Config{}, nil, usageError{err}
	}
	return asked, cp, nil
}

// overlay is base with the values of the flags that use says.
func (f *trainFlags) overlay(base train.Config, use func(flag string) bool) (train.Config, error) {
	c, err := f.config()
	if err != nil {
		return c, err
	}
	c.Seed = f.seed
	c.Schedule = nn.Cosine{Peak: f.rate, Floor: f.rate / 10, Warmup: min(f.warmup, f.steps), Steps: f.steps}
	if use("model") {
		base.Model, base.GPT2 = c.Model, c.GPT2
	}
	if use("batch") {
		base.Batch = c.Batch
	}
	if use("seq") {
		base.Seq = c.Seq
	}
	if use("seed") {
		base.Seed = c.Seed
	}
	if use("lr") {
		base.Schedule.Peak, base.Schedule.Floor = c.Schedule.Peak, c.Schedule.Floor
	}
	if use("warmup") {
		base.Schedule.Warmup = c.Schedule.Warmup
	}
	if use("steps") {
		base.Schedule.Steps = c.Schedule.Steps
	}
	if base.AdamW == (nn.AdamWOptions{}) {
		base.AdamW, base.Clip = c.AdamW, c.Clip
	}
	return base, nil
}

// load reads the text.
func (f *trainFlags) load(ctx context.Context, c train.Config, stderr io.Writer) (*data.Batches, error) {
	if len(f.data) == 0 {
		path, err := defaultText()
		if err != nil {
			return nil, err
		}
		f.data = []string{path}
	}
	tok, err := tokenizerFor(c.GPT2)
	if err != nil {
		return nil, err
	}
	corpus, err := data.Load(ctx, f.data, tok)
	if err != nil {
		return nil, err
	}
	d := corpus.Summary()
	fmt.Fprintf(stderr, "data    %d files, %d bytes, %d tokens (%s)\n", d.Files, d.Bytes, d.Tokens, tok.Name())
	return data.NewBatches(corpus, c.Batch, c.Seq, c.Seed)
}

// onDevice reads the data, plans and trains, and sums up.
func (f *trainFlags) onDevice(ctx context.Context, dev device.Device, c train.Config, cp *train.Checkpoint, stderr io.Writer) (train.Summary, error) {
	if err := f.findBatch(ctx, dev.Info(), &c, stderr); err != nil {
		return train.Summary{}, err
	}
	batches, err := f.load(ctx, c, stderr)
	if err != nil {
		return train.Summary{}, err
	}
	p, err := plan.Search(ctx, dev.Info(), c)
	if err != nil {
		return train.Summary{}, planError(err)
	}
	fmt.Fprintf(stderr, "model   %s, %d parameters\n", c.Model, c.GPT2.Parameters())
	writePlan(newPage(stderr), p)
	t, err := train.New(dev, c, p.Chosen.Strategy)
	if err != nil {
		return train.Summary{}, err
	}
	if f.weights != "" {
		if err := t.LoadWeights(f.weights); err != nil {
			return train.Summary{}, errors.Join(usageError{err}, t.Close())
		}
	}
	s, err := f.train(ctx, t, cp, batches, stderr)
	if err := errors.Join(err, t.Close()); err != nil {
		return s, err
	}
	s.Device, s.BudgetBytes = dev.Info().Name, dev.Info().Capacity
	s.PlainPeakBytes, s.PredictedPeakBytes, s.PredictedReserved = p.Plain.PeakBytes, p.Chosen.PeakBytes, p.Chosen.ReservedBytes
	return s, s.Write(f.out)
}

// train runs the trainer in the folder for results.
func (f *trainFlags) train(ctx context.Context, t *train.Trainer, cp *train.Checkpoint, batches *data.Batches, stderr io.Writer) (train.Summary, error) {
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return train.Summary{}, err
	}
	show := newProgress(stderr)
	r := &train.Run{Trainer: t, Batches: batches, Dir: f.out, SaveEvery: f.saveEvery, OnStep: show.step, Profile: f.profile}
	if cp != nil {
		if err := r.Resume(cp); err != nil {
			return train.Summary{}, err
		}
	}
	from := t.Steps()
	out, err := r.Do(ctx)
	show.end()
	c := t.Config
	return train.Summary{Model: c.Model, Parameters: c.GPT2.Parameters(), Batch: c.Batch, Seq: c.Seq, Data: f.data,
		MeasuredPeakBytes: out.PeakBytes, MeasuredReservedBytes: out.ReservedBytes,
		Strategy: c.Describe(t.Strategy), MicroBatch: t.Strategy.MicroBatch, RecomputedBlocks: t.Strategy.Recompute,
		Steps: out.Steps, ResumedFromStep: from, Interrupted: out.Interrupted,
		FirstLoss: out.FirstLoss, LastLoss: out.LastLoss, TokensPerSecond: out.TokensPerSecond, Seconds: out.Seconds}, err
}

// report prints what the run came to.
func (f *trainFlags) report(s train.Summary, w io.Writer) error {
	if f.json {
		return json.NewEncoder(w).Encode(s)
	}
	fmt.Fprintf(w, "loss    %.3f -> %.3f in %d steps, %.0f tokens/s, %.0f s\n", s.FirstLoss, s.LastLoss, s.Steps, s.TokensPerSecond, s.Seconds)
	fmt.Fprintf(w, "results %s\n", f.out)
	fmt.Fprintf(w, "a plain step needs  %s\n", bytesText(s.PlainPeakBytes))
	fmt.Fprintf(w, "the budget was      %s\n", bytesText(s.BudgetBytes))
	fmt.Fprintf(w, "predicted peak      %s (%s)\n", bytesText(s.PredictedPeakBytes), s.Strategy)
	_, err := fmt.Fprintf(w, "measured peak       %s\n", bytesText(s.MeasuredPeakBytes))
	return err
}

// dataFlags is the --data that the run was given, as flags.
func (f *trainFlags) dataFlags() string {
	text := ""
	if f.changed("data") {
		for _, d := range f.data {
			text += " --data " + quoted(d)
		}
	}
	return text
}

// quoted is s as a shell takes it.
func quoted(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\$`*?[]{}()<>|&;#~!") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

func bytesText(n uint64) string { return fmt.Sprintf("%s (%d bytes)", size.Format(n), n) }
