package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// readSize is how much of a file is read and encoded at once.
const readSize = 256 << 10

// Corpus is a text as tokens: the documents in order, with the tokenizer's
// separator between two. It does not change and may be shared.
type Corpus struct {
	tokenizer Tokenizer
	width     int    // bytes a token: 1 for at most 256 tokens, else 2
	tokens    []byte // little-endian
	summary   Summary
}

// Summary says what Load found.
type Summary struct {
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Tokens  int     `json:"tokens"` // separators included
	Skipped Skipped `json:"skipped"`
}

// Skipped counts what Load passed over.
type Skipped struct {
	Hidden    int `json:"hidden"`    // files and folders whose name begins with a dot
	Binary    int `json:"binary"`    // files with a NUL byte in their first 8 KiB
	Empty     int `json:"empty"`     // files of no bytes
	Irregular int `json:"irregular"` // symbolic links, pipes, devices, sockets
}

// String is for messages.
func (s Skipped) String() string {
	return fmt.Sprintf("%d hidden, %d binary, %d empty, %d links and special files", s.Hidden, s.Binary, s.Empty, s.Irregular)
}

// Load reads the text files at paths, each of them one document. A folder
// stands for the files in it and in its folders, in the order of names; hidden
// and binary files and whatever is no regular file are skipped and counted, so
// that a link never leads out of the folder. A file that cannot be read is an
// error. Beside the tokens, memory for a part of one file is needed.
func Load(ctx context.Context, paths []string, tokenizer Tokenizer) (*Corpus, error) {
	c, err := newCorpus(tokenizer)
	if err == nil {
		err = c.load(ctx, paths)
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return c, nil
}

func newCorpus(tokenizer Tokenizer) (*Corpus, error) {
	c := &Corpus{tokenizer: tokenizer, width: 1}
	switch size := tokenizer.VocabSize(); {
	case size > 1<<16:
		return nil, fmt.Errorf("tokenizer %s has %d tokens, more than the limit of %d", tokenizer.Name(), size, 1<<16)
	case size > 1<<8:
		c.width = 2
	}
	return c, nil
}

func (c *Corpus) load(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return errors.New("no files given")
	}
	sources, skipped, err := find(ctx, paths)
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return fmt.Errorf("no text in %s (skipped: %v)", strings.Join(paths, ", "), skipped)
	}
	c.summary.Skipped = skipped
	c.reserve(sources)
	l := newLoader(c, readSize)
	for i, s := range sources {
		if i > 0 {
			c.append(c.tokenizer.Separator())
		}
		if err := l.readFile(ctx, s.path); err != nil {
			return err
		}
	}
	c.summary.Files = len(sources)
	c.summary.Tokens = c.Len()
	return nil
}

// reserve makes room, so that the tokens need not move as they grow: a byte of
// room for a byte of text is exact for the tokenizer of bytes, and ample for
// others, whose tokens of two bytes stand for about four of text. A sparse file
// can claim any size, so sizes without sense reserve nothing.
func (c *Corpus) reserve(sources []source) {
	n := int64(len(sources))
	for _, s := range sources {
		n += s.size
	}
	if n <= min(1<<40, math.MaxInt/4) {
		c.tokens = slices.Grow(c.tokens, int(n))
	}
}

// loader reads documents into a corpus through buffers that it keeps.
type loader struct {
	corpus *Corpus
	text   []byte
	tokens []int32
}

// newLoader reads size bytes at once, or more where a token needs it.
func newLoader(c *Corpus, size int) *loader {
	return &loader{corpus: c, text: make([]byte, size)}
}

func (l *loader) readFile(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := l.read(ctx, f); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// read appends the tokens of a document.
func (l *loader) read(ctx context.Context, r io.Reader) error {
	filled := 0
	for last := false; !last; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if filled == len(l.text) { // the next token may need more than all this
			l.text = append(l.text, make([]byte, len(l.text))...)
		}
		n, err := io.ReadFull(r, l.text[filled:])
		if last = err == io.EOF || err == io.ErrUnexpectedEOF; err != nil && !last {
			return err
		}
		l.corpus.summary.Bytes += int64(n)
		filled += n
		var used int
		l.tokens, used = l.corpus.tokenizer.EncodePart(l.tokens[:0], l.text[:filled], last)
		l.corpus.append(l.tokens...)
		filled = copy(l.text, l.text[used:filled])
	}
	return nil
}

func (c *Corpus) append(tokens ...int32) {
	limit := c.tokenizer.VocabSize()
	for _, id := range tokens {
		if id < 0 || int(id) >= limit {
			panic(fmt.Sprintf("data: tokenizer %s gave token %d; it has %d", c.tokenizer.Name(), id, limit))
		}
		if c.width == 1 {
			c.tokens = append(c.tokens, byte(id))
		} else {
			c.tokens = binary.LittleEndian.AppendUint16(c.tokens, uint16(id))
		}
	}
}

// Len is the number of tokens.
func (c *Corpus) Len() int { return len(c.tokens) / c.width }

// Tokenizer is the one that Load was given.
func (c *Corpus) Tokenizer() Tokenizer { return c.tokenizer }

// Summary says what Load found; for a part that Split made, too.
func (c *Corpus) Summary() Summary { return c.summary }

// Split cuts off the tail for evaluation: the given fraction of the tokens,
// between 0 and 1. Both parts have at least one token and share c's memory.
func (c *Corpus) Split(fraction float64) (train, held *Corpus, err error) {
	if !(fraction > 0 && fraction < 1) {
		return nil, nil, fmt.Errorf("data: the held-out fraction is %v; it must lie between 0 and 1", fraction)
	}
	tail := int(math.Round(fraction * float64(c.Len())))
	if tail == 0 || tail == c.Len() {
		return nil, nil, fmt.Errorf("data: %v of %d tokens leaves nothing on one side", fraction, c.Len())
	}
	cut := (c.Len() - tail) * c.width
	train, held = new(*c), new(*c)
	train.tokens, held.tokens = c.tokens[:cut:cut], c.tokens[cut:]
	return train, held, nil
}

// window fills dst with the tokens from start on.
func (c *Corpus) window(dst []int32, start int) {
	if c.width == 1 {
		for i, id := range c.tokens[start : start+len(dst)] {
			dst[i] = int32(id)
		}
		return
	}
	src := c.tokens[2*start : 2*(start+len(dst))]
	for i := range dst {
		dst[i] = int32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// Fingerprint identifies a corpus.
type Fingerprint struct {
	Tokenizer string `json:"tokenizer"`
	Tokens    int    `json:"tokens"`
	SHA256    string `json:"sha256"` // of the tokens
}

func (c *Corpus) fingerprint() Fingerprint {
	sum := sha256.Sum256(c.tokens)
	return Fingerprint{c.tokenizer.Name(), c.Len(), hex.EncodeToString(sum[:])}
}
