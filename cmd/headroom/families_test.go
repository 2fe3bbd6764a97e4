package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// put writes a file, and the folders that it is in.
func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// images writes IDX files: of two classes, the left or the right half is light.
func images(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	for part, n := range map[string]int{"train": 64, "t10k": 20} {
		pixels, labels := []byte{0, 0, 8, 3, 0, 0, 0, byte(n), 0, 0, 0, 12, 0, 0, 0, 12}, []byte{0, 0, 8, 1, 0, 0, 0, byte(n)}
		for range n {
			class := byte(r.IntN(2))
			labels = append(labels, class)
			for p := range 12 * 12 {
				pixels = append(pixels, byte(r.IntN(60))+120*(class^byte(p%12/6)))
			}
		}
		put(t, filepath.Join(dir, part+"-images-idx3-ubyte"), pixels)
		put(t, filepath.Join(dir, part+"-labels-idx1-ubyte"), labels)
	}
	return dir
}

// petTexts writes texts in two classes, to train and to test on.
func petTexts(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for part, n := range map[string]int{"train": 12, "test": 6} {
		for i := range n {
			put(t, filepath.Join(dir, part, "cats", fmt.Sprint(i)), []byte(strings.Repeat("meow ", i+1)))
			put(t, filepath.Join(dir, part, "dogs", fmt.Sprint(i)), []byte(strings.Repeat("woof ", i+1)))
		}
	}
	return dir
}

// vocabulary writes a small vocab.txt.
func vocabulary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vocab.txt")
	put(t, path, []byte("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nquick\nbrown\nfox\njump\n##s\nover\nlazy\ndog\n.\n"))
	return path
}

// tokens writes files of tokens, as bare uint16 and as an npy of int32.
func tokens(t *testing.T) (bin, npy string) {
	t.Helper()
	dir := t.TempDir()
	var two, four []byte
	for i := range 2000 {
		two, four = binary.LittleEndian.AppendUint16(two, uint16(i*i%251)), binary.LittleEndian.AppendUint32(four, uint32(i*i%251))
	}
	header := "{'descr': '<i4', 'fortran_order': False, 'shape': (2000,), }"
	header += strings.Repeat(" ", 128-10-1-len(header)) + "\n"
	bin, npy = filepath.Join(dir, "x.bin"), filepath.Join(dir, "x.npy")
	put(t, bin, two)
	put(t, npy, append([]byte("\x93NUMPY\x01\x00\x76\x00"+header), four...))
	return bin, npy
}

// jobs are one small run for each kind of model and data.
func jobs(t *testing.T) map[string][]string {
	bin, npy := tokens(t)
	seq := []string{"--seq", "16", "--batch", "4"}
	return map[string][]string{
		"tokens":  append([]string{"--model", "gpt2-nano", "--data", bin, "--validation", "0.1"}, seq...),
		"npy":     append([]string{"--model", "moe-nano", "--data", npy}, seq...),
		"masked":  append([]string{"--model", "bert-mini", "--data", text(t), "--validation", "0.1"}, seq...),
		"classes": append([]string{"--model", "bert-mini", "--task", "classes", "--data", petTexts(t)}, seq...),
		"images":  {"--model", "resnet-mini", "--data", images(t), "--batch", "16", "--optimizer", "adamw", "--lr", "1e-3"},
	}
}

// TestFamilies trains every kind of model on its kind of data: the peak is the
// predicted one, a run that is cut and goes on ends with the same model, and a
// longer one goes on from there.
func TestFamilies(t *testing.T) {
	if invariant.Slow {
		t.Skip("package train tests what is concurrent in a step")
	}
	for name, args := range jobs(t) {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			job := append([]string{"train", "--out", out, "--steps", "2"}, args...)
			if status, stdout, stderr := headroom(job...); status != 0 {
				t.Fatalf("status %d\n%s%s", status, stdout, stderr)
			}
			s := summary(t, out)
			if s.MeasuredPeakBytes != s.PredictedPeakBytes || s.MeasuredReservedBytes > s.PredictedReserved || s.Steps != 2 || s.Parameters == 0 {
				t.Errorf("summary %+v", s)
			}
			if tested := s.TestSamples > 0; tested != (name != "npy") || (s.ValidationLoss > 0) != (name == "tokens" || name == "masked") {
				t.Errorf("summary %+v", s)
			}
			status, _, stderr := headroom(append([]string{"train", "--out", out, "--resume", "--steps", "3"}, args...)...)
			if status != 0 || !strings.Contains(stderr, "from step 3 on the learning rate is that of the longer one") || summary(t, out).Steps != 3 {
				t.Errorf("going on: status %d\n%s", status, stderr)
			}
			status, _, stderr = headroom(append([]string{"train", "--out", out, "--resume", "--steps", "2"}, args...)...)
			if status != 2 || !strings.Contains(stderr, "has 3 steps, of which 3 are done: --steps makes it longer, not shorter") {
				t.Errorf("going back: status %d\n%s", status, stderr)
			}
		})
	}
}

// TestWords takes the vocabulary of a BERT from a file, and a small model in
// the place of a published one through steps on words.
func TestWords(t *testing.T) {
	for _, task := range []train.Task{train.Hidden, train.Classes} {
		f := dataFlags{data: []string{text(t)}, vocab: vocabulary(t)}
		c := train.Config{Model: "bert-base", Task: task, Batch: 4, Seq: 8, Labels: 2,
			BERT:     nn.BERTConfig{Vocab: 30522, Width: 16, Layers: 1, Heads: 2, Hidden: 16, Context: 8, Types: 2, Eps: 1e-12},
			Schedule: nn.Cosine{Peak: 1e-2, Steps: 2}, AdamW: nn.AdamWOptions{Eps: 1e-8}}
		if task == train.Classes {
			f.data = []string{petTexts(t)}
		}
		d, err := f.openData(t.Context(), &c, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		feed, err := d.feed(t.Context(), c)
		if err != nil || c.BERT.Vocab != 15 || c.Test != (task == train.Classes) {
			t.Fatalf("%v; vocabulary %d", err, c.BERT.Vocab)
		}
		dev, err := device.Open("host:16MiB")
		if err != nil {
			t.Fatal(err)
		}
		tr, err := train.New(dev, c, c.Plain())
		if err != nil {
			t.Fatal(err)
		}
		batch := c.NewBatch()
		for range 2 {
			err := feed.Next(batch...)
			if err == nil {
				_, err = tr.Step(batch...)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if first := batch[0].([]int32)[0]; task == train.Classes && first != 2 {
			t.Errorf("a text begins with token %d", first)
		}
		if err := errors.Join(tr.Close(), dev.Close(), d.close()); err != nil {
			t.Error(err)
		}
	}
}

// TestImagesAreLearned: the accuracy on the test set is that of a model which
// has learned the difference.
func TestImagesAreLearned(t *testing.T) {
	if invariant.Slow {
		t.Skip("runs of one device are raced by other tests, and train has invariants checked")
	}
	out := filepath.Join(t.TempDir(), "run")
	if status, _, stderr := headroom("train", "--model", "resnet-mini", "--data", images(t), "--batch", "16", "--steps", "40", "--eval-every", "20", "--out", out); status != 0 {
		t.Fatal(stderr)
	}
	if s := summary(t, out); s.TestAccuracy < 0.95 || s.TestSamples != 20 {
		t.Errorf("accuracy %v on %d images", s.TestAccuracy, s.TestSamples)
	}
	metrics, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if err != nil || strings.Count(string(metrics), `"accuracy"`) != 2 {
		t.Errorf("metrics: %v\n%s", err, metrics)
	}
}

// TestFashionMNIST is the README's job in small, where the data set is there.
func TestFashionMNIST(t *testing.T) {
	const dir = "/usr/share/datasets/fashion-mnist"
	if _, err := os.Stat(dir); err != nil || invariant.Slow || testing.Short() {
		t.Skipf("SKIPPED: not run without %s (Debian's package dataset-fashion-mnist), or where all is checked twice (%v)", dir, err)
	}
	out := filepath.Join(t.TempDir(), "run")
	if status, _, stderr := headroom("train", "--model", "resnet-mini", "--data", dir, "--batch", "64", "--steps", "40", "--warmup", "5", "--lr", "0.05", "--out", out); status != 0 {
		t.Fatal(stderr)
	}
	s := summary(t, out)
	t.Logf("accuracy %v", s.TestAccuracy)
	if s.TestAccuracy < 0.5 || s.TestSamples != 10000 {
		t.Errorf("accuracy %v on %d images, want 0.5 after 40 steps", s.TestAccuracy, s.TestSamples)
	}
}

func TestBadFamilies(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	data := text(t)
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"train", "--model", "bert-base", "--data", data}, 2, "give its vocabulary with --vocab FILE"},
		{[]string{"train", "--model", "bert-base", "--data", data, "--vocab", data}, 2, "line 2"},
		{[]string{"train", "--model", "gpt2-nano", "--data", data, "--vocab", data}, 2, "has its own vocabulary"},
		{[]string{"train", "--model", "gpt2-nano", "--task", "classes"}, 2, "model gpt2-nano has text"},
		{[]string{"train", "--model", "bert-mini", "--task", "guess"}, 2, "model bert-mini has masked and classes"},
		{[]string{"train", "--model", "resnet-mini"}, 2, "needs --data DIR, one folder of images"},
		{[]string{"train", "--model", "resnet-mini", "--data", t.TempDir()}, 2, "no images in"},
		{[]string{"train", "--model", "bert-mini", "--task", "classes", "--data", filepath.Dir(data)}, 2, "a folder for each of several classes"},
		{[]string{"train", "--model", "gpt2-nano", "--data", data, "--validation", "2"}, 2, "held-out fraction"},
		{[]string{"train", "--model", "gpt2-nano", "--data", data, "--optimizer", "lion"}, 2, `unknown optimizer "lion"`},
		{[]string{"train", "--model", "resnet18", "--data", data, "--device", "host:8MiB"}, 1, "not a directory"},
		{[]string{"train", "--model", "resnet-mini", "--data", images(t), "--device", "host:2MiB"}, 1, "does not fit"},
		{[]string{"plan", "--model", "resnet50", "--image", "-1"}, 2, "sizes are positive"},
		{[]string{"plan", "--model", "resnet50", "--image", "4"}, 2, "images of 4×4"},
	} {
		args := test.args
		if args[0] == "train" {
			args = append(args, "--out", out)
		}
		status, stdout, stderr := headroom(args...)
		if status != test.status || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("headroom %s: status %d, want %d with %q\n%s%s", strings.Join(args, " "), status, test.status, test.want, stdout, stderr)
		}
	}
}

// TestOtherData: a run goes on only on the data that it began with.
func TestOtherData(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	job := func(data string, more ...string) []string {
		return append([]string{"train", "--model", "resnet-mini", "--batch", "8", "--out", out, "--data", data}, more...)
	}
	if status, _, stderr := headroom(job(images(t), "--steps", "2")...); status != 0 {
		t.Fatal(stderr)
	}
	other := images(t)
	put(t, filepath.Join(other, "train-labels-idx1-ubyte"), append([]byte{0, 0, 8, 1, 0, 0, 0, 64, 7}, make([]byte, 63)...))
	status, _, stderr := headroom(job(other, "--resume", "--steps", "3")...)
	if status != 2 || !strings.Contains(stderr, "resnet.num_classes: 2 in the checkpoint, 8 asked") {
		t.Errorf("more classes: status %d, %s", status, stderr)
	}
	put(t, filepath.Join(other, "train-labels-idx1-ubyte"), append([]byte{0, 0, 8, 1, 0, 0, 0, 64, 1}, make([]byte, 63)...))
	status, _, stderr = headroom(job(other, "--resume", "--steps", "3")...)
	if status != 1 || !strings.Contains(stderr, "cannot resume on other data") {
		t.Errorf("other labels: status %d, %s", status, stderr)
	}
}

// TestPlansOfFamilies plans every model that there is, at a small batch, with memory
// for all results.
func TestPlansOfFamilies(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking them takes minutes, and package plan has its own tests with invariants")
	}
	for _, f := range families() {
		for _, model := range f.models {
			status, stdout, stderr := headroom("plan", "--model", model, "--task", string(f.task), "--batch", "1", "--device", "null:64GiB", "--json")
			var p plan.Plan
			if err := json.Unmarshal([]byte(stdout), &p); status != 0 || err != nil || !p.Chosen.Fits || !p.Tried[0].Fits || p.Tried[0].Description != "plain" || len(p.Tried) > 2 || p.Chosen.Description != p.Tried[len(p.Tried)-1].Description {
				t.Errorf("%s %s: status %d, %v, %+v\n%s", model, f.task, status, err, p.Chosen, stderr)
			}
		}
	}
	if status, _, stderr := headroom("plan", "--model", "resnet18", "--batch", "auto", "--image", "64", "--classes", "10", "--device", "null:512MiB"); status != 0 || !strings.Contains(stderr, "samples are the most that fit") {
		t.Errorf("automatic batch: %s", stderr)
	}
}
