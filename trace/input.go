package trace

import (
	"errors"
	"fmt"
	"io"
)

// input reads bytes and knows how many it has given.
type input struct {
	r      io.Reader
	buf    []byte
	pos    int // buf[pos:] is not given yet
	offset int64
	err    error // why nothing comes after buf; io.EOF at the end
}

// inputSize is the number of bytes that are read at once, and the most that
// take gives.
const inputSize = 64 << 10

func newInput(r io.Reader) *input { return &input{r: r, buf: make([]byte, 0, inputSize)} }

// at is the offset of the next byte.
func (in *input) at() int64 { return in.offset + int64(in.pos) }

// peek gives up to n bytes without taking them: fewer only before the end.
func (in *input) peek(n int) []byte {
	if len(in.buf)-in.pos < n {
		in.fill(n)
	}
	return in.buf[in.pos:min(len(in.buf), in.pos+n)]
}

// fill reads until n bytes are there or none come any more.
func (in *input) fill(n int) {
	in.offset += int64(in.pos)
	in.buf = in.buf[:copy(in.buf[:cap(in.buf)], in.buf[in.pos:])]
	in.pos = 0
	for idle := 0; len(in.buf) < n && in.err == nil; idle++ {
		var got int
		got, in.err = in.r.Read(in.buf[len(in.buf):cap(in.buf)])
		in.buf = in.buf[:len(in.buf)+got]
		if got > 0 {
			idle = 0
		}
		if idle > 100 {
			in.err = io.ErrNoProgress
		}
	}
}

// take gives the next n bytes, valid until the next call, or false if there
// are fewer. n is at most inputSize.
func (in *input) take(n int) ([]byte, bool) {
	b := in.peek(n)
	if len(b) < n {
		return nil, false
	}
	in.pos += n
	return b, true
}

// skip passes over n bytes, or gives false if there are fewer.
func (in *input) skip(n int64) bool {
	for n > 0 {
		b := in.peek(int(min(n, inputSize)))
		if len(b) == 0 {
			return false
		}
		in.pos += len(b)
		n -= int64(len(b))
	}
	return true
}

// errEnds says that an input ended too early.
var errEnds = errors.New("the file ends early")

// ends gives an error that wraps errEnds: where the input ended, and why if it
// was no plain end.
func (in *input) ends(what string) error {
	err := fmt.Errorf("%w, after %d bytes%s", errEnds, in.offset+int64(len(in.buf)), what)
	if in.err != nil && !errors.Is(in.err, io.EOF) && !errors.Is(in.err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w (%w)", err, in.err)
	}
	return err
}

// rest is an error if the input goes on, or does not end as it should.
func (in *input) rest() error {
	switch {
	case len(in.peek(1)) > 0:
		return fmt.Errorf("the file goes on after the record, which ends at byte %d", in.at())
	case !errors.Is(in.err, io.EOF):
		return fmt.Errorf("the file is damaged or cut behind byte %d: %w", in.at(), in.err)
	}
	return nil
}

// Read gives bytes as io.Reader does, for readers of other formats.
func (in *input) Read(p []byte) (int, error) {
	if len(in.peek(1)) == 0 {
		return 0, in.err
	}
	n := copy(p, in.buf[in.pos:])
	in.pos += n
	return n, nil
}

// source remembers what went wrong with a reader itself, as against what a
// decompressor says of the bytes that came from it.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}
