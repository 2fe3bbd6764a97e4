package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/trace"
)

// exports are files for other tools to write beside a report; empty names are
// not written.
type exports struct{ pprof, perfetto string }

// refuse is an error if one of the files is the input or another one of them:
// it would be written over.
func (x exports) refuse(input os.FileInfo) error {
	if x.pprof != "" && sameFile(x.pprof, x.perfetto) {
		return usagef("--pprof and --perfetto name the same file, %s", x.pprof)
	}
	for _, path := range []string{x.pprof, x.perfetto} {
		if i, err := os.Stat(path); err == nil && input != nil && os.SameFile(i, input) {
			return usagef("%s is the input, which would be written over: name another file", path)
		}
	}
	return nil
}

// sameFile says whether two names are of one file, also where it is not there
// yet.
func sameFile(a, b string) bool {
	i, errA := os.Stat(a)
	j, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(i, j)
	}
	fullA, errA := filepath.Abs(a)
	fullB, errB := filepath.Abs(b)
	return b != "" && errA == nil && errB == nil && fullA == fullB
}

// write writes the files about a device.
func (x exports) write(s *trace.Snapshot, device int) error {
	file := func(path string, write func(io.Writer, *trace.Snapshot, int) error) error {
		if path == "" {
			return nil
		}
		return atomicfile.Write(path, func(w io.Writer) error { return write(w, s, device) })
	}
	return errors.Join(file(x.pprof, inspect.WritePprof), file(x.perfetto, inspect.WritePerfetto))
}
