package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
)

// rawFile joins a header and data without any care.
func rawFile(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func open(b []byte) (*File, error) { return NewFile(bytes.NewReader(b), int64(len(b))) }

func mustOpen(t *testing.T, b []byte) *File {
	t.Helper()
	f, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestGolden reads a file laid out as Python's library does it: metadata
// first, spaces behind, one type after the other. Written by hand (ours).
func TestGolden(t *testing.T) {
	const header = `{"__metadata__":{"format":"pt"},` +
		`"wide":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},` +
		`"ids":{"dtype":"I64","shape":[2],"data_offsets":[8,24]},` +
		`"w":{"dtype":"F32","shape":[2,1],"data_offsets":[24,32]},` +
		`"h":{"dtype":"F16","shape":[],"data_offsets":[32,34]},` +
		`"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[34,34]},` +
		`"b":{"dtype":"BF16","shape":[3],"data_offsets":[34,40]},` +
		`"flag":{"dtype":"BOOL","shape":[1],"data_offsets":[40,41]}}    `
	data, err := hex.DecodeString(strings.Join(strings.Fields(`
		00000000000004c0
		0100000000000000 feffffffffffffff
		0000803f 000020c1
		003c
		803f 00c0 0000
		01`), ""))
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, rawFile(header, data...))
	if want := map[string]string{"format": "pt"}; !reflect.DeepEqual(f.Metadata(), want) {
		t.Errorf("metadata %v, want %v", f.Metadata(), want)
	}
	var names []string
	for _, x := range f.Tensors() {
		names = append(names, x.Name)
	}
	if got, want := strings.Join(names, " "), "wide ids w h empty b flag"; got != want {
		t.Errorf("names %q, want %q", got, want)
	}
	for name, want := range map[string][]float32{"wide": {-2.5}, "w": {1, -10}, "h": {1}, "empty": {}, "b": {1, -2, 0}} {
		got := make([]float32, len(want))
		if err := f.ReadFloat32(name, got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
	ids := make([]int64, 2)
	if err := f.ReadInt64("ids", ids); err != nil || !slices.Equal(ids, []int64{1, -2}) {
		t.Errorf("ids: %v, %v", ids, err)
	}
	flag := make([]byte, 1)
	if err := f.ReadBytes("flag", flag); err != nil || flag[0] != 1 {
		t.Errorf("flag: %v, %v", flag, err)
	}
	if x, ok := f.Lookup("w"); !ok || x.DType != F32 || !slices.Equal(x.Shape, []int{2, 1}) || x.Elements() != 2 || x.Bytes() != 8 {
		t.Errorf("w: %+v, %v", x, ok)
	}
}

func TestBadFiles(t *testing.T) {
	u8 := func(name, shape, offsets string) string {
		return `"` + name + `":{"dtype":"U8","shape":` + shape + `,"data_offsets":` + offsets + `}`
	}
	for _, test := range []struct {
		name string
		file []byte
		want string // part of the error
	}{
		{"nothing", nil, "0 bytes are too few"},
		{"short length", make([]byte, 7), "7 bytes are too few"},
		{"no header", make([]byte, 8), "not a JSON object"},
		{"length beyond the file", append(binary.LittleEndian.AppendUint64(nil, 100), "{}"...), "header has 100 bytes, but 2 follow"},
		{"length of 2^64-1", append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "{}"...), "18446744073709551615 bytes"},
		{"pickle", []byte("PK\x03\x04 and so on, a zip file"), "truncated or no safetensors file"},
		{"array", rawFile(`[]`), "not a JSON object"},
		{"space first", rawFile(` {}`), "not a JSON object"},
		{"unfinished", rawFile(`{"a":`), "EOF"},
		{"syntax", rawFile(`{"a" 1}`), "invalid character"},
		{"bad UTF-8", rawFile("{\"\xff\":1}"), "UTF-8"},
		{"second value", rawFile(`{}{}`), "more than spaces"},
		{"data without tensors", rawFile(`{}`, 1), "1 bytes of data"},
		{"tensor is null", rawFile(`{"a":null}`), "found <nil>, not {"},
		{"no shape", rawFile(`{"a":{"dtype":"U8","data_offsets":[0,0]}}`), "needs dtype, shape"},
		{"shape is null", rawFile(`{` + u8("a", `null`, `[0,0]`) + `}`), `key "shape": found <nil>`},
		{"dimension is null", rawFile(`{` + u8("a", `[null]`, `[0,0]`) + `}`), "not an integer"},
		{"other spelling", rawFile(`{"a":{"DType":"U8","shape":[],"data_offsets":[0,1]}}`, 1), "needs dtype"},
		{"three offsets", rawFile(`{`+u8("a", `[1]`, `[0,1,2]`)+`}`, 1), "more than 2 numbers"},
		{"one offset", rawFile(`{`+u8("a", `[1]`, `[1]`)+`}`, 1), "two data_offsets"},
		{"fraction", rawFile(`{`+u8("a", `[1.0]`, `[0,1]`)+`}`, 1), "1.0 is not an integer"},
		{"negative", rawFile(`{`+u8("a", `[-1]`, `[0,1]`)+`}`, 1), "-1 is not an integer"},
		{"2^63", rawFile(`{`+u8("a", `[9223372036854775808]`, `[0,1]`)+`}`, 1), "9223372036854775808 is not"},
		{"unknown type", rawFile(`{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,1]}}`, 1), `unknown type "F33"`},
		{"product overflows", rawFile(`{` + u8("a", `[4294967296,4294967296]`, `[0,0]`) + `}`), "overflows"},
		{"size overflows", rawFile(`{"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}}`), "overflows"},
		{"part of a byte", rawFile(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "12 bits"},
		{"dimensions", rawFile(`{`+u8("a", `[`+strings.Repeat("1,", 64)+`1]`, `[0,1]`)+`}`, 1), "more than 64"},
		{"size disagrees", rawFile(`{`+u8("a", `[2]`, `[0,1]`)+`}`, 1), "has 2 bytes, but data_offsets are [0, 1]"},
		{"offsets reversed", rawFile(`{`+u8("a", `[1]`, `[1,0]`)+`}`, 1), "data_offsets are [1, 0]"},
		{"out of bounds", rawFile(`{`+u8("a", `[2]`, `[0,2]`)+`}`, 1), "is it truncated?"},
		{"hole at the start", rawFile(`{`+u8("a", `[1]`, `[1,2]`)+`}`, 1, 2), "hole of 1 bytes before"},
		{"hole", rawFile(`{`+u8("a", `[1]`, `[0,1]`)+`,`+u8("b", `[1]`, `[2,3]`)+`}`, 1, 2, 3), "hole of 1 bytes"},
		{"overlap", rawFile(`{`+u8("a", `[2]`, `[0,2]`)+`,`+u8("b", `[2]`, `[1,3]`)+`}`, 1, 2, 3), `overlaps "a"`},
		{"rest", rawFile(`{`+u8("a", `[1]`, `[0,1]`)+`}`, 1, 2), "end at offset 1, but the file has 2"},
		{"twice", rawFile(`{`+u8("a", `[1]`, `[0,1]`)+`,`+u8("\\u0061", `[1]`, `[1,2]`)+`}`, 1, 2), `"a" appears twice`},
		{"key twice", rawFile(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), `"dtype" appears twice`},
		{"metadata not text", rawFile(`{"__metadata__":{"k":1}}`), "found 1, not a string"},
		{"metadata twice", rawFile(`{"__metadata__":{},"__metadata__":{}}`), "appears twice"},
	} {
		_, err := open(test.file)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
		}
	}
}

// TestHugeHeaderLength: neither a length beyond the file nor one beyond the
// limit in a file that is large enough makes the reader allocate.
func TestHugeHeaderLength(t *testing.T) {
	prefix := binary.LittleEndian.AppendUint64(nil, maxHeader+1)
	for _, size := range []int64{8, 1 << 40} {
		if _, err := NewFile(bytes.NewReader(prefix), size); err == nil {
			t.Errorf("size %d: no error", size)
		}
		if got := allocations(func() { _, _ = NewFile(bytes.NewReader(prefix), size) }); got > 1<<14 {
			t.Errorf("size %d: %d bytes allocated", size, got)
		}
	}
}

// allocations is how many bytes f allocates: the least of three runs, because
// other goroutines allocate too.
func allocations(f func()) uint64 {
	least := uint64(math.MaxUint64)
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for range 3 {
		metrics.Read(s)
		before := s[0].Value.Uint64()
		f()
		metrics.Read(s)
		least = min(least, s[0].Value.Uint64()-before)
	}
	return least
}

func TestUnknownKeysAreSkipped(t *testing.T) {
	mustOpen(t, rawFile(`{"a":{"extra":{"x":[1,{}]},"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
}

func TestReadRefuses(t *testing.T) {
	f := mustOpen(t, rawFile(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, make([]byte, 6)...))
	for _, test := range []struct {
		err  error
		want string
	}{
		{f.ReadBytes("c", nil), `no tensor "c"`},
		{f.ReadBytes("a", make([]byte, 3)), "has 2 bytes, the destination 3"},
		{f.ReadFloat32("c", nil), `no tensor "c"`},
		{f.ReadFloat32("a", make([]float32, 2)), "is U8, which does not convert to float32"},
		{f.ReadFloat32("b", make([]float32, 2)), "1 elements, the destination 2"},
		{f.ReadInt64("b", make([]int64, 1)), "is F32, which does not convert to int64"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", test.err, test.want)
		}
	}
}

// TestShrunkenFile reads a file that lost bytes after it was opened.
func TestShrunkenFile(t *testing.T) {
	full := rawFile(`{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8)...)
	for n := range full {
		f, err := NewFile(bytes.NewReader(full[:n]), int64(len(full)))
		if err == nil {
			err = f.ReadFloat32("b", make([]float32, 2))
			if byteErr := f.ReadBytes("b", make([]byte, 8)); byteErr == nil {
				t.Errorf("%d bytes: no error from ReadBytes", n)
			}
		}
		if err == nil || !strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) {
			t.Errorf("%d bytes: got %v", n, err)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.safetensors")
	if err := os.WriteFile(path, rawFile(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 7), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if err := f.ReadBytes("a", b); err != nil || b[0] != 7 {
		t.Errorf("read %v, %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.ReadBytes("a", b); err == nil {
		t.Error("a closed file still reads")
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("folder: %v", err)
	}
	if _, err := Open(path + "x"); err == nil || !strings.Contains(err.Error(), path+"x") {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("bad file: %v", err)
	}
}

// FuzzOpen: any bytes give an error or a file whose tensors tile the data and
// which writes back to an equal file, in memory bounded by the input.
func FuzzOpen(f *testing.F) {
	f.Add(rawFile(`{}`))
	f.Add(rawFile(`{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}  `, 1, 2, 3, 4, 5))
	f.Add(rawFile(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"z":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}`, 9))
	f.Add(rawFile(`{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}}`, 9))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<40))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := open(b)
		if got, limit := allocations(func() { _, _ = open(b) }), uint64(100*len(b)+1<<14); got > limit {
			t.Fatalf("%d bytes allocated for an input of %d", got, len(b))
		}
		if err != nil {
			return
		}
		var entries []Entry
		var data []byte
		for _, x := range file.Tensors() {
			content := make([]byte, x.Bytes())
			if err := file.ReadBytes(x.Name, content); err != nil {
				t.Fatal(err)
			}
			data = append(data, content...)
			entries = append(entries, Entry{x.Name, x.DType, x.Shape, Bytes(content)})
		}
		if !bytes.HasSuffix(b, data) {
			t.Fatal("the tensors' bytes in order are not the data")
		}
		checkRoundTrip(t, file.Metadata(), entries)
	})
}

func BenchmarkReadFloat32(b *testing.B) {
	for _, d := range []DType{F16, BF16, F32, F64} {
		b.Run(string(d), func(b *testing.B) {
			const n = 1 << 20
			var w bytes.Buffer
			size := n * d.Bits() / 8
			if err := Write(&w, nil, []Entry{{"x", d, []int{n}, Bytes(make([]byte, size))}}); err != nil {
				b.Fatal(err)
			}
			f, err := open(w.Bytes())
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]float32, n)
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := f.ReadFloat32("x", dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
