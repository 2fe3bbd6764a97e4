// The tokenizer of BERT. Text is cut into words at white space, around every
// mark of punctuation and around every Chinese character; a word then becomes
// the longest entry of the vocabulary that it begins with, then the longest
// that goes on from there, written with "##" in front, and so on (Wu et al.,
// 2016, as Devlin et al., 2019, use it). A word for which that does not come
// out is one unknown token.
//
// A vocabulary without capital letters is one for text in small letters without
// accents: text is made so first. Accents are taken from the letters of Latin-1
// and Latin Extended-A, and wherever they are characters of their own.

package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWord is the longest word, in characters, that is looked up.
const maxWord = 100

// WordPiece is the tokenizer of BERT with a vocabulary. Unlike others it does
// not give a text back as it was: spaces, capital letters and unknown words are
// lost.
type WordPiece struct {
	Pad, Unknown, First, Last, Mask int32 // [PAD], [UNK], [CLS], [SEP] and [MASK]

	name  string
	small bool // text is made small and without accents
	ids   map[string]int32
	words []string
}

// OpenWordPiece reads a vocabulary: vocab.txt of a BERT model, a word a line.
func OpenWordPiece(path string) (*WordPiece, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	w, err := NewWordPiece(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("data: vocabulary %s: %w", path, err)
	}
	return w, nil
}

// NewWordPiece reads a vocabulary of at most 65536 words, a word a line.
func NewWordPiece(r io.Reader) (*WordPiece, error) {
	w := &WordPiece{small: true, ids: map[string]int32{}}
	hash := sha256.New()
	lines := bufio.NewScanner(io.TeeReader(r, hash))
	for lines.Scan() {
		word := strings.TrimRight(lines.Text(), "\r")
		if _, twice := w.ids[word]; twice || word == "" || len(w.words) == 1<<16 {
			return nil, fmt.Errorf("line %d, %.40q: a vocabulary has up to %d different words, one a line", len(w.words)+1, word, 1<<16)
		}
		if !special(word) && strings.IndexFunc(word, unicode.IsUpper) >= 0 {
			w.small = false
		}
		w.ids[word] = int32(len(w.words))
		w.words = append(w.words, word)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	w.name = "wordpiece-" + hex.EncodeToString(hash.Sum(nil)[:6])
	for name, id := range map[string]*int32{"[PAD]": &w.Pad, "[UNK]": &w.Unknown, "[CLS]": &w.First, "[SEP]": &w.Last, "[MASK]": &w.Mask} {
		at, ok := w.ids[name]
		if !ok {
			return nil, fmt.Errorf("no word %s: it is no vocabulary of BERT", name)
		}
		*id = at
	}
	return w, nil
}

// special says whether a word of the vocabulary is a mark like [MASK].
func special(word string) bool { return strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]") }

// Name tells vocabularies apart.
func (w *WordPiece) Name() string { return w.name }

// VocabSize is the number of words.
func (w *WordPiece) VocabSize() int { return len(w.words) }

// Separator is [SEP].
func (w *WordPiece) Separator() int32 { return w.Last }

// Encode gives the tokens of a text.
func (w *WordPiece) Encode(text string) []int32 { return encode(w, text) }

// EncodePart encodes up to the last white space; see Tokenizer. A run of more
// than readSize bytes without any is cut, between two characters.
func (w *WordPiece) EncodePart(dst []int32, text []byte, last bool) ([]int32, int) {
	end := len(text)
	if !last {
		end = strings.LastIndexFunc(string(text), unicode.IsSpace) // nothing of a word is behind it
		if end < 0 {
			if len(text) < readSize {
				return dst, 0
			}
			for end = len(text) - utf8.UTFMax; !utf8.RuneStart(text[end]); {
				end--
			}
		}
	}
	for _, word := range w.split(string(text[:end])) {
		dst = w.pieces(dst, word)
	}
	return dst, end
}

// split gives the words of a text.
func (w *WordPiece) split(text string) []string {
	var words []string
	var word strings.Builder
	end := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			end()
		case r == 0 || r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf):
		case w.small && unicode.Is(unicode.Mn, r):
		case punctuation(r) || unicode.Is(unicode.Han, r):
			end()
			words = append(words, string(r))
		case w.small:
			word.WriteRune(withoutAccent(unicode.ToLower(r)))
		default:
			word.WriteRune(r)
		}
	}
	end()
	return words
}

// punctuation is what BERT takes for it: of ASCII all but letters, digits,
// space and control characters, and Unicode's.
func punctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7f && !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}
	return unicode.IsPunct(r)
}

// accented are letters with accents, and plain those under them, in order.
const (
	accented = "àáâãäåçèéêëìíîïñòóôõöùúûüýÿāăąćĉċčďēĕėęěĝğġģĥĩīĭįĵķĺļľńņňōŏőŕŗřśŝşšţťũūŭůűųŵŷźżž"
	plain    = "aaaaaaceeeeiiiinooooouuuuyyaaaccccdeeeeegggghiiiijklllnnnooorrrssssttuuuuuuwyzzz"
)

func withoutAccent(r rune) rune {
	if r < utf8.RuneSelf {
		return r
	}
	if i := strings.IndexRune(accented, r); i >= 0 {
		return rune(plain[utf8.RuneCountInString(accented[:i])])
	}
	return r
}

// pieces appends the tokens of a word, the longest match first.
func (w *WordPiece) pieces(dst []int32, word string) []int32 {
	start := len(dst)
	if utf8.RuneCountInString(word) > maxWord {
		return append(dst, w.Unknown)
	}
	for at, prefix := 0, ""; at < len(word); prefix = "##" {
		id, n := w.longest(prefix, word[at:])
		if n == 0 {
			return append(dst[:start], w.Unknown)
		}
		dst = append(dst, id)
		at += n
	}
	return dst
}

// longest finds the longest front of rest that is a word after prefix.
func (w *WordPiece) longest(prefix, rest string) (id int32, n int) {
	for n = len(rest); n > 0; n-- {
		if n < len(rest) && !utf8.RuneStart(rest[n]) {
			continue
		}
		if id, ok := w.ids[prefix+rest[:n]]; ok {
			return id, n
		}
	}
	return 0, 0
}

// Decode gives the words with a space between two; see Tokenizer.
func (w *WordPiece) Decode(tokens []int32) string {
	var b strings.Builder
	for i, id := range tokens {
		word := string(utf8.RuneError)
		if id >= 0 && int(id) < len(w.words) {
			word = w.words[id]
		}
		part, follows := strings.CutPrefix(word, "##")
		if i > 0 && !follows {
			b.WriteByte(' ')
		}
		b.WriteString(part)
	}
	return b.String()
}
