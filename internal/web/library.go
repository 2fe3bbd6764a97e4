package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/headroom-go/headroom/trace"
)

// Library is the files of a folder, read when somebody looks at them. It may be
// used from several goroutines at once.
//
// It never reads outside its folder, also not through links. One file is read
// at a time, and of those that were read it keeps the last ones, as many as its
// budget holds.
type Library struct {
	// Follow, if it is not nil, is given what a file is read from and gives
	// what to read instead; end is called when it has been read. It is set
	// before the first file is asked for.
	Follow func(name string, info fs.FileInfo, in io.Reader) (through io.Reader, end func())

	root   *os.Root
	only   string // the one file that is shown; empty: all
	budget int64  // of the open files, in bytes

	reading chan struct{} // holds one token: who has it reads
	mu      sync.Mutex
	open    []*openFile // the one used last is the last
}

// openFile is a file that was read.
type openFile struct {
	name    string
	size    int64 // of the file, and when it was written: a new one is read anew
	written int64
	cost    int64 // about the bytes that its records take
	records []*Record
}

// File is a file that can be looked at.
type File struct {
	Name  string `json:"name"` // with slashes, below the folder
	Bytes int64  `json:"bytes"`
}

// What a library lists and keeps at most.
const (
	maxFiles      = 1000
	maxOpen       = 8
	maxDepth      = 3
	defaultBudget = 1 << 30
	eventCost     = 100 // bytes of a record for each event, about
)

// OpenLibrary opens a folder, or one file whose folder's other files are not
// shown. Close ends it.
func OpenLibrary(name string) (*Library, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	l := &Library{budget: defaultBudget, reading: make(chan struct{}, 1)}
	dir := name
	if !info.IsDir() {
		dir, l.only = filepath.Dir(name), filepath.Base(name)
	}
	l.root, err = os.OpenRoot(dir)
	return l, err
}

// Close closes the folder. What was read stays readable.
func (l *Library) Close() error { return l.root.Close() }

// List gives the files that may be records: those whose names end as such files
// do, in folders up to maxDepth deep.
func (l *Library) List() ([]File, error) {
	if l.only != "" {
		info, err := l.root.Stat(l.only)
		if err != nil {
			return nil, err
		}
		return []File{{l.only, info.Size()}}, nil
	}
	files := []File{}
	err := fs.WalkDir(l.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name == ".":
			return err
		case err != nil || len(files) == maxFiles:
			return fs.SkipDir
		case d.IsDir():
			if name != "." && (strings.HasPrefix(d.Name(), ".") || strings.Count(name, "/") >= maxDepth) {
				return fs.SkipDir
			}
		case d.Type().IsRegular() && isRecordName(name):
			if info, err := d.Info(); err == nil {
				files = append(files, File{name, info.Size()})
			}
		}
		return nil
	})
	return files, err
}

// isRecordName says whether files of such a name are looked at.
func isRecordName(name string) bool {
	name = strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(name), ".gz"), ".zst")
	return slices.Contains([]string{".pickle", ".pkl", ".json", ".jsonl"}, path.Ext(name))
}

// Open gives the records of a file, which it reads if it has to. The error says
// that there is no such file below the folder, that it holds no record, or that
// ctx has ended.
func (l *Library) Open(ctx context.Context, name string) ([]*Record, error) {
	if l.only != "" && name != l.only {
		return nil, fmt.Errorf("%w: %q", fs.ErrNotExist, name)
	}
	info, err := l.root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %q is no file", fs.ErrNotExist, name)
	}
	if f := l.known(name, info); f != nil {
		return f.records, nil
	}
	select {
	case l.reading <- struct{}{}:
		defer func() { <-l.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f := l.known(name, info); f != nil {
		return f.records, nil
	}
	l.makeRoom(info.Size())
	records, err := l.read(name)
	if err != nil {
		return nil, err
	}
	l.keep(&openFile{name: name, size: info.Size(), written: info.ModTime().UnixNano(), records: records})
	return records, nil
}

func (l *Library) read(name string) (records []*Record, err error) {
	f, err := l.root.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, err := l.readShown(name, f)
	if err != nil {
		return nil, err
	}
	return Records(path.Base(name), s)
}

// readShown reads a file and lets Follow look on.
func (l *Library) readShown(name string, f *os.File) (*trace.Snapshot, error) {
	if l.Follow == nil {
		return trace.Read(f)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	in, end := l.Follow(name, info, f)
	defer end()
	return trace.Read(in)
}

// known gives a file that is open, unless it has changed, and makes it the one
// used last.
func (l *Library) known(name string, info fs.FileInfo) *openFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.open, func(f *openFile) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	f := l.open[i]
	l.open = slices.Delete(l.open, i, i+1)
	if f.size != info.Size() || f.written != info.ModTime().UnixNano() {
		return nil
	}
	l.open = append(l.open, f)
	return f
}

// keep adds a file that was read.
func (l *Library) keep(f *openFile) {
	for _, r := range f.records {
		f.cost += int64(r.moments()) * eventCost
	}
	l.makeRoom(f.cost)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, f)
}

// makeRoom forgets the files that were not used for longest until so many bytes
// more are within the budget, or nothing is left to forget.
func (l *Library) makeRoom(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.open {
		bytes += f.cost
	}
	for len(l.open) > 0 && (bytes > l.budget || len(l.open) >= maxOpen) {
		bytes -= l.open[0].cost
		l.open = slices.Delete(l.open, 0, 1)
	}
}
