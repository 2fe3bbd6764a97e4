package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/plan"
)

// TestTrainLearnsRates: a run makes the file of rates and corrects it, plans take it,
// and a file that is none, or another device's, is told apart before anything is done.
func TestTrainLearnsRates(t *testing.T) {
	if invariant.Slow {
		t.Skip("runs of one device are raced by other tests, and train has invariants checked")
	}
	data, dir := verses(t), t.TempDir()
	rates := filepath.Join(dir, "rates.json")
	run := func(name string, more ...string) string {
		status, _, stderr := headroom(small(data, filepath.Join(dir, name), append(more, "--rates", rates)...)...)
		if status != 0 {
			t.Fatalf("status %d\n%s", status, stderr)
		}
		return stderr
	}
	if stderr := run("short"); !strings.Contains(stderr, "too few steps") {
		t.Errorf("three steps: %s", stderr)
	}
	if _, err := os.Stat(rates); err == nil {
		t.Error("a file was written after three steps")
	}
	var before []byte
	for _, name := range []string{"first", "second"} {
		if stderr := run(name, "--steps", "12", "--save-every", "2", "--validation", "0.1", "--eval-every", "3"); !strings.Contains(stderr, "is corrected by this run: a step was foretold") {
			t.Errorf("no word of the rates: %s", stderr)
		}
		if s := summary(t, filepath.Join(dir, name)); s.StepSeconds <= 0 || s.EstimatedStepSeconds <= 0 || s.MeasuredPeakBytes != s.PredictedPeakBytes {
			t.Errorf("summary %+v", s)
		}
		text, err := os.ReadFile(rates)
		if err != nil || string(text) == string(before) {
			t.Fatalf("the run %s left the rates as they were: %v", name, err)
		}
		before = text
	}
	if stderr := run("lengths", "--steps", "30", "--lengths", "2"); !strings.Contains(stderr, "is corrected") {
		t.Errorf("by length: %s", stderr)
	}
	job := []string{"--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--rates"}
	for _, on := range []string{"host:32MiB", "null:32MiB"} {
		if status, _, stderr := headroom(append(append([]string{"plan", "--device", on}, job...), rates)...); status != 0 {
			t.Errorf("plan on %s: status %d, %s", on, status, stderr)
		}
	}
	foreign, broken := filepath.Join(dir, "foreign.json"), filepath.Join(dir, "broken.json")
	r := plan.RatesOf(device.Info{Kind: device.CUDA, Model: "NVIDIA H200"})
	if err := r.Write(foreign); err != nil {
		t.Fatal(err)
	}
	put(t, broken, []byte("{"))
	for file, want := range map[string]string{foreign: "another device (NVIDIA H200)", broken: "unexpected EOF", filepath.Join(dir, "none.json"): "no such file"} {
		for _, command := range [][]string{{"plan", "--device", "host:32MiB"}, {"train", "--data", data, "--out", filepath.Join(dir, "no"), "--device", "host:32MiB"}} {
			if command[0] == "train" && want == "no such file" { // it will be made
				continue
			}
			status, _, stderr := headroom(append(append(command, job...), file)...)
			if status != 2 || !strings.Contains(stderr, want) {
				t.Errorf("%s with %s: status %d, want 2 with %q: %s", command[0], file, status, want, stderr)
			}
		}
	}
}

// TestRanksMeasureLink: several ranks keep how fast they exchange data, in a file that
// has the rest from before or from no run, and plans for several devices read it. Where the
// file can't be written the results of the run are there.
func TestRanksMeasureLink(t *testing.T) {
	data, dir := verses(t), t.TempDir()
	rates := filepath.Join(dir, "rates.json")
	run := func(name, rates string) (status int, stderr string) {
		status, _, stderr = headroom("train", "--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--steps", "3", "--data", data, "--out", filepath.Join(dir, name), "--devices", "host:32MiB,host:40MiB", "--rates", rates)
		return status, stderr
	}
	known := plan.HostRates(1)
	known.FlopsPerSecond = 7e9
	for name, before := range map[string]func() error{"first": func() error { return nil }, "second": func() error { return known.Write(rates) }} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		status, stderr := run(name, rates)
		if status != 0 || !strings.Contains(stderr, "ranks exchange") {
			t.Fatalf("status %d\n%s", status, stderr)
		}
		r, err := plan.ReadRates(rates, device.Info{Kind: device.Null})
		if err != nil || r.LinkBytesPerSecond <= 0 || (r.FlopsPerSecond == 7e9) != (name == "second") {
			t.Errorf("%s: the file has %.3g bytes a second between ranks, %.3g operations: %v", name, r.LinkBytesPerSecond, r.FlopsPerSecond, err)
		}
		if err := os.Remove(rates); err != nil {
			t.Fatal(err)
		}
	}
	if status, stderr := run("third", filepath.Join(dir, "none", "rates.json")); status != 1 || summary(t, filepath.Join(dir, "third")).Steps != 3 {
		t.Errorf("a folder that is not there: status %d\n%s", status, stderr)
	}
}
