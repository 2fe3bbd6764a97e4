package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// config is a small run: 3 blocks, 4 sequences of 16 tokens, 6 steps.
func config() train.Config {
	return train.Config{Model: "tiny", GPT2: nn.GPT2Config{Vocab: 256, Context: 16, Width: 16, Layers: 3, Heads: 2}, Batch: 4, Seq: 16, Seed: 3,
		Schedule: nn.Cosine{Peak: 1e-2, Floor: 1e-3, Warmup: 2, Steps: 6}, Clip: 1,
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}}
}

func corpus(t *testing.T) *data.Corpus {
	t.Helper()
	tok, err := data.NewTokenizer("bytes")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(strings.Repeat("All human beings are born free and equal. ", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := data.Load(context.Background(), []string{path}, tok)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func batches(t *testing.T, c train.Config) *data.Batches {
	t.Helper()
	b, err := data.NewBatches(corpus(t), c.Batch, c.Seq, c.Seed)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func host(t *testing.T) device.Device {
	t.Helper()
	dev, err := device.Open("host:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// newRun makes a run in a new folder.
func newRun(t *testing.T, c train.Config, s train.Strategy) *train.Run {
	t.Helper()
	return runIn(t, t.TempDir(), c, s)
}

func runIn(t *testing.T, dir string, c train.Config, s train.Strategy) *train.Run {
	t.Helper()
	tr, err := train.New(host(t), c, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return &train.Run{Trainer: tr, Feed: train.Text(batches(t, c)), Dir: dir}
}

// losses runs r to its end and returns the loss of every step.
func losses(t *testing.T, r *train.Run) []float64 {
	t.Helper()
	var out []float64
	r.OnStep = func(p train.Progress) { out = append(out, p.Loss) }
	if _, err := r.Do(context.Background()); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestStrategiesChangeNothing: losses under every strategy are those of the
// plain run: bit for bit under recompute alone, up to the order of additions
// under micro-batches.
func TestStrategiesChangeNothing(t *testing.T) {
	c := config()
	want := losses(t, newRun(t, c, c.Plain()))
	if !(want[5] < want[0]) {
		t.Fatalf("losses %v do not fall", want)
	}
	for _, micro := range []int{4, 2, 1} {
		for recompute := range c.GPT2.Layers + 1 {
			s := train.Strategy{MicroBatch: micro, Recompute: recompute}
			got := losses(t, newRun(t, c, s))
			if micro == c.Batch && !slices.Equal(got, want) {
				t.Errorf("%s: losses %v, want exactly %v", c.Describe(s), got, want)
			}
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
					t.Errorf("%s: loss of step %d is %v, want %v within 1e-5", c.Describe(s), i+1, got[i], want[i])
				}
			}
		}
	}
}

// TestResumeIsExact: a run stopped after any step and resumed by a new process
// on another strategy of recompute gives the very losses and weights of the
// run that was not stopped.
func TestResumeIsExact(t *testing.T) {
	c := config()
	whole := newRun(t, c, c.Plain())
	want := losses(t, whole)
	for stop := 1; stop < c.Schedule.Steps; stop++ {
		first := newRun(t, c, c.Plain())
		ctx, cancel := context.WithCancel(context.Background())
		var got []float64
		first.OnStep = func(p train.Progress) {
			if got = append(got, p.Loss); p.Step == stop {
				cancel()
			}
		}
		out, err := first.Do(ctx)
		if err != nil || !out.Interrupted || out.Steps != stop {
			t.Fatalf("stopped after step %d: outcome %+v, error %v", stop, out, err)
		}
		got = append(got, losses(t, resume(t, first.Dir, c))...)
		if !slices.Equal(got, want) {
			t.Errorf("stopped after step %d: losses %v, want %v", stop, got, want)
		}
		sameFiles(t, whole.Dir, first.Dir, "model.safetensors", train.CheckpointFile)
		metrics, err := os.ReadFile(filepath.Join(first.Dir, "metrics.jsonl"))
		if err != nil || strings.Count(string(metrics), "\n") != c.Schedule.Steps {
			t.Errorf("stopped after step %d: metrics have %d lines, want %d (%v)", stop, strings.Count(string(metrics), "\n"), c.Schedule.Steps, err)
		}
	}
}

// resume opens the run in dir with all blocks recomputed.
func resume(t *testing.T, dir string, c train.Config) *train.Run {
	t.Helper()
	cp, err := train.OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	r := runIn(t, dir, c, train.Strategy{MicroBatch: c.Batch, Recompute: c.GPT2.Layers})
	if err := r.Resume(cp); err != nil {
		t.Fatal(err)
	}
	return r
}

func sameFiles(t *testing.T, a, b string, names ...string) {
	t.Helper()
	for _, name := range names {
		x, err := os.ReadFile(filepath.Join(a, name))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(b, name))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x, y) {
			t.Errorf("%s differs between the runs", name)
		}
	}
}

// TestCheckpointOfAnotherRun: what does not belong together is refused with
// the difference, and the trainer is as before.
func TestCheckpointOfAnotherRun(t *testing.T) {
	c := config()
	r := newRun(t, c, c.Plain())
	losses(t, r)
	cp, err := train.OpenCheckpoint(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	other := config()
	other.GPT2.Layers, other.Seed = 2, 4
	o := newRun(t, other, other.Plain())
	err = o.Resume(cp)
	for _, want := range []string{"seed: 3 in the checkpoint, 4 asked", "gpt2.n_layer: 3 in the checkpoint, 2 asked"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("resume of another run: error %v, want %q in it", err, want)
		}
	}
	if err := o.Trainer.LoadWeights(filepath.Join(r.Dir, "model.safetensors")); err != nil {
		t.Errorf("the first two blocks of a larger model should load: %v", err)
	}
	other.GPT2.Width = 32
	w := newRun(t, other, other.Plain())
	if err := w.Trainer.LoadWeights(filepath.Join(r.Dir, "model.safetensors")); err == nil || !strings.Contains(err.Error(), "shape [256 16], the model needs [256 32]") {
		t.Errorf("weights of another width: error %v", err)
	}
	if _, err := train.OpenCheckpoint(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no checkpoint: error %v", err)
	}
}

// TestDivergenceIsTold: a loss that is no longer a number ends the run, and
// the last checkpoint stays.
func TestDivergenceIsTold(t *testing.T) {
	c := config()
	c.Schedule = nn.Cosine{Peak: 1e6, Floor: 1e6, Steps: 60}
	r := newRun(t, c, c.Plain())
	r.SaveEvery = 1
	_, err := r.Do(context.Background())
	var diverged *train.NaNError
	if !errors.As(err, &diverged) {
		t.Fatalf("got error %v", err)
	}
	cp, err := train.OpenCheckpoint(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	if cp.State.Step != diverged.Saved || diverged.Step != diverged.Saved+1 {
		t.Errorf("diverged at step %d with %d said to be saved, the file has %d", diverged.Step, diverged.Saved, cp.State.Step)
	}
}

// full is a device that has no memory left from its n-th allocation on, until
// it is mended.
type full struct {
	device.Device
	left int
}

func (f *full) mend() { f.left = math.MaxInt }

func (f *full) take() error {
	if f.left--; f.left < 0 {
		return fmt.Errorf("test: %w", device.ErrOutOfMemory)
	}
	return nil
}

func (f *full) Alloc(size uint64) (device.Ptr, error) {
	if err := f.take(); err != nil {
		return 0, err
	}
	return f.Device.Alloc(size)
}

func (f *full) Create() (device.Handle, error) {
	if err := f.take(); err != nil {
		return 0, err
	}
	return f.Device.Create()
}

// TestOutOfMemoryInAnyPlace lets the device be full from its n-th allocation
// on, for every n: New or Step returns the error, nothing is left over, and
// when there is memory again the same step goes on as if nothing had happened.
func TestOutOfMemoryInAnyPlace(t *testing.T) {
	c := config()
	c.Batch, c.Seq, c.GPT2.Context, c.Schedule.Steps = 1, 3000, 3000, 2 // so that steps need memory beyond what New took
	want := losses(t, newRun(t, c, c.Plain()))
	var inNew, inStep int
	for n := 0; ; n++ {
		dev := &full{host(t), n}
		tr, err := train.New(dev, c, c.Plain())
		if err != nil {
			if inNew++; !errors.Is(err, device.ErrOutOfMemory) {
				t.Fatalf("full after %d: %v", n, err)
			}
			continue
		}
		got, failures := stepAll(t, tr, c, dev.mend)
		inStep += failures
		if !slices.Equal(got, want) {
			t.Errorf("full after %d: losses %v, want %v", n, got, want)
		}
		if err := tr.Close(); err != nil {
			t.Errorf("full after %d: %v", n, err)
		}
		if failures == 0 {
			break
		}
	}
	if inNew == 0 || inStep == 0 {
		t.Errorf("%d failures in New and %d in Step: want some of both", inNew, inStep)
	}
}

// stepAll runs all steps, each again after mend if it fails, and counts the failures.
func stepAll(t *testing.T, tr *train.Trainer, c train.Config, mend func()) (losses []float64, failures int) {
	t.Helper()
	b := batches(t, c)
	x, y := make([]int32, c.Batch*c.Seq), make([]int32, c.Batch*c.Seq)
	for range c.Schedule.Steps {
		if err := b.Next(x, y); err != nil {
			t.Fatal(err)
		}
		r, err := tr.Step(x, y)
		if err != nil {
			if failures++; !errors.Is(err, device.ErrOutOfMemory) {
				t.Fatal(err)
			}
			mend()
			if r, err = tr.Step(x, y); err != nil {
				t.Fatalf("a step after a failed one: %v", err)
			}
		}
		losses = append(losses, r.Loss)
	}
	return losses, failures
}

func TestBadBatchesAndConfigs(t *testing.T) {
	c := config()
	r := newRun(t, c, c.Plain())
	x := make([]int32, c.Batch*c.Seq)
	if _, err := r.Trainer.Step(x[:3], x); err == nil || !strings.Contains(err.Error(), "3 tokens") {
		t.Errorf("short batch: %v", err)
	}
	x[5] = 256
	if _, err := r.Trainer.Step(x, x); err == nil || !strings.Contains(err.Error(), "token 256") {
		t.Errorf("token outside the vocabulary: %v", err)
	}
	for want, change := range map[string]func(c *train.Config){
		"batch is 0":            func(c *train.Config) { c.Batch = 0 },
		"sequence length is 17": func(c *train.Config) { c.Seq = 17 },
		"n_embd 16 is no":       func(c *train.Config) { c.GPT2.Heads = 3 },
		"vocab_size is -1":      func(c *train.Config) { c.GPT2.Vocab = -1 },
		"learning rate NaN":     func(c *train.Config) { c.Schedule.Peak = math.NaN() },
		"steps is 0":            func(c *train.Config) { c.Schedule.Steps = 0 },
	} {
		bad := config()
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// TestExportedModelLoads: the model file has Hugging Face's names and shapes,
// and loads into a new model.
func TestExportedModelLoads(t *testing.T) {
	c := config()
	r := newRun(t, c, c.Plain())
	losses(t, r)
	f, err := safetensors.Open(filepath.Join(r.Dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, shape := range map[string][]int{
		"transformer.wte.weight": {256, 16}, "transformer.wpe.weight": {16, 16},
		"transformer.h.2.attn.c_attn.weight": {16, 48}, "transformer.h.0.mlp.c_proj.bias": {16}, "transformer.ln_f.bias": {16},
	} {
		if e, ok := f.Lookup(name); !ok || fmt.Sprint(e.Shape) != fmt.Sprint(shape) {
			t.Errorf("%s has shape %v, want %v", name, e.Shape, shape)
		}
	}
	o := newRun(t, c, c.Plain())
	if err := o.Trainer.LoadWeights(filepath.Join(r.Dir, "model.safetensors")); err != nil {
		t.Error(err)
	}
}
