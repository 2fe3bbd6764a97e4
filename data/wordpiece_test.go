package data_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/data"
)

// vocab has ids in this order, from 0.
const vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nthe\nfox\n##es\n,\n.\ncafe\n中\n'\ns\n##s\nunaff\n"

func wordPiece(t *testing.T, vocab string) *data.WordPiece {
	t.Helper()
	w, err := data.NewWordPiece(strings.NewReader(vocab))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWordPiece(t *testing.T) {
	w := wordPiece(t, vocab)
	for text, want := range map[string]string{
		"unaffable":              "unaff ##able", // the longest first
		"The FOXES, the fox.":    "the fox ##es , the fox .",
		"  Café\u0301\tthe\n":    "cafe the",
		"fox中fox":                "fox 中 fox",
		"fox's":                  "fox ' s",
		"foxs":                   "fox ##s",
		"the wolf":               "the [UNK]",
		"unx fox":                "[UNK] fox", // no part of a word is kept
		strings.Repeat("s", 101): "[UNK]",
		strings.Repeat("s", 4):   "s ##s ##s ##s",
		"":                       "",
		"fo\x00x\ufeff\xff":      "fox",
		"[MASK]":                 "[UNK] [UNK] [UNK]", // text has no marks
	} {
		var words []string
		for _, id := range w.Encode(text) {
			words = append(words, strings.Split(strings.TrimSuffix(vocab, "\n"), "\n")[id])
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := w.Decode(w.Encode("The unaffable foxes.")); got != "the unaffable foxes ." {
		t.Errorf("decoded %q", got)
	}
	if got := wordPiece(t, vocab+"Fox\n").Encode("Fox fox FOX"); !slices.Equal(got, []int32{19, 9, 1}) {
		t.Errorf("with capital letters in the vocabulary: %v", got)
	}
	for bad, want := range map[string]string{"": "[", "[PAD]\n[PAD]\n": "line 2", "a\n\nb": "line 2"} {
		if _, err := data.NewWordPiece(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("vocabulary %q: %v", bad, err)
		}
	}
}

// TestWordPieceInParts: the tokens are the same, however the text is cut.
func TestWordPieceInParts(t *testing.T) {
	w := wordPiece(t, vocab)
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var text []byte
		for range r.IntN(40) {
			text = append(text, []string{"the", " ", "fox", "中", ".", "é", "\n", "un", "\xff"}[r.IntN(9)]...)
		}
		var got []int32
		var rest []byte
		for at := 0; at < len(text); {
			n := min(1+r.IntN(9), len(text)-at)
			rest = append(rest, text[at:at+n]...)
			at += n
			var used int
			got, used = w.EncodePart(got, rest, at == len(text))
			rest = rest[used:]
		}
		if want := w.Encode(string(text)); !slices.Equal(got, want) {
			t.Fatalf("%q: %v in parts, %v as a whole", text, got, want)
		}
	}
}
