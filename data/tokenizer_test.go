package data

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

// gpt2Tokenizer is made once: its vocabulary takes some milliseconds.
var gpt2Tokenizer = sync.OnceValue(func() *gpt2 {
	g, err := newGPT2()
	if err != nil {
		panic(err)
	}
	return g
})

// peer is another implementation of the same encoding, for valid UTF-8.
var peer = sync.OnceValue(codec.NewR50kBase)

func peerEncode(t testing.TB, text string) []int32 {
	t.Helper()
	ids, _, err := peer().Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, len(ids))
	for i, id := range ids {
		tokens[i] = int32(id)
	}
	return tokens
}

func TestNewTokenizer(t *testing.T) {
	for name, want := range map[string]int{"bytes": 256, "gpt2": 50257} {
		tok, err := NewTokenizer(name)
		if err != nil || tok.Name() != name || tok.VocabSize() != want {
			t.Errorf("%s: %v, %v", name, tok, err)
		}
	}
	_, err := NewTokenizer("GPT2")
	if err == nil || !strings.Contains(err.Error(), `"GPT2"`) || !strings.Contains(err.Error(), `"gpt2"`) {
		t.Errorf("unknown name: %v", err)
	}
}

// TestGPT2Golden has ids of OpenAI's encoder.
func TestGPT2Golden(t *testing.T) {
	g := gpt2Tokenizer()
	for text, want := range map[string][]int32{
		"":             nil,
		"hello world":  {31373, 995},
		"Hello, world": {15496, 11, 995},
		"\n\n":         {628},
		" ":            {220},
		"a":            {64},
		"\x7f":         {221},
	} {
		if got := g.Encode(text); !slices.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	if got := g.Decode([]int32{31373, 50256, 995, -1, 50257}); got != "hello<|endoftext|> world\ufffd\ufffd" {
		t.Errorf("decoded %q", got)
	}
	if got := g.Encode("<|endoftext|>"); slices.Contains(got, g.Separator()) {
		t.Errorf("text became the separator: %v", got)
	}
}

// samples are texts at the corners of the pattern that cuts pieces.
var samples = []string{
	"", " ", "  ", "   x", "\n", "\n\n x", "\t \t9", "a  b", "x \n", "x\n ", "\u00a0\u2003 y", " \u3000z\u3000",
	"I'm, you're, we'll, they'd, he's, isn't, I've", "'S'T 's' 'sx ' s ''s", "'", "'r", "'rex", "x'll", " 'll",
	"3.14159 ½ ² ٣ Ⅷ1x", "snake_case CamelCase kebab-case", "if x != y { return f(x[1:]) }\t// ok\n\tdone\n",
	"Straße naïve café e\u0301 Ελληνικά русский עברית العربية हिन्दी ไทย 日本語 中文 한국어", "👩‍👩‍👧 🇪🇺 🤖🤖", "\ufffd \ufeff",
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	"Pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism", "==========----------..........!!!!!!",
}

// ownSource is the source text of this package.
func ownSource(t testing.TB) string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no source found:", err)
	}
	var b strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func TestGPT2EqualsPeer(t *testing.T) {
	for _, text := range append(samples, strings.Join(samples, ""), strings.Join(samples, " "), ownSource(t)) {
		if got, want := gpt2Tokenizer().Encode(text), peerEncode(t, text); !slices.Equal(got, want) {
			t.Errorf("%.100q is\n%v, want\n%v", text, got, want)
		}
	}
	alphabet := []string{" ", " ", "\n", "\t", "\u00a0", "'", "s", "l", "re", "a", "Z", "the", "é", "日", "7", "½", "!", "_", "🤖"}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var b strings.Builder
		for range r.IntN(20) {
			b.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		if got, want := gpt2Tokenizer().Encode(b.String()), peerEncode(t, b.String()); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q is %v, want %v", seed, b.String(), got, want)
		}
	}
}

// checkParts encodes a text in parts of the given size and compares with the
// whole.
func checkParts(t *testing.T, tok Tokenizer, text string, size int) {
	t.Helper()
	c, err := newCorpus(tok)
	if err != nil {
		t.Fatal(err)
	}
	if err := newTextReader(c, size).read(t.Context(), strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	got := make([]int32, c.Len())
	c.window(got, 0)
	if want := tok.Encode(text); !slices.Equal(got, want) {
		t.Fatalf("%s: %.60q in parts of %d gives\n%v, want\n%v", tok.Name(), text, size, got, want)
	}
}

func TestPartsEqualWhole(t *testing.T) {
	for _, tok := range []Tokenizer{Bytes{}, gpt2Tokenizer()} {
		for _, text := range append(samples, strings.Join(samples, ""), "\xe2\x80 \xff'\xe2") {
			for size := 1; size <= len(text)+1; size = size*3/2 + 1 {
				checkParts(t, tok, text, size)
			}
		}
	}
}

// TestEndlessPieces encodes pieces longer than maxPiece, whole and in parts.
func TestEndlessPieces(t *testing.T) {
	for _, piece := range []string{"a", " ", "é", "\u3000", "-"} {
		text := strings.Repeat(piece, maxPiece/len(piece)+100) + "x"
		checkParts(t, gpt2Tokenizer(), text, maxPiece/3)
		if n := nextPiece([]byte(text), true); n < maxPiece || n >= maxPiece+utf8.UTFMax {
			t.Errorf("the first piece of endless %q has %d bytes", piece, n)
		}
		if got := gpt2Tokenizer().Decode(gpt2Tokenizer().Encode(text)); got != text {
			t.Errorf("endless %q does not come back", piece)
		}
	}
}

// TestCacheOverflow encodes more different pieces than the cache holds.
func TestCacheOverflow(t *testing.T) {
	m := &merger{ids: gpt2Tokenizer().ids, cache: map[string][]int32{}}
	for round := range 2 {
		for i := range cacheSize + 10 {
			piece := []byte{'q', byte(i), byte(i >> 8), 0xff}
			if got := gpt2Tokenizer().Decode(m.encode(nil, piece)); got != string(piece) {
				t.Fatalf("round %d: %q became %q", round, piece, got)
			}
			if len(m.cache) > cacheSize {
				t.Fatalf("the cache holds %d pieces", len(m.cache))
			}
		}
	}
}

func TestTokenizersAreConcurrent(t *testing.T) {
	text := strings.Join(samples, " ")
	want := gpt2Tokenizer().Encode(text)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				if !slices.Equal(gpt2Tokenizer().Encode(text), want) {
					t.Error("another result than alone")
				}
			}
		})
	}
	group.Wait()
}

func checkDecode(t *testing.T, tok Tokenizer, text string) {
	t.Helper()
	tokens := tok.Encode(text)
	for _, id := range tokens {
		if id < 0 || int(id) >= tok.VocabSize() {
			t.Fatalf("%s gives token %d for %q", tok.Name(), id, text)
		}
	}
	if got := tok.Decode(tokens); got != text {
		t.Fatalf("%s: %q comes back as %q", tok.Name(), text, got)
	}
}

func FuzzBytes(f *testing.F) {
	f.Add([]byte("hello\x00\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecode(t, Bytes{}, string(text))
		if got := (Bytes{}).Encode(string(text)); len(got) != len(text) {
			t.Fatalf("%d tokens for %d bytes", len(got), len(text))
		}
	})
}

func FuzzGPT2(f *testing.F) {
	for i, text := range samples {
		f.Add([]byte(text), uint8(i))
	}
	f.Add([]byte("\xe2\x80 \xff'\xf0\x9f\xa4"), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		checkDecode(t, gpt2Tokenizer(), string(text))
		checkParts(t, gpt2Tokenizer(), string(text), int(size)+1)
		// The peer replaces invalid UTF-8 and drops U+007F.
		if utf8.Valid(text) && !bytes.Contains(text, []byte("\x7f")) {
			if got, want := gpt2Tokenizer().Encode(string(text)), peerEncode(t, string(text)); !slices.Equal(got, want) {
				t.Fatalf("%q is %v, want %v", text, got, want)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	source := []byte(ownSource(b))
	words := bytes.Repeat([]byte("a"), 1<<16)
	for _, test := range []struct {
		name string
		tok  Tokenizer
		text []byte
	}{
		{"bytes", Bytes{}, source},
		{"gpt2", gpt2Tokenizer(), source},
		{"gpt2/one word", gpt2Tokenizer(), words},
	} {
		b.Run(test.name, func(b *testing.B) {
			var tokens []int32
			b.SetBytes(int64(len(test.text)))
			b.ReportAllocs()
			for b.Loop() {
				tokens, _ = test.tok.EncodePart(tokens[:0], test.text, true)
			}
		})
	}
}
