package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

type trainFlags struct {
	jobFlags
	dataFlags
	ranksFlags
	seat      seat // of the rank that runs
	out       string
	weights   string
	steps     int
	warmup    int
	rate      float64
	seed      uint64
	lengths   int
	saveEvery int
	testEvery int
	resume    resumeFlag
	profile   bool
	tune      bool
	plan      string
	live      liveFlag
}

func trainCommand() *cobra.Command {
	f := &trainFlags{ranksFlags: ranksFlags{shard: shardFlag{train.ShardState}, engine: "auto", collectives: "auto", env: os.Getenv}}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a model inside a memory budget",
		Long: `Train trains a model on a device of a given size. It first finds the fastest way
to run the step that fits (micro-batches, values made again or moved away), with
its peak of memory, and then runs it. The result is the same, whatever the budget.

What --data must be depends on the model and its task:

  gpt2-*, moe-*, bert-* --task masked
      Files or folders of text (default: a book that comes with the Go
      installation), or one file of tokens, which is read where it lies and may be
      larger than memory: x.bin (little-endian uint16) or x.npy (one row of
      numbers of uint8, uint16, uint32 or int32). --validation 0.1 keeps the last
      tenth back to measure the loss on.
  bert-* --task classes
      A folder with a folder of texts for each class, or two such folders called
      train and test.
  resnet*
      A folder of images with their labels: train-images-idx3-ubyte and
      train-labels-idx1-ubyte (MNIST's format, also with .gz), or train-images.npy
      ([n, H, W], [n, C, H, W] or [n, H, W, C]) and train-labels.npy; of the test
      set t10k-… or test-….

With --devices, or as one of several processes (headroom launch, torchrun, mpirun,
srun), each rank computes its part of the batch.

Where there is a test set, the accuracy on it is measured at the end. The folder
given by --out gets summary.json, metrics.jsonl, memory.pickle (a snapshot of
one step for pytorch.org/memory_viz), checkpoint.safetensors (for --resume) and,
at the end, model.safetensors with config.json.`,
		Example: `  headroom train
  headroom train --device host:1GiB --model gpt2-mini --data ~/books --out runs/books
  headroom train --resume --data ~/books --out runs/books
  headroom train --resume --steps 400 --data ~/books --out runs/books
  headroom train --devices host:128MiB,host:128MiB
  headroom train --model resnet-mini --data /usr/share/datasets/fashion-mnist
  headroom train --serve 127.0.0.1:8080`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outlive()
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	f.add(fl)
	fl.StringArrayVar(&f.data, "data", nil, "`PATH` of the data; of text several may be given (default: a book of the Go installation)")
	fl.StringVar(&f.vocab, "vocab", "", "`FILE` with the words that bert-base and bert-large read (vocab.txt)")
	fl.Float64Var(&f.validation, "validation", 0, "`FRACTION` of a text to keep back and measure the loss on")
	fl.IntVar(&f.testEvery, "eval-every", 0, "steps between measurements on the test set or the part kept back (0: only at the end)")
	fl.StringVar(&f.out, "out", "", "`DIR` for the results (default: a new one below runs/)")
	fl.StringVar(&f.weights, "weights", "", "safetensors `FILE` to start from, with Hugging Face's names (default: random)")
	fl.IntVar(&f.steps, "steps", 0, "steps to train; with --resume more than before are done as a longer run has them (default by model: "+defaults(func(f family) string { return fmt.Sprint(f.steps) })+")")
	fl.IntVar(&f.warmup, "warmup", 0, "steps until the learning rate is reached (default by model: "+defaults(func(f family) string { return fmt.Sprint(f.warmup) })+")")
	fl.Float64Var(&f.rate, "lr", 0, "highest learning rate; it falls to a tenth along a cosine (default by model: "+defaults(func(f family) string { return fmt.Sprint(f.rate) })+")")
	fl.Uint64Var(&f.seed, "seed", 1, "decides the initial weights and the order of the data")
	fl.IntVar(&f.lengths, "lengths", 0, "put texts of similar length into a batch: `N` lengths of at most --seq, each with a plan (default 0: all texts are cut or padded to --seq)")
	fl.IntVar(&f.saveEvery, "save-every", 0, "steps between checkpoints (0: only at the end)")
	fl.StringVar(&f.devices, "devices", "", "`DEVICES` to spread the run over, with commas between: a rank on each computes its part of the batch")
	f.mesh.add(fl)
	fl.Var(&f.shard, "shard", "what each of several ranks keeps only a part of: nothing, state (the optimizer's), gradients (and state) or parameters (and both)")
	fl.Var(choiceFlag{&f.collectives, collectives}, "collectives", "how GPUs exchange data: nccl, copies (of one process, without any library), or auto (NCCL where its library is found, else copies)")
	fl.Var(choiceFlag{&f.engine, engines}, "engine", "how several processes talk: mpi, tcp, or auto (MPI where mpirun started them and its library is there, else TCP)")
	fl.StringVar(&f.plan, "plan", "", "`FILE` with the plan to follow, as headroom plan --out writes it (default: one is searched)")
	fl.Var(&f.resume, "resume", "go on from the checkpoint in --out, with its settings; =auto: begin anew if there is none yet")
	fl.Lookup("resume").NoOptDefVal = string(resumeAlways)
	f.live.add(fl)
	fl.BoolVar(&f.tune, "tune", true, "on GPUs, time algorithms for products of matrices and take the fastest; =false: two runs have the same losses to the last bit")
	fl.BoolVar(&f.profile, "profile", false, "write what the third step took: profile.txt, profile.json and memory.svg")
	return cmd
}

// run is the command: configuration, data, plan, training, summary.
func (f *trainFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	c, checkpoint, err := f.configure(stderr)
	if err != nil {
		return err
	}
	if checkpoint != nil {
		defer checkpoint.Close()
		if s := checkpoint.State; s.Step == c.Schedule.Steps && train.Concluded(f.out, s.Step) {
			_, err := fmt.Fprintf(stdout, "the run in %s is finished: %d steps, last loss %.3f\n", f.out, s.Step, s.Last)
			return err
		}
	}
	if f.engine == "tcp" && f.away.windows() > 0 {
		return usagef("--away %v: ranks lend over MPI alone: leave --engine tcp out", &f.away)
	}
	seats, err := f.seats(ctx, f.device)
	if err != nil {
		return err
	}
	f.away.mpi = f.mpi
	if seats[0].first() {
		if err := f.live.listen(); err != nil {
			return err
		}
		defer f.live.close()
	}
	summaries, err := f.onSeats(ctx, seats, c, checkpoint, stderr)
	if err = errors.Join(err, f.endMPI(err == nil)); err != nil {
		return err
	}
	summary := summaries[0]
	if !seats[0].first() {
		reportRanks(seats, summaries, stderr)
		if summary.Interrupted {
			return errInterrupted
		}
		return nil
	}
	if err := f.report(summary, stdout); err != nil || !summary.Interrupted {
		reportRanks(seats, summaries, stdout)
		return err
	}
	if summary.Steps == 0 {
		return errors.New("interrupted before the first step was done: nothing is saved")
	}
	return fmt.Errorf("interrupted after step %d, which is saved; to go on: headroom train --resume --out %s %s%s", summary.Steps, quoted(f.out), f.devicesGiven(), f.dataGiven())
}

// configure gives the configuration of a new run or, with its checkpoint, of
// the one to go on with.
func (f *trainFlags) configure(stderr io.Writer) (train.Config, *train.Checkpoint, error) {
	if f.saveEvery < 0 || f.testEvery < 0 {
		return train.Config{}, nil, usagef("--save-every %d, --eval-every %d: give a number of steps, or 0 for the end alone", f.saveEvery, f.testEvery)
	}
	resume, err := f.resumes()
	if err != nil {
		return train.Config{}, nil, err
	}
	if resume {
		return f.configureResume(stderr)
	}
	c, err := f.overlay(train.Config{}, func(string) bool { return true })
	if err != nil {
		return c, nil, err
	}
	if err := c.Validate(); err != nil {
		return c, nil, usageError{err}
	}
	if f.out == "" {
		f.out = filepath.Join("runs", time.Now().Format("2006-01-02T15-04-05"))
	}
	if _, err := os.Stat(filepath.Join(f.out, train.CheckpointFile)); err == nil {
		return c, nil, usagef("%s already holds a checkpoint: add --resume to go on with it, or choose another --out", f.out)
	}
	return c, nil, nil
}

// resumeFlag is whether a run goes on from a checkpoint.
type resumeFlag string

const (
	resumeAlways resumeFlag = "always"
	resumeAuto   resumeFlag = "auto" // if there is one
)

func (r *resumeFlag) String() string { return string(*r) }
func (r *resumeFlag) Type() string   { return "WHEN" }

func (r *resumeFlag) Set(text string) error {
	if *r = resumeFlag(text); *r != resumeAlways && *r != resumeAuto {
		return fmt.Errorf("%q is none of always, auto", text)
	}
	return nil
}

// resumes says whether the run goes on from a checkpoint.
func (f *trainFlags) resumes() (bool, error) {
	switch {
	case f.resume == "":
		return false, nil
	case f.out == "" || f.weights != "" && f.resume == resumeAlways:
		return false, usagef("--resume needs --out DIR with the run to go on with, and takes no --weights")
	case f.batch.auto:
		return false, usagef("--resume goes on with the run's batch: leave --batch auto out")
	case f.resume == resumeAlways:
		return true, nil
	}
	_, err := os.Stat(filepath.Join(f.out, train.CheckpointFile))
	return !errors.Is(err, fs.ErrNotExist), nil
}

// checkRanks says what several ranks can't do, if anything.
func (f *trainFlags) checkRanks() error {
	if f.devices != "" && f.changed("device") {
		return usagef("--device %s and --devices %s: give one of them", f.device, f.devices)
	}
	if f.seat.ranks() > 1 && (f.batch.auto || f.precision.auto || f.plan != "") {
		return usagef("--batch auto, --precision auto and --plan are for one device: with several give a number and a type, and each rank plans for itself")
	}
	return nil
}

// configureResume opens the checkpoint in --out. Flags that were given must
// agree with it.
func (f *trainFlags) configureResume(stderr io.Writer) (train.Config, *train.Checkpoint, error) {
	cp, err := train.OpenCheckpoint(f.out)
	if err != nil {
		return train.Config{}, nil, usageError{err}
	}
	if err := f.lengthen(cp, stderr); err != nil {
		cp.Close()
		return train.Config{}, nil, usageError{err}
	}
	if !f.changed("model") {
		f.model = cp.State.Config.Model
		if !f.changed("task") {
			f.task = string(cp.State.Config.Task)
		}
	}
	if f.precision.auto { // was chosen when the run began
		f.precision = precisionFlag{DType: cp.State.Config.Precision}
	}
	asked, err := f.overlay(cp.State.Config, f.changed)
	if err == nil {
		err = cp.State.Config.Validate()
	}
	if d := cp.Differences(asked); err == nil && len(d) > 0 {
		err = fmt.Errorf("the checkpoint in %s is of another run: %s; leave these flags out, or begin a run with another --out", f.out, strings.Join(d, "; "))
	}
	if err != nil {
		cp.Close()
		return train.Config{}, nil, usageError{err}
	}
	return asked, cp, nil
}

// lengthen makes the checkpoint one of a run of --steps, where these are more.
func (f *trainFlags) lengthen(cp *train.Checkpoint, stderr io.Writer) error {
	before := cp.State.Config.Schedule.Steps
	switch {
	case !f.changed("steps") || f.steps == before:
		return nil
	case f.steps < before:
		return fmt.Errorf("the run in %s has %d steps, of which %d are done: --steps makes it longer, not shorter; Ctrl-C ends it after any step", f.out, before, cp.State.Step)
	}
	if err := cp.Extend(f.steps); err != nil {
		return err
	}
	return fact(stderr, "longer", "the run has %d steps now instead of %d: from step %d on the learning rate is that of the longer one", f.steps, before, cp.State.Step+1)
}

// overlay is base with the values of the flags that use says.
func (f *trainFlags) overlay(base train.Config, use func(flag string) bool) (train.Config, error) {
	c, family, err := f.config()
	if err == nil {
		err = sizes{}.set(&c) // until the data say better
	}
	if err != nil {
		return c, err
	}
	c.Seed = f.seed
	c.Schedule = f.schedule(family)
	if (use("model") || use("task")) && (c.Model != base.Model || c.Task != base.Task) {
		base.Model, base.Task, base.GPT2, base.BERT, base.ResNet, base.MoE = c.Model, c.Task, c.GPT2, c.BERT, c.ResNet, c.MoE
		base.Image, base.Labels = c.Image, c.Labels
	}
	if use("batch") {
		base.Batch = c.Batch
	}
	if use("seq") {
		base.Seq = c.Seq
	}
	if use("lengths") {
		base.Lengths = f.lengths
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
	if use("tune") {
		base.Tune = f.tune
	}
	if use("precision") {
		base.Precision = c.Precision
	}
	if use("optimizer") {
		base.AdamW, base.SGD, base.Clip = c.AdamW, c.SGD, c.Clip
	}
	return base, nil
}

// schedule is the learning rate of a run.
func (f *trainFlags) schedule(of family) nn.Cosine {
	steps, warmup, rate := of.steps, of.warmup, of.rate
	if f.changed("steps") {
		steps = f.steps
	}
	if f.changed("warmup") {
		warmup = f.warmup
	}
	if f.changed("lr") {
		rate = f.rate
	}
	return nn.Cosine{Peak: rate, Floor: rate / 10, Warmup: min(warmup, steps), Steps: steps}
}

// onDevice reads the data, plans and trains, and sums up. A run that goes on must
// find the data that its checkpoint was made with.
func (f *trainFlags) onDevice(ctx context.Context, dev device.Device, c train.Config, cp *train.Checkpoint, stderr io.Writer) (s train.Summary, err error) {
	given := c
	d, err := f.openData(ctx, &c, stderr)
	if err != nil {
		return s, err
	}
	if cp != nil && c != given {
		err = usagef("the data are not those of the run in %s: %s", f.out, strings.Join(cp.Differences(c), "; "))
	} else {
		s, err = f.onData(ctx, dev, c, cp, d, stderr)
	}
	return s, errors.Join(err, d.close())
}

// onData plans and trains, and sums up.
func (f *trainFlags) onData(ctx context.Context, dev device.Device, c train.Config, cp *train.Checkpoint, d *dataset, stderr io.Writer) (train.Summary, error) {
	r, err := f.prepare(ctx, dev, c, d, stderr)
	if err != nil {
		return train.Summary{}, err
	}
	t, end, err := f.openTrainer(ctx, r, stderr)
	if err != nil {
		return train.Summary{}, err
	}
	s, err := f.train(ctx, t, r, cp, stderr)
	if err := errors.Join(err, end()); err != nil {
		return s, err
	}
	info, p := r.dev.Info(), r.plan
	s.Device, s.BudgetBytes = info.Name, info.Capacity
	s.PlainPeakBytes, s.PredictedPeakBytes, s.PredictedReserved = p.Plain.PeakBytes, p.Chosen.PeakBytes, p.Chosen.ReservedBytes
	if r.learner != nil && r.lengths == nil {
		s.EstimatedStepSeconds, s.StepSeconds = p.Chosen.Seconds, r.learner.Median(kindOf(t, 0))
	}
	if f.seat.first() {
		err = s.Write(f.out)
	}
	return s, errors.Join(err, f.learn(r.learner, info, s, stderr), f.measureLink(dev, s, stderr))
}

// readyRun is a rank's part of a run that is planned.
type readyRun struct {
	dev     device.Device
	share   train.Config
	feed    train.Feed
	test    train.Set
	plan    *plan.Plan
	lengths *plan.Lengths // with --lengths
	learner *plan.Learner // with --rates on one device
}

// prepare finds what a rank is to compute of c, and how that fits.
func (f *trainFlags) prepare(ctx context.Context, dev device.Device, c train.Config, d *dataset, stderr io.Writer) (r readyRun, err error) {
	if err := c.Validate(); err != nil {
		return r, usageError{err}
	}
	if err := errors.Join(f.checkRanks(), f.checkLengths(c)); err != nil {
		return r, err
	}
	if err := f.findBatch(ctx, dev.Info(), &c, stderr); err != nil {
		return r, err
	}
	r.dev, r.test = dev, d.test
	if r.share, err = f.mesh.share(c, f.seat.ranks(), f.shard.Shard); err != nil {
		return r, err
	}
	if r.feed, err = d.feed(context.WithoutCancel(ctx), c); err != nil { // an interrupted run finishes its step
		return r, err
	}
	if err := f.measureAway(ctx, dev, stderr); err != nil {
		return r, err
	}
	if r.plan, r.lengths, err = f.findPlans(ctx, dev.Info(), r.share, r.feed, stderr); err != nil {
		return r, err
	}
	if f.precision.auto {
		r.share.Precision = r.plan.Precision
	}
	if r.learner = f.learner(dev); r.learner != nil {
		r.dev = r.learner.Device()
	}
	return r, nil
}

// openTrainer makes the trainer of a run, with its memory outside the device and
// the weights that it begins with. They go with end.
func (f *trainFlags) openTrainer(ctx context.Context, r readyRun, stderr io.Writer) (t *train.Trainer, end func() error, err error) {
	t, err = train.NewParallel(r.dev, r.share, r.plan.Chosen.Strategy, f.seat.parallel())
	if err != nil {
		return nil, nil, err
	}
	closeStore := func() {}
	end = func() error {
		defer closeStore()
		return t.Close()
	}
	if r.plan.Chosen.AwayBytes > 0 {
		if closeStore, err = f.away.use(ctx, t); err != nil {
			return nil, nil, errors.Join(err, end())
		}
	}
	fact(stderr, "model", "%s, %d parameters", r.share.Model, t.Parameters())
	if n := f.seat.ranks(); n > 1 {
		fact(stderr, "ranks", "%d, each with %d samples of a batch; sharded: %v%s", n, r.share.Batch, &f.shard, f.over())
	}
	f.writeFound(stderr, r.plan, r.lengths)
	if f.weights != "" {
		if err := t.LoadWeights(f.weights); err != nil {
			return nil, nil, errors.Join(usageError{err}, end())
		}
	}
	return t, end, nil
}

// findPlan reads the plan that was given, or searches for one.
func (f *trainFlags) findPlan(ctx context.Context, info device.Info, c train.Config, stderr io.Writer) (*plan.Plan, error) {
	if f.plan == "" {
		o, err := f.options(info, true)
		if err != nil {
			return nil, err
		}
		o.Parallel = f.seat.planned()
		var show *progress
		show, o.OnTrial = planning(stderr)
		defer show.end()
		return f.search(ctx, info, c, o)
	}
	p, err := plan.Read(f.plan)
	if err == nil && f.precision.auto {
		c.Precision = p.Precision
	}
	if err == nil {
		err = p.For(info, c)
	}
	if err == nil && p.Chosen.AwayBytes > f.away.bytes() {
		err = fmt.Errorf("plan %s moves %s out of the device: give it --away SIZE", f.plan, size.Format(p.Chosen.AwayBytes))
	}
	if err != nil {
		return nil, usageError{err}
	}
	return p, nil
}

// train runs the trainer in the folder for results.
func (f *trainFlags) train(ctx context.Context, t *train.Trainer, of readyRun, cp *train.Checkpoint, stderr io.Writer) (train.Summary, error) {
	if f.seat.first() {
		if err := os.MkdirAll(f.out, 0o755); err != nil {
			return train.Summary{}, err
		}
	}
	show := newProgress(stderr, 0)
	r := &train.Run{Trainer: t, Feed: of.feed, Shapes: shapes(of.lengths), Test: of.test, Dir: f.out, SaveEvery: f.saveEvery, TestEvery: f.testEvery, Profile: f.profile}
	r.OnStep = func(p train.Progress) {
		p.Events = f.away.notes.with(p.Events)
		teach(of.learner, t, p)
		show.step(p)
	}
	if cp != nil {
		if err := r.Resume(cp); err != nil {
			return train.Summary{}, err
		}
	}
	from := t.Steps()
	job, end := f.live.show(t.Config.Model, t.Memory(), stderr)
	if job != nil {
		show := r.OnStep
		r.Stacks, r.OnStep = true, func(p train.Progress) { show(p); tell(job, p) }
	}
	out, err := r.Do(ctx)
	err = errors.Join(err, end())
	show.end()
	c := t.Job()
	s := train.Summary{Ranks: f.seat.ranks(), Model: c.Model, Task: c.Task, Precision: c.Precision, Parameters: t.Parameters(), Batch: c.Batch, Seq: c.Seq, Data: f.data,
		MeasuredPeakBytes: out.PeakBytes, MeasuredReservedBytes: out.ReservedBytes,
		Strategy: t.Config.Describe(t.Strategy), MicroBatch: t.Strategy.MicroBatch, RecomputedBlocks: t.Strategy.Recompute,
		Steps: out.Steps, ResumedFromStep: from, Interrupted: out.Interrupted,
		Lengths: lengthSummaries(c, of.lengths, out.Lengths), FirstLoss: out.FirstLoss, LastLoss: out.LastLoss, TokensPerSecond: out.TokensPerSecond, SamplesPerSecond: out.SamplesPerSecond, Seconds: out.Seconds}
	if out.Test != nil {
		s.TestSamples, s.TestLoss, s.TestAccuracy = out.Test.Samples, out.Test.Loss, out.Test.Accuracy
	}
	if c.Task != train.Classes { // the test set is a part of the text
		s.TestLoss, s.ValidationLoss = 0, s.TestLoss
	}
	return s, err
}

// report prints what the run came to.
func (f *trainFlags) report(s train.Summary, w io.Writer) error {
	if f.json {
		return json.NewEncoder(w).Encode(s)
	}
	rows := [][]string{{"loss", fmt.Sprintf("%.3f -> %.3f in %d steps, %s, %.0f s", s.FirstLoss, s.LastLoss, s.Steps, per(s.SamplesPerSecond, s.TokensPerSecond), s.Seconds)}}
	switch {
	case s.ValidationLoss > 0:
		rows = append(rows, []string{"kept back", fmt.Sprintf("loss %.3f on %d sequences", s.ValidationLoss, s.TestSamples)})
	case s.TestSamples > 0:
		rows = append(rows, []string{"test", fmt.Sprintf("%.2f %% of %d right, loss %.3f", 100*s.TestAccuracy, s.TestSamples, s.TestLoss)})
	}
	p := newPage(w)
	p.table("lw", append(rows,
		[]string{"results", f.out},
		[]string{"a plain step needs", bytesText(s.PlainPeakBytes)},
		[]string{"the budget was", bytesText(s.BudgetBytes)},
		[]string{"predicted peak", fmt.Sprintf("%s (%s)", bytesText(s.PredictedPeakBytes), s.Strategy)},
		[]string{"measured peak", bytesText(s.MeasuredPeakBytes)})...)
	return p.err
}

// devicesGiven is where the run was, as flags.
func (f *trainFlags) devicesGiven() string {
	if f.devices != "" {
		return "--devices " + f.devices
	}
	return "--device " + f.device
}

// dataGiven is what the run was given as data, as flags.
func (f *trainFlags) dataGiven() string {
	text := ""
	if f.vocab != "" {
		text += " --vocab " + quoted(f.vocab)
	}
	if f.validation != 0 {
		text += fmt.Sprintf(" --validation %v", f.validation)
	}
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
