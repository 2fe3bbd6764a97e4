package watch

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/story"
)

var update = flag.Bool("update", false, "rewrite the stories and the simulated record")

// TestStories plays testdata/*.txt on a simulated machine. Its commands are
// those of machine.do, and these:
//
//	rule SETTING   begin a new watcher with a rule set otherwise
//	scan N         let the watcher see N scans; print what opens and closes
//	once           print the lines of headroom watch --once
//	alarms         print the open alarms
func TestStories(t *testing.T) {
	story.Play(t, "testdata/*.txt", *update, func(t *testing.T) story.Command {
		m, w := newMachine(), New(Options{})
		return func(out *strings.Builder, words []string) {
			switch words[0] {
			case "rule":
				w = New(Options{Rules: ruled(t, words[1])})
			case "scan":
				n, _ := strconv.Atoi(words[1])
				m.scans(w, n, func(s Scan, changes []Change) { writeChanges(out, s, changes) })
			case "once":
				r := w.Report()
				fmt.Fprintln(out, strings.Join(r.Lines(), "\n"))
			case "alarms":
				r := w.Report()
				for _, a := range r.Alarms {
					fmt.Fprintf(out, "%s since %s  %s\n", a.Rule, a.Since.Format("15:04:05"), a.Text)
				}
			default:
				if err := m.do(words); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func writeChanges(out *strings.Builder, s Scan, changes []Change) {
	for _, c := range changes {
		fmt.Fprintf(out, "%s  %s %s", s.Time.Format("15:04:05"), c.Event, c.Rule)
		if c.Event == Opened {
			fmt.Fprintf(out, "  %s", c.Text)
		}
		fmt.Fprintln(out)
	}
}

// ruled is the defaults with one rule set otherwise.
func ruled(t *testing.T, text string) []Setting {
	t.Helper()
	s, err := ParseSetting(text)
	if err != nil {
		t.Fatal(err)
	}
	all := Defaults()
	for i := range all {
		if all[i].Rule == s.Rule {
			all[i] = s
		}
	}
	return all
}
