package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/trace"
)

// exports are files for other tools to write beside a report; empty names are
// not written.
type exports struct{ pprof, perfetto, svg string }

func (x *exports) add(f *pflag.FlagSet) {
	f.StringVar(&x.pprof, "pprof", "", "of a snapshot: write what is live as a profile for go tool pprof to `FILE`")
	f.StringVar(&x.perfetto, "perfetto", "", "of a snapshot: write the record as a trace for ui.perfetto.dev to `FILE`")
	f.StringVar(&x.svg, "svg", "", "of a snapshot: draw live memory over time, by purpose or by call site, to `FILE`")
}

// refuse is an error if one of the files is the input or another one of them:
// it would be written over.
func (x exports) refuse(input os.FileInfo) error {
	flags, paths := []string{"--pprof", "--perfetto", "--svg"}, []string{x.pprof, x.perfetto, x.svg}
	for i, path := range paths {
		for j := range i {
			if paths[j] != "" && sameFile(paths[j], path) {
				return usagef("%s and %s name the same file, %s", flags[j], flags[i], paths[j])
			}
		}
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
	return errors.Join(file(x.pprof, inspect.WritePprof), file(x.perfetto, inspect.WritePerfetto), file(x.svg, inspect.WriteSVG))
}
