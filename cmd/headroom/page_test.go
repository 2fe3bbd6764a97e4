package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/trace"
)

// pages writes one page of every command.
func pages(t *testing.T) map[string]func(*page) error {
	t.Helper()
	s, err := trace.ReadFile(record(t, 4<<20, gap))
	if err != nil {
		t.Fatal(err)
	}
	report := inspect.NewHistory(s, 0).Explain()
	report.Actions = append(report.Actions, "look at /home/somebody/"+strings.Repeat("a_long_folder/", 20)+"train.py")
	replay, err := inspect.Replay(s, inspect.Options{Capacity: 6 << 20})
	if err != nil {
		t.Fatal(err)
	}
	difference := inspect.Diff(inspect.NewHistory(s, 0), inspect.NewHistory(s, 0))
	difference.Sites = []inspect.Change{{What: strings.Repeat("über_", 30) + ":12 forward (called from train.py:30 <module>)", NewBytes: 12345678901}}
	tried := plan.Plan{Device: "null:1GiB", Tried: []plan.Trial{
		{Description: "micro-batches of 16, recompute 4 of 12 blocks", Fits: true, PeakBytes: 123456789},
		{Description: "plain"},
	}}
	found := []finding{{"data", "default text", true, "/usr/lib/" + strings.Repeat("x", 90)}, {"device", "cuda", false, "no"}}
	return map[string]func(*page) error{
		"explain": func(p *page) error { return writeReport(p, report) },
		"replay":  func(p *page) error { return writeReplay(p, replay) },
		"diff":    func(p *page) error { return writeDifference(p, difference) },
		"check":   func(p *page) error { return writeAudit(p, inspect.Check(s)) },
		"doctor":  func(p *page) error { return writeFindings(p, found) },
		"plan":    func(p *page) error { return new(jobFlags).writePlan(p, &tried) },
	}
}

// TestPagesFit writes every page on terminals of all widths: no line is wider,
// and where there is some room nothing is lost.
func TestPagesFit(t *testing.T) {
	for name, write := range pages(t) {
		var whole bytes.Buffer
		if err := write(&page{w: &whole}); err != nil {
			t.Fatal(err)
		}
		for width := 1; width <= 200; width++ {
			var b bytes.Buffer
			if err := write(&page{w: &b, width: width}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Fatalf("%s in %d columns has a line of %d: %s", name, width, n, line)
				}
			}
			if width >= 60 && letters(b.String()) != letters(whole.String()) {
				t.Fatalf("%s in %d columns\n%s\nis not\n%s", name, width, &b, &whole)
			}
		}
	}
}

// letters are the characters of a text but blanks, in order of their values:
// wrapping moves them, and loses none.
func letters(text string) string {
	runes := []rune(strings.Join(strings.Fields(text), ""))
	slices.Sort(runes)
	return string(runes)
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	rows := func() [][]string {
		return [][]string{{"", "1MiB", "a text of some words"}, {"", "10MiB", "short"}, {"", "7B", "/a/very/long/path/to/a/file"}}
	}
	for _, p := range []*page{{w: &b}, {w: &b, width: 26}, {w: &b, width: 22}} {
		p.table("lrw", rows()...)
		p.line(plain, "--")
	}
	(&page{w: &b, width: 20}).table("ml", []string{"a name that is long", "1"}, []string{"b", "22"})
	const want = `   1MiB  a text of some words
  10MiB  short
     7B  /a/very/long/path/to/a/file
--
   1MiB  a text of some
         words
  10MiB  short
     7B  /a/very/long/path
         /to/a/file
--
   1MiB
    a text of some
    words
  10MiB
    short
     7B
    /a/very/long/path/
    to/a/file
--
a name … is long  1
b                 22
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", &b, want)
	}
}

func TestColours(t *testing.T) {
	var b bytes.Buffer
	p := &page{w: &b, colour: true}
	p.title("where")
	p.line(bad, "LEAK\x1b[2J of \u202e bytes\tand\nmore")
	if got, want := b.String(), "\n\x1b[1mwhere\x1b[0m\n\x1b[1;31mLEAK\uFFFD[2J of \uFFFD bytes and more\x1b[0m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, c := range []struct {
		noColor, term string
		want          bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		if colourWanted() != c.want {
			t.Errorf("%+v", c)
		}
	}
	if p := newPage(&b); p.colour || p.width != 0 {
		t.Errorf("not on a terminal: %+v", p)
	}
}

// TestPageError: the first error is kept.
func TestPageError(t *testing.T) {
	for name, write := range pages(t) {
		if err := write(&page{w: failing{}}); err != errFailing {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var errFailing = errors.New("no space")

// failing is a writer that always fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFailing }
