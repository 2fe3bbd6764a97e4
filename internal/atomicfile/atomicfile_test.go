package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// checkFolder fails unless dir holds exactly the given files (name, content, ...).
func checkFolder(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Name(), string(b))
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("folder holds %q, want %q", got, want)
	}
}

func TestWriteCreatesAndReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, s := range []string{"one", "", "three"} {
		if err := Write(path, text(s)); err != nil {
			t.Fatal(err)
		}
		checkFolder(t, dir, "f", s)
	}
}

func TestWriteKeepsPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no permission bits on Windows")
	}
	path := filepath.Join(t.TempDir(), "f")
	for _, perm := range []fs.FileMode{0o600, 0o640, 0o777} {
		if err := Write(path, text("old")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, text("new")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != perm {
			t.Errorf("permissions %v, %v, want %v", info.Mode(), err, perm)
		}
	}
}

func TestWriteFollowsLinks(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(links, "l")
	if err := Write(path, text("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Skip("cannot make a symbolic link:", err)
	}
	if err := Write(link, text("new")); err != nil {
		t.Fatal(err)
	}
	checkFolder(t, dir, "f", "new")
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("link is %q, %v, want %q", to, err, path)
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, text("x")); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("folder as target: %v", err)
	}
	err := Write(filepath.Join(dir, "none", "f"), text("x"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder missing: %v", err)
	}
	if err := Write("", text("x")); err == nil || !strings.Contains(err.Error(), "no file is named") {
		t.Errorf("no name: %v", err)
	}
	checkFolder(t, dir)
}

func TestWriterErrorLeavesOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := Write(path, text("old")); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := Write(path, func(w io.Writer) error {
		if _, err := w.Write(bytes.Repeat([]byte("new"), 10000)); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v, want %v", err, boom)
	}
	checkFolder(t, dir, "f", "old")
}

// faults counts the requests to the system and fails one of them.
type faults struct {
	count, failAt int
	failed        string
}

var errFault = errors.New("injected")

func (f *faults) next(what string) error {
	f.count++
	if f.count == f.failAt {
		f.failed = what
		return errFault
	}
	return nil
}

type faultyFile struct {
	file   file
	faults *faults
}

func (f faultyFile) Write(p []byte) (int, error) {
	if err := f.faults.next("write"); err != nil {
		n, _ := f.file.Write(p[:len(p)/2])
		return n, err
	}
	return f.file.Write(p)
}

func (f faultyFile) Chmod(perm fs.FileMode) error {
	return errors.Join(f.faults.next("chmod"), f.file.Chmod(perm))
}

func (f faultyFile) Sync() error  { return errors.Join(f.faults.next("sync"), f.file.Sync()) }
func (f faultyFile) Close() error { return errors.Join(f.faults.next("close"), f.file.Close()) }

func (f *faults) system() system {
	return system{
		create: func(name string, perm fs.FileMode) (file, error) {
			if err := f.next("create"); err != nil {
				return nil, err
			}
			opened, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
			return faultyFile{opened, f}, err
		},
		rename: func(from, to string) error {
			if err := f.next("rename"); err != nil {
				return err
			}
			return os.Rename(from, to)
		},
		remove:  os.Remove,
		syncDir: func(dir string) error { return errors.Join(f.next("syncDir"), syncDir(dir)) },
	}
}

// TestFaults fails each request to the system in turn: the old content stays
// and no temporary file does, until the rename has happened.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	twice := func(w io.Writer) error { return errors.Join(text("ne")(w), text("w")(w)) }
	var failed []string
	for failAt := 1; ; failAt++ {
		if err := os.WriteFile(path, []byte("old"), 0o666); err != nil {
			t.Fatal(err)
		}
		f := &faults{failAt: failAt}
		err := f.system().write(path, twice)
		if f.failed == "" {
			if err != nil {
				t.Fatalf("no fault, yet %v", err)
			}
			checkFolder(t, dir, "f", "new")
			break
		}
		failed = append(failed, f.failed)
		if !errors.Is(err, errFault) {
			t.Fatalf("fault at %s gave %v", f.failed, err)
		}
		if f.failed == "syncDir" {
			checkFolder(t, dir, "f", "new")
			continue
		}
		checkFolder(t, dir, "f", "old")
	}
	if got, want := strings.Join(failed, " "), "create chmod write write sync close rename syncDir"; got != want {
		t.Errorf("faults hit %q, want %q", got, want)
	}
}

func TestPanicLeavesNoTemporary(t *testing.T) {
	dir := t.TempDir()
	func() {
		defer func() { _ = recover() }()
		_ = Write(filepath.Join(dir, "f"), func(io.Writer) error { panic("boom") })
	}()
	checkFolder(t, dir)
}

func TestRemoveFailureIsReported(t *testing.T) {
	f := &faults{failAt: 2} // the first write
	s := f.system()
	errRemove := errors.New("cannot remove")
	s.remove = func(string) error { return errRemove }
	err := s.write(filepath.Join(t.TempDir(), "f"), text("x"))
	if !errors.Is(err, errFault) || !errors.Is(err, errRemove) {
		t.Errorf("got %v, want both errors", err)
	}
}
