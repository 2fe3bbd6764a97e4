package watch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Source tells what GPUs hold.
type Source interface {
	// Scan looks once. A query that failed is a scan with an Error. An error
	// means that there is nothing more to come: io.EOF at a record's end, another
	// one where the source is of no use.
	Scan(ctx context.Context) (Scan, error)
}

// maxLine bounds a line of a record.
const maxLine = 4 << 20

// Reader is a record as a source: lines of JSON, each a Scan. Empty lines and
// fields that it does not know are left out.
type Reader struct {
	lines *bufio.Scanner
	line  int
}

// NewReader reads a record.
func NewReader(r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	return &Reader{lines: lines}
}

// Scan gives the next scan of the record. Its error names the line.
func (r *Reader) Scan(context.Context) (Scan, error) {
	for r.lines.Scan() {
		r.line++
		if len(r.lines.Bytes()) > 0 {
			return r.parse(r.lines.Bytes())
		}
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return Scan{}, fmt.Errorf("line %d is longer than %d bytes: this is no record of GPUs", r.line+1, maxLine)
	case err != nil:
		return Scan{}, fmt.Errorf("line %d: %w", r.line+1, err)
	}
	return Scan{}, io.EOF
}

func (r *Reader) parse(line []byte) (Scan, error) {
	var s Scan
	if err := json.Unmarshal(line, &s); err != nil {
		return Scan{}, fmt.Errorf("line %d is no scan: %w", r.line, err)
	}
	if s.Time.IsZero() {
		return Scan{}, fmt.Errorf("line %d has no time", r.line)
	}
	return s, nil
}

// Write writes a scan as a line of a record.
func Write(w io.Writer, s Scan) error { return json.NewEncoder(w).Encode(s) }

// Pace says when Run scans.
type Pace struct {
	Every time.Duration // between the beginnings of two scans; 0: at once
	Limit time.Duration // for one query; 0: none
}

// Run scans until ctx ends, the source has no more (then it returns nil), or do
// returns an error. It calls do from one goroutine with each scan. A query that
// exceeds the limit gives a failed scan at every turn until it comes back; no
// other is begun meanwhile.
func Run(ctx context.Context, src Source, pace Pace, do func(Scan) error) error {
	type answer struct {
		scan Scan
		err  error
	}
	answers := make(chan answer, 1)
	waiting := false
	for {
		begun := time.Now()
		if !waiting {
			go func() { s, err := src.Scan(ctx); answers <- answer{s, err} }()
			waiting = true
		}
		var late <-chan time.Time
		if pace.Limit > 0 {
			late = time.After(pace.Limit)
		}
		var a answer
		select {
		case a = <-answers:
			waiting = false
		case <-late:
			a.scan = Scan{Time: time.Now(), Error: fmt.Sprintf("no answer within %v", pace.Limit)}
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.err == io.EOF {
			return nil
		}
		if a.err != nil {
			return a.err
		}
		if err := do(a.scan); err != nil {
			return err
		}
		select {
		case <-time.After(time.Until(begun.Add(pace.Every))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
