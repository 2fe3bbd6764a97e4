package main

import (
	"fmt"
	"io"
	"os"

	"github.com/headroom-go/headroom/trace"
)

// standardInput is the name of standard input on the command line.
const standardInput = "-"

// openInput opens a file, or standard input for "-".
func openInput(path string, stdin io.Reader) (io.ReadCloser, error) {
	if path == standardInput {
		return io.NopCloser(stdin), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if i, err := f.Stat(); err == nil && i.IsDir() {
		f.Close()
		return nil, fmt.Errorf("%s is a folder: name a file in it", path)
	}
	return f, nil
}

// readSnapshot reads a memory snapshot from a file or standard input, and
// warns if it is cut.
func readSnapshot(path string, stdin io.Reader, stderr io.Writer) (*trace.Snapshot, error) {
	in, err := openInput(path, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	s, err := trace.Read(in)
	if err != nil {
		return nil, naming(path, err)
	}
	warnOfCut(path, s, stderr)
	return s, nil
}

func warnOfCut(path string, s *trace.Snapshot, stderr io.Writer) {
	if s.Cut != nil {
		fmt.Fprintf(stderr, "headroom: %v: only what stands before is looked at\n", naming(path, s.Cut))
	}
}

// naming puts the name of the input before an error.
func naming(path string, err error) error {
	if path == standardInput {
		path = "standard input"
	}
	return fmt.Errorf("%s: %w", path, err)
}
