// How an error text is explained
//
// A text is whatever somebody pastes: one message, a traceback, a whole log. It
// passes through these stages, each in a file of its own:
//
//	text
//	 │ text_clean.go     excerpt: at most 256 KiB of it, around key words;
//	 │                   layout: its lines, joined into one text per rank
//	 │ text_wordings.go  the table of wordings: who writes what, and which figure
//	 │                   each number is (text_size.go) → a message
//	 │ text_figures.go   what follows from its figures
//	 │ text_rules.go     the rules, in their order: figures → verdict
//	 │ text_words.go     the tables of sentences: verdict and figures → summary,
//	 ▼ text_report.go    causes, actions, what will not help
//	Report
//
// A text often holds several messages. The table of wordings stands in the order
// of how much a message tells (a failed request with its figures before a library
// that could not start before a warning), the first wording that occurs is taken,
// and of its messages the one with the most figures, then the first.
//
// Everything is driven by tables, so that a new wording or a new piece of advice
// is a new row. Nothing of the text but numbers enters the report.

package inspect

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
)

// ErrNoMessage is returned when a text holds no out-of-memory or related
// message that ExplainText knows.
var ErrNoMessage = errors.New("no memory error found")

// ExplainText finds the message about memory in text, of any framework that it
// knows, and explains it. Text may be a single line or a long log, cut or broken
// into lines; of a log, the first and the last 32 MiB are searched and 256 KiB
// around key words are read. The error wraps ErrNoMessage when there is none and
// says what the text looks like.
func ExplainText(text string) (*Report, error) {
	text = decode(text)
	lines := newLayout(excerpt(text))
	m := bestMessage(lines.streams(false))
	if unwrapped := bestMessage(lines.streams(true)); unwrapped.repairs(m, lines.wrapped()) {
		m = unwrapped
	}
	if m == nil {
		return nil, noMessage(text)
	}
	if len(text) > maxText {
		m.recount(text)
	}
	verdict := m.wording.judge(m)
	return m.report(verdict), nil
}

// IsErrorText tells by the first bytes of an input, a few KiB, whether it is a
// text for ExplainText rather than a snapshot: neither binary nor, unless it
// speaks of memory that ran out, JSON.
func IsErrorText(head []byte) bool {
	text := decode(string(head))
	switch {
	case len(head) == 0 || binary(text):
		return false
	case startsJSON.MatchString(text):
		return slices.ContainsFunc(allKeys(), func(key string) bool { return strings.Contains(text, key) })
	}
	return true
}

// startsJSON matches an object or an array of arrays or objects, but not the
// bracket that begins a line of many logs.
var startsJSON = regexp.MustCompile(`^\s*(?:\{\s*["}]|\[\s*[\[{\]])`)

// binary recognises pickles, compressed files and others that are no text.
func binary(text string) bool {
	for _, magic := range []string{"\x80", "\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd7zXZ", "BZh"} {
		if strings.HasPrefix(text, magic) {
			return true
		}
	}
	return strings.IndexByte(text[:min(len(text), 1024)], 0) >= 0
}

// decode turns UTF-16, which Windows shells write, into UTF-8.
func decode(text string) string {
	if !strings.HasPrefix(text, "\xff\xfe") {
		return text
	}
	units := make([]uint16, 0, len(text)/2)
	for i := 2; i+1 < len(text); i += 2 {
		units = append(units, uint16(text[i])|uint16(text[i+1])<<8)
	}
	return string(utf16.Decode(units))
}

// noMessage is the error for a text without a known message.
func noMessage(text string) error {
	head := strings.ToLower(text[:min(len(text), 512)])
	switch {
	case strings.TrimSpace(head) == "":
		return fmt.Errorf("%w: the text is empty; paste the whole error message", ErrNoMessage)
	case strings.Contains(head, "<html") || strings.Contains(head, "<!doctype"):
		return fmt.Errorf("%w: this is an HTML page; copy the error message out of it", ErrNoMessage)
	case binary(text):
		return fmt.Errorf("%w: these are %d bytes of binary data, not a text", ErrNoMessage, len(text))
	}
	return fmt.Errorf("%w in %d bytes of text; paste the line that says out of memory, whole, "+
		"with the lines around it", ErrNoMessage, len(text))
}

// message is one message found in a text.
type message struct {
	wording *wording
	rank    int    // of the wording in the table
	text    string // the message and no other of its wording
	context string // all that was written around it
	figures amounts
	device  string
	others  []process         // memory that the message says processes hold
	tags    []string          // what the rules and the sentences choose by
	words   map[string]string // values for sentences that are not bytes
	count   int               // messages of this wording in the text
	more    bool              // there may be more of them
	devices []string          // of all of them
}

func (m *message) is(tag string) bool { return slices.Contains(m.tags, tag) }

// tag adds a tag; it never writes to the table's own slice.
func (m *message) tag(tag string) { m.tags = append(slices.Clip(m.tags), tag) }

// process is memory held by a process, by the message.
type process struct {
	pid   string
	bytes uint64
}

// tells reports whether m says more than o: it is of a wording further up in
// the table, or has more figures and names.
func (m *message) tells(o *message) bool {
	switch {
	case m == nil || o == nil:
		return o == nil && m != nil
	case m.rank != o.rank:
		return m.rank < o.rank
	}
	return m.details() > o.details()
}

// recount counts the messages of m's wording in a text of which m was found in
// an excerpt, line by line: as far as they stand in one line each.
func (m *message) recount(text string) {
	m.more = true
	if m.wording.startRE == nil {
		return
	}
	n, last := 0, ""
	for line := range strings.SplitSeq(text, "\n") {
		if !m.wording.occurs(line) {
			continue
		}
		for _, part := range m.wording.parts(line) {
			if n++; part != last {
				m.devices = appendNew(m.devices, deviceIn(part))
			}
			last = part
		}
	}
	m.count = max(m.count, n)
}

// appendNew appends a name unless it is empty or there already.
func appendNew(names []string, name string) []string {
	if name == "" || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// repairs reports whether m, read from the text as if lines of it had been cut
// in two, is to be preferred to o, read with a blank at each line break. Where
// both say as much, the likely one is.
func (m *message) repairs(o *message, likely bool) bool {
	same := m != nil && o != nil && m.rank == o.rank && m.details() == o.details()
	return m.tells(o) || same && likely
}

// details counts what is known from m.
func (m *message) details() int {
	n := len(m.figures) + len(m.others) + len(m.tags) + len(m.words)
	if m.device != "" {
		n++
	}
	return n
}

// bestMessage is the message that tells most, nil when there is none.
func bestMessage(texts []string) *message {
	var best *message
	count, devices := 0, []string(nil)
	for _, text := range texts {
		m := firstWording(text)
		if m == nil {
			continue
		}
		if best == nil || m.rank < best.rank {
			count, devices = 0, nil
		}
		if best == nil || m.rank <= best.rank {
			count += m.count
			for _, d := range m.devices {
				devices = appendNew(devices, d)
			}
		}
		if m.tells(best) {
			best = m
		}
	}
	if best != nil {
		best.count, best.devices = count, devices
	}
	return best
}

// firstWording is the best message of the first wording that text holds.
func firstWording(text string) *message {
	table := wordings()
	for rank := range table {
		w := &table[rank]
		if !w.occurs(text) {
			continue
		}
		var best *message
		parts := w.parts(text)
		var devices []string
		for _, part := range parts {
			m := w.read(part, rank)
			m.context = text
			devices = appendNew(devices, m.device)
			if m.tells(best) {
				best = m
			}
		}
		if best != nil {
			best.count, best.devices = len(parts), devices
			return best
		}
	}
	return nil
}
