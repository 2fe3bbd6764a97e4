package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// FormatError says that an input is no record of memory, and what it is.
type FormatError struct {
	Kind   Kind
	Detail string // what was found, or what to do
}

// Kind is what an input is that holds no record of memory.
type Kind string

// The kinds of inputs that Read refuses.
const (
	KindEmpty   Kind = "empty"
	KindWebPage Kind = "a web page"
	KindText    Kind = "text"
	KindZip     Kind = "a zip archive"
	KindXZ      Kind = "compressed by xz"
	KindBzip2   Kind = "compressed by bzip2"
	KindJSON    Kind = "JSON"
	KindPickle  Kind = "a pickle"
	KindBinary  Kind = "of an unknown format"
)

func (e *FormatError) Error() string {
	return fmt.Sprintf("the input is %s, no memory snapshot: %s", e.Kind, e.Detail)
}

// maxLayers is how often a file may be compressed.
const maxLayers = 3

// maxWindow bounds the memory that a zstd file can ask for.
const maxWindow = 128 << 20

// ReadFile reads the snapshot in a file: see Read.
func ReadFile(path string) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := Read(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Read reads a memory snapshot: a pickle of PyTorch's of any version
// (protocols 2 to 5), our own pickles and JSON lines, the raw memory timeline of
// PyTorch's profiler, a Kineto trace with its [memory] events, or a profile for
// go tool pprof of what is live, such as JAX's of device memory; plain, or
// compressed by gzip or zstd. It runs nothing of what a pickle can hold and
// ignores keys that it does not know. The memory used is that of the snapshot
// and a few bytes an event.
//
// Of an input that ends early, or whose compression is damaged, it gives what
// stood before, and Snapshot.Cut says where it ended; Snapshot.Damage and
// Snapshot.Oddities say what else is wrong with it. An input that is something
// else gives a *FormatError, a pickle that imports or calls something an
// *UnsafeError. An error of r ends the reading.
func Read(r io.Reader) (*Snapshot, error) {
	src := &source{r: r}
	in, closeAll, err := decompress(newInput(src))
	defer closeAll()
	var s *Snapshot
	if err == nil {
		s, err = read(in)
	}
	if src.err != nil {
		return nil, src.err
	}
	return s, err
}

// Decompress gives what r holds without its compression by gzip or zstd, if it
// has one. closeAll is to be called in any case.
func Decompress(r io.Reader) (plain io.Reader, closeAll func(), err error) {
	return decompress(newInput(r))
}

// decompress takes the compression off. closeAll is to be called in any case.
func decompress(in *input) (plain *input, closeAll func(), err error) {
	closeAll = func() {}
	for range maxLayers {
		switch magic := in.peek(4); {
		case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
			z, err := gzip.NewReader(in)
			if err != nil {
				return nil, closeAll, fmt.Errorf("the gzip header is damaged: %w", err)
			}
			in = newInput(z)
		case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
			z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return nil, closeAll, fmt.Errorf("the zstd header is damaged: %w", err)
			}
			inner := closeAll
			closeAll = func() { z.Close(); inner() }
			in = newInput(z)
		default:
			return in, closeAll, nil
		}
	}
	return in, closeAll, nil
}

// foreign are formats that hold no snapshot and are taken for one, by how they
// begin.
var foreign = []struct {
	prefix string
	FormatError
}{
	{"(dp", oldPickle}, {"(lp", oldPickle}, {"}q", oldPickle}, {"]q", oldPickle},
	{"PK\x03\x04", FormatError{KindZip, "such as torch.save writes, with weights; a snapshot is written by torch.cuda.memory._dump_snapshot"}},
	{"\xfd7zXZ\x00", FormatError{KindXZ, "unpack it first (xz -dc FILE | headroom explain -)"}},
	{"BZh", FormatError{KindBzip2, "unpack it first (bzip2 -dc FILE | headroom explain -)"}},
	{"version https://git-lfs", FormatError{KindText, "a Git LFS pointer stands in the place of the file; fetch it with git lfs pull"}},
}

var oldPickle = FormatError{KindPickle, "its protocol is 0 or 1, which PyTorch never writes"}

// read reads what is not compressed.
func read(in *input) (*Snapshot, error) {
	head := in.peek(512)
	start := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n")
	is := func(prefix string) bool { return bytes.HasPrefix(start, []byte(prefix)) }
	switch {
	case len(head) > 1 && head[0] == opProto && head[1] >= 2 && head[1] <= 5:
		return readPickle(in)
	case is("{"), is("["):
		s, err := readJSON(in)
		if err == nil && s.Cut == nil {
			in.skip(math.MaxInt64)
			s.Damage = in.rest()
		}
		return s, err
	}
	for _, f := range foreign {
		if is(f.prefix) {
			return nil, &f.FormatError
		}
	}
	damaged := in.err != nil && !errors.Is(in.err, io.EOF)
	switch {
	case len(head) == 0 && damaged:
		return nil, fmt.Errorf("the compressed data are damaged from the start: %w", in.err)
	case len(head) == 0:
		return nil, &FormatError{KindEmpty, "there is not one byte in it; the program may have died while it wrote the file"}
	case head[0] == opProto:
		return nil, &FormatError{KindPickle, fmt.Sprintf("its protocol is none of 2 to 5 (it begins % x)", head[:min(len(head), 4)])}
	case is("<"):
		return nil, &FormatError{KindWebPage, "it begins " + quoted(start) + "; download the file itself, not the page that shows it"}
	case damaged:
		return nil, fmt.Errorf("the compressed data are damaged after %d bytes, and before that they are no memory snapshot: %w", len(head), in.err)
	case isText(head):
		return nil, &FormatError{KindText, "it begins " + quoted(start)}
	case head[0] == '\n': // the first field of a message
		return readProfile(in)
	}
	return nil, &FormatError{KindBinary, fmt.Sprintf("it begins % x", head[:min(len(head), 8)])}
}

// quoted gives the begin of a text for a message.
func quoted(b []byte) string {
	const longest = 60
	line, _, _ := strings.Cut(string(b), "\n")
	return fmt.Sprintf("%q", printable([]byte(line[:min(len(line), longest)])))
}

// isText says whether bytes are such as stand in texts.
func isText(b []byte) bool {
	for _, c := range b {
		if c < ' ' && !strings.ContainsRune("\t\r\n\f\x1b", rune(c)) {
			return false
		}
	}
	return true
}

// readPickle reads a pickle to its end, or as far as it goes.
func readPickle(in *input) (*Snapshot, error) {
	u := newUnpickler(in)
	err := u.run()
	cut := errors.Is(err, errEnds)
	if err != nil && !cut {
		return nil, err
	}
	if cut {
		u.salvage()
	}
	s, found := u.snapshot()
	switch {
	case cut && (!found || s.Empty()):
		return nil, fmt.Errorf("nothing could be read: %w", err)
	case !found:
		return nil, &FormatError{KindPickle, "it holds " + u.describe(u.root) + ", and not the segments and traces of an allocator"}
	}
	s.Cut = err
	if !cut {
		s.Damage = in.rest()
	}
	return s, nil
}
