package main

import (
	"fmt"
	"io"
	"os"

	"github.com/headroom-go/headroom/trace"
)

// standardInput is the name of standard input on the command line.
const standardInput = "-"

// gcPercent is how much the heap of a command may grow that looks at records
// before it is collected: records are large, and little garbage comes of
// questions about them.
const gcPercent = 10

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
	return readShown(path, in, statInput(path, stdin), stderr)
}

// readShown reads a memory snapshot and shows how far it is.
func readShown(path string, in io.Reader, info os.FileInfo, stderr io.Writer) (*trace.Snapshot, error) {
	f := follow(in, nameOf(path), info, stderr)
	s, err := trace.Read(f)
	f.end()
	if err != nil {
		return nil, naming(path, err)
	}
	warn(path, s, stderr)
	return s, nil
}

// warn says what is wrong with a file that could be read.
func warn(path string, s *trace.Snapshot, stderr io.Writer) {
	if s.Cut != nil {
		fmt.Fprintf(stderr, "headroom: %v: only what stands before is looked at\n", naming(path, s.Cut))
	}
	if s.Damage != nil {
		fmt.Fprintf(stderr, "headroom: %v: what stands before is looked at as if it were sound\n", naming(path, s.Damage))
	}
	if n := s.Oddities.Count; n > 0 {
		fmt.Fprintf(stderr, "headroom: %v\n", naming(path, fmt.Errorf("values that cannot be true: %d (first: %s)", n, s.Oddities.First)))
	}
}

// statInput gives what is known of an input's file, nil if it is none.
func statInput(path string, stdin io.Reader) os.FileInfo {
	if path != standardInput {
		i, _ := os.Stat(path)
		return i
	}
	f, ok := stdin.(*os.File)
	if !ok {
		return nil
	}
	i, _ := f.Stat()
	return i
}

// naming puts the name of the input before an error.
func naming(path string, err error) error {
	if path == standardInput {
		path = "standard input"
	}
	return fmt.Errorf("%s: %w", path, err)
}
