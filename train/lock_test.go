//go:build unix

package train

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneRunPerFolder opens the metrics of a folder twice, beside what a killed
// run left.
func TestOneRunPerFolder(t *testing.T) {
	r := &Run{Dir: t.TempDir()}
	left := filepath.Join(r.Dir, ".headroom-X.tmp")
	if err := os.WriteFile(left, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	first, err := r.openMetrics()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a half-written file is still there")
	}
	if _, err := io.WriteString(first, "line\n"); err != nil {
		t.Fatal(err)
	}
	other := &Run{Dir: r.Dir, resumed: true}
	if err := other.acquire(); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a second run: %v", err)
	}
	if i, err := os.Stat(r.metricsPath()); err != nil || i.Size() != 5 {
		t.Errorf("the second run changed the first one's metrics: %v, %v", i, err)
	}
	if err := errors.Join(first.Close(), r.release()); err != nil {
		t.Fatal(err)
	}
	second, err := other.openMetrics()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(second.Close(), other.release()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, CheckpointFile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	late := &Run{Dir: r.Dir} // was planned while the first one ran
	if _, err := late.openMetrics(); err == nil || !strings.Contains(err.Error(), "holds the checkpoint of another run by now") {
		t.Errorf("a run that begins where another one has ended: %v", err)
	}
	if i, err := os.Stat(r.metricsPath()); err != nil || i.Size() != 5 {
		t.Errorf("it changed the first one's metrics: %v, %v", i, err)
	}
}
