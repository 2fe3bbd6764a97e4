package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// headroom runs a command line in this process.
func headroom(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(args, &out, &err)
	return status, out.String(), err.String()
}

// text writes a file of text to train on.
func text(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 200)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// small is a training job that takes a moment.
func small(data, out string, more ...string) []string {
	return append([]string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--steps", "3", "--device", "host:32MiB", "--data", data, "--out", out}, more...)
}

func TestTrainWritesItsFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	data := text(t)
	status, stdout, stderr := headroom(small(data, out, "--profile")...)
	if status != 0 {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, want := range []string{"a plain step needs", "predicted peak", "measured peak", out} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for _, name := range []string{"summary.json", "metrics.jsonl", train.SnapshotFile, train.ProfileFile, train.TablesFile, train.PictureFile, train.CheckpointFile, "model.safetensors", "config.json"} {
		if i, err := os.Stat(filepath.Join(out, name)); err != nil || i.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := summary(t, out)
	if s.MeasuredPeakBytes != s.PredictedPeakBytes || s.MeasuredPeakBytes == 0 || s.MeasuredReservedBytes > s.BudgetBytes || s.Steps != 3 {
		t.Errorf("summary %+v", s)
	}
	if status, _, stderr := headroom(small(data, out)...); status != 2 || !strings.Contains(stderr, "already holds a checkpoint") {
		t.Errorf("a second run in the folder: status %d, %s", status, stderr)
	}
}

func summary(t *testing.T, dir string) train.Summary {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s train.Summary
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBadInput: each is a clear message, the right status, and leaves nothing.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken.safetensors")
	if err := os.WriteFile(broken, []byte("not a model at all"), 0o644); err != nil {
		t.Fatal(err)
	}
	data, out := text(t), filepath.Join(dir, "out")
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"trian"}, 2, `unknown command "trian": did you mean train? headroom --help lists the commands`},
		{[]string{"fit"}, 2, `unknown command "fit": headroom --help lists the commands`},
		{[]string{"train", "--stpes", "3"}, 2, "unknown flag: --stpes"},
		{[]string{"train", "extra"}, 2, `takes no argument "extra"`},
		{[]string{"train", "--steps", "many"}, 2, `--steps "many" is no whole number`},
		{[]string{"train", "--seed", "-1"}, 2, `--seed "-1" is no whole number`},
		{[]string{"help", "trian"}, 2, `unknown command "trian": did you mean train?`},
		{small(data, out, "--device", "tpu:0"), 2, `unknown device "tpu:0"`},
		{small(data, out, "--device", "host:lots"), 2, "lots"},
		{small(data, out, "--device", "null:1GiB"), 2, "null:1GiB computes nothing"},
		{small(data, out, "--model", "gpt5"), 2, `unknown model "gpt5": the models are gpt2-nano`},
		{small(data, out, "--device", "host:2MiB"), 1, "it needs at least"},
		{small(data, out, "--seq", "4096"), 2, "sequence length is 4096"},
		{small(data, out, "--batch", "0"), 2, "batch is 0"},
		{small(empty, out), 1, "empty"},
		{[]string{"train", "--data", filepath.Join(dir, "nowhere"), "--out", out}, 2, "nowhere: there is no such file or folder"},
		{[]string{"train", "--model", "resnet-mini", "--data", dir, "--out", out}, 2, "--data " + dir},
		{[]string{"train", "--data", short, "--out", out}, 1, "5 tokens"},
		{small(data, out, "--weights", broken), 2, "broken.safetensors"},
		{small(data, out, "--resume"), 2, "no checkpoint to go on from"},
		{[]string{"plan", "--device", "null:10MiB"}, 1, "it needs at least"},
	} {
		status, stdout, stderr := headroom(test.args...)
		if status != test.status || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("headroom %s: status %d, want %d with %q on standard error\n%s%s", strings.Join(test.args, " "), status, test.status, test.want, stdout, stderr)
		}
		if _, err := os.Stat(filepath.Join(out, train.CheckpointFile)); err == nil {
			t.Errorf("headroom %s: a checkpoint was left", strings.Join(test.args, " "))
		}
	}
}

// TestCheckpointOfAnotherModel: going on with other settings is refused, and
// says which differ.
func TestCheckpointOfAnotherModel(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	data := text(t)
	if status, _, stderr := headroom(small(data, out)...); status != 0 {
		t.Fatal(stderr)
	}
	status, _, stderr := headroom("train", "--resume", "--out", out, "--data", data, "--model", "gpt2-mini", "--batch", "8", "--tune=false")
	for _, want := range []string{"tune: true in the checkpoint, false asked", "gpt2.n_embd: 128 in the checkpoint, 256 asked", "batch: 4 in the checkpoint, 8 asked"} {
		if status != 2 || !strings.Contains(stderr, want) {
			t.Errorf("status %d, want 2 with %q: %s", status, want, stderr)
		}
	}
	if status, stdout, stderr := headroom("train", "--resume", "--out", out, "--data", data, "--device", "host:32MiB"); status != 0 || !strings.Contains(stdout, "is finished: 3 steps") {
		t.Errorf("a finished run: status %d\n%s%s", status, stdout, stderr)
	}
}

// TestResumeConcludes: what a run had no time for after its last checkpoint is done when it
// goes on, whatever a crash has left in the metrics.
func TestResumeConcludes(t *testing.T) {
	out, data := filepath.Join(t.TempDir(), "run"), text(t)
	if status, _, stderr := headroom(small(data, out, "--validation", "0.2")...); status != 0 {
		t.Fatal(stderr)
	}
	model, metrics := filepath.Join(out, "model.safetensors"), filepath.Join(out, "metrics.jsonl")
	before, score := sum(t, model), summary(t, out).ValidationLoss
	lines, err := os.ReadFile(metrics)
	if err = errors.Join(err, os.WriteFile(metrics, append(lines, make([]byte, 2<<20)...), 0o644), os.Remove(model), os.Remove(filepath.Join(out, "summary.json"))); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := headroom("train", "--resume", "--out", out, "--data", data, "--validation", "0.2", "--device", "host:32MiB")
	if s := summary(t, out); status != 0 || sum(t, model) != before || s.ValidationLoss != score || s.Steps != 3 || score == 0 {
		t.Errorf("status %d, loss kept back %g, had been %g\n%s", status, s.ValidationLoss, score, stderr)
	}
	if after, err := os.ReadFile(metrics); err != nil || !bytes.Equal(after, lines) {
		t.Errorf("metrics of %d bytes, had been %d: %v", len(after), len(lines), err)
	}
}

// sum is the hash of a file.
func sum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// TestInterrupt sends signals to a running job: it finishes its step, saves, says how to
// go on, and going on gives what an undisturbed run gives. So it is when the terminal
// goes, of which a shell tells once more.
func TestInterrupt(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "headroom")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, whole := text(t), filepath.Join(t.TempDir(), "whole")
	job := func(out string) []string { return small(data, out, "--steps", "40") }
	if status, _, stderr := headroom(job(whole)...); status != 0 {
		t.Fatal(stderr)
	}
	want := sum(t, filepath.Join(whole, "model.safetensors"))
	for _, signals := range [][]os.Signal{{syscall.SIGINT}, {syscall.SIGHUP, syscall.SIGHUP}} {
		if signal.Ignored(signals[0]) {
			continue // by who started this test
		}
		cut := filepath.Join(t.TempDir(), "cut")
		how := interrupted(t, exec.Command(bin, job(cut)...), signals)
		if how == nil || !summary(t, cut).Interrupted {
			t.Fatalf("%v: it was not interrupted, or does not say how to go on: %q", signals, how)
		}
		if status, _, stderr := headroom(strings.Fields(how[1])...); status != 0 {
			t.Fatal(stderr)
		}
		if sum(t, filepath.Join(cut, "model.safetensors")) != want {
			t.Errorf("%v: the resumed run gives another model", signals)
		}
	}
	unheard := filepath.Join(t.TempDir(), "unheard")
	if err := runUnheard(exec.Command(bin, job(unheard)...)); err != nil || sum(t, filepath.Join(unheard, "model.safetensors")) != want {
		t.Errorf("where nobody reads what it says, a run ends with %v, or with another model", err)
	}
}

// runUnheard runs a command whose standard error nobody reads.
func runUnheard(cmd *exec.Cmd) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stderr = w
	err = errors.Join(cmd.Start(), r.Close(), w.Close())
	return errors.Join(err, cmd.Wait())
}

// interrupted sends signals to a training in its second step, and gives what it says
// of how to go on.
func interrupted(t *testing.T, cmd *exec.Cmd, signals []os.Signal) (how []string) {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	goOn := regexp.MustCompile(`which is saved; to go on: headroom (train --resume .*)`)
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		how = goOn.FindStringSubmatch(lines.Text())
		for _, s := range signals {
			if !strings.HasPrefix(lines.Text(), "step 2/") {
				break
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v: %v", signals, err)
	}
	return how
}

// TestHelpOnATerminal: flags go on below where they begin, and nothing is wider than
// the terminal.
func TestHelpOnATerminal(t *testing.T) {
	var out bytes.Buffer
	root := rootCommand(&out, &out)
	root.SetUsageTemplate(usageTemplate(70))
	root.SetArgs([]string{"plan", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(out.String(), "\nFlags:\n")
	if n := strings.Count(flags, "\n"); n < 40 {
		t.Errorf("%d lines of flags\n%s", n, flags)
	}
	for line := range strings.Lines(flags) {
		if len(line) > 71 {
			t.Errorf("a line of %d: %s", len(line), line)
		}
	}
}

func TestPlanAsJSON(t *testing.T) {
	status, stdout, stderr := headroom("plan", "--model", "gpt2-nano", "--batch", "16", "--device", "null:20MiB", "--json")
	var p struct {
		Budget uint64 `json:"budget_bytes"`
		Chosen struct {
			Fits bool   `json:"fits"`
			Peak uint64 `json:"peak_bytes"`
		} `json:"chosen"`
	}
	if err := json.Unmarshal([]byte(stdout), &p); status != 0 || err != nil || p.Budget != 20<<20 || !p.Chosen.Fits || p.Chosen.Peak > p.Budget {
		t.Errorf("status %d, error %v, plan %+v\n%s", status, err, p, stderr)
	}
}

// TestPlanThatFitsNothing: a script is told what it would take, and can tell it from
// wrong use.
func TestPlanThatFitsNothing(t *testing.T) {
	for _, batch := range []string{"16", "auto"} {
		status, stdout, stderr := headroom("plan", "--model", "gpt2-nano", "--batch", batch, "--device", "null:4MiB", "--json")
		var small plan.TooSmallError
		if err := json.Unmarshal([]byte(stdout), &small); err != nil {
			t.Fatalf("batch %s: status %d, %v\n%s%s", batch, status, err, stdout, stderr)
		}
		if status != 1 || small.BudgetBytes != 4<<20 || small.LeastBytes <= 4<<20 || !strings.Contains(stderr, "does not fit 4MiB") {
			t.Errorf("batch %s: status %d, %+v\n%s", batch, status, small, stderr)
		}
	}
}

// TestLargestBatchIsTrained: the plan of the largest batch is one to train with.
func TestLargestBatchIsTrained(t *testing.T) {
	if invariant.Slow {
		t.Skip("package plan tests the search with invariants")
	}
	file, out := filepath.Join(t.TempDir(), "plan.json"), filepath.Join(t.TempDir(), "run")
	status, stdout, stderr := headroom("plan", "--model", "gpt2-nano", "--seq", "32", "--device", "host:15MiB", "--max-batch", "--out", file, "--json")
	var found plan.Largest
	if err := json.Unmarshal([]byte(stdout), &found); status != 0 || err != nil || found.Size < 2 {
		t.Fatalf("status %d, error %v, %+v\n%s", status, err, found, stderr)
	}
	status, _, stderr = headroom(small(text(t), out, "--device", "host:15MiB", "--batch", fmt.Sprint(found.Size), "--plan", file)...)
	if s := summary(t, out); status != 0 || s.Batch != found.Size || s.MeasuredPeakBytes != found.Fits.PeakBytes || s.MeasuredReservedBytes != found.Fits.ReservedBytes {
		t.Errorf("status %d, found %+v, trained %+v\n%s", status, found, s, stderr)
	}
}

// TestPlanMisuse refuses two questions at once, answers that aren't there, and plans
// that are none.
func TestPlanMisuse(t *testing.T) {
	none := filepath.Join(t.TempDir(), "plan.json")
	for want, args := range map[string][]string{
		"give one of them":    {"--max-batch", "--max-seq"},
		"different questions": {"--curve", "--max-seq"},
		"look for the same":   {"--max-batch", "--batch", "auto"},
		"neither images":      {"--image", "3"},
		"has no sequences":    {"--max-seq", "--model", "resnet-mini"},
		"leave --curve out":   {"--curve", "--out", none},
		"unknown device":      {"--devices", "0xnull:64MiB"},
		"give --curve, too":   {"--svg", none},
	} {
		args = append([]string{"plan", "--model", "gpt2-nano", "--device", "null:64MiB"}, args...)
		if status, _, stderr := headroom(args...); status != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, %q, want %q", args, status, stderr, want)
		}
	}
	for _, content := range []string{"", "{", "{}", "null", "\x80\x04", `{"step": 1}`} {
		if err := os.WriteFile(none, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		status, _, stderr := headroom(small(text(t), filepath.Join(t.TempDir(), "run"), "--plan", none)...)
		if status != 2 || !strings.Contains(stderr, "holds no plan, or not all of one") {
			t.Errorf("plan %q: status %d, %q", content, status, stderr)
		}
	}
}

func TestDoctor(t *testing.T) {
	status, stdout, _ := headroom("doctor")
	if status != 0 || !strings.Contains(stdout, "host") || !strings.Contains(stdout, "libcuda") {
		t.Errorf("status %d\n%s", status, stdout)
	}
	status, _, stderr := headroom("plan", "--device", "cuda:0,1GiB", "--model", "gpt2-nano") // may well find a GPU
	if missing := strings.Contains(stderr, "library not found"); missing != (status != 0 && strings.Contains(stderr, "Install the NVIDIA driver")) {
		t.Errorf("status %d\n%s", status, stderr)
	}
}

// TestREADME runs every command that the README shows, shortened by flags that
// make the runs brief.
func TestREADME(t *testing.T) {
	if invariant.Slow {
		t.Skip("it would take minutes, and the packages have their own tests with invariants")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	ourselves(t) // launch starts this program
	commands := regexp.MustCompile(`(?m)^(?:go run ./cmd/)?headroom (.*?)(?:\s+#.*)?$`).FindAllStringSubmatch(string(readme), -1)
	if len(commands) < 5 {
		t.Fatalf("found %d commands in the README", len(commands))
	}
	runs := t.TempDir()
	for _, c := range commands {
		var args []string
		for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(strings.ReplaceAll(c[1], "runs/", runs+"/"), -1) {
			args = append(args, strings.Trim(word, "'"))
		}
		if strings.Contains(c[1], "fashion-mnist") {
			t.Logf("not run here, but by TestFashionMNIST: headroom %s", c[1])
			continue
		}
		if (args[0] == "train" || args[0] == "launch") && !strings.Contains(c[1], "--resume") {
			args = append(args, "--steps", "1")
			if !strings.Contains(c[1], "--batch") && !strings.Contains(c[1], "--plan") {
				args = append(args, "--batch", "4") // for time's sake
			}
		}
		if args[0] == "train" && !strings.Contains(c[1], "--out") {
			args = append(args, "--out", filepath.Join(runs, "default"))
		}
		if status, stdout, stderr := headroom(args...); status != 0 {
			t.Errorf("headroom %s: status %d\n%s%s", strings.Join(args, " "), status, stdout, stderr)
		}
	}
}

// TestAutomaticBatch plans and trains with the largest batch that fits.
func TestAutomaticBatch(t *testing.T) {
	var out, progress bytes.Buffer
	if code := run([]string{"plan", "--batch", "auto", "--seq", "32", "--device", "null:128MiB", "--json"}, &out, &progress); code != 0 {
		t.Fatalf("exit %d: %s", code, &progress)
	}
	var p plan.Plan
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if !p.Chosen.Fits || p.Chosen.Description != "plain" || !strings.Contains(progress.String(), "are the most that fit") {
		t.Errorf("chosen %+v; %s", p.Chosen, &progress)
	}
	for _, args := range [][]string{{"plan", "--batch", "many"}, {"train", "--resume", "--out", t.TempDir(), "--batch", "auto"}} {
		if code := run(args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%q: exit %d, want 2", args, code)
		}
	}
}
