package data

import "fmt"

// Tokenizer turns text into tokens and back. Text may be any bytes: decoding
// gives what was encoded, invalid UTF-8 included (but see WordPiece). The
// methods may be called concurrently.
type Tokenizer interface {
	// Name tells it from others; it is what NewTokenizer knows it by.
	Name() string

	// VocabSize is the number of tokens, which are 0 ... VocabSize-1.
	VocabSize() int

	// Separator is the token put between two documents.
	Separator() int32

	// Encode gives the tokens of a text.
	Encode(text string) []int32

	// EncodePart encodes a text that comes in parts. It appends to dst the
	// tokens of the front of text and returns how many bytes they stand for.
	// The tokens of the bytes that remain depend on what follows; pass these
	// bytes again with the next part. With last, none remain. The tokens are
	// those of Encode, however the text is cut into parts.
	EncodePart(dst []int32, text []byte, last bool) (tokens []int32, n int)

	// Decode gives the text of the tokens. A token outside the vocabulary,
	// which a model with a padded vocabulary can produce, becomes U+FFFD.
	Decode(tokens []int32) string
}

// NewTokenizer makes the tokenizer of the given name: "bytes" (every byte is a
// token, 256 in all) or "gpt2" (the byte-pair encoding of GPT-2, 50257).
func NewTokenizer(name string) (Tokenizer, error) {
	switch name {
	case "bytes":
		return Bytes{}, nil
	case "gpt2":
		return newGPT2()
	}
	return nil, fmt.Errorf("data: unknown tokenizer %q: there are \"bytes\" (every byte a token, no vocabulary to learn) and \"gpt2\" (50257 tokens of about four letters)", name)
}

// encode is Tokenizer.Encode in terms of EncodePart.
func encode(t Tokenizer, text string) []int32 {
	tokens, _ := t.EncodePart(nil, []byte(text), true)
	return tokens
}
