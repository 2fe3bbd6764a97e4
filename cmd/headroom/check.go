package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
)

// failOnAny stands for all rules.
const failOnAny = "any"

func checkCommand() *cobra.Command {
	var asJSON bool
	var failOn []string
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
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownRules(failOn); err != nil {
				return err
			}
			s, err := readSnapshot(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return auditOn(cmd.OutOrStdout(), inspect.Check(s), asJSON, failOn)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().StringSliceVar(&failOn, "fail-on", nil, "exit with 1 if one of these `RULE`s is broken, or any of them for \"any\"")
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

// knownRules refuses names that are no rules.
func knownRules(names []string) error {
	for _, n := range names {
		if n != failOnAny && !slices.ContainsFunc(inspect.Rules(), func(r inspect.RuleInfo) bool { return string(r.Rule) == n }) {
			return usagef("--fail-on %q is no rule: they are %s, or all of them\n%s", n, failOnAny, rulesText())
		}
	}
	return nil
}

func auditOn(w io.Writer, a *inspect.Audit, asJSON bool, failOn []string) error {
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(a)
	} else {
		err = writeAudit(w, a)
	}
	for _, t := range a.Tallies {
		if err == nil && t.Broken > 0 && (slices.Contains(failOn, failOnAny) || slices.Contains(failOn, string(t.Rule))) {
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
func writeAudit(w io.Writer, a *inspect.Audit) error {
	fmt.Fprintf(w, "devices %d, segments %d, blocks %d, events %d\n\n", a.Devices, a.Segments, a.Blocks, a.Events)
	fmt.Fprintf(w, "  %-8s %9s %9s\n", "rule", "checked", "broken")
	for _, t := range a.Tallies {
		fmt.Fprintf(w, "  %-8s %9d %9d  %s\n", t.Rule, t.Checked, t.Broken, t.Meaning)
		if t.Skipped != "" {
			fmt.Fprintf(w, "  %30s(in part: %s)\n", "", t.Skipped)
		}
	}
	shown := map[inspect.Rule]int{}
	for _, v := range a.Violations {
		if shown[v.Rule]++; shown[v.Rule] == 1 {
			fmt.Fprintf(w, "\n%s is broken\n", v.Rule)
		}
		if shown[v.Rule] <= mostShown {
			fmt.Fprintf(w, "  %s: %s\n", placeOf(v), v.Text)
		}
	}
	for _, t := range a.Tallies {
		if t.Broken > mostShown {
			fmt.Fprintf(w, "\nof %s there are %d more\n", t.Rule, t.Broken-mostShown)
		}
	}
	verdict := "the record agrees with itself"
	if !a.Sound() {
		verdict = "the record contradicts itself"
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}

// mostShown is how many violations of a rule are printed.
const mostShown = 10

// placeOf says where a violation is.
func placeOf(v inspect.Violation) string {
	text := fmt.Sprintf("device %d", v.Device)
	if v.Event >= 0 {
		text += fmt.Sprintf(", event %d", v.Event)
	}
	if v.Address != 0 {
		text += fmt.Sprintf(", %#x", v.Address)
	}
	return text
}
