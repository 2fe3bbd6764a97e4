package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/internal/safetensors"
)

func mustOpen(t testing.TB, path, name string) *Array {
	t.Helper()
	a, err := Open(path, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// element is element k of b, as the type says.
func element(d DType, b []byte, k int) float64 {
	little := binary.LittleEndian
	b = b[k*d.Size():]
	switch d {
	case Bool, Uint8:
		return float64(b[0])
	case Int16:
		return float64(int16(little.Uint16(b)))
	case Uint16:
		return float64(little.Uint16(b))
	case Int32:
		return float64(int32(little.Uint32(b)))
	case Int64:
		return float64(int64(little.Uint64(b)))
	case Float32:
		return float64(math.Float32frombits(little.Uint32(b)))
	case Float64:
		return math.Float64frombits(little.Uint64(b))
	}
	panic(d)
}

// all reads a source, the last sample first.
func all(t testing.TB, s Source) [][]byte {
	t.Helper()
	samples := make([][]byte, s.Len())
	for i := s.Len() - 1; i >= 0; i-- {
		samples[i] = make([]byte, SampleBytes(s))
		if err := s.Read(i, samples[i]); err != nil {
			t.Fatal(err)
		}
	}
	return samples
}

// TestOpen reads files that NumPy 1.24 and Arrow's library for Go 18.8 wrote.
func TestOpen(t *testing.T) {
	for _, test := range []struct {
		file, name string
		dtype      DType
		n          int
		shape      []int
		want       func(i, k int) float64 // element k of sample i
	}{
		{"float32.npy", "", Float32, 4, []int{2, 3}, func(i, k int) float64 { return float64(6*i+k) / 2 }},
		{"version2.npy", "", Float32, 4, []int{2, 3}, func(i, k int) float64 { return float64(6*i+k) / 2 }},
		{"big_int16.npy", "", Int16, 6, []int{2}, func(i, k int) float64 { return float64(2*i+k)*1000 - 5000 }},
		{"scalars.npy", "", Uint16, 7, []int{}, func(i, k int) float64 { return float64(i) }},
		{"two.npz", "images", Uint8, 5, []int{3, 2}, func(i, k int) float64 { return float64(6*i + k) }},
		{"two.npz", "labels", Int64, 5, []int{}, func(i, k int) float64 { return float64(i) }},
		{"one.npz", "", Float32, 4, []int{2, 3}, func(i, k int) float64 { return float64(6*i+k) / 2 }},
		{"columns.arrow", "ids", Int32, 6, []int{3}, func(i, k int) float64 { return float64(10*i + k) }},
		{"columns.arrow", "nested", Uint8, 6, []int{2, 2}, func(i, k int) float64 { return float64(10*i + k) }},
		{"columns.arrow", "bytes", Uint8, 6, []int{2}, func(i, k int) float64 { return float64(i + 100*k) }},
		{"columns.arrow", "value", Float64, 6, []int{}, func(i, k int) float64 { return float64(i) / 4 }},
	} {
		a := mustOpen(t, filepath.Join("testdata", test.file), test.name)
		if a.DType() != test.dtype || a.Len() != test.n || !slices.Equal(a.Shape(), test.shape) {
			t.Errorf("%s %s: %d of %v %s, want %d of %v %s", test.file, test.name, a.Len(), a.Shape(), a.DType(), test.n, test.shape, test.dtype)
			continue
		}
		for i, sample := range all(t, a) {
			for k := range len(sample) / test.dtype.Size() {
				if got := element(test.dtype, sample, k); got != test.want(i, k) {
					t.Errorf("%s %s: sample %d element %d is %v, want %v", test.file, test.name, i, k, got, test.want(i, k))
				}
			}
		}
	}
	for file, dtype := range map[string]DType{"float16.npy": Float16, "columns.arrow": Float16} {
		a := mustOpen(t, filepath.Join("testdata", file), map[string]string{"columns.arrow": "half"}[file])
		if a.DType() != dtype {
			t.Errorf("%s: %s", file, a.DType())
		}
		if file == "columns.arrow" && !bytes.Equal(all(t, a)[5], []byte{0, 0x3e}) { // 1.5
			t.Errorf("half: %x", all(t, a))
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	root := makeTree(t, "text", "hello, world", "empty", "", "parquet", "PAR1....PAR1", "short", "\x00\x00", "stream", "ARROW1\x00\x00and no more of it",
		"tiny", "ARROW1", "zip", "PK\x03\x04 no", "gz", "\x1f\x8b no")
	testdata := func(name string) string { return filepath.Join("testdata", name) }
	for _, test := range []struct{ path, name, want string }{
		{testdata("fortran.npy"), "", "ascontiguousarray"},
		{testdata("compressed.npz"), "x", "numpy.savez"},
		{testdata("two.npz"), "", `there are ["images" "labels"]`},
		{testdata("two.npz"), "image", `no array "image"`},
		{testdata("float32.npy"), "x", "without a name"},
		{testdata("compressed.arrow"), "value", "without compression"},
		{testdata("nulls.arrow"), "value", "1 missing values"},
		{testdata("columns.arrow"), "text", "no column of numbers"},
		{testdata("columns.arrow"), "ragged", "no column of numbers"},
		{testdata("columns.arrow"), "dict", "no column of numbers"},
		{testdata("columns.arrow"), "struct", "no column of numbers"},
		{testdata("columns.arrow"), "", "(no name given)"},
		{filepath.Join(root, "text"), "", "unknown format"},
		{filepath.Join(root, "empty"), "", "unknown format"},
		{filepath.Join(root, "parquet"), "", "Arrow IPC"},
		{filepath.Join(root, "short"), "", "no IDX file"},
		{filepath.Join(root, "stream"), "", "does not end as one"},
		{filepath.Join(root, "tiny"), "", "cut off"},
		{filepath.Join(root, "zip"), "", "zip"},
		{filepath.Join(root, "gz"), "", "unpack"},
		{filepath.Join(root, "none"), "", "no such file"},
		{root, "", "no regular file"},
	} {
		a, err := Open(test.path, test.name)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %q: got %v, want an error with %q", test.path, test.name, err, test.want)
		}
		if err == nil {
			a.Close()
		}
	}
}

// TestTruncated cuts each file off at every length: what opens reads, or says
// that it does not, and never gives wrong samples.
func TestTruncated(t *testing.T) {
	for file, name := range map[string]string{"float32.npy": "", "big_int16.npy": "", "two.npz": "labels", "columns.arrow": "ids"} {
		whole, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(whole) {
			if a, err := parse(inMemory(whole[:n]), name); err == nil {
				t.Fatalf("%s cut off at %d of %d bytes opens with %d samples", file, n, len(whole), a.Len())
			}
		}
	}
}

// inMemory is an open file with the given bytes.
func inMemory(b []byte) *file { return &file{ReaderAt: bytes.NewReader(b), size: int64(len(b))} }

func idx(kind byte, shape []int, body []byte) []byte {
	b := []byte{0, 0, kind, byte(len(shape))}
	for _, n := range shape {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	return append(b, body...)
}

func zipped(b []byte) []byte {
	var w bytes.Buffer
	z := gzip.NewWriter(&w)
	_, err := z.Write(b)
	if err := errors.Join(err, z.Close()); err != nil {
		panic(err)
	}
	return w.Bytes()
}

func TestIDX(t *testing.T) {
	pixels := make([]byte, 3*28*28)
	for i := range pixels {
		pixels[i] = byte(i * 7)
	}
	images := idx(8, []int{3, 28, 28}, pixels)
	floats := idx(0xd, []int{2}, []byte{0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0})
	for _, pack := range []func([]byte) []byte{slices.Clone[[]byte], zipped} {
		a, err := parse(inMemory(pack(images)), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Join(all(t, a), nil); a.DType() != Uint8 || !slices.Equal(a.Shape(), []int{28, 28}) || !bytes.Equal(got, pixels) {
			t.Errorf("images of %v %s changed", a.Shape(), a.DType())
		}
		if a, err = parse(inMemory(pack(floats)), ""); err != nil {
			t.Fatal(err)
		}
		if got := all(t, a); element(Float32, got[0], 0) != 1 || element(Float32, got[1], 0) != -2 {
			t.Errorf("floats are %x", got)
		}
		for _, bad := range [][]byte{images[:len(images)-1], images[:9], idx(8, nil, nil), idx(7, []int{1}, []byte{1}), idx(8, []int{2, 0}, nil),
			idx(8, []int{1 << 30, 1 << 30, 1 << 30}, pixels), idx(8, slices.Repeat([]int{1}, 255), pixels)} {
			if _, err := parse(inMemory(pack(bad)), ""); err == nil {
				t.Errorf("%.20x... of %d bytes opens", bad, len(bad))
			}
		}
	}
	if _, err := parse(inMemory(zipped(append(slices.Clone(images), 1))), ""); err == nil || !strings.Contains(err.Error(), "more follows") {
		t.Errorf("a byte too many: %v", err)
	}
	packed := zipped(images)
	packed[len(packed)-6] ^= 1
	if _, err := parse(inMemory(packed), ""); !errors.Is(err, gzip.ErrChecksum) {
		t.Errorf("wrong checksum: %v", err)
	}
	if _, err := parse(inMemory(packed[:len(packed)-20]), ""); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestClaims: what a header claims costs no memory, nor does what follows after
// the array.
func TestClaims(t *testing.T) {
	npy := []byte(npyMagic + "\x02\x00\xf0\xff\xff\xff{'descr'")
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"IDX of 4 GB":          {zipped(idx(8, []int{1 << 16, 1 << 16}, make([]byte, 1000))), "truncated"},
		"100 MB after":         {zipped(idx(8, []int{1}, make([]byte, 100<<20))), "more follows"},
		"npy header of 4 GB":   {npy, "header claims 4294967280 bytes"},
		"Arrow footer of 2 GB": {[]byte("ARROW1\x00\x00        \xff\xff\xff\x7fARROW1"), "metadata of 2147483647"},
	} {
		var err error
		n := allocated(func() { _, err = parse(inMemory(test.file), "") })
		if n > 2<<20 {
			t.Errorf("%s: %d bytes allocated", name, n)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNPZClaim: an entry that claims to reach over the end of the archive, and an
// array that needs it.
func TestNPZClaim(t *testing.T) {
	b, err := os.ReadFile("testdata/one.npz")
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte("(4, 2, 3)"), []byte("(9, 2, 3)"), 1)
	directory := bytes.Index(b, []byte("PK\x01\x02"))
	for _, at := range []int{20, 24} {
		binary.LittleEndian.PutUint32(b[directory+at:], 1000)
	}
	if _, err := parse(inMemory(b), ""); err == nil || !strings.Contains(err.Error(), "1000 bytes") {
		t.Errorf("got %v", err)
	}
}

// TestChangedBytes changes each byte of files in several ways: what opens has
// samples that read.
func TestChangedBytes(t *testing.T) {
	for file, name := range map[string]string{"float32.npy": "", "two.npz": "labels", "columns.arrow": "nested"} {
		b, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for i, old := range b {
			for _, change := range []byte{0, 0x7f, 0x80, 0xff, old + 1, old + 24} {
				b[i] = change
				if a, err := parse(inMemory(b), name); err == nil && a.Len() > 0 && a.Len() < 1000 {
					all(t, a)
				}
				b[i] = old
			}
		}
	}
}

// TestArrowBody: a batch whose body would reach over the end of the file.
func TestArrowBody(t *testing.T) {
	b, err := os.ReadFile("testdata/columns.arrow")
	if err != nil {
		t.Fatal(err)
	}
	footer, err := arrowFooter(inMemory(b))
	if err != nil {
		t.Fatal(err)
	}
	blocks, n := footer.vector(footer.root(), 3, 24)
	if n != 3 {
		t.Fatalf("%d batches", n)
	}
	size := b[len(b)-10-len(footer.bytes)+blocks+2*24+16:]
	for _, claim := range []uint64{uint64(len(b)), 1 << 40, math.MaxUint64} {
		binary.LittleEndian.PutUint64(size, claim)
		if _, err := parse(inMemory(b), "ids"); err == nil || !strings.Contains(err.Error(), "batch 2: a body of") {
			t.Errorf("a body of %d bytes: %v", claim, err)
		}
	}
}

// arrowFields makes metadata with fields within each other, each with so many
// children, which are all the same one.
func arrowFields(depth, children int) *flatbuffer {
	little := binary.LittleEndian
	b := []byte{16, 0, 12, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 0} // fields 2 at 4 and 5 at 8
	for range depth {
		b = little.AppendUint32(b, uint32(len(b)))   // back to the list of fields
		b = little.AppendUint32(b, arrowStruct)      // field 2
		b = little.AppendUint32(b, 4)                // field 5: the vector is next
		b = little.AppendUint32(b, uint32(children)) // its length
		for k := range children {                    // its elements: the next table
			b = little.AppendUint32(b, uint32(4*(children-k)))
		}
	}
	b = little.AppendUint32(b, uint32(len(b)))
	b = little.AppendUint32(b, arrowInt)
	return &flatbuffer{bytes: little.AppendUint32(b, 0)}
}

// TestArrowFields: columns within columns are counted up to a depth and a number
// that a small file could otherwise go far beyond.
func TestArrowFields(t *testing.T) {
	for _, test := range []struct {
		depth, children int
		fields          int // 0: refused
	}{{0, 0, 1}, {3, 1, 4}, {3, 2, 15}, {10, 2, 2047}, {20, 2, 0}, {31, 40, 0}, {1000, 1, 0}} {
		w := arrowWalk{flatbuffer: arrowFields(test.depth, test.children)}
		err := w.skip(16, 0)
		if (err == nil) != (test.fields > 0) || err == nil && (w.fields != test.fields || w.nodes != test.fields) || w.err() != nil {
			t.Errorf("%+v: %d fields, %d nodes, %v, %v", test, w.fields, w.nodes, err, w.err())
		}
		if err != nil && !strings.Contains(err.Error(), "within each other") {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestSafetensorsSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	err = safetensors.Write(f, nil, []safetensors.Entry{
		{Name: "a", DType: safetensors.BF16, Shape: []int{2, 2}, Data: safetensors.Bytes([]byte{1, 2, 3, 4, 5, 6, 7, 8})},
		{Name: "b", DType: safetensors.I64, Shape: []int{3}, Data: safetensors.Bytes(make([]byte, 24))},
		{Name: "scalar", DType: safetensors.F32, Shape: nil, Data: safetensors.Bytes(make([]byte, 4))},
	})
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, path, "a")
	if a.DType() != BFloat16 || a.Len() != 2 || !bytes.Equal(all(t, a)[1], []byte{5, 6, 7, 8}) {
		t.Errorf("a: %d of %s", a.Len(), a.DType())
	}
	if b := mustOpen(t, path, "b"); b.Len() != 3 || b.DType() != Int64 {
		t.Errorf("b: %d of %s", b.Len(), b.DType())
	}
	for name, want := range map[string]string{"scalar": "single number", "": "there are", "c": `no array "c"`} {
		if _, err := Open(path, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func tokenFile(t testing.TB, n int) string {
	t.Helper()
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint16(b, uint16(i))
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWindows(t *testing.T) {
	a, err := OpenTokens(tokenFile(t, 100), Uint16)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for length := 1; length <= 100; length += 9 {
		for _, stride := range []int{1, 7, 99, 1000} {
			w, err := a.Windows(length, stride)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for start := 0; start+length <= 100; start += stride {
				sample := make([]byte, 2*length)
				if err := w.Read(n, sample); err != nil {
					t.Fatal(err)
				}
				for k := range length {
					if element(Uint16, sample, k) != float64(start+k) {
						t.Fatalf("windows of %d, %d apart: element %d of %d is %v", length, stride, k, n, element(Uint16, sample, k))
					}
				}
				n++
			}
			if w.Len() != n {
				t.Errorf("windows of %d, %d apart: %d, want %d", length, stride, w.Len(), n)
			}
		}
	}
	for _, bad := range [][2]int{{0, 1}, {1, 0}, {101, 1}, {1, math.MaxInt}} {
		if _, err := a.Windows(bad[0], bad[1]); err == nil {
			t.Errorf("windows %v", bad)
		}
	}
	if _, err := mustOpen(t, "testdata/float32.npy", "").Windows(1, 1); err == nil {
		t.Error("windows over matrices")
	}
	if _, err := OpenTokens("testdata/two.npz", Uint64); err == nil {
		t.Error("580 bytes are tokens of 8")
	}
}

func TestReadPanics(t *testing.T) {
	a := mustOpen(t, "testdata/float32.npy", "")
	for name, f := range map[string]func(){
		"sample 4":    func() { _ = a.Read(4, make([]byte, 24)) },
		"sample -1":   func() { _ = a.Read(-1, make([]byte, 24)) },
		"too short":   func() { _ = a.Read(0, make([]byte, 20)) },
		"too long":    func() { _ = a.ReadPart(0, 20, make([]byte, 8)) },
		"before":      func() { _ = a.ReadPart(0, -4, make([]byte, 4)) },
		"odd part":    func() { _ = a.ReadPart(0, 2, make([]byte, 4)) },
		"part length": func() { _ = a.ReadPart(0, 0, make([]byte, 3)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// faulty fails, or reads short, after some reads.
type faulty struct {
	io.ReaderAt
	good  int
	short bool
}

var errDisk = errors.New("disk")

func (f *faulty) ReadAt(p []byte, off int64) (int, error) {
	if f.good--; f.good >= 0 {
		return f.ReaderAt.ReadAt(p, off)
	}
	if f.short {
		n, _ := f.ReaderAt.ReadAt(p[:len(p)/2], off)
		return n, io.EOF
	}
	return 0, errDisk
}

// TestFaults lets each read of opening and of the first sample fail in turn.
func TestFaults(t *testing.T) {
	for file, name := range map[string]string{"float32.npy": "", "two.npz": "labels", "columns.arrow": "ids"} {
		whole, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, short := range []bool{false, true} {
			good := 0
			for ; ; good++ {
				f := inMemory(whole)
				f.ReaderAt = &faulty{f.ReaderAt, good, short}
				a, err := parse(f, name)
				if err == nil {
					err = a.Read(0, make([]byte, SampleBytes(a)))
				}
				if err == nil {
					break
				}
				if !short && !errors.Is(err, errDisk) {
					t.Errorf("%s, read %d fails: %v", file, good, err)
				}
			}
			if good < 3 {
				t.Errorf("%s opens and reads with %d reads", file, good)
			}
		}
	}
}

// TestCutOffWhileOpen: files shrink while they are open, one that is mapped and
// one that is too large for it (and sparse).
func TestCutOffWhileOpen(t *testing.T) {
	for _, size := range []int64{8 * 4096, mappedMost + 4096} {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, bytes.Repeat([]byte("abcdefgh"), 512), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		a, err := OpenTokens(path, Uint64)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				if err := a.Read(a.Len()-1, make([]byte, 8)); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "cut off") {
					t.Errorf("%d bytes: got %v", size, err)
				}
			})
		}
		wait.Wait()
		sample := make([]byte, 8)
		if err := a.Read(0, sample); err != nil || string(sample) != "abcdefgh" {
			t.Errorf("%d bytes: what is left: %q, %v", size, sample, err)
		}
	}
}

func TestReadClosed(t *testing.T) {
	a, err := OpenTokens(tokenFile(t, 10), Uint16)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Read(0, make([]byte, 2)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// TestUnmapped: without a mapping the samples are the same.
func TestUnmapped(t *testing.T) {
	const path = "testdata/columns.arrow"
	mapped := mustOpen(t, path, "nested")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := parse(&file{ReaderAt: f, size: info.Size()}, "nested")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(all(t, plain)), fmt.Sprint(all(t, mapped)); got != want {
		t.Errorf("%s, mapped %s", got, want)
	}
}

// FuzzOpen: whatever the bytes, a file that opens has only samples that read,
// and memory for them that is in proportion to the file.
func FuzzOpen(f *testing.F) {
	entries, err := os.ReadDir("testdata")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join("testdata", e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range []string{"", "x", "labels", "ids", "nested", "value", "bytes"} {
			f.Add(b, name)
		}
	}
	f.Add(idx(8, []int{2, 3}, make([]byte, 6)), "")
	f.Add(zipped(idx(0xe, []int{2, 1}, make([]byte, 16))), "")
	f.Add([]byte("\x40\x00\x00\x00\x00\x00\x00\x00{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}            ab"), "x")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		a, err := parse(inMemory(b), name)
		if err != nil {
			return
		}
		size := SampleBytes(a)
		if limit := 1100 * len(b); size > limit {
			t.Fatalf("a sample of %d bytes from a file of %d", size, len(b))
		}
		sample := make([]byte, size)
		for _, i := range []int{0, a.Len() / 2, a.Len() - 1} {
			if i < 0 || a.Len() == 0 {
				continue
			}
			if err := a.Read(i, sample); err != nil {
				t.Fatalf("sample %d of %d: %v", i, a.Len(), err)
			}
		}
	})
}
