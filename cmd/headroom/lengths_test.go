package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// verses writes a text of lines of 3 to 32 bytes.
func verses(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "verses")
	var text strings.Builder
	for i := range 300 {
		text.WriteString("The quick brown fox jumps over the lazy dog."[:3+i*7%30] + "\n")
	}
	put(t, path, []byte(text.String()))
	return path
}

// TestTrainByLength: the peak is the predicted one, lengths have plans of their own,
// and a run that was cut goes on as the one that was not.
func TestTrainByLength(t *testing.T) {
	if invariant.Slow {
		t.Skip("runs of one device are raced by other tests, and train has invariants checked")
	}
	data, whole, cut := verses(t), filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "cut")
	job := func(out, steps string, more ...string) []string {
		return small(data, out, append([]string{"--lengths", "3", "--validation", "0.1", "--device", "host:64MiB", "--steps", steps}, more...)...)
	}
	if status, _, stderr := headroom(job(whole, "12")...); status != 0 || !strings.Contains(stderr, "tried beside it") {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	s := summary(t, whole)
	if s.MeasuredPeakBytes != s.PredictedPeakBytes || s.MeasuredReservedBytes > s.BudgetBytes || s.ValidationLoss <= 0 {
		t.Errorf("summary %+v", s)
	}
	steps := 0
	for i, l := range s.Lengths {
		steps += l.Steps
		if i > 0 && l.Seq <= s.Lengths[i-1].Seq || l.EstimatedSeconds <= 0 {
			t.Errorf("length %+v", l)
		}
	}
	if len(s.Lengths) != 3 || s.Lengths[2].Seq != 32 || steps != 12 {
		t.Errorf("lengths %+v", s.Lengths)
	}
	if status, _, stderr := headroom(job(cut, "5")...); status != 0 {
		t.Fatal(stderr)
	}
	args := []string{"train", "--resume", "--out", cut, "--data", data, "--validation", "0.1", "--device", "host:64MiB"}
	if status, _, stderr := headroom(append(args, "--lengths", "2", "--steps", "12")...); status != 2 || !strings.Contains(stderr, "lengths: 3 in the checkpoint, 2 asked") {
		t.Errorf("other lengths: status %d, %s", status, stderr)
	}
	if status, _, stderr := headroom(append(args, "--steps", "12")...); status != 0 {
		t.Fatal(stderr)
	}
	if got := summary(t, cut); got.Steps != 12 || got.Lengths[0].Steps != s.Lengths[0].Steps || got.Lengths[1].Steps != s.Lengths[1].Steps {
		t.Errorf("the resumed run has lengths %+v, the whole %+v", got.Lengths, s.Lengths)
	}
}

// TestClassifyByLength runs on texts in classes.
func TestClassifyByLength(t *testing.T) {
	if invariant.Slow {
		t.Skip("runs of one device are raced by other tests, and train has invariants checked")
	}
	out := filepath.Join(t.TempDir(), "run")
	status, _, stderr := headroom("train", "--model", "bert-mini", "--task", "classes", "--seq", "64", "--batch", "4", "--steps", "3", "--lengths", "2",
		"--device", "host:256MiB", "--data", petTexts(t), "--out", out)
	if status != 0 {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	if s := summary(t, out); len(s.Lengths) < 2 || s.TestSamples == 0 || s.MeasuredPeakBytes > s.PredictedPeakBytes {
		t.Errorf("summary %+v", s)
	}
}

// TestLengthsRefuse: what they do not go with is wrong use.
func TestLengthsRefuse(t *testing.T) {
	data, out := verses(t), filepath.Join(t.TempDir(), "run")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--lengths", "-1"}, "number of lengths is -1"},
		{[]string{"--lengths", "99"}, "number of lengths is 99"},
		{[]string{"--lengths", "2", "--away", "1GiB"}, "--away"},
		{[]string{"--lengths", "2", "--plan", "plan.json"}, "--plan plan.json"},
		{[]string{"--lengths", "2", "--model", "moe-mini"}, "batches by length: model moe-mini"},
		{[]string{"--lengths", "2", "--devices", "host:32MiB,host:32MiB"}, "--lengths is for one device"},
	} {
		args := append([]string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--data", data, "--out", out}, test.args...)
		if status, stdout, stderr := headroom(args...); status != 2 || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("headroom %s: status %d, want 2 with %q\n%s%s", strings.Join(args, " "), status, test.want, stdout, stderr)
		}
		if _, err := os.Stat(filepath.Join(out, train.CheckpointFile)); err == nil {
			t.Errorf("headroom %s: a checkpoint was left", strings.Join(args, " "))
		}
	}
}
