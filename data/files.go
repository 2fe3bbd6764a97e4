package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sniffed is how many bytes of a file decide whether it is text.
const sniffed = 8 << 10

// textFile is a text file to load.
type textFile struct {
	path string
	size int64
}

// find lists the text files at paths, which name files and folders. Folders are
// searched recursively in the order of names.
func find(ctx context.Context, paths []string) ([]textFile, Skipped, error) {
	var f finder
	for _, path := range paths {
		if err := f.add(ctx, path); err != nil {
			return nil, Skipped{}, err
		}
	}
	return f.sources, f.skipped, nil
}

type finder struct {
	sources []textFile
	skipped Skipped
}

// add takes a path that the user named: a link is followed, and a hidden name
// is as good as another.
func (f *finder) add(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no file or folder %s", path)
	}
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return f.walk(ctx, path)
	case info.Mode().IsRegular():
		return f.file(path)
	}
	return fmt.Errorf("%s is neither a file nor a folder (%v)", path, info.Mode().Type())
}

func (f *finder) walk(ctx context.Context, root string) error {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case path != root && strings.HasPrefix(entry.Name(), "."):
			f.skipped.Hidden++
			if entry.IsDir() {
				return filepath.SkipDir
			}
		case entry.IsDir():
		case entry.Type().IsRegular():
			return f.file(path)
		default:
			f.skipped.Irregular++
		}
		return nil
	})
}

// file adds a regular file unless it is empty or binary.
func (f *finder) file(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	head := make([]byte, sniffed)
	n, err := io.ReadFull(file, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case n == 0:
		f.skipped.Empty++
	case bytes.IndexByte(head[:n], 0) >= 0:
		f.skipped.Binary++
	default:
		f.sources = append(f.sources, textFile{path, info.Size()})
	}
	return nil
}
