package data

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// TextClasses are texts sorted into classes: a folder with a folder for each
// class, whose files are the samples. Texts are read when they are asked for.
type TextClasses struct {
	Names []string // of the classes, in order

	paths  []string
	labels []int32
	form   TextForm
}

// TextForm says how a text becomes a sample of one length.
type TextForm struct {
	Tokenizer Tokenizer
	Length    int   // tokens a sample; longer texts are cut
	First     int32 // the token before the text, which classifiers go by
	Pad       int32 // the token behind a shorter text
}

// OpenTextClasses finds the texts in a folder. Hidden, binary and empty files
// are passed over, as Load does.
func OpenTextClasses(ctx context.Context, dir string, form TextForm) (*TextClasses, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	c := &TextClasses{form: form}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		files, _, err := find(ctx, []string{filepath.Join(dir, e.Name())})
		if err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		for _, f := range files {
			c.paths, c.labels = append(c.paths, f.path), append(c.labels, int32(len(c.Names)))
		}
		c.Names = append(c.Names, e.Name())
	}
	if len(c.paths) == 0 || len(c.Names) < 2 {
		return nil, fmt.Errorf("data: %s has %d folders with %d texts: a folder for each of several classes is needed, with texts in it", dir, len(c.Names), len(c.paths))
	}
	return c, nil
}

// Texts gives the samples: int32 [2, Length], the tokens and, for each, 1 for a
// token of the text and 0 behind its end.
func (c *TextClasses) Texts() Source { return texts{c} }

// Sequences gives the tokens of the texts without padding. It goes through all
// texts once for their lengths; those that change later are an error.
func (c *TextClasses) Sequences(ctx context.Context) (Sequences, error) {
	s := &textSequences{texts{c}, make([]int, len(c.paths))}
	for i, path := range c.paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		tokens, err := s.encode(path)
		if err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		s.lengths[i] = len(tokens)
	}
	return s, nil
}

type textSequences struct {
	texts
	lengths []int
}

func (s *textSequences) Length(i int) int { return s.lengths[i] }

func (s *textSequences) Read(i int, dst []int32) error {
	checkLength(s, i, dst)
	tokens, err := s.encode(s.paths[i])
	if err == nil && len(tokens) != len(dst) {
		err = fmt.Errorf("%s has %d tokens now, it had %d", s.paths[i], len(tokens), len(dst))
	}
	copy(dst, tokens)
	return err
}

// Labels gives the class of each sample: int32.
func (c *TextClasses) Labels() Source { return textLabels{c} }

type texts struct{ *TextClasses }

func (t texts) Len() int     { return len(t.paths) }
func (t texts) Shape() []int { return []int{2, t.form.Length} }
func (t texts) DType() DType { return Int32 }

func (t texts) Read(i int, dst []byte) error {
	checkWhole(t, i, dst)
	tokens, err := t.encode(t.paths[i])
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	for p := range t.form.Length {
		token, there := t.form.Pad, uint32(0)
		if p < len(tokens) {
			token, there = tokens[p], 1
		}
		binary.LittleEndian.PutUint32(dst[4*p:], uint32(token))
		binary.LittleEndian.PutUint32(dst[4*(t.form.Length+p):], there)
	}
	return nil
}

// encode gives the first tokens of a file; as much is read as they need.
func (t texts) encode(path string) ([]int32, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tokens, text := []int32{t.form.First}, []byte(nil)
	part := make([]byte, 8*t.form.Length)
	for last := false; !last && len(tokens) < t.form.Length; {
		n, err := io.ReadFull(f, part)
		if last = err == io.EOF || err == io.ErrUnexpectedEOF; err != nil && !last {
			return nil, err
		}
		text = append(text, part[:n]...)
		var used int
		tokens, used = t.form.Tokenizer.EncodePart(tokens, text, last)
		text = text[used:]
	}
	return tokens[:min(len(tokens), t.form.Length)], nil
}

type textLabels struct{ *TextClasses }

func (t textLabels) Len() int     { return len(t.labels) }
func (t textLabels) Shape() []int { return nil }
func (t textLabels) DType() DType { return Int32 }

func (t textLabels) Read(i int, dst []byte) error {
	checkWhole(t, i, dst)
	binary.LittleEndian.PutUint32(dst, uint32(t.labels[i]))
	return nil
}
