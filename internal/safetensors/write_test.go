package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// checkRoundTrip writes the entries, reads them back and compares all.
func checkRoundTrip(t *testing.T, metadata map[string]string, entries []Entry) {
	t.Helper()
	var w, again bytes.Buffer
	if err := Write(&w, metadata, entries); err != nil {
		t.Fatal(err)
	}
	if err := Write(&again, maps.Clone(metadata), entries); err != nil || !bytes.Equal(w.Bytes(), again.Bytes()) {
		t.Fatalf("a second write differs (%v)", err)
	}
	if n := binary.LittleEndian.Uint64(w.Bytes()); n%8 != 0 {
		t.Fatalf("the header has %d bytes: the data are not aligned", n)
	}
	f := mustOpen(t, w.Bytes())
	if len(metadata)+len(f.Metadata()) > 0 && !maps.Equal(f.Metadata(), metadata) {
		t.Fatalf("metadata %q, want %q", f.Metadata(), metadata)
	}
	if len(f.Tensors()) != len(entries) {
		t.Fatalf("%d tensors, want %d", len(f.Tensors()), len(entries))
	}
	for _, e := range entries {
		x, ok := f.Lookup(e.Name)
		if !ok || x.DType != e.DType || !slices.Equal(x.Shape, e.Shape) {
			t.Fatalf("got %+v, %v, want %+v", x, ok, e)
		}
		var want bytes.Buffer
		if err := e.Data(&want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, x.Bytes())
		if err := f.ReadBytes(e.Name, got); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("tensor %q: other bytes (%v)", e.Name, err)
		}
	}
}

// randomEntries makes up to 8 tensors of all types, empty ones and scalars.
func randomEntries(r *rand.Rand) []Entry {
	types := []DType{"BOOL", "U8", "F8_E4M3", "I16", F16, BF16, F32, I32, I64, F64, "C64", "F4", "F6_E2M3"}
	names := []string{"", "a", "h.0.weight", "ü/\"quoted\"\\ \u2028<&>", "\x00\n", "日本", "dtype", "shape"}
	var entries []Entry
	for _, i := range r.Perm(len(names))[:r.IntN(len(names)+1)] {
		e := Entry{Name: names[i], DType: types[r.IntN(len(types))]}
		count := 1
		for range r.IntN(4) {
			e.Shape = append(e.Shape, r.IntN(5))
			count *= e.Shape[len(e.Shape)-1]
		}
		if bits := e.DType.Bits(); bits < 8 { // whole bytes
			e.Shape = append(e.Shape, 4)
			count *= 4
		}
		data := make([]byte, count*e.DType.Bits()/8)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		e.Data = Bytes(data)
		entries = append(entries, e)
	}
	return entries
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		metadata := map[string]string{}
		for i := range r.IntN(4) {
			metadata[strings.Repeat("<ключ>\t", i)] = strings.Repeat("\"v\u2029", r.IntN(3))
		}
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { checkRoundTrip(t, metadata, randomEntries(r)) })
	}
}

func TestFloat32s(t *testing.T) {
	for _, n := range []int{0, 1, chunk/4 - 1, chunk / 4, chunk/4 + 1, chunk} {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(math.Sqrt(float64(i))) - 7
		}
		var w bytes.Buffer
		if err := Write(&w, nil, []Entry{{"x", F32, []int{n}, Float32s(values)}}); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, n)
		if err := mustOpen(t, w.Bytes()).ReadFloat32("x", got); err != nil || !slices.Equal(got, values) {
			t.Fatalf("%d values changed (%v)", n, err)
		}
	}
}

// TestWriteGolden pins the bytes.
func TestWriteGolden(t *testing.T) {
	var w bytes.Buffer
	err := Write(&w, map[string]string{"z": "1", "a": "2"}, []Entry{
		{"w", F32, []int{1, 1}, Float32s([]float32{1})},
		{"s", "U8", nil, Bytes([]byte{7})},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := rawFile(`{"__metadata__":{"a":"2","z":"1"},`+
		`"w":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},`+
		`"s":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}`+strings.Repeat(" ", 4), 0, 0, 0x80, 0x3f, 7)
	if !bytes.Equal(w.Bytes(), want) {
		t.Errorf("wrote\n%q\nwant\n%q", w.Bytes(), want)
	}
	w.Reset()
	if err := Write(&w, nil, nil); err != nil || !bytes.Equal(w.Bytes(), rawFile("{}      ")) {
		t.Errorf("nothing gave %q, %v", w.Bytes(), err)
	}
}

func TestWriteRefuses(t *testing.T) {
	one := Bytes([]byte{1})
	for _, test := range []struct {
		metadata map[string]string
		entries  []Entry
		want     string
	}{
		{nil, []Entry{{"a", "U8", []int{1}, one}, {"a", "U8", []int{1}, one}}, `two tensors are named "a"`},
		{nil, []Entry{{"__metadata__", "U8", []int{1}, one}}, "reserved"},
		{nil, []Entry{{"\xff", "U8", []int{1}, one}}, "UTF-8"},
		{map[string]string{"k": "\xff"}, nil, "UTF-8"},
		{nil, []Entry{{"a", "F33", []int{1}, one}}, "unknown type"},
		{nil, []Entry{{"a", "U8", []int{-1}, one}}, "negative"},
		{nil, []Entry{{"a", "U8", []int{2}, one}}, "end 1 bytes before the 2"},
		{nil, []Entry{{"a", "U8", []int{0}, one}}, "0 bytes are left for the tensor, and 1 more"},
		{nil, []Entry{{"a", "U8", []int{math.MaxInt / 2}, one}, {"b", "U8", []int{math.MaxInt / 2}, one}, {"c", "U8", []int{2}, one}}, "overflows"},
	} {
		err := Write(io.Discard, test.metadata, test.entries)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}
}

func TestHeaderLimit(t *testing.T) {
	metadata := map[string]string{"k": strings.Repeat("v", 39)}
	b, err := encodeHeader(metadata, nil, 64)
	if err != nil || len(b) != 8+64 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if _, err := encodeHeader(metadata, nil, 63); err == nil || !strings.Contains(err.Error(), "64 bytes, more than the limit of 63") {
		t.Errorf("got %v", err)
	}
}

var errBroken = errors.New("broken")

// brokenWriter fails after n bytes.
type brokenWriter struct{ left int }

func (b *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		n := b.left
		b.left = 0
		return n, errBroken
	}
	b.left -= len(p)
	return len(p), nil
}

// TestWriteFaults lets the writer fail at every byte.
func TestWriteFaults(t *testing.T) {
	entries := []Entry{
		{"w", F32, []int{2, 3}, Float32s(make([]float32, 6))},
		{"s", "U8", []int{5}, Bytes(make([]byte, 5))},
	}
	var w bytes.Buffer
	if err := Write(&w, nil, entries); err != nil {
		t.Fatal(err)
	}
	for n := range w.Len() {
		if err := Write(&brokenWriter{n}, nil, entries); !errors.Is(err, errBroken) {
			t.Fatalf("failure after %d bytes gave %v", n, err)
		}
	}
	if err := Write(&brokenWriter{w.Len()}, nil, entries); err != nil {
		t.Fatal(err)
	}
}

// TestWriteFileFaults lets a tensor's data fail at every byte: the old file
// stays, alone in its folder.
func TestWriteFileFaults(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.safetensors")
	entry := func(value byte, n int) []Entry {
		return []Entry{{"x", "U8", []int{10}, func(w io.Writer) error {
			if _, err := w.Write(bytes.Repeat([]byte{value}, n)); err != nil || n == 10 {
				return err
			}
			return errBroken
		}}}
	}
	if err := WriteFile(path, nil, entry(1, 10)); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		if err := WriteFile(path, nil, entry(2, n)); !errors.Is(err, errBroken) {
			t.Fatalf("failure after %d bytes gave %v", n, err)
		}
		now, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(now, old) {
			t.Fatalf("after a failed write the old file is %q, %v", now, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Fatalf("the folder holds %v, %v", entries, err)
		}
	}
	if err := WriteFile(path, map[string]string{"k": "v"}, entry(3, 10)); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 10)
	if err := f.ReadBytes("x", got); err != nil || got[9] != 3 || !reflect.DeepEqual(f.Metadata(), map[string]string{"k": "v"}) {
		t.Errorf("read %v, %v, %v", got, f.Metadata(), err)
	}
}
