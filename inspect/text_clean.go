package inspect

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxText      = 256 << 10 // bytes of a text that are looked at
	maxSearch    = 32 << 20  // bytes from each end of a text that are searched for key words
	chunk        = 4 << 10   // a longer one is kept or left in chunks of this size
	chunksBefore = 1         // around a key word: the chunks before its own
	chunksAfter  = 2         // and after it
	keysFromEnds = 4         // places of a key word that count, from each end
)

// excerpt cuts a long text down to the chunks around its key words, at most
// maxText bytes, those of the more telling messages first. It takes one search
// per key word and end, so that its time is linear in what is searched.
func excerpt(text string) string {
	if len(text) <= maxText {
		return text
	}
	if len(text) > 2*maxSearch {
		text = text[:maxSearch] + text[len(text)-maxSearch:]
	}
	keep, left := make([]bool, (len(text)+chunk-1)/chunk), maxText/chunk
	for _, key := range allKeys() {
		for _, at := range places(text, key) {
			for c := max(0, at/chunk-chunksBefore); c < min(len(keep), at/chunk+1+chunksAfter) && left > 0; c++ {
				if !keep[c] {
					keep[c] = true
					left--
				}
			}
		}
	}
	var out strings.Builder
	for c, kept := range keep {
		switch {
		case kept:
			out.WriteString(text[c*chunk : min(len(text), (c+1)*chunk)])
		case c > 0 && keep[c-1]:
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// ReadText reads a text for ExplainText from in: all of it, or of a longer one
// the parts that ExplainText searches, so that memory stays bounded.
func ReadText(in io.Reader) (string, error) { return readEnds(in, maxSearch) }

// readEnds reads in and keeps its first and its last n bytes, or all of it when
// it has no more than both.
func readEnds(in io.Reader, n int) (string, error) {
	text, err := io.ReadAll(io.LimitReader(in, 2*int64(n)))
	for err == nil && len(text) == 2*n {
		var more []byte
		more, err = io.ReadAll(io.LimitReader(in, int64(n)))
		if len(more) == 0 {
			break
		}
		tail := append(text[n:], more...)
		text = append(text[:n], tail[len(tail)-n:]...)
	}
	return string(text), err
}

// places finds the first and the last few occurrences of key.
func places(text, key string) []int {
	var at []int
	for from := 0; len(at) < keysFromEnds; {
		i := strings.Index(text[from:], key)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(key)
	}
	for to := len(text); len(at) < 2*keysFromEnds; {
		to = strings.LastIndex(text[:to], key)
		if slices.Contains(at, to) {
			break
		}
		at = append(at, to)
	}
	return at
}

var (
	escapes   = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
	rankStart = regexp.MustCompile(`^\s*\[(?:rank|default)(\d+)\]:?`)
	quoted    = regexp.MustCompile(`^\s*(?:> ?)+`)
	newEntry  = regexp.MustCompile(`^\d+[-/:]\d+[-/:]\d`) // a date or a time

	numberEnd  = regexp.MustCompile(`\d(?:\.|e-?)?$`)
	numberRest = regexp.MustCompile(`^(?:\.?\d|e[-+]\d)`)
)

// layout is a text as lines.
type layout struct {
	lines []string
	width int // of the longest line, in characters
}

func newLayout(text string) layout {
	l := layout{lines: splitLines(text)}
	for _, line := range l.lines {
		l.width = max(l.width, utf8.RuneCountInString(line))
	}
	return l
}

// cuts reports whether the break after line i may be one that cut a longer
// line at the text's width.
func (l layout) cuts(i int) bool {
	return i+1 < len(l.lines) && utf8.RuneCountInString(l.lines[i]) == l.width && !newEntry.MatchString(l.lines[i+1])
}

// wrapped reports whether lines were likely cut so: several are as long as the
// longest, or the only one ends in the middle of a number.
func (l layout) wrapped() bool {
	full := 0
	for i, line := range l.lines {
		if l.cuts(i) {
			if full++; numberEnd.MatchString(line) && numberRest.MatchString(l.lines[i+1]) {
				return true
			}
		}
	}
	return full > 1
}

// streams joins the lines that each rank of a distributed job wrote (of all
// lines, when there are no ranks) into one line with single blanks. Lines that
// were cut are joined without a blank when unwrap is set.
func (l layout) streams(unwrap bool) []string {
	var ranks []string
	joined := map[string]*strings.Builder{}
	rank := ""
	for i, line := range l.lines {
		separate := !(unwrap && i > 0 && l.cuts(i-1))
		if m := rankStart.FindStringSubmatch(line); m != nil {
			rank, line, separate = m[1], line[len(m[0]):], true
		}
		b := joined[rank]
		if b == nil {
			b = new(strings.Builder)
			joined[rank], ranks = b, append(ranks, rank)
		}
		if separate {
			b.WriteByte(' ')
		}
		b.WriteString(line)
	}
	out := make([]string, len(ranks))
	for i, r := range ranks {
		out[i] = strings.Join(strings.Fields(joined[r].String()), " ")
	}
	return out
}

// splitLines splits a text without its colours and, where all of it is quoted,
// without the marks of that.
func splitLines(text string) []string {
	text = escapes.ReplaceAllString(text, "")
	text = strings.NewReplacer(`\n`, "\n", `\t`, "\t", "\r", "").Replace(text)
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		if strings.TrimSpace(line) != "" && !quoted.MatchString(line) {
			return lines
		}
	}
	for i, line := range lines {
		lines[i] = quoted.ReplaceAllString(line, "")
	}
	return lines
}
