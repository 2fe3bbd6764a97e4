package atomicfile

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk writes to a file system of 64 KiB until it is full.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=65536"); err != nil {
		t.Skipf("NOT TESTED on a full disk: cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "f")
	old := strings.Repeat("o", 20000)
	if err := Write(path, text(old)); err != nil {
		t.Fatal(err)
	}
	err := Write(path, func(w io.Writer) error {
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return err
			}
		}
	})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	checkFolder(t, dir, "f", old)
	if err := Write(path, text("smaller")); err != nil {
		t.Fatalf("after the failure: %v", err)
	}
	checkFolder(t, dir, "f", "smaller")
}
