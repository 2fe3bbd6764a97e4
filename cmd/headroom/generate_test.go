package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerate continues texts with a trained model: the same in one run and in
// runs of their own, on more or less memory, as text and as JSON.
func TestGenerate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if status, _, stderr := headroom(small(text(t), dir)...); status != 0 {
		t.Fatal(stderr)
	}
	prompts := []string{"The quick brown fox", "The quick", ""}
	file := filepath.Join(t.TempDir(), "prompts")
	if err := os.WriteFile(file, []byte(strings.Join(prompts, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	common := []string{"generate", "--model", dir, "--max-tokens", "30", "--seed", "5", "--top-k", "20"}
	status, stdout, stderr := headroom(append(common, "--prompts", file, "--device", "host:64MiB", "--json")...)
	var report generated
	if err := json.Unmarshal([]byte(stdout), &report); status != 0 || err != nil {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if report.BudgetBytes != 64<<20 || report.ParameterBytes == 0 || report.PeakBytes <= report.ParameterBytes || report.PeakBytes > report.ReservedBytes ||
		report.Cache.Peak.UsedBytes == 0 || report.Cache.Generated != 90 || len(report.Texts) != 3 {
		t.Errorf("report %+v", report)
	}
	var want strings.Builder
	for i, c := range report.Texts {
		var raw []byte // of a model of bytes
		for _, k := range c.Tokens {
			raw = append(raw, byte(k))
		}
		if c.Prompt != prompts[i] || len(raw) != 30 || c.End != "length" {
			t.Errorf("text %d: %+v", i, c)
		}
		want.WriteString(c.Prompt + string(raw) + []string{"\n\n", "\n\n", "\n"}[i])
	}
	status, stdout, stderr = headroom(append(common, "--prompts", file, "--device", "host:10MiB")...)
	if status != 0 || stdout != want.String() || !strings.Contains(stderr, "tokens  90 in") {
		t.Errorf("status %d, texts\n%q, want\n%q\n%s", status, stdout, want.String(), stderr)
	}
	first, _, _ := strings.Cut(want.String(), "\n\n")
	status, stdout, _ = headroom(append(common, "--prompt", prompts[0], "--device", "host:64MiB")...)
	if status != 0 || !strings.HasPrefix(stdout, first) {
		t.Errorf("status %d, text %q, want %q", status, stdout, first)
	}
}

func TestGenerateMisuse(t *testing.T) {
	dir, large := t.TempDir(), t.TempDir()
	for folder, config := range map[string]string{dir: `{"model_type": "bert"}`, large: strings.Repeat(" ", 2<<20)} {
		if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for want, args := range map[string][]string{
		"--model DIR or NAME is missing": {"--prompt", "x"},
		"no text to continue":            {"--model", "gpt2-nano"},
		"no folder and no name":          {"--model", "nope", "--prompt", "x"},
		`type "bert"`:                    {"--model", dir, "--prompt", "x"},
		"config.json has more than 1MiB": {"--model", large, "--prompt", "x"},
		"computes nothing":               {"--model", "gpt2-nano", "--prompt", "x", "--device", "null:1GiB"},
		"the model sees at most":         {"--model", "gpt2-nano", "--prompt", strings.Repeat("x", 200), "--device", "host:64MiB"},
		"temperature -1":                 {"--model", "moe-nano", "--prompt", "x", "--device", "host:64MiB", "--temperature", "-1"},
		"no such file":                   {"--model", "gpt2-nano", "--prompt", "x", "--device", "host:64MiB", "--weights", filepath.Join(dir, "none")},
	} {
		status, _, stderr := headroom(append([]string{"generate"}, args...)...)
		if status != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%q: status %d, want an error with %q, got %s", args, status, want, stderr)
		}
	}
	if status, _, stderr := headroom("generate", "--model", "gpt2-nano", "--prompt", "x", "--device", "host:2MiB"); status != 1 || !strings.Contains(stderr, "the model does not fit") {
		t.Errorf("a device that is too small: status %d, %s", status, stderr)
	}
}
