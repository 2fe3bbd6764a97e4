package library

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCandidates: the loader's choice comes first, then the folders in their
// order, of a pattern's the newest first.
func TestCandidates(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"cuda-12/lib/liba.so.12", "cuda-13/lib/liba.so.13", "cuda-13/lib/liba.so.12", "other/liba.so.12"} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, c := range Candidates([]string{"liba.so.13", "liba.so.12"}, []string{filepath.Join(dir, "cuda-*/lib"), filepath.Join(dir, "other"), "/nowhere"}) {
		got = append(got, strings.TrimPrefix(c.Path, dir+"/"))
	}
	want := []string{"liba.so.13", "liba.so.12", "cuda-13/lib/liba.so.13", "cuda-13/lib/liba.so.12", "cuda-12/lib/liba.so.12", "other/liba.so.12"}
	if !slices.Equal(got, want) {
		t.Errorf("tries %q, want %q", got, want)
	}
}
