package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
)

func checkCommand() *cobra.Command {
	var asJSON bool
	failOn := rulesToFailOn()
	cmd := &cobra.Command{
		Use:   "check FILE|-",
		Short: "Check that a memory snapshot agrees with itself",
		Long: `Check goes through the equations that hold in every sound record of memory, and
says where they do not:

` + rulesText(),
		Example: `  headroom check snapshot.pickle
  headroom check snapshot.pickle --fail-on any
  headroom check snapshot.pickle --fail-on events,end --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("check needs one file, or - for standard input")
			}
			return nil
		},
		RunE: promptly(func(cmd *cobra.Command, args []string) error {
			s, err := readSnapshot(args[0], cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return auditOn(cmd.OutOrStdout(), inspect.Check(s), asJSON, &failOn)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().Var(&failOn, "fail-on", "exit with 1 if one of these RULEs is broken, or any of them for \"any\"")
	return cmd
}

// rulesText lists the rules for the help.
func rulesText() string {
	var b strings.Builder
	for _, r := range inspect.Rules() {
		fmt.Fprintf(&b, "  %-8s %s\n", r.Rule, r.Meaning)
	}
	return strings.TrimRight(b.String(), "\n")
}

// rulesToFailOn are all rules.
func rulesToFailOn() failOn {
	f := failOn{kind: "rule"}
	for _, r := range inspect.Rules() {
		f.known = append(f.known, string(r.Rule))
	}
	f.any = f.known
	return f
}

func auditOn(w io.Writer, a *inspect.Audit, asJSON bool, failOn *failOn) error {
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(a)
	} else {
		err = writeAudit(newPage(w), a)
	}
	for _, t := range a.Tallies {
		if err == nil && t.Broken > 0 && failOn.names(string(t.Rule)) {
			err = fmt.Errorf("the rule %q is broken %s, which --fail-on names", t.Rule, times(t.Broken))
		}
	}
	return err
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// writeAudit prints an audit for people.
func writeAudit(p *page, a *inspect.Audit) error {
	p.line(plain, "devices %d, segments %d, blocks %d, events %d", a.Devices, a.Segments, a.Blocks, a.Events)
	p.line(plain, "")
	rows := [][]string{{"", "rule", "checked", "broken", ""}}
	for _, t := range a.Tallies {
		rows = append(rows, []string{"", string(t.Rule), fmt.Sprint(t.Checked), fmt.Sprint(t.Broken), t.Meaning})
		if t.Skipped != "" {
			rows = append(rows, []string{"", "", "", "", "(in part: " + t.Skipped + ")"})
		}
	}
	p.table("llrrw", rows...)
	for _, t := range a.Tallies {
		if t.Broken > 0 {
			writeViolations(p, a, t)
		}
	}
	p.line(plain, "")
	contradictions, _ := a.Contradictions()
	switch {
	case a.Sound():
		p.line(good, "the record agrees with itself")
	case contradictions > 0 || a.Broken(inspect.RuleTime) > 0:
		p.line(bad, "the record contradicts itself")
	case a.Broken(inspect.RuleEmpty) > 0:
		p.line(bad, "the record is empty")
	default:
		p.line(bad, "the record is cut or damaged; what is there agrees with itself")
	}
	return p.err
}

// writeViolations prints where a rule is broken first.
func writeViolations(p *page, a *inspect.Audit, t inspect.Tally) {
	p.title(string(t.Rule) + " is broken")
	shown := 0
	for _, v := range a.Violations {
		if v.Rule == t.Rule && shown < mostShown {
			p.line(plain, "  %s: %s", placeOf(v), v.Text)
			shown++
		}
	}
	if t.Broken > shown {
		p.line(plain, "  and %d more", t.Broken-shown)
	}
}

// mostShown is how many violations of a rule are printed.
const mostShown = 10

// placeOf says where a violation is.
func placeOf(v inspect.Violation) string {
	if v.Device < 0 && v.Event < 0 && v.Address == 0 {
		return "the file"
	}
	text := fmt.Sprintf("device %d", v.Device)
	if v.Event >= 0 {
		text += fmt.Sprintf(", event %d", v.Event)
	}
	if v.Address != 0 {
		text += fmt.Sprintf(", %#x", v.Address)
	}
	return text
}
