package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
)

func diffCommand() *cobra.Command {
	var asJSON bool
	var failOn []string
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare two memory snapshots at their peaks",
		Long: `Diff compares what two memory snapshots (before and after a change, or of two
ranks) hold at their peaks, by purpose and by call site, and what grows from step
to step. A call site whose line moved is found again by its file and function, and
the output says so. As a gate, --fail-on takes conditions on how much more than
before there may be of the peak, of the reserved bytes, or of a purpose such as
gradient.`,
		Example: `  headroom diff old.pickle new.pickle
  headroom diff old.pickle new.pickle --fail-on 'peak>5%'
  headroom diff rank0.pickle rank1.pickle --fail-on 'reserved>1GiB,activation>10%' --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("diff needs two files, the old and the new one")
			}
			if args[0] == standardInput && args[1] == standardInput {
				return usagef("standard input can be read only once: name a file for the old or the new snapshot")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			conditions, err := parseConditions(failOn)
			if err != nil {
				return err
			}
			d, err := diff(args[0], args[1], cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return diffOn(cmd.OutOrStdout(), d, asJSON, conditions)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().StringSliceVar(&failOn, "fail-on", nil, "exit with 1 if one of these `CONDITION`s holds, such as 'peak>5%' or 'reserved>1GiB'")
	return cmd
}

func parseConditions(texts []string) ([]inspect.Condition, error) {
	var out []inspect.Condition
	for _, t := range texts {
		c, err := inspect.ParseCondition(t)
		if err != nil {
			return nil, usageError{err}
		}
		out = append(out, c)
	}
	return out, nil
}

func diff(before, after string, stdin io.Reader, stderr io.Writer) (*inspect.Difference, error) {
	a, err := readSnapshot(before, stdin, stderr)
	if err != nil {
		return nil, err
	}
	b, err := readSnapshot(after, stdin, stderr)
	if err != nil {
		return nil, err
	}
	return inspect.Diff(a, b)
}

func diffOn(w io.Writer, d *inspect.Difference, asJSON bool, conditions []inspect.Condition) error {
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(d)
	} else {
		err = writeDifference(newPage(w), d)
	}
	for _, c := range conditions {
		if holds, before, after := c.Holds(d); err == nil && holds {
			err = fmt.Errorf("--fail-on %s holds: from %s to %s", c, bytesText(before), bytesText(after))
		}
	}
	return err
}

// writeDifference prints a difference for people.
func writeDifference(p *page, d *inspect.Difference) error {
	p.table(figureLayout, []string{"old", "new", "change", "", ""},
		figure("peak live", d.Old.PeakBytes, d.New.PeakBytes), figure("peak reserved", d.Old.ReservedBytes, d.New.ReservedBytes))
	writeChanges(p, "live at the peak, by purpose", d.Purposes)
	writeChanges(p, "live at the peak, by call site", d.Sites)
	writeChanges(p, "growth per step", d.Growth)
	p.line(plain, "")
	return p.err
}

func writeChanges(p *page, title string, all []inspect.Change) {
	if len(all) == 0 {
		return
	}
	const most = 20
	p.title(title)
	var rows [][]string
	for _, c := range all[:min(len(all), most)] {
		what := fmt.Sprintf("%s, %d → %d blocks", c.What, c.OldCount, c.NewCount)
		if c.Was != "" {
			what += ", moved from " + c.Was
		}
		rows = append(rows, figure(what, c.OldBytes, c.NewBytes))
	}
	p.table(figureLayout, rows...)
	if len(all) > most {
		p.line(plain, "  and %d more", len(all)-most)
	}
}

// figureLayout is the table of figures: the old one, the new one, the change,
// its share, and of what.
const figureLayout = "rrrrw"

// figure is a row of it. The columns are the same in all its tables.
func figure(what string, before, after uint64) []string {
	return []string{fmt.Sprintf("%10s", size.Format(before)), fmt.Sprintf("%9s", size.Format(after)), fmt.Sprintf("%10s", changeText(before, after)), fmt.Sprintf("%6s", shareText(before, after)), what}
}

// changeText is a difference with its sign.
func changeText(before, after uint64) string {
	switch {
	case after > before:
		return "+" + size.Format(after-before)
	case after < before:
		return "-" + size.Format(before-after)
	}
	return "="
}

// shareText is a difference as a share of the old figure.
func shareText(before, after uint64) string {
	if before == 0 || before == after {
		return ""
	}
	return fmt.Sprintf("%+.1f%%", (float64(after)-float64(before))/float64(before)*100)
}
