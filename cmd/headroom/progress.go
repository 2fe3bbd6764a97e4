package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// progress shows how a run goes: a bar that is drawn over itself on a
// terminal, a line now and then elsewhere.
type progress struct {
	w   io.Writer
	bar bool
}

func newProgress(w io.Writer) *progress { return &progress{w, columnsOf(w) > 0} }

// lines is about how many lines a run prints where there is no terminal.
const lines = 20

func (p *progress) step(s train.Progress) {
	text := fmt.Sprintf("step %d/%d  loss %.3f  %s  live %s  peak %s", s.Step, s.Steps, s.Loss, per(s.SamplesPerSecond, s.TokensPerSecond), size.Format(s.LiveBytes), size.Format(s.PeakBytes))
	switch every := max(s.Steps/lines, 1); {
	case p.bar:
		const width = 24
		full := width * s.Step / s.Steps
		line := fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", width-full), text)
		fmt.Fprintf(p.w, "\r\x1b[K%s", line[:min(len(line), max(columnsOf(p.w)-1, 0))]) // a longer line would not be drawn over
	case s.Step == 1 || s.Step%every == 0:
		fmt.Fprintln(p.w, text)
	}
}

func (p *progress) end() {
	if p.bar {
		fmt.Fprintln(p.w)
	}
}
