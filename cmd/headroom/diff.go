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
to step. As a gate, --fail-on takes conditions on how much more than before there
may be of the peak, of the reserved bytes, or of a purpose such as gradient.`,
		Example: `  headroom diff old.pickle new.pickle
  headroom diff old.pickle new.pickle --fail-on 'peak>5%'
  headroom diff rank0.pickle rank1.pickle --fail-on 'reserved>1GiB,activation>10%' --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("diff needs two files, the old and the new one")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			conditions, err := parseConditions(failOn)
			if err != nil {
				return err
			}
			d, err := diff(args[0], args[1], cmd.InOrStdin())
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

func diff(before, after string, stdin io.Reader) (*inspect.Difference, error) {
	a, err := readSnapshot(before, stdin)
	if err != nil {
		return nil, err
	}
	b, err := readSnapshot(after, stdin)
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
		err = writeDifference(w, d)
	}
	for _, c := range conditions {
		if holds, before, after := c.Holds(d); err == nil && holds {
			err = fmt.Errorf("--fail-on %s holds: from %s to %s", c, bytesText(before), bytesText(after))
		}
	}
	return err
}

// writeDifference prints a difference for people.
func writeDifference(w io.Writer, d *inspect.Difference) error {
	fmt.Fprintf(w, "%10s %10s %11s %7s\n", "old", "new", "change", "")
	writeFigure(w, "peak live", d.Old.PeakBytes, d.New.PeakBytes)
	writeFigure(w, "peak reserved", d.Old.ReservedBytes, d.New.ReservedBytes)
	writeChanges(w, "live at the peak, by purpose", d.Purposes)
	writeChanges(w, "live at the peak, by call site", d.Sites)
	writeChanges(w, "growth per step", d.Growth)
	_, err := fmt.Fprintln(w)
	return err
}

func writeChanges(w io.Writer, title string, all []inspect.Change) {
	if len(all) == 0 {
		return
	}
	const most = 20
	fmt.Fprintf(w, "\n%s\n", title)
	for i, c := range all {
		if i == most {
			fmt.Fprintf(w, "  and %d more\n", len(all)-most)
			return
		}
		writeFigure(w, fmt.Sprintf("%s, %d → %d blocks", c.What, c.OldCount, c.NewCount), c.OldBytes, c.NewBytes)
	}
}

func writeFigure(w io.Writer, what string, before, after uint64) {
	fmt.Fprintf(w, "%10s %10s %11s %7s  %s\n", size.Format(before), size.Format(after), changeText(before, after), shareText(before, after), what)
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
