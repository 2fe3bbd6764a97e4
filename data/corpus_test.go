package data

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// makeTree writes files (path, content, ...) below a new folder.
func makeTree(t testing.TB, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(root, filepath.FromSlash(files[i]))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func mustLoad(t testing.TB, tok Tokenizer, paths ...string) *Corpus {
	t.Helper()
	c, err := Load(t.Context(), paths, tok)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func text(c *Corpus) string {
	tokens := make([]int32, c.Len())
	c.window(tokens, 0)
	return c.Tokenizer().Decode(tokens)
}

func TestLoad(t *testing.T) {
	root := makeTree(t,
		"b.txt", "bee", "a/z.txt", "zed", "a/y.txt", "why", "c", "sea",
		".hidden", "no", "a/.git/config", "no",
		"a/binary", "no\x00no", "late", strings.Repeat("x", sniffed)+"\x00", "empty", "")
	c := mustLoad(t, Bytes{}, root)
	late := strings.Repeat("x", sniffed) + "\x00"
	want := "why\nzed\nbee\nsea\n" + late
	if text(c) != want {
		t.Errorf("text %q, want %q", text(c), want)
	}
	if got, want := c.Summary(), (Summary{5, int64(len(want) - 4), len(want), Skipped{Hidden: 2, Binary: 1, Empty: 1}}); got != want {
		t.Errorf("summary %+v, want %+v", got, want)
	}

	c = mustLoad(t, gpt2Tokenizer(), filepath.Join(root, "c"), filepath.Join(root, ".hidden"), filepath.Join(root, "a"))
	if want := "sea<|endoftext|>no<|endoftext|>why<|endoftext|>zed"; text(c) != want {
		t.Errorf("text %q, want %q", text(c), want)
	}
	if c.width != 2 || c.Summary().Files != 4 || c.Summary().Bytes != 11 || c.Summary().Tokens != c.Len() {
		t.Errorf("width %d, summary %+v", c.width, c.Summary())
	}
}

// TestLoadLong loads files longer than what is read at once.
func TestLoadLong(t *testing.T) {
	long := strings.Repeat("The quick brown fox; 12 jumps — «ça».\n", readSize/30)
	root := makeTree(t, "a", long, "b", long)
	for _, tok := range []Tokenizer{Bytes{}, gpt2Tokenizer()} {
		c := mustLoad(t, tok, root)
		one := len(tok.Encode(long))
		if c.Len() != 2*one+1 {
			t.Errorf("%s: %d tokens, want twice %d and a separator", tok.Name(), c.Len(), one)
		}
		if got, want := text(c), long+tok.Decode([]int32{tok.Separator()})+long; got != want {
			t.Errorf("%s: the text changed", tok.Name())
		}
	}
}

func TestLinks(t *testing.T) {
	outside := makeTree(t, "secret", "secret")
	root := makeTree(t, "a", "aye")
	for name, target := range map[string]string{"file": filepath.Join(outside, "secret"), "folder": outside, "self": root, "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Skip("cannot make symbolic links:", err)
		}
	}
	c := mustLoad(t, Bytes{}, root)
	if text(c) != "aye" || c.Summary().Skipped.Irregular != 4 {
		t.Errorf("text %q, summary %+v", text(c), c.Summary())
	}
	c = mustLoad(t, Bytes{}, filepath.Join(root, "self"), filepath.Join(root, "file"))
	if text(c) != "aye\nsecret" {
		t.Errorf("named links: text %q", text(c))
	}
}

func TestLoadErrors(t *testing.T) {
	root := makeTree(t, "empty/e", "", "binary/b", "\x00", "binary/.h", "x", "none/.h", "x")
	for _, test := range []struct {
		paths []string
		want  string
	}{
		{nil, "no files given"},
		{[]string{"none-such"}, "no file or folder none-such"},
		{[]string{"empty/e"}, "1 empty"},
		{[]string{"empty"}, "no text in"},
		{[]string{"binary"}, "1 hidden, 1 binary"},
		{[]string{"binary/b", "empty"}, "1 binary, 1 empty"},
		{[]string{"none"}, "1 hidden"},
	} {
		var paths []string
		for _, p := range test.paths {
			paths = append(paths, filepath.Join(root, p))
		}
		_, err := Load(t.Context(), paths, Bytes{})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), root+string(filepath.Separator), ""), test.want) {
			t.Errorf("%v: got %v, want an error with %q", test.paths, err, test.want)
		}
	}
	if _, err := Load(t.Context(), []string{os.DevNull}, Bytes{}); err == nil || !strings.Contains(err.Error(), "neither a file nor a folder") {
		t.Errorf("device: %v", err)
	}
}

type wide struct{ Bytes }

func (wide) VocabSize() int { return 1<<16 + 1 }

func TestLoadRefusesTokenizer(t *testing.T) {
	_, err := Load(t.Context(), []string{"corpus_test.go"}, wide{})
	if err == nil || !strings.Contains(err.Error(), "65537 tokens") {
		t.Errorf("got %v", err)
	}
}

func TestLoadIsCancelled(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	root := makeTree(t, "a", "aye")
	for _, path := range []string{root, filepath.Join(root, "a")} {
		if _, err := Load(ctx, []string{path}, Bytes{}); !errors.Is(err, stop) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// TestReadFaults lets reading fail after each number of bytes.
func TestReadFaults(t *testing.T) {
	broken := errors.New("broken")
	for n := range 20 {
		c, err := newCorpus(gpt2Tokenizer())
		if err != nil {
			t.Fatal(err)
		}
		r := io.MultiReader(bytes.NewReader([]byte(strings.Repeat("ab ", 7)[:n])), iotest.ErrReader(broken))
		if err := newTextReader(c, 7).read(t.Context(), r); !errors.Is(err, broken) {
			t.Errorf("failure after %d bytes gave %v", n, err)
		}
	}
}

func TestBadTokenPanics(t *testing.T) {
	c := counting(t, 1)
	for _, id := range []int32{-1, 50000} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("token %d was taken", id)
				}
			}()
			c.append(id)
		}()
	}
}

func hashOf(t testing.TB, c *Corpus) Fingerprint {
	t.Helper()
	f, err := c.fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSplit(t *testing.T) {
	c := counting(t, 100)
	for fraction, tail := range map[float64]int{0.1: 10, 0.105: 11, 0.5: 50, 0.99: 99, 0.006: 1} {
		train, held, err := c.Split(fraction)
		if err != nil || train.Len() != 100-tail || held.Len() != tail {
			t.Fatalf("%v: %v", fraction, err)
		}
		first := make([]int32, 1)
		held.window(first, 0)
		if int(first[0]) != 100-tail {
			t.Errorf("%v: the tail begins with token %d", fraction, first[0])
		}
		if hashOf(t, train) == hashOf(t, c) || hashOf(t, train) == hashOf(t, held) {
			t.Errorf("%v: parts with equal fingerprints", fraction)
		}
	}
	for _, fraction := range []float64{0, 1, -0.1, 1.5, 0.001, 0.999, math.NaN(), math.Inf(1)} {
		if _, _, err := c.Split(fraction); err == nil {
			t.Errorf("fraction %v was taken", fraction)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	root := makeTree(b, "a", strings.Repeat(ownSource(b), 100))
	info, err := os.Stat(filepath.Join(root, "a"))
	if err != nil {
		b.Fatal(err)
	}
	for _, tok := range []Tokenizer{Bytes{}, gpt2Tokenizer()} {
		b.Run(tok.Name(), func(b *testing.B) {
			b.SetBytes(info.Size())
			b.ReportAllocs()
			for b.Loop() {
				mustLoad(b, tok, root)
			}
		})
	}
}
