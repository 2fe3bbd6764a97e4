// The GPT-2 tokenizer. Text is first cut into pieces: words with the space
// before them, numbers, punctuation, runs of white space (pieces.go). Each piece
// on its own then becomes tokens by byte-pair encoding (Sennrich, Haddow and
// Birch 2016; over bytes as in Radford et al. 2019): it starts as single bytes,
// and as long as two neighbours together are a token, the pair with the lowest
// id merges, of equal pairs the leftmost. A token's id is its rank: the
// vocabulary was built in the order of merging.
//
// The vocabulary comes with github.com/pkoukk/tiktoken-go-loader, as a file of
// tokens and ranks: a module that holds it as Go source takes the compiler
// longer than all the rest of this program. The tests compare the encoding with
// github.com/tiktoken-go/tokenizer, whose encoder replaces invalid UTF-8, drops
// U+007F and takes a text only as a whole.

package data

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	vocabulary "github.com/pkoukk/tiktoken-go-loader"
)

const (
	endOfText = 50256

	// Pieces up to cachedLen bytes long that are no token keep their tokens in
	// a cache of at most cacheSize pieces: text repeats its words.
	cachedLen = 32
	cacheSize = 1 << 15
)

// gpt2 is the byte-pair encoding of GPT-2. The text "<|endoftext|>" has no
// special meaning in Encode; Decode writes it for the separator.
type gpt2 struct {
	ids     map[string]int32
	texts   []string // by id
	scratch sync.Pool
}

func newGPT2() (*gpt2, error) {
	ranks, err := vocabulary.NewOfflineLoader().LoadTiktokenBpe("r50k_base.tiktoken")
	if err != nil {
		return nil, fmt.Errorf("data: the vocabulary of GPT-2: %w", err)
	}
	g := &gpt2{ids: make(map[string]int32, endOfText), texts: make([]string, endOfText)}
	for text, id := range ranks {
		if id < 0 || id >= endOfText || g.texts[id] != "" {
			return nil, fmt.Errorf("data: the vocabulary of GPT-2 has token %d (%q) twice or beyond its end", id, text)
		}
		g.ids[text], g.texts[id] = int32(id), text
	}
	if len(g.ids) != endOfText {
		return nil, fmt.Errorf("data: the vocabulary of GPT-2 has %d tokens, want %d", len(g.ids), endOfText)
	}
	for b := range 256 {
		if _, ok := g.ids[string([]byte{byte(b)})]; !ok {
			return nil, fmt.Errorf("data: the vocabulary of GPT-2 lacks byte %#x", b)
		}
	}
	g.texts = append(g.texts, "<|endoftext|>")
	g.scratch.New = func() any { return &merger{ids: g.ids, cache: map[string][]int32{}} }
	return g, nil
}

func (g *gpt2) Name() string { return "gpt2" }

func (g *gpt2) VocabSize() int { return endOfText + 1 }

func (g *gpt2) Separator() int32 { return endOfText }

func (g *gpt2) Encode(text string) []int32 { return encode(g, text) }

func (g *gpt2) EncodePart(dst []int32, text []byte, last bool) ([]int32, int) {
	m := g.scratch.Get().(*merger)
	defer g.scratch.Put(m)
	done := 0
	for done < len(text) {
		n := nextPiece(text[done:], last)
		if n == 0 {
			break
		}
		dst = m.encode(dst, text[done:done+n])
		done += n
	}
	return dst, done
}

func (g *gpt2) Decode(tokens []int32) string {
	var b strings.Builder
	for _, id := range tokens {
		if id < 0 || int(id) >= len(g.texts) {
			b.WriteRune(utf8.RuneError)
			continue
		}
		b.WriteString(g.texts[id])
	}
	return b.String()
}
