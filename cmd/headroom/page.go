package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// page writes results for people. On a terminal no line is wider than it:
// texts go on in the next line, and colours say what matters. Elsewhere nothing
// is cut or coloured. Control characters, which may come from a stranger's file,
// are shown as U+FFFD. The first error of the writer is kept in err.
type page struct {
	w      io.Writer
	width  int // columns; 0: any
	colour bool
	err    error
}

func newPage(w io.Writer) *page {
	n := columnsOf(w)
	return &page{w: w, width: n, colour: n > 0 && colourWanted()}
}

// colourWanted heeds no-color.org and terminals that know no colours.
func colourWanted() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }

// columnsOf is the width of a terminal, 0 of anything else.
func columnsOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
		return n
	}
	return 80
}

// style is how a terminal shows a text.
type style string

// The styles, as ANSI's codes.
const (
	plain style = ""
	bold  style = "1"
	good  style = "1;32" // bold green
	bad   style = "1;31" // bold red
)

// line writes a paragraph in a style.
func (p *page) line(s style, format string, args ...any) {
	for _, text := range wrap(clean(fmt.Sprintf(format, args...)), p.width) {
		p.write(s, text)
	}
}

// title begins a section.
func (p *page) title(text string) {
	p.write(plain, "")
	p.line(bold, "%s", text)
}

// write writes one line, cut in its middle where it is too wide all the same.
func (p *page) write(s style, text string) {
	text = strings.TrimRight(text, " ")
	if p.width > 0 {
		text = shorten(text, p.width)
	}
	if p.colour && s != plain && text != "" {
		text = "\x1b[" + string(s) + "m" + text + "\x1b[0m"
	}
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, text)
	}
}

// between is what stands between two columns of a table. A text that would have
// less than leastRoom beside its row stands below it.
const (
	between   = "  "
	leastRoom = 16
)

// table writes rows whose columns stand below one another. The layout has a
// letter for each column: l for left, r for right, and, for one of them, w for a
// text that is wrapped to the room that is left and m for one that is shortened
// in its middle.
func (p *page) table(layout string, rows ...[]string) {
	flexible := strings.IndexAny(layout, "wm")
	widths := make([]int, len(layout))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	room := 0 // any
	if p.width > 0 && flexible >= 0 {
		room = p.width
		for i, n := range widths {
			if i != flexible {
				room -= n + len(between)
			}
		}
		widths[flexible] = min(widths[flexible], max(room, leastRoom))
	}
	for _, row := range rows {
		p.row(layout, widths, row, room < leastRoom && p.width > 0)
	}
}

// row writes one row of a table. Below says that its wrapped text goes under it.
func (p *page) row(layout string, widths []int, cells []string, below bool) {
	const indent = "    "
	var line strings.Builder
	var more []string
	for i, cell := range cells {
		if i > 0 {
			line.WriteString(between)
		}
		switch n := widths[i] - utf8.RuneCountInString(cell); {
		case layout[i] == 'r':
			line.WriteString(strings.Repeat(" ", n) + cell)
		case layout[i] == 'w' && below && cell != "":
			more = indented(wrap(cell, p.width-len(indent)), indent)
		case layout[i] == 'w' && p.width > 0:
			lines := wrap(cell, widths[i])
			more = indented(lines[1:], strings.Repeat(" ", utf8.RuneCountInString(line.String())))
			line.WriteString(lines[0])
		case n < 0:
			line.WriteString(shorten(cell, widths[i]))
		default:
			line.WriteString(cell + strings.Repeat(" ", n))
		}
	}
	p.write(plain, line.String())
	for _, text := range more {
		p.write(plain, text)
	}
}

func indented(lines []string, by string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = by + l
	}
	return out
}

// wrap breaks a text at its blanks into lines of so many columns, 0 for any
// number. Words that are too long are broken anywhere. Blanks at the start
// indent every line.
func wrap(text string, width int) []string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	room := max(width-len(indent), 1)
	var lines []string
	line := ""
	for _, word := range strings.Split(text[len(indent):], " ") {
		next := line + " " + word
		switch {
		case line == "":
			next = word
		case utf8.RuneCountInString(next) > room:
			lines, next = append(lines, indent+line), word
		}
		for line = next; utf8.RuneCountInString(line) > room; {
			runes := []rune(line)
			lines, line = append(lines, indent+string(runes[:room])), string(runes[room:])
		}
	}
	return append(lines, indent+line)
}

// shorten cuts the middle out of a text of more columns than width.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	if width < 3 {
		return string(runes[:max(width, 0)])
	}
	head := (width - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-1-head):])
}

// clean replaces characters that would steer the terminal; those that begin a
// line or a column become blanks.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 { // those turn the direction of writing
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
