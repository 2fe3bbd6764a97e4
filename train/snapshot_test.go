package train

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestStrangeSnapshots: what a run of more ranks has left goes as a run begins, and
// nothing else.
func TestStrangeSnapshots(t *testing.T) {
	r := &Run{Dir: t.TempDir()}
	kept := []string{"memory.01.pickle", "memory.1.pickle.gz", "memory.99999999999999999999.pickle", "memory.pickle", "memory.x.pickle"}
	for _, name := range append([]string{"memory.1.pickle", "memory.12.pickle"}, kept...) {
		if err := os.WriteFile(filepath.Join(r.Dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	metrics, err := r.openMetrics()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(metrics.Close(), r.release()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(r.Dir, "memory*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if err != nil || !slices.Equal(left, kept) {
		t.Errorf("%q are left, want %q (%v)", left, kept, err)
	}
}
