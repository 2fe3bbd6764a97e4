package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/train"
)

// TestProgress: without a terminal a line for each twentieth, the first at
// once; on one everything is drawn over, and nothing that is already there.
func TestProgress(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out, 0)
	for i := range int64(1000) {
		p.show(i+1, 1000, fmt.Sprint("step ", i+1))
	}
	p.show(0, 0, "nobody knows how much")
	p.end()
	if lines := strings.Split(out.String(), "\n"); len(lines) != 22 || lines[0] != "step 1" || lines[1] != "step 50" || lines[20] != "step 1000" {
		t.Errorf("%q", lines)
	}

	out.Reset()
	p = newProgress(&out, 0)
	p.columns = func() int { return 80 }
	p.show(1, 4, "a\x1b")
	p.show(1, 4, "a\x1b")
	p.show(4, 4, "b")
	p.show(0, 0, "c")
	p.end()
	p.end()
	if got, want := out.String(), "\r\x1b[K[######..................] a\uFFFD\r\x1b[K[########################] b\r\x1b[Kc\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLendersAreShown: what becomes of memory that others lend has a line of its own at
// once, also where the step itself has none, and on a terminal.
func TestLendersAreShown(t *testing.T) {
	for columns, want := range map[int]string{
		0:  "step 1/9  loss 0.000  0 images/s  live 0B  peak 0B\nstep 2/9  gone\n",
		80: "\r\x1b[K[##......................] step 1/9  loss 0.000  0 images/s  live 0B  peak 0B\nstep 2/9  gone\n\r\x1b[K[#####...................] step 2/9  loss 0.000  0 images/s  live 0B  peak 0B\n",
	} {
		var out strings.Builder
		p := newProgress(&out, 0)
		p.columns = func() int { return columns }
		p.step(train.Progress{Step: 1, Events: []train.Event{{Kind: "evict", Text: "often"}}, Steps: 9})
		p.quiet, p.from = time.Hour, time.Now().Add(time.Duration(80-columns)*time.Hour)
		p.step(train.Progress{Step: 2, Events: []train.Event{{Kind: "lender", Text: "gone"}}, Steps: 9})
		p.end()
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}

// TestReadingIsShown: how much of a file was read is told once it takes long,
// also where a compressed file grows while it is read.
func TestReadingIsShown(t *testing.T) {
	read := func(from time.Time, whole int64) string {
		var out strings.Builder
		f := follow(strings.NewReader(strings.Repeat("x", 4<<20)), "a.pickle", nil, &out)
		f.quiet, f.from, f.whole = 0, from, whole
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
		f.end()
		return out.String()
	}
	if got := read(time.Now().Add(time.Hour), 4<<20); got != "" {
		t.Errorf("what is over at once is told of: %q", got)
	}
	want := "reading a.pickle  25 % of 4MiB\nreading a.pickle  50 % of 4MiB\nreading a.pickle  75 % of 4MiB\nreading a.pickle  100 % of 4MiB\n"
	if got := read(time.Time{}, 4<<20); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := read(time.Time{}, 1<<20); got != "reading a.pickle  100 % of 1MiB\n" {
		t.Errorf("%q", got)
	}
	if got := read(time.Time{}, 0); got != "" {
		t.Errorf("of a pipe: %q", got)
	}
}
