package data

import (
	"slices"
	"unicode/utf8"
)

// Bytes is the tokenizer for which every byte is a token. Documents are
// separated by a newline.
type Bytes struct{}

// Name is "bytes".
func (Bytes) Name() string { return "bytes" }

// VocabSize is 256.
func (Bytes) VocabSize() int { return 256 }

// Separator is the newline.
func (Bytes) Separator() int32 { return '\n' }

// Encode gives the bytes of a text.
func (b Bytes) Encode(text string) []int32 { return encode(b, text) }

// EncodePart leaves no bytes over.
func (Bytes) EncodePart(dst []int32, text []byte, last bool) ([]int32, int) {
	dst = slices.Grow(dst, len(text))
	for _, c := range text {
		dst = append(dst, int32(c))
	}
	return dst, len(text)
}

// Decode gives the text of the bytes; see Tokenizer.
func (Bytes) Decode(tokens []int32) string {
	text := make([]byte, 0, len(tokens))
	for _, id := range tokens {
		if id < 0 || id > 255 {
			text = utf8.AppendRune(text, utf8.RuneError)
			continue
		}
		text = append(text, byte(id))
	}
	return string(text)
}
