package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
)

func diffCommand() *cobra.Command {
	var d differ
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare two memory snapshots at their peaks, or two plans",
		Long: `Diff compares what two memory snapshots (before and after a change, or of two
ranks) hold at their peaks, by purpose and by call site, and what grows from step
to step. A call site whose line moved is found again by its file and function, and
the output says so. As a gate, --fail-on takes conditions on how much more than
before there may be of the peak, of the reserved bytes, or of a purpose such as
gradient.

Of two plans, as plan --out writes them, it compares the strategies, the peaks and
the times, and says which operations' results wait for backward in another way.`,
		Example: `  headroom diff old.pickle new.pickle
  headroom diff old.pickle new.pickle --fail-on 'peak>5%'
  headroom diff rank0.pickle rank1.pickle --fail-on 'reserved>1GiB,activation>10%' --json
  headroom diff plan.json smaller.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("diff needs two files, the old and the new one")
			}
			if args[0] == standardInput && args[1] == standardInput {
				return usagef("standard input can be read only once: name a file for the old or the new snapshot")
			}
			return nil
		},
		RunE: promptly(func(cmd *cobra.Command, args []string) error {
			if isPlan(args[0]) && isPlan(args[1]) {
				return d.plans(cmd.OutOrStdout(), args[0], args[1])
			}
			difference, err := d.diff(args[0], args[1], cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return d.differenceOn(cmd.OutOrStdout(), difference)
		}),
	}
	fl := cmd.Flags()
	fl.BoolVar(&d.json, "json", false, "print the result as JSON")
	fl.Var(&d.conditions, "fail-on", "exit with 1 if one of these CONDITIONs holds, such as 'peak>5%' or 'reserved>1GiB'")
	d.old.add(fl)
	d.new.given = d.old.given
	return cmd
}

// differ is the command's flags.
type differ struct {
	old, new   gpuFlag
	json       bool
	conditions conditions
}

// conditions is the value of the flag --fail-on.
type conditions []inspect.Condition

// Set adds conditions with commas between them.
func (c *conditions) Set(text string) error {
	for _, one := range strings.Split(text, ",") {
		condition, err := inspect.ParseCondition(one)
		if err != nil {
			return err
		}
		*c = append(*c, condition)
	}
	return nil
}

// String gives the conditions as Set reads them.
func (c *conditions) String() string {
	var texts []string
	for _, one := range *c {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}

// Type names them for the help.
func (c *conditions) Type() string { return "CONDITION" }

func (d *differ) diff(before, after string, stdin io.Reader, stderr io.Writer) (*inspect.Difference, error) {
	d.new.gpu = d.old.gpu
	a, err := readSnapshot(before, stdin, stderr)
	if err != nil {
		return nil, err
	}
	b, err := readSnapshot(after, stdin, stderr)
	if err != nil {
		return nil, err
	}
	old, err := d.old.choose(a)
	if err != nil {
		return nil, naming(before, err)
	}
	latter, err := d.new.choose(b)
	if err != nil {
		return nil, naming(after, err)
	}
	return inspect.Diff(old, latter), nil
}

func (d *differ) differenceOn(w io.Writer, difference *inspect.Difference) error {
	var err error
	if d.json {
		err = json.NewEncoder(w).Encode(difference)
	} else {
		p := newPage(w)
		d.old.say(p, "old: ")
		d.new.say(p, "new: ")
		err = writeDifference(p, difference)
	}
	for _, c := range d.conditions {
		if holds, before, after := c.Holds(difference); err == nil && holds {
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
