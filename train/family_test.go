package train_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// families are small runs of every kind of model and task, without dropout.
func families() map[string]train.Config {
	base := config()
	base.GPT2, base.Seq, base.Schedule.Steps = nn.GPT2Config{}, 0, 4
	base.Schedule.Warmup = 0
	text := base
	text.Seq = 8
	bert := text
	bert.BERT = nn.BERTConfig{Vocab: 30, Width: 16, Layers: 3, Heads: 2, Hidden: 24, Context: 12, Types: 2, Eps: 1e-12}
	masked, classes, resnet, moe := bert, bert, base, text
	masked.Task = train.Hidden
	classes.Task, classes.Labels = train.Classes, 3
	resnet.ResNet = nn.ResNetConfig{Layers: [4]int{1, 1, 1, 1}, Width: 4, Channels: 2, Classes: 5, SmallImages: true}
	resnet.Image, resnet.AdamW, resnet.SGD = [2]int{12, 10}, nn.AdamWOptions{}, nn.SGDOptions{Momentum: 0.9, WeightDecay: 1e-3}
	moe.MoE = nn.MoEConfig{Vocab: 30, Width: 16, Layers: 2, Experts: 4, TopK: 2, Hidden: 24, Heads: 2, Context: 8, Balance: 0.01, Capacity: 1.25}
	return map[string]train.Config{"gpt2": config(), "masked": masked, "classes": classes, "resnet": resnet, "moe": moe}
}

func eachFamily(t *testing.T, test func(t *testing.T, c train.Config)) {
	all := families()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { test(t, all[name]) })
	}
}

// noise is a feed of random numbers in the bounds of the fields: batch n is the
// same in every run. As a set, it has n samples.
type noise struct {
	fields []train.Field
	n      int
}

func (f *noise) Next(arrays ...any) error {
	f.n++
	return f.fill(f.n, arrays)
}

func (f *noise) fill(n int, arrays []any) error {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	for i, field := range f.fields {
		switch a := arrays[i].(type) {
		case []float32:
			for k := range a {
				a[k] = float32(r.NormFloat64())
			}
		case []int32:
			for k := range a {
				a[k] = int32(r.IntN(field.Below))
			}
		}
	}
	return nil
}

func (f *noise) State() json.RawMessage          { return json.RawMessage(fmt.Sprint(f.n)) }
func (f *noise) Restore(s json.RawMessage) error { return json.Unmarshal(s, &f.n) }
func (f *noise) Len() int                        { return f.n }

func (f *noise) Sample(i int, arrays ...any) error { return f.fill(1000+i, arrays) }

// noisy is a run of c on noise.
func noisy(t *testing.T, dir string, c train.Config, s train.Strategy) *train.Run {
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
	return &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}
}

// TestFamiliesUnderStrategies: for every family, recompute changes no bit, also
// under dropout and where normalisation keeps statistics, and micro-batches no
// more than the order of additions does.
func TestFamiliesUnderStrategies(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		for _, micro := range []int{4, 2, 1} {
			want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
			s := train.Strategy{MicroBatch: micro, Recompute: c.Blocks()}
			if micro < c.Batch && !c.Divisible() {
				if _, err := train.New(host(t), c, s); err == nil || !strings.Contains(err.Error(), "normalises over the whole batch") {
					t.Errorf("%s: error %v", c.Describe(s), err)
				}
				continue
			}
			got := losses(t, noisy(t, t.TempDir(), c, s))
			for i := range want {
				if micro == c.Batch && got[i] != want[i] || math.Abs(got[i]-want[i]) > 2e-5*want[i] {
					t.Errorf("%s: losses %v, want %v", c.Describe(s), got, want)
				}
			}
		}
		if c.BERT.Vocab > 0 {
			c.BERT.Dropout, c.BERT.AttentionDropout = 0.2, 0.1
			want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
			if got := losses(t, noisy(t, t.TempDir(), c, train.Strategy{MicroBatch: c.Batch, Recompute: 2})); !slices.Equal(got, want) {
				t.Errorf("with dropout and recompute: losses %v, want %v", got, want)
			}
		}
	})
}

// TestFamiliesResume: a run cut after its second step and resumed under
// recompute gives the losses, and to the last bit the files, of one that was
// not cut, dropout and running statistics included.
func TestFamiliesResume(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		if c.BERT.Vocab > 0 {
			c.BERT.Dropout, c.BERT.AttentionDropout = 0.2, 0.1
		}
		whole, cut := noisy(t, t.TempDir(), c, c.Plain()), noisy(t, t.TempDir(), c, c.Plain())
		want := losses(t, whole)
		got := cutAfter(t, cut, 2)
		cp, err := train.OpenCheckpoint(cut.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer cp.Close()
		r := noisy(t, cut.Dir, c, train.Strategy{MicroBatch: c.Batch, Recompute: c.Blocks()})
		if err := r.Resume(cp); err != nil {
			t.Fatal(err)
		}
		if got = append(got, losses(t, r)...); !slices.Equal(got, want) {
			t.Errorf("losses %v, want %v", got, want)
		}
		sameFiles(t, whole.Dir, cut.Dir, "model.safetensors", "config.json", train.CheckpointFile)
	})
}

// TestFamiliesOutOfMemory lets the device be full from its n-th allocation on,
// for every n, in steps and in evaluations between them: what follows, when
// there is memory again, is as if nothing had happened.
func TestFamiliesOutOfMemory(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		if invariant.Slow && c.ResNet.Width == 0 {
			t.Skip("checking all of it takes its time: GPT-2 has a test of its own")
		}
		c.Batch, c.Schedule.Steps = 128, 2 // so that steps need memory beyond what New took
		if c.ResNet.Width+c.BERT.Width > 0 {
			c.Batch = 256
		}
		want, _, _ := trainOnFull(t, c, math.MaxInt)
		failures := 0
		for n := 0; ; n++ {
			got, failed, made := trainOnFull(t, c, n)
			if made && !slices.Equal(got, want) {
				t.Errorf("full after %d: losses %v, want %v", n, got, want)
			}
			if failures += failed; made && failed == 0 {
				break
			}
		}
		if failures == 0 {
			t.Error("no step failed")
		}
	})
}

// trainOnFull trains and evaluates on a device that gets full, and gives the
// losses and how many calls failed.
func trainOnFull(t *testing.T, c train.Config, n int) (losses []float64, failures int, made bool) {
	dev := &full{host(t), n}
	tr, err := train.New(dev, c, c.Plain())
	if err != nil {
		if !errors.Is(err, device.ErrOutOfMemory) {
			t.Fatal(err)
		}
		return nil, 0, false
	}
	tr.Strict = true // it would find a way otherwise
	again := func(f func() (float64, error)) {
		loss, err := f()
		if errors.Is(err, device.ErrOutOfMemory) {
			failures++
			dev.mend()
			loss, err = f()
		}
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
	}
	feed, batch := &noise{fields: c.Fields()}, c.NewBatch()
	for range c.Schedule.Steps {
		feed.Next(batch...)
		again(func() (float64, error) { r, err := tr.Step(batch...); return r.Loss, err })
		again(func() (float64, error) {
			s, err := tr.Evaluate(&noise{feed.fields, c.Batch})
			return s.Loss, err
		})
	}
	if err := tr.Close(); err != nil {
		t.Errorf("full after %d: %v", n, err)
	}
	return losses, failures, true
}

// TestEvaluate compares the score of 6 samples with what steps say of the same
// samples: however many are computed at a time, and with statistics of before.
func TestEvaluate(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		c.MoE.Balance = 0
		if c.ResNet.Width > 0 { // a step normalises by its own batch: sizes of evaluation are compared alone
			var scores []train.Score
			for _, batch := range []int{4, 6} {
				c.Batch = batch
				r := noisy(t, t.TempDir(), c, c.Plain())
				s, err := r.Trainer.Evaluate(&noise{c.Fields(), 6})
				if err != nil {
					t.Fatal(err)
				}
				scores = append(scores, s)
			}
			if a, b := scores[0], scores[1]; math.Abs(a.Loss-b.Loss) > 1e-5 || a.Accuracy != b.Accuracy {
				t.Errorf("scores %+v", scores)
			}
			return
		}
		r := noisy(t, t.TempDir(), c, c.Plain())
		set := &noise{c.Fields(), 6}
		score, err := r.Trainer.Evaluate(set)
		if err != nil {
			t.Fatal(err)
		}
		c.Batch, c.Schedule.Peak, c.Schedule.Floor = 1, 1e-30, 0 // changes nothing
		one := noisy(t, t.TempDir(), c, c.Plain())
		want, batch := 0.0, c.NewBatch()
		for i := range 6 {
			set.Sample(i, batch...)
			s, err := one.Trainer.Step(batch...)
			if err != nil {
				t.Fatal(err)
			}
			want += s.Loss / 6
		}
		if math.Abs(score.Loss-want) > 1e-5*want || score.Samples != 6 {
			t.Errorf("score %+v, want a loss of %v", score, want)
		}
	})
}

// TestAccuracy trains until the classes of eight samples are known.
func TestAccuracy(t *testing.T) {
	c := families()["resnet"]
	c.Batch, c.Schedule.Steps, c.Test = 8, 60, true
	r := noisy(t, t.TempDir(), c, c.Plain())
	r.Test, r.TestEvery = &noise{c.Fields(), 8}, 30
	r.Feed = &same{noise{fields: c.Fields()}}
	var scores []train.Score
	r.OnStep = func(p train.Progress) {
		if p.Test != nil {
			scores = append(scores, *p.Test)
		}
	}
	out, err := r.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(scores) != 2 || *out.Test != scores[1] || scores[1].Accuracy < 0.99 {
		t.Errorf("scores %+v", scores)
	}
	f, err := safetensors.Open(filepath.Join(r.Dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	steps := make([]int64, 1)
	if err := f.ReadInt64("layer2.0.downsample.1.num_batches_tracked", steps); err != nil || steps[0] != 60 {
		t.Errorf("num_batches_tracked %v, %v", steps, err)
	}
	if err := noisy(t, t.TempDir(), c, c.Plain()).Trainer.LoadWeights(filepath.Join(r.Dir, "model.safetensors")); err != nil {
		t.Error(err)
	}
}

// same feeds the same samples, those of the set, again and again.
type same struct{ noise }

func (f *same) Next(arrays ...any) error {
	images, labels := arrays[0].([]float32), arrays[1].([]int32)
	size := len(images) / len(labels)
	for i := range labels {
		f.Sample(i, images[i*size:(i+1)*size], labels[i:i+1])
	}
	return nil
}

// TestExtend lets a finished run go on: the steps that were done stay, the
// others follow the longer schedule.
func TestExtend(t *testing.T) {
	c := config()
	r := newRun(t, c, c.Plain())
	losses(t, r)
	cp, err := train.OpenCheckpoint(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	if err := cp.Extend(5); err == nil {
		t.Error("a run of 6 steps was cut to 5")
	}
	if err := cp.Extend(9); err != nil {
		t.Fatal(err)
	}
	more := runIn(t, r.Dir, cp.State.Config, c.Plain())
	if err := more.Resume(cp); err != nil {
		t.Fatal(err)
	}
	rates := map[int]float64{}
	more.OnStep = func(p train.Progress) { rates[p.Step] = p.LearningRate }
	if out, err := more.Do(t.Context()); err != nil || out.Steps != 9 {
		t.Fatalf("%+v, %v", out, err)
	}
	long := c.Schedule
	long.Steps = 9
	if want := map[int]float64{7: long.At(7), 8: long.At(8), 9: long.At(9)}; !maps.Equal(rates, want) {
		t.Errorf("rates %v, want %v", rates, want)
	}
}

func TestConfigsOfFamilies(t *testing.T) {
	for want, change := range map[string]func(c map[string]train.Config) train.Config{
		"0 models are configured": func(map[string]train.Config) train.Config { return train.Config{} },
		"2 models are configured": func(c map[string]train.Config) train.Config {
			both := c["moe"]
			both.GPT2 = c["gpt2"].GPT2
			return both
		},
		`task "masked"`:             func(c map[string]train.Config) train.Config { g := c["gpt2"]; g.Task = train.Hidden; return g },
		`task ""`:                   func(c map[string]train.Config) train.Config { b := c["masked"]; b.Task = ""; return b },
		"1 classes":                 func(c map[string]train.Config) train.Config { b := c["classes"]; b.Labels = 1; return b },
		"images of 0×10":            func(c map[string]train.Config) train.Config { r := c["resnet"]; r.Image[0] = 0; return r },
		"sequence length is 3":      func(c map[string]train.Config) train.Config { r := c["resnet"]; r.Seq = 3; return r },
		"expert_capacity_factor 0":  func(c map[string]train.Config) train.Config { m := c["moe"]; m.MoE.Capacity = 0; return m },
		"both AdamW and SGD":        func(c map[string]train.Config) train.Config { r := c["resnet"]; r.AdamW = c["gpt2"].AdamW; return r },
		"SGD with momentum 1":       func(c map[string]train.Config) train.Config { r := c["resnet"]; r.SGD.Momentum = 1; return r },
		"hidden_dropout_prob 1":     func(c map[string]train.Config) train.Config { r := c["masked"]; r.BERT.Dropout = 1; return r },
		"sequence length is 13: fo": func(c map[string]train.Config) train.Config { r := c["masked"]; r.Seq = 13; return r },
		"number of lengths is 17":   func(c map[string]train.Config) train.Config { g := c["gpt2"]; g.Lengths = 17; return g },
		"batches by length: model":  func(c map[string]train.Config) train.Config { m := c["masked"]; m.Lengths = 2; return m },
	} {
		if err := change(families()).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// cutAfter runs r, stops it after a step and gives the losses so far.
func cutAfter(t *testing.T, r *train.Run, step int) (losses []float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.OnStep = func(p train.Progress) {
		if losses = append(losses, p.Loss); p.Step == step {
			cancel()
		}
	}
	if out, err := r.Do(ctx); err != nil || out.Steps != step {
		t.Fatalf("stopped after step %d: %+v, %v", step, out, err)
	}
	return losses
}
