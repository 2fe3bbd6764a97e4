package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func openCorpus(t testing.TB, path string, dtype DType, tok Tokenizer) *Corpus {
	t.Helper()
	c, err := OpenCorpus(path, dtype, tok)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestCorpusInFile: written and opened again, a corpus is the one that Load
// gives: the same tokens, and with them the same batches.
func TestCorpusInFile(t *testing.T) {
	root := makeTree(t, "a", ownSource(t), "b", "", "c", "sea", "d", "\x00")
	for _, tok := range []Tokenizer{Bytes{}, gpt2Tokenizer()} {
		loaded := mustLoad(t, tok, root)
		var file bytes.Buffer
		summary, err := WriteTokens(t.Context(), &file, []string{root}, tok)
		if err != nil {
			t.Fatal(err)
		}
		if summary != loaded.Summary() {
			t.Errorf("%s: summary %+v, loaded %+v", tok.Name(), summary, loaded.Summary())
		}
		path := filepath.Join(makeTree(t, "tokens", file.String()), "tokens")
		stored := openCorpus(t, path, TokenType(tok), tok)
		if text(stored) != text(loaded) || stored.Len() != loaded.Len() {
			t.Fatalf("%s: the text changed", tok.Name())
		}
		for _, part := range []float64{0, 0.3} {
			a, b := loaded, stored
			if part > 0 {
				if _, a, err = loaded.Split(part); err != nil {
					t.Fatal(err)
				}
				if _, b, err = stored.Split(part); err != nil {
					t.Fatal(err)
				}
			}
			sameBatches(t, a, b)
		}
	}
}

func sameBatches(t *testing.T, a, b *Corpus) {
	t.Helper()
	x, y := newBatches(t, a, 3, 8, 5), newBatches(t, b, 3, 8, 5)
	buffers := [4][]int32{}
	for i := range buffers {
		buffers[i] = make([]int32, 24)
	}
	for range 200 {
		if err := errors.Join(x.Next(buffers[0], buffers[1]), y.Next(buffers[2], buffers[3])); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(buffers[0], buffers[2]) || !slices.Equal(buffers[1], buffers[3]) {
			t.Fatal("the batches differ")
		}
	}
}

// numbersFile writes tokens in four bytes each.
func numbersFile(t testing.TB, tokens ...uint32) string {
	t.Helper()
	var b []byte
	for _, id := range tokens {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNextFails: a token that there is not, or a file that got short, is an
// error; the place stays that of before.
func TestNextFails(t *testing.T) {
	ids := make([]uint32, 5000)
	for i := range ids {
		ids[i] = uint32(i)
	}
	ids[4000] = 50000
	for _, bad := range []uint32{50000, 1 << 31} {
		ids[4000] = bad
		b := newBatches(t, openCorpus(t, numbersFile(t, ids...), Uint32, numbers{}), 4, 10, 1)
		failed := 0
		for range b.Windows() {
			before := b.State()
			err := b.Next(make([]int32, 40), make([]int32, 40))
			if err == nil {
				continue
			}
			if failed++; !strings.Contains(err.Error(), "token 4000 of the file is") || b.State() != before {
				t.Fatalf("%v, at %v, before %v", err, b.State(), before)
			}
			break
		}
		if failed == 0 {
			t.Errorf("token %d was taken", bad)
		}
	}
	ids[4000] = 0
	path := numbersFile(t, ids...)
	b := newBatches(t, openCorpus(t, path, Uint32, numbers{}), 4, 10, 1)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	before := b.State()
	if err := b.Next(make([]int32, 40), make([]int32, 40)); !errors.Is(err, io.ErrUnexpectedEOF) || b.State() != before {
		t.Errorf("cut off: %v", err)
	}
	if _, err := NewBatches(b.corpus, 1, 1, 1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("fingerprint of a file cut off: %v", err)
	}
	if _, err := b.corpus.Documents(0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("documents of a file cut off: %v", err)
	}
}

func TestOpenCorpusRefuses(t *testing.T) {
	path := numbersFile(t, 1, 2, 3)
	if err := os.Truncate(path, 11); err != nil {
		t.Fatal(err)
	}
	for dtype, want := range map[DType]string{Uint32: "no whole number", Uint64: "tokens of type", Float32: "tokens of type", "": "tokens of type"} {
		if _, err := OpenCorpus(path, dtype, numbers{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dtype, err)
		}
	}
}

// TestFingerprintSample: all of a small file counts, in a large one the first
// and the last token, and its length.
func TestFingerprintSample(t *testing.T) {
	for _, n := range []int{1, 100, blockTokens, 3*blockTokens + 5, sampledBlocks*blockTokens + 1, 3 * sampledBlocks * blockTokens} {
		b := make([]byte, n)
		path := filepath.Join(t.TempDir(), "tokens")
		hash := func(b []byte) string {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return hashOf(t, openCorpus(t, path, Uint8, Bytes{})).SHA256
		}
		first := hash(b)
		places := []int{0, n - 1}
		if n <= sampledBlocks*blockTokens {
			places = append(places, n/2, n/3, n*2/3)
		}
		for _, i := range places {
			b[i] = 1
			if hash(b) == first {
				t.Errorf("token %d of %d does not count", i, n)
			}
			b[i] = 0
		}
	}
}

// brokenWriter takes so many bytes.
type brokenWriter struct{ room int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

func TestWriteTokensFails(t *testing.T) {
	root := makeTree(t, "a", "aye", "b", "bee")
	for room := range 7 {
		if _, err := WriteTokens(t.Context(), &brokenWriter{room}, []string{root}, Bytes{}); !errors.Is(err, errDisk) {
			t.Errorf("room for %d of 7 bytes: %v", room, err)
		}
	}
	if _, err := WriteTokens(t.Context(), io.Discard, nil, Bytes{}); err == nil {
		t.Error("nothing was written")
	}
}
