package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/tensor"
)

// TestPrecisionAuto: on the host steps compute in float32 where that fits; a run in
// bfloat16, which a plan chose, goes on in that, whatever would be chosen now.
func TestPrecisionAuto(t *testing.T) {
	dir := t.TempDir()
	data, file := text(t), filepath.Join(dir, "plan.json")
	roomy := filepath.Join(dir, "roomy")
	status, _, stderr := headroom(small(data, roomy, "--precision", "auto")...)
	if status != 0 || !strings.Contains(stderr, "precision  float32, the faster") || summary(t, roomy).Precision != tensor.Float32 {
		t.Errorf("status %d, %s", status, stderr)
	}

	step := []string{"--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--device", "host:32MiB"}
	if status, _, stderr := headroom(append([]string{"plan", "--precision", "bfloat16", "--out", file}, step...)...); status != 0 {
		t.Fatal(stderr)
	}
	planned := filepath.Join(dir, "planned")
	if status, _, stderr := headroom(small(data, planned, "--plan", file)...); status != 2 || !strings.Contains(stderr, "steps in bfloat16, not in float32") {
		t.Errorf("a plan for bfloat16 in float32: status %d, %s", status, stderr)
	}
	for _, more := range [][]string{{"--precision", "auto", "--plan", file}, {"--precision", "auto", "--resume", "--steps", "5"}} {
		status, _, stderr := headroom(small(data, planned, more...)...)
		if s := summary(t, planned); status != 0 || s.Precision != tensor.BFloat16 || s.MeasuredPeakBytes != s.PredictedPeakBytes {
			t.Errorf("%v: status %d, %+v, %s", more, status, s, stderr)
		}
	}

	for _, more := range [][]string{{"--batch", "auto"}, {"--lengths", "2"}, {"--devices", "2xhost:32MiB"}} {
		args := []string{"train", "--model", "gpt2-nano", "--data", data, "--out", filepath.Join(dir, "none"), "--precision", "auto"}
		if status, _, stderr := headroom(append(args, more...)...); status != 2 || !strings.Contains(stderr, "--precision auto") {
			t.Errorf("%v: status %d, %s", more, status, stderr)
		}
	}
	for _, more := range []string{"--curve", "--max-batch", "--calibrate"} {
		if status, _, stderr := headroom("plan", "--precision", "auto", more); status != 2 || !strings.Contains(stderr, "--precision auto is for a step") {
			t.Errorf("%s: status %d, %s", more, status, stderr)
		}
	}
}
