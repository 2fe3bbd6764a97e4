package train

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/atomicfile"
)

// Run is a training run: a trainer, its data, and the folder of its results. Of
// several ranks each has a Run, with a feed of the whole batches; the first one
// writes the files.
type Run struct {
	Trainer   *Trainer
	Feed      Feed
	Shapes    []Shape        // of a Varied feed: each of its lengths and, the last, Config.Seq with Config.Test
	Dir       string         // the folder for results, which exists
	Test      Set            // what to evaluate on, with Config.Test; may be nil
	TestEvery int            // steps from one evaluation to the next; 0: only at the end
	SaveEvery int            // steps from one checkpoint to the next; 0: only at the end
	Profile   bool           // profile the step after the one of the snapshot
	Stacks    bool           // blocks know where they come from, for a profile of device memory at any time: in as many steps as cost half a percent of the time
	OnStep    func(Progress) // called after every step; may be nil

	first   float64  // loss of the run's first step
	last    float64  // loss of the step before
	stepped int      // steps of this process
	saved   int      // step of the checkpoint in the folder; 0: none
	snapped bool     // the snapshot is written
	looked  bool     // the profile is written
	calm    int      // steps until stacks are recorded again
	chooser *chooser // of the strategies of Shapes
	tokens  int      // the same, without padding
	resumed bool
	folder  *os.File // locked
	batch   []any
	unpin   func() error    // frees the memory of batch; nil where that is Go's
	place   json.RawMessage // of the feed, behind the last step's batch
	score   *Score          // the last one
}

// Progress is what is known after a step. It is a line of metrics.jsonl.
type Progress struct {
	Step             int     `json:"step"`
	Steps            int     `json:"-"`
	Seq              int     `json:"seq,omitempty"` // of the step, where steps differ
	Loss             float64 `json:"loss"`
	GradNorm         float64 `json:"grad_norm"`
	LearningRate     float64 `json:"learning_rate"`
	Seconds          float64 `json:"step_seconds"`
	TokensPerSecond  float64 `json:"tokens_per_second,omitempty"` // of text, without padding
	SamplesPerSecond float64 `json:"samples_per_second"`
	Test             *Score  `json:"test,omitempty"` // after the step, where it was evaluated
	LiveBytes        uint64  `json:"live_bytes"`
	PeakBytes        uint64  `json:"peak_bytes"`
	ReservedBytes    uint64  `json:"reserved_bytes"`
	Skipped          bool    `json:"skipped,omitempty"` // numbers overflowed, and the step is to be done again
	Events           []Event `json:"events,omitempty"`
}

// Outcome is what a run came to.
type Outcome struct {
	Steps            int     // done in all, those before a resume included
	Interrupted      bool    // the context was cancelled; the checkpoint is of this step
	FirstLoss        float64 // of the run's very first step
	LastLoss         float64
	TokensPerSecond  float64 // over the steps of this process; 0 for images
	SamplesPerSecond float64
	Test             *Score // the last one; nil if nothing was evaluated
	PeakBytes        uint64 // of live memory
	ReservedBytes    uint64 // most taken from the device
	Seconds          float64
	Lengths          []LengthState // of Shapes
}

// NaNError is returned when a loss or the gradients are no longer finite.
type NaNError struct {
	Step           int
	Loss, GradNorm float64
	Rate           float64
	Saved          int // step of the checkpoint in the folder; 0: none
}

func (e *NaNError) Error() string {
	kept := "no checkpoint was saved yet"
	if e.Saved > 0 {
		kept = fmt.Sprintf("the checkpoint of step %d is whole", e.Saved)
	}
	return fmt.Sprintf("loss %g with gradient norm %g at step %d is not finite: the run has diverged; %s. Try a lower learning rate (it was %.3g), a longer warm-up, or stronger clipping",
		e.Loss, e.GradNorm, e.Step, kept, e.Rate)
}

// Resume brings the run to the checkpoint in its folder.
func (r *Run) Resume(c *Checkpoint) error {
	if err := r.Trainer.Restore(c); err != nil {
		return err
	}
	if err := r.Feed.Restore(c.State.Data); err != nil {
		return err
	}
	if err := r.acquire(); err != nil {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	if r.chooser != nil {
		r.chooser.restore(c.State.Lengths)
	}
	r.place = c.State.Data
	r.first, r.last, r.resumed = c.State.First, c.State.Last, true
	if !r.writes() {
		return nil
	}
	return cutMetrics(r.metricsPath(), c.State.Step)
}

// writes says whether this is the run of the rank that writes files.
func (r *Run) writes() bool { return r.Trainer == nil || r.Trainer.par.writes() }

// acquire keeps other runs out of the folder, until Do ends.
func (r *Run) acquire() error {
	if r.folder != nil || !r.writes() {
		return nil
	}
	f, err := os.Open(r.Dir)
	if err != nil {
		return err
	}
	if err := lock(f); err != nil {
		return errors.Join(err, f.Close())
	}
	r.folder = f
	return nil
}

// release lets other runs in.
func (r *Run) release() (err error) {
	if r.unpin != nil {
		err = r.unpin()
		r.unpin = nil
	}
	if r.folder == nil {
		return err
	}
	f := r.folder
	r.folder = nil
	return errors.Join(err, f.Close())
}

// openMetrics opens the file of metrics, empty for a new run, and removes what
// killed runs left half written and runs of more ranks left whole.
func (r *Run) openMetrics() (io.WriteCloser, error) {
	if !r.writes() {
		return nowhere{io.Discard}, nil
	}
	if err := r.acquire(); err != nil {
		return nil, err
	}
	if err := r.free(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(r.metricsPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if !r.resumed {
		err = f.Truncate(0)
	}
	if err == nil {
		err = errors.Join(atomicfile.Clean(r.Dir), r.removeStale())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// free says if another run's checkpoint would be replaced, such as one's that ended while
// this one was planned.
func (r *Run) free() error {
	if r.resumed {
		return nil
	}
	_, err := os.Stat(filepath.Join(r.Dir, CheckpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return cmp.Or(err, fmt.Errorf("%s holds the checkpoint of another run by now: go on with that one, or choose another folder", r.Dir))
}

// nowhere is where ranks write that don't.
type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

// Do trains up to the configuration's number of steps, writes metrics as it
// goes, and the checkpoint, the model and the snapshot of a step. When ctx is
// cancelled it finishes the step, saves, and returns with Interrupted set.
func (r *Run) Do(ctx context.Context) (out Outcome, err error) {
	metrics, err := r.openMetrics()
	if err != nil {
		return Outcome{}, errors.Join(err, r.release())
	}
	defer func() { err = errors.Join(err, metrics.Close(), r.release()) }()
	if err := r.prepare(); err != nil {
		return Outcome{}, err
	}
	if err := r.Trainer.par.sameSteps(r.Trainer.Strategy); err != nil {
		return Outcome{}, err
	}
	c := r.Trainer.Job()
	if err := r.openBatch(); err != nil {
		return Outcome{}, err
	}
	start := time.Now()
	r.saved = r.Trainer.Steps()
	for r.Trainer.Steps() < c.Schedule.Steps {
		stop, err := r.Trainer.par.any(ctx.Err() != nil)
		if err != nil {
			return Outcome{}, err
		}
		if stop {
			break
		}
		p, err := r.step()
		if err != nil {
			return Outcome{}, errors.Join(err, r.rescue(err))
		}
		if err := r.conclude(ctx, &p, metrics); err != nil {
			return Outcome{}, err
		}
		if r.OnStep != nil {
			r.OnStep(p)
		}
	}
	out.Seconds = time.Since(start).Seconds()
	out.SamplesPerSecond = float64(r.stepped*c.Batch) / max(out.Seconds, 1e-9)
	out.TokensPerSecond = float64(r.tokens) / max(out.Seconds, 1e-9)
	out.Lengths = r.chooser.state()
	return r.finish(ctx, out)
}

// rescue saves what was reached before a step for which the memory of one device
// was too little: the weights are those of the step before.
func (r *Run) rescue(failure error) error {
	if !errors.Is(failure, device.ErrOutOfMemory) || r.Trainer.par != nil || r.stepped == 0 {
		return nil
	}
	return r.saveNew()
}

// conclude does what comes after a step: its line of metrics, and the checkpoint
// and the evaluation where they are due.
func (r *Run) conclude(ctx context.Context, p *Progress, metrics io.Writer) (err error) {
	if p.Skipped {
		p.Loss, p.GradNorm = finiteOrZero(p.Loss), finiteOrZero(p.GradNorm) // JSON knows no others
		return writeLine(metrics, p)
	}
	r.last = p.Loss
	if !r.tests() { // the line comes before the checkpoint, so that a kill between the two loses none
		if err := writeLine(metrics, p); err != nil {
			return err
		}
		return r.saveDue()
	}
	if err := r.saveDue(); err != nil { // before the evaluation, which may take long
		return err
	}
	if p.Test, err = r.evaluate(ctx); err != nil {
		return err
	}
	return writeLine(metrics, p)
}

// openBatch makes the arrays of batches. Where the device copies from memory
// apart, they are in such that it copies from at full speed.
func (r *Run) openBatch() (err error) {
	c, dev := r.Trainer.Job(), r.Trainer.Memory().Device()
	if dev.Info().Kind != device.CUDA {
		r.batch = c.NewBatch()
		return nil
	}
	var total uint64
	for _, f := range c.Fields() {
		total += f.bytes(c.Batch) + 1<<16 // with what rounding up takes
	}
	pinned, err := device.OpenPinnedFor(dev, total)
	if err != nil {
		return err
	}
	var pieces []device.Ptr
	r.unpin = func() (err error) {
		r.batch = nil
		for _, p := range pieces {
			err = errors.Join(err, pinned.Free(p))
		}
		return errors.Join(err, pinned.Close())
	}
	for _, f := range c.Fields() {
		p, err := pinned.Alloc(f.bytes(c.Batch))
		if err != nil {
			return err
		}
		pieces = append(pieces, p)
		if n := c.Batch * f.len(); f.Below == 0 {
			r.batch = append(r.batch, device.Float32s(p, n))
		} else {
			r.batch = append(r.batch, device.Int32s(p, n))
		}
	}
	return nil
}

// bytes are those of so many samples, whose elements have four each.
func (f Field) bytes(samples int) uint64 { return 4 * uint64(samples*f.len()) }

// step runs one step, the second one of the process with a snapshot.
func (r *Run) step() (Progress, error) {
	batch, shape, err := r.next()
	if err != nil {
		return Progress{}, r.Trainer.par.failure(err)
	}
	start := time.Now()
	before := r.Trainer.Memory().Stats()
	if r.Stacks && r.calm == 0 {
		r.Trainer.Memory().SetSink(nil, stackDepth)
		defer r.Trainer.Memory().SetSink(nil, 0)
	}
	snapped, looked := r.snapped, r.looked
	result, err := r.recorded(func() (Result, error) { return r.Trainer.Step(r.Trainer.par.batch(batch)...) })
	if err != nil {
		return Progress{}, r.Trainer.par.failure(err)
	}
	if !result.Skipped && (!finite(result.Loss) || !finite(result.GradNorm)) {
		return Progress{}, &NaNError{result.Step, result.Loss, result.GradNorm, result.Rate, r.saved}
	}
	r.place = r.Feed.State()
	if r.stepped++; result.Step == 1 && !result.Skipped {
		r.first = result.Loss
	}
	c, s := r.Trainer.Job(), r.Trainer.Memory().Stats()
	seconds := time.Since(start).Seconds()
	if r.calm--; r.calm < 0 {
		r.calm = int(float64(s.Allocs-before.Allocs) * stackSeconds / (stackShare * seconds))
	}
	seq, tokens := r.account(shape, seconds, snapped != r.snapped || looked != r.looked || len(result.Events) > 0)
	return Progress{Step: result.Step, Steps: c.Schedule.Steps, Seq: seq, Loss: result.Loss, GradNorm: result.GradNorm, LearningRate: result.Rate,
		Seconds: seconds, SamplesPerSecond: float64(c.Batch) / max(seconds, 1e-9), TokensPerSecond: float64(tokens) / max(seconds, 1e-9),
		Skipped: result.Skipped, Events: result.Events, LiveBytes: s.Live, PeakBytes: s.PeakLive, ReservedBytes: s.Reserved}, nil
}

// until is a set that has no more samples once ctx is cancelled.
type until struct {
	Set
	ctx context.Context
}

func (u until) Sample(i int, fields ...any) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	return u.Set.Sample(i, fields...)
}

// evaluate looks after a step how the model does on the test set. It gives
// nothing when ctx is cancelled meanwhile.
func (r *Run) evaluate(ctx context.Context) (*Score, error) {
	if r.Trainer.par != nil { // one rank can't stop alone
		ctx = context.WithoutCancel(ctx)
	}
	if err := r.wholeLength(); err != nil {
		return nil, err
	}
	s, err := r.Trainer.Evaluate(until{r.Test, ctx})
	if err != nil && ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("evaluation after step %d: %w", r.Trainer.Steps(), err)
	}
	r.score = &s
	return r.score, nil
}

// tests says whether the model is to be evaluated after the step of now.
func (r *Run) tests() bool {
	n := r.Trainer.Steps()
	return r.Test != nil && (n == r.Trainer.Config.Schedule.Steps || r.TestEvery > 0 && n%r.TestEvery == 0)
}

func finiteOrZero(x float64) float64 {
	if finite(x) {
		return x
	}
	return 0
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// finish saves and sums up. It also does what is left to do where a run ended between
// its last checkpoint and here.
func (r *Run) finish(ctx context.Context, out Outcome) (Outcome, error) {
	out.Steps, out.FirstLoss, out.LastLoss = r.Trainer.Steps(), r.first, r.last
	out.Interrupted = out.Steps < r.Trainer.Config.Schedule.Steps
	if !out.Interrupted && r.tests() && r.score == nil {
		if _, err := r.evaluate(ctx); err != nil {
			return Outcome{}, err
		}
	}
	out.Test = r.score
	if err := r.saveNew(); err != nil {
		return Outcome{}, err
	}
	s := r.Trainer.Memory().Stats()
	out.PeakBytes, out.ReservedBytes = s.PeakLive, s.PeakReserved
	if out.Interrupted || !r.writes() {
		return out, nil
	}
	return out, Export(r.Dir)
}

// saveDue writes a checkpoint where it is time for one.
func (r *Run) saveDue() error {
	n := r.Trainer.Steps()
	if n == r.Trainer.Config.Schedule.Steps || r.SaveEvery > 0 && n%r.SaveEvery == 0 {
		return r.saveNew()
	}
	return nil
}

// saveNew writes a checkpoint unless that of the folder is of this step.
func (r *Run) saveNew() error {
	n := r.Trainer.Steps()
	if r.saved == n {
		return nil
	}
	r.decide(true)
	if err := r.Trainer.Save(r.Dir, State{Data: r.place, First: r.first, Last: r.last, Lengths: r.chooser.state()}); err != nil {
		return err
	}
	r.saved = n
	return nil
}

func (r *Run) metricsPath() string { return filepath.Join(r.Dir, "metrics.jsonl") }

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// cutMetrics drops the lines after a step, which a resumed run writes again,
// and what a crash may have left half-written.
func cutMetrics(path string, step int) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return atomicfile.Write(path, func(w io.Writer) error {
		const longest = 1 << 20
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, longest)
		for lines.Scan() {
			var p Progress
			if json.Unmarshal(lines.Bytes(), &p) != nil || p.Step > step {
				return nil
			}
			if _, err := w.Write(append(lines.Bytes(), '\n')); err != nil {
				return err
			}
		}
		if err := lines.Err(); !errors.Is(err, bufio.ErrTooLong) {
			return err
		}
		return nil
	})
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}
