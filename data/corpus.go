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
	"math/bits"
	"os"
	"slices"
	"strings"
)

// readSize is how much of a file is read and encoded at once.
const readSize = 256 << 10

// Corpus is a text as tokens: the documents in order, with the tokenizer's
// separator between two. It is in memory (Load) or in a file (OpenCorpus). It
// does not change and may be shared.
type Corpus struct {
	tokenizer Tokenizer
	width     int       // bytes a token
	tokens    []byte    // little-endian; nil if they are in a file
	stored    *Array    // the file, one sample a token; nil if they are in memory
	first, n  int       // the part of the file
	out       io.Writer // while tokens are made: where they go; nil: they stay
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

// WriteTokens is Load for texts larger than memory: it writes the tokens to w as
// they come, as OpenCorpus reads them, in the type that TokenType gives.
func WriteTokens(ctx context.Context, w io.Writer, paths []string, tokenizer Tokenizer) (Summary, error) {
	c, err := newCorpus(tokenizer)
	if err == nil {
		c.out = w
		err = c.load(ctx, paths)
	}
	if err != nil {
		return Summary{}, fmt.Errorf("data: %w", err)
	}
	return c.summary, nil
}

// TokenType is the smallest type for the tokens of a tokenizer that Load knows.
func TokenType(tokenizer Tokenizer) DType {
	if tokenizer.VocabSize() <= 1<<8 {
		return Uint8
	}
	return Uint16
}

func newCorpus(tokenizer Tokenizer) (*Corpus, error) {
	if size := tokenizer.VocabSize(); size > 1<<16 {
		return nil, fmt.Errorf("tokenizer %s has %d tokens, more than the limit of %d", tokenizer.Name(), size, 1<<16)
	}
	return &Corpus{tokenizer: tokenizer, width: TokenType(tokenizer).Size()}, nil
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
	if c.out == nil {
		c.reserve(sources)
	}
	l := newTextReader(c, readSize)
	for i, s := range sources {
		if i > 0 {
			c.append(c.tokenizer.Separator())
		}
		if err := l.readFile(ctx, s.path); err != nil {
			return err
		}
	}
	c.summary.Files = len(sources)
	if c.out == nil {
		c.summary.Tokens = c.Len()
	}
	return nil
}

// flush writes the tokens out, if they are not to stay.
func (c *Corpus) flush() error {
	if c.out == nil {
		return nil
	}
	c.summary.Tokens += c.Len()
	_, err := c.out.Write(c.tokens)
	c.tokens = c.tokens[:0]
	return err
}

// reserve makes room, so that the tokens need not move as they grow: a byte of
// room for a byte of text is exact for the tokenizer of bytes, and ample for
// others, whose tokens of two bytes stand for about four of text. A sparse file
// can claim any size, so sizes without sense reserve nothing.
func (c *Corpus) reserve(sources []textFile) {
	n := int64(len(sources))
	for _, s := range sources {
		n += s.size
	}
	if n <= min(1<<40, math.MaxInt/4) {
		c.tokens = slices.Grow(c.tokens, int(n))
	}
}

// textReader reads documents into a corpus through buffers that it keeps.
type textReader struct {
	corpus *Corpus
	text   []byte
	tokens []int32
}

// newTextReader reads size bytes at once, or more where a token needs it.
func newTextReader(c *Corpus, size int) *textReader {
	return &textReader{corpus: c, text: make([]byte, size)}
}

func (l *textReader) readFile(ctx context.Context, path string) error {
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
func (l *textReader) read(ctx context.Context, r io.Reader) error {
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
		if err := l.corpus.flush(); err != nil {
			return err
		}
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

// OpenCorpus opens a file of tokens, bare little-endian numbers of the given
// type (Uint8, Uint16 or Uint32), made with the tokenizer. The tokens stay in
// the file: what the corpus takes of memory does not depend on their number.
func OpenCorpus(path string, dtype DType, tokenizer Tokenizer) (*Corpus, error) {
	if dtype != Uint8 && dtype != Uint16 && dtype != Uint32 {
		return nil, fmt.Errorf("data: tokens of type %q: there are %s, %s and %s", dtype, Uint8, Uint16, Uint32)
	}
	a, err := OpenTokens(path, dtype)
	if err != nil {
		return nil, err
	}
	return storedCorpus(a, tokenizer), nil
}

// OpenCorpusArray is OpenCorpus for a file that names its type, such as an npy
// file: one row of numbers of Uint8, Uint16, Uint32 or Int32.
func OpenCorpusArray(path string, tokenizer Tokenizer) (*Corpus, error) {
	a, err := Open(path, "")
	if err != nil {
		return nil, err
	}
	if d := a.DType(); a.big || len(a.Shape()) != 0 || len(a.pieces) != 1 || d != Uint8 && d != Uint16 && d != Uint32 && d != Int32 {
		return nil, errors.Join(fmt.Errorf("data: %s: %d samples of %s with shape %v are no tokens: want one row of numbers of %s, %s, %s or %s, little-endian", path, a.Len(), d, a.Shape(), Uint8, Uint16, Uint32, Int32), a.Close())
	}
	return storedCorpus(a, tokenizer), nil
}

func storedCorpus(a *Array, tokenizer Tokenizer) *Corpus {
	width := a.DType().Size()
	return &Corpus{tokenizer: tokenizer, width: width, stored: a, n: a.Len(),
		summary: Summary{Files: 1, Bytes: int64(a.Len()) * int64(width), Tokens: a.Len()}}
}

// Close closes the file that OpenCorpus opened, for the parts that Split made,
// too. It does nothing for a corpus in memory.
func (c *Corpus) Close() error {
	if c.stored == nil {
		return nil
	}
	return c.stored.Close()
}

// Len is the number of tokens.
func (c *Corpus) Len() int {
	if c.stored != nil {
		return c.n
	}
	return len(c.tokens) / c.width
}

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
	train, held = new(*c), new(*c)
	if c.stored != nil {
		train.n, held.n, held.first = c.n-tail, tail, c.first+c.n-tail
		return train, held, nil
	}
	cut := (c.Len() - tail) * c.width
	train.tokens, held.tokens = c.tokens[:cut:cut], c.tokens[cut:]
	return train, held, nil
}

// window fills dst with the tokens from start on. It fails only for tokens in a
// file: if it does not read, or has a token that the tokenizer does not know.
func (c *Corpus) window(dst []int32, start int) error {
	src := c.tokens
	if c.stored == nil {
		src = src[c.width*start : c.width*(start+len(dst))]
	} else {
		src = make([]byte, c.width*len(dst))
		if err := c.stored.readRun(c.first+start, src); err != nil {
			return err
		}
	}
	decodeTokens(dst, src, c.width)
	if c.stored != nil {
		return c.checkTokens(dst, start)
	}
	return nil
}

// decodeTokens fills dst from little-endian numbers of width bytes.
func decodeTokens(dst []int32, src []byte, width int) {
	switch width {
	case 1:
		for i := range dst {
			dst[i] = int32(src[i])
		}
	case 2:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case 4:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint32(src[4*i:]))
		}
	}
}

// checkTokens finds tokens that the tokenizer does not have.
func (c *Corpus) checkTokens(tokens []int32, start int) error {
	limit := c.tokenizer.VocabSize()
	for i, id := range tokens {
		if id < 0 || int(id) >= limit {
			return fmt.Errorf("data: token %d of the file is %d; tokenizer %s has %d: is the file of another tokenizer or type?", c.first+start+i, uint32(id), c.tokenizer.Name(), limit)
		}
	}
	return nil
}

// Fingerprint identifies a corpus.
type Fingerprint struct {
	Tokenizer string `json:"tokenizer"`
	Tokens    int    `json:"tokens"`
	SHA256    string `json:"sha256"` // of the tokens; see sampledBlocks for those in a file
}

// Of a corpus in a file, the fingerprint hashes sampledBlocks blocks of
// blockTokens tokens at equal distances, the first and the last among them, or
// all tokens where there are no more: 20 GB would take minutes from a disk.
const (
	sampledBlocks = 256
	blockTokens   = 16 << 10
)

func (c *Corpus) fingerprint() (Fingerprint, error) {
	hash := sha256.New()
	hash.Write(c.tokens)
	if c.stored != nil {
		if err := c.hashSample(hash); err != nil {
			return Fingerprint{}, err
		}
	}
	return Fingerprint{c.tokenizer.Name(), c.Len(), hex.EncodeToString(hash.Sum(nil))}, nil
}

func (c *Corpus) hashSample(w io.Writer) error {
	block, blocks := min(blockTokens, c.n), sampledBlocks
	if c.n <= blockTokens*sampledBlocks {
		blocks = (c.n + blockTokens - 1) / blockTokens
	}
	buffer := make([]byte, block*c.width)
	for i := range blocks {
		start := 0
		if blocks > 1 {
			high, low := bits.Mul64(uint64(c.n-block), uint64(i))
			quotient, _ := bits.Div64(high, low, uint64(blocks-1))
			start = int(quotient)
		}
		if err := c.stored.readRun(c.first+start, buffer); err != nil {
			return err
		}
		w.Write(buffer) // a hash takes all
	}
	return nil
}
