package data_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/data"
)

func write(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMasked: of every window, as many tokens as Places says are to be named,
// labels are what stood there, nothing else changes, 80 % are hidden, and a
// resumed sequence is the same.
func TestMasked(t *testing.T) {
	const batch, seq, mask = 3, 40, 256
	path := write(t, filepath.Join(t.TempDir(), "text"), []byte(strings.Repeat("All human beings are born free. ", 40)))
	c, err := data.Load(context.Background(), []string{path}, data.Bytes{})
	if err != nil {
		t.Fatal(err)
	}
	open := func() (*data.Masked, *data.Batches) {
		b, err1 := data.NewBatches(c, batch, seq, 7)
		plain, err2 := data.NewBatches(c, batch, seq, 7)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return data.NewMasked(b, data.Mask{Token: mask, Random: 256}), plain
	}
	m, plain := open()
	p := data.Places(seq)
	tokens, places, labels := make([]int32, batch*seq), make([]int32, batch*p), make([]int32, batch*p)
	x, y := make([]int32, batch*seq), make([]int32, batch*seq)
	var hidden, kept, total int
	for step := range 200 {
		resumed, _ := open()
		if err := errors.Join(resumed.Restore(m.State()), m.Next(tokens, places, labels), plain.Next(x, y)); err != nil {
			t.Fatal(err)
		}
		for row := range batch {
			at := places[row*p : (row+1)*p]
			if !slices.IsSorted(at) || len(slices.Compact(slices.Clone(at))) != p {
				t.Fatalf("places %v", at)
			}
			for i := range seq {
				k := slices.Index(at, int32(i))
				now, was := tokens[row*seq+i], x[row*seq+i]
				if k < 0 && now != was || k >= 0 && labels[row*p+k] != was {
					t.Fatalf("step %d, token %d of row %d is %d, was %d", step, i, row, now, was)
				}
				if k >= 0 {
					total++
					if now == mask {
						hidden++
					} else if now == was {
						kept++
					}
				}
			}
		}
		again := make([]int32, batch*seq)
		if err := resumed.Next(again, places, labels); err != nil || !slices.Equal(again, tokens) {
			t.Fatalf("step %d resumed: %v, %v", step, again, err)
		}
	}
	if p != 6 || math.Abs(float64(hidden)/float64(total)-0.8) > 0.03 || math.Abs(float64(kept)/float64(total)-0.1) > 0.03 {
		t.Errorf("%d places a window; of %d tokens %d are hidden and %d kept", p, total, hidden, kept)
	}
	w := data.Windows{Corpus: c, Seq: seq}
	if err := w.Read(w.Len()-1, x[:seq], y[:seq]); err != nil || !slices.Equal(x[1:seq], y[:seq-1]) {
		t.Errorf("the last window: %v, %v, %v", x[:seq], y[:seq], err)
	}
}

// npy is an array of bytes in NumPy's format.
func npy(descr, shape string, content []byte) []byte {
	header := "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }"
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	out := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)))
	return append(append(out, header...), content...)
}

func TestImageSet(t *testing.T) {
	dir := t.TempDir()
	if _, err := data.OpenImageSet(dir, "train"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
	write(t, filepath.Join(dir, "train-images-idx3-ubyte"), append([]byte{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2}, 0, 255, 51, 102))
	write(t, filepath.Join(dir, "train-labels-idx1-ubyte"), append([]byte{0, 0, 8, 1, 0, 0, 0, 2}, 3, 1))
	write(t, filepath.Join(dir, "test-images.npy"), npy("|u1", "(1, 2, 1, 3)", []byte{255, 0, 0, 0, 255, 0}))
	write(t, filepath.Join(dir, "test-labels.npy"), npy("<i8", "(1,)", []byte{9, 0, 0, 0, 0, 0, 0, 0}))
	for part, want := range map[string]struct {
		shape   []int
		sample  int
		values  []float32
		label   int32
		classes int
	}{
		"train": {[]int{1, 1, 2}, 1, []float32{-0.6, -0.2}, 1, 4},
		"test":  {[]int{3, 2, 1}, 0, []float32{2.2489083, -2.117904, -2.0357141, 2.4285715, -1.8044444, -1.8044444}, 9, 10},
	} {
		s, err := data.OpenImageSet(dir, part)
		if err != nil {
			t.Fatal(err)
		}
		pixels, label := make([]byte, data.SampleBytes(s.Images)), make([]byte, 4)
		if err := errors.Join(s.Images.Read(want.sample, pixels), s.Labels.Read(want.sample, label)); err != nil {
			t.Fatal(err)
		}
		for i, v := range want.values {
			if got := math.Float32frombits(binary.LittleEndian.Uint32(pixels[4*i:])); math.Abs(float64(got-v)) > 1e-5 {
				t.Errorf("%s: pixel %d is %v, want %v", part, i, got, v)
			}
		}
		if got := int32(binary.LittleEndian.Uint32(label)); got != want.label || s.Labels.Classes != want.classes || !slices.Equal(s.Images.Shape(), want.shape) {
			t.Errorf("%s: label %d of %d classes, shape %v", part, got, s.Labels.Classes, s.Images.Shape())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	write(t, filepath.Join(dir, "test-labels.npy"), npy("<i8", "(1,)", []byte{255, 255, 255, 255, 255, 255, 255, 255}))
	if _, err := data.OpenImageSet(dir, "test"); err == nil || !strings.Contains(err.Error(), "label 0 is -1") {
		t.Errorf("a negative label: %v", err)
	}
}

func TestTextClasses(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{"bad/1": "no", "bad/2": strings.Repeat("no ", 400), "good/1": "yes", "good/empty": "", ".hidden/1": "x"} {
		write(t, filepath.Join(dir, path), []byte(text))
	}
	form := data.TextForm{Tokenizer: data.Bytes{}, Length: 5, First: 257, Pad: 0}
	c, err := data.OpenTextClasses(context.Background(), dir, form)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]int32{{257, 'n', 'o', 0, 0, 1, 1, 1, 0, 0, 0}, {257, 'n', 'o', ' ', 'n', 1, 1, 1, 1, 1, 0}, {257, 'y', 'e', 's', 0, 1, 1, 1, 1, 0, 1}}
	if c.Texts().Len() != len(want) || !slices.Equal(c.Names, []string{"bad", "good"}) {
		t.Fatalf("%d texts, classes %v", c.Texts().Len(), c.Names)
	}
	for i := range want {
		raw := make([]byte, 4*11)
		if err := errors.Join(c.Texts().Read(i, raw[:40]), c.Labels().Read(i, raw[40:])); err != nil {
			t.Fatal(err)
		}
		for k, v := range want[i] {
			if got := int32(binary.LittleEndian.Uint32(raw[4*k:])); got != v {
				t.Errorf("text %d: number %d is %d, want %d", i, k, got, v)
			}
		}
	}
	s, err := c.Sequences(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int32{{257, 'n', 'o'}, {257, 'n', 'o', ' ', 'n'}, {257, 'y', 'e', 's'}} {
		got := make([]int32, s.Length(i))
		if err := s.Read(i, got); err != nil || !slices.Equal(got, want) {
			t.Errorf("text %d without padding: %v, %v", i, got, err)
		}
	}
	write(t, filepath.Join(dir, "bad/1"), []byte("none"))
	if err := s.Read(0, make([]int32, 3)); err == nil || !strings.Contains(err.Error(), "5 tokens now, it had 3") {
		t.Errorf("a text that became longer: %v", err)
	}
	if _, err := data.OpenTextClasses(context.Background(), filepath.Join(dir, "bad"), form); err == nil || !strings.Contains(err.Error(), "a folder for each") {
		t.Errorf("no classes: %v", err)
	}
}

func TestTokensInArray(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "x.npy"), npy("<i4", "(4,)", []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 255, 0, 0, 0}))
	c, err := data.OpenCorpusArray(path, data.Bytes{})
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]int32, 3), make([]int32, 3)
	if err := (data.Windows{Corpus: c, Seq: 3}).Read(0, x, y); err != nil || !slices.Equal(y, []int32{2, 3, 255}) {
		t.Errorf("targets %v, %v", y, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for descr, shape := range map[string]string{"<f4": "(4,)", ">i4": "(4,)", "<i2": "(2, 4)"} {
		path := write(t, filepath.Join(dir, "y.npy"), npy(descr, shape, make([]byte, 16)))
		if _, err := data.OpenCorpusArray(path, data.Bytes{}); err == nil || !strings.Contains(err.Error(), "are no tokens") {
			t.Errorf("%s %s: %v", descr, shape, err)
		}
	}
}
