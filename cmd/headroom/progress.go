package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// What a command says on its way goes to standard error, and has one form in
// all of them: facts (fact), how far it is (progress), and warnings, which begin
// as errors do with "headroom:". Results are tables on standard output.

// fact tells a fact: its name, of at most six letters, and a text beside it.
func fact(w io.Writer, name, format string, args ...any) error {
	p := newPage(w)
	p.fact(name, format, args...)
	return p.err
}

func (p *page) fact(name, format string, args ...any) {
	p.table("lw", []string{fmt.Sprintf("%-6s", name), fmt.Sprintf(format, args...)})
}

// progress shows how far a command is: a bar that is drawn over itself on a
// terminal, and elsewhere a line for each twentieth that is done.
type progress struct {
	w       io.Writer
	columns func() int    // of the terminal; 0: it is none
	quiet   time.Duration // before the first word, and between two lines
	from    time.Time     // before, nothing is shown
	told    int64         // twentieths that have a line; −1: none
	drawn   string        // what stands on the terminal
}

// shortly is how long work that may be over at once goes on without a word.
const shortly = time.Second

func newProgress(w io.Writer, quiet time.Duration) *progress {
	return &progress{w: w, columns: func() int { return columnsOf(w) }, quiet: quiet, from: time.Now().Add(quiet), told: -1}
}

// twentieths is about how many lines are printed where there is no terminal.
const twentieths = 20

// show says that so much of the whole is done. Of a whole of 0 nobody knows how
// much it is: then only a terminal shows the text.
func (p *progress) show(done, whole int64, text string) {
	switch {
	case time.Now().Before(p.from):
	case p.columns() > 0:
		p.draw(done, whole, text)
	case whole > 0 && twentieths*done/whole > p.told:
		p.told, p.from = twentieths*done/whole, time.Now().Add(p.quiet)
		fmt.Fprintln(p.w, text)
	}
}

// draw draws over what stands there. A longer line than the terminal is wide
// would not be drawn over.
func (p *progress) draw(done, whole int64, text string) {
	const width = 24
	if whole > 0 {
		full := int(width * done / whole)
		text = fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", width-full), text)
	}
	if text = shorten(clean(text), p.columns()-1); text != p.drawn {
		p.drawn = text
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	}
}

// end leaves what stands there last. What is printed then begins a line.
func (p *progress) end() {
	if p.drawn != "" {
		fmt.Fprintln(p.w)
		p.drawn = ""
	}
}

// step shows a step of a run, and what became of memory that others lend.
func (p *progress) step(s train.Progress) {
	for _, e := range s.Events {
		if e.Kind == "lender" || e.Kind == "lost" {
			p.end()
			fmt.Fprintf(p.w, "step %d/%d  %s\n", s.Step, s.Steps, clean(e.Text))
		}
	}
	p.show(int64(s.Step), int64(s.Steps), fmt.Sprintf("step %d/%d  loss %.3f  %s  live %s  peak %s",
		s.Step, s.Steps, s.Loss, per(s.SamplesPerSecond, s.TokensPerSecond), size.Format(s.LiveBytes), size.Format(s.PeakBytes)))
}

// planning shows the trials of a search, which tell is told of.
func planning(stderr io.Writer) (p *progress, tell func(plan.Trial)) {
	p, n := newProgress(stderr, shortly), 0
	return p, func(t plan.Trial) {
		n++
		p.show(0, 0, fmt.Sprintf("planning  trial %d, %s", n, t.Description))
	}
}

// following is a file whose reading is shown.
type following struct {
	io.Reader
	*progress
	name        string
	done, whole int64
}

// follow shows how much of a file has been read until end is called. The whole
// is 0 where nobody knows its length.
func follow(r io.Reader, name string, info os.FileInfo, stderr io.Writer) *following {
	f := &following{Reader: r, progress: newProgress(stderr, shortly), name: name}
	if info != nil {
		f.whole = info.Size()
	}
	return f
}

func (f *following) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	f.done += int64(n)
	text := size.Format(uint64(f.done))
	if f.whole > 0 {
		f.done = min(f.done, f.whole)
		text = fmt.Sprintf("%d %% of %s", 100*f.done/f.whole, size.Format(uint64(f.whole)))
	}
	f.show(f.done, f.whole, fmt.Sprintf("reading %s  %s", f.name, text))
	return n, err
}
