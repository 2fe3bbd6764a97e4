package data

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// asNobody runs f without root's right to read every file.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() == 0 { // the rights to files are a thread's own
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Skipf("NOT TESTED without permission: %v", err)
		}
		defer func() {
			if err := syscall.Setfsuid(0); err != nil {
				t.Fatal(err)
			}
		}()
	}
	f()
}

func TestPermission(t *testing.T) {
	root := makeTree(t, "ok", "ok", "sub/locked", "x", "shut/in", "x")
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sub/locked", "shut"} {
		path := filepath.Join(root, name)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
		asNobody(t, func() {
			for _, load := range []string{path, filepath.Dir(path)} {
				_, err := Load(t.Context(), []string{load}, Bytes{})
				if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), name) {
					t.Errorf("load %s: got %v", load, err)
				}
			}
		})
	}
}

// TestReadError loads a file that opens and does not read.
func TestReadError(t *testing.T) {
	if _, err := Load(t.Context(), []string{"/proc/self/mem"}, Bytes{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
}
