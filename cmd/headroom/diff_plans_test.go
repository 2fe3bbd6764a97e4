package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/plan"
)

// TestDiffPlans compares plans for two budgets: what is said of each is what it says of
// itself.
func TestDiffPlans(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, args ...string) (string, *plan.Plan) {
		path := filepath.Join(dir, name)
		if status, _, stderr := headroom(append([]string{"plan", "--model", "gpt2-nano", "--batch", "16", "--out", path}, args...)...); status != 0 {
			t.Fatal(stderr)
		}
		p, err := plan.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		return path, p
	}
	plain, a := write("plain.json", "--device", "null:64MiB")
	small, b := write("small.json", "--device", "null:20MiB")
	status, stdout, stderr := headroom("diff", plain, small)
	if status != 0 || !strings.Contains(stdout, a.Chosen.Description) || !strings.Contains(stdout, b.Chosen.Description) {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, stderr = headroom("diff", "--json", plain, small)
	var d plan.Difference
	if err := json.Unmarshal([]byte(stdout), &d); status != 0 || err != nil || d.New.Chosen.PeakBytes != b.Chosen.PeakBytes || d.Old.Device != a.Device {
		t.Fatalf("status %d, error %v: %+v\n%s", status, err, d, stderr)
	}
	if status, _, stderr := headroom("diff", plain, small, "--fail-on", "peak>5%"); status != 2 || !strings.Contains(stderr, "plans") {
		t.Errorf("--fail-on: status %d: %s", status, stderr)
	}
	if status, _, stderr := headroom("diff", plain, "../../trace/doc.go"); status != 1 || !strings.Contains(stderr, "no memory snapshot") {
		t.Errorf("a plan and another file: status %d: %s", status, stderr)
	}
}

// TestPipeIsNoPlan: what is read of a pipe is gone, so none is looked into.
func TestPipeIsNoPlan(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const plan = `{"step": "a step", "budget_bytes": 1}`
	if _, err := w.WriteString(plan); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if isPlan(fmt.Sprintf("/dev/fd/%d", r.Fd())) {
		t.Error("a pipe was taken for a plan")
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != plan {
		t.Errorf("%q is left in the pipe (%v)", text, err)
	}
}
