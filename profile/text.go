package profile

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/headroom-go/headroom/internal/size"
)

// Table says how rows are written.
type Table struct {
	Sort string // a column of Columns; empty for "self"
	Top  int    // rows; 0 for all
}

// WriteText writes the tables of operators and of modules. The error is w's.
func (p *Profile) WriteText(w io.Writer, t Table) error {
	var text bytes.Buffer
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%s in all, %s live at most (as asked for), %s kept for backward\n", milliseconds(p.Total), size.Format(p.PeakBytes), size.Format(p.KeptBytes))
	fmt.Fprintf(out, "the stream was waited for at every border of a range, so that this took longer than a step does otherwise\n\n")
	p.table(out, "operator", p.Operators, t)
	fmt.Fprintln(out)
	p.table(out, "module", p.Modules, t)
	_ = out.Flush() // a Buffer takes everything
	_, err := w.Write(text.Bytes())
	return err
}

func (p *Profile) table(w io.Writer, title string, rows []Row, t Table) {
	rows = slices.Clone(rows)
	by := t.Sort
	if by == "" {
		by = "self"
	}
	Sort(rows, by)
	shown := columns
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Launches > 0 }) {
		shown = columns[:len(columns)-3]
	}
	for _, c := range shown {
		fmt.Fprintf(w, "%s\t", c.name)
		if c.name == "self" {
			fmt.Fprintf(w, "%%\t")
		}
	}
	fmt.Fprintf(w, "  %s\n", title)
	for i := range rows {
		if t.Top > 0 && i == t.Top {
			fmt.Fprintf(w, "%s  %d more\n", tabs(len(shown)+1), len(rows)-i)
			break
		}
		p.row(w, &rows[i], shown)
	}
}

func tabs(n int) string { return string(slices.Repeat([]byte{'\t'}, n)) }

func (p *Profile) row(w io.Writer, r *Row, shown []column) {
	for _, c := range shown {
		v := c.value(r)
		switch c.name {
		case "self":
			fmt.Fprintf(w, "%s\t%.1f\t", milliseconds(r.Self), 100*float64(r.Self)/float64(max(p.Total, 1)))
		case "total":
			fmt.Fprintf(w, "%s\t", milliseconds(r.Within))
		case "calls", "launches":
			fmt.Fprintf(w, "%d\t", v)
		case "flops":
			fmt.Fprintf(w, "%.3g\t", float64(v))
		default:
			fmt.Fprintf(w, "%s\t", size.Format(v))
		}
	}
	name := r.Name
	if r.Phase != "" {
		name = string(r.Phase) + "  " + name
	}
	fmt.Fprintf(w, "  %s\n", name)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.3fms", float64(d)/float64(time.Millisecond))
}
