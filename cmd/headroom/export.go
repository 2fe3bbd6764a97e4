package main

import (
	"errors"
	"io"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/trace"
)

// exports are files for other tools to write beside a report; empty names are
// not written.
type exports struct{ pprof, perfetto string }

// write writes the files about the device that the report is about.
func (x exports) write(s *trace.Snapshot) error {
	if x == (exports{}) {
		return nil
	}
	device, err := inspect.WorstDevice(s)
	if err != nil {
		return err
	}
	file := func(path string, write func(io.Writer, *trace.Snapshot, int) error) error {
		if path == "" {
			return nil
		}
		return atomicfile.Write(path, func(w io.Writer) error { return write(w, s, device) })
	}
	return errors.Join(file(x.pprof, inspect.WritePprof), file(x.perfetto, inspect.WritePerfetto))
}
