// Package atomicfile replaces files so that a reader sees the old content or
// the new content, never a part, whatever fails and whenever the power goes.
//
// The new content goes to a temporary file in the same folder, which is
// flushed to the disk and then renamed over the old file; last, the folder is
// flushed, so that the rename is on the disk too. A process killed in between
// leaves a file named .headroom-*.tmp beside the old one, which Clean removes.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write replaces the file at path, or creates it, with what write writes. An
// existing file keeps its permissions, and a symbolic link stays a link to
// the file that is replaced. After an error the old file is as it was and the
// temporary file is gone, with one exception: when only the folder cannot be
// flushed, the new file is in place and the error says so.
//
// Concurrent calls for one path are safe; the last one wins.
func Write(path string, write func(w io.Writer) error) error {
	return system{
		create: func(name string, perm fs.FileMode) (file, error) {
			return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		},
		rename:  os.Rename,
		remove:  os.Remove,
		syncDir: syncDir,
	}.write(path, write)
}

// Clean removes the temporary files that killed processes left in a folder. No
// other process may be writing there.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, ".headroom-") && strings.HasSuffix(name, ".tmp") {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}

// system is what Write asks of the operating system, so that tests can let
// each request fail.
type system struct {
	create  func(name string, perm fs.FileMode) (file, error)
	rename  func(from, to string) error
	remove  func(name string) error
	syncDir func(dir string) error
}

type file interface {
	io.Writer
	Chmod(perm fs.FileMode) error
	Sync() error
	Close() error
}

func (s system) write(path string, write func(w io.Writer) error) error {
	target, perm, exists, err := resolve(path)
	if path == "" {
		err = errors.New("no file is named")
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	dir := filepath.Dir(target)
	temp := filepath.Join(dir, ".headroom-"+rand.Text()+".tmp")
	if err := s.replace(temp, target, perm, exists, write); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := s.syncDir(dir); err != nil {
		return fmt.Errorf("write %s: the new file is in place, but a power failure may still undo it: flush folder: %w", path, err)
	}
	return nil
}

// replace fills temp and renames it to target. On an error temp is gone.
func (s system) replace(temp, target string, perm fs.FileMode, exists bool, write func(io.Writer) error) (err error) {
	f, err := s.create(temp, perm)
	if err != nil {
		return err
	}
	done := false // stays false also when write panics
	defer func() {
		if done {
			return
		}
		if removeErr := s.remove(temp); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("the temporary file is left behind: %w", removeErr))
		}
	}()
	if err := fill(f, perm, exists, write); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := s.rename(temp, target); err != nil {
		return err
	}
	done = true
	return nil
}

func fill(f file, perm fs.FileMode, exists bool, write func(io.Writer) error) error {
	if exists { // against the umask, which applies to new files alone
		if err := f.Chmod(perm); err != nil {
			return err
		}
	}
	if err := write(f); err != nil {
		return err
	}
	return f.Sync()
}

// resolve follows symbolic links and gives the path to replace and its
// permissions.
func resolve(path string) (target string, perm fs.FileMode, exists bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, 0o666, false, nil
	}
	if err != nil {
		return "", 0, false, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, false, fmt.Errorf("it exists and is no regular file (%v)", info.Mode().Type())
	}
	target, err = filepath.EvalSymlinks(path)
	return target, info.Mode().Perm(), true, err
}
