package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/headroom-go/headroom/plan"
)

// isPlan says whether a file begins as one that plan --out wrote. A pipe is none: what
// is read of it to find that out would be missing afterwards.
func isPlan(path string) bool {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, _ := io.ReadFull(f, head)
	return bytes.HasPrefix(bytes.TrimSpace(head[:n]), []byte("{")) && bytes.Contains(head[:n], []byte(`"budget_bytes"`))
}

// plans compares two plans.
func (d *differ) plans(w io.Writer, before, after string) error {
	if len(d.conditions) > 0 {
		return usagef("--fail-on is about memory snapshots: plans have peaks that their runs are held to")
	}
	a, err := plan.Read(before)
	if err != nil {
		return err
	}
	b, err := plan.Read(after)
	if err != nil {
		return err
	}
	difference := plan.Diff(a, b)
	if d.json {
		return json.NewEncoder(w).Encode(difference)
	}
	return writePlans(newPage(w), difference)
}

// writePlans prints a difference of plans for people.
func writePlans(p *page, d *plan.Difference) error {
	for _, side := range []struct {
		name string
		plan.Side
	}{{"old", d.Old}, {"new", d.New}} {
		p.fact(side.name, "%s on %s: %s", side.Step, side.Device, side.Chosen.Description)
	}
	before, after := d.Old.Chosen, d.New.Chosen
	p.table(figureLayout, []string{"old", "new", "change", "", ""},
		figure("budget", d.Old.BudgetBytes, d.New.BudgetBytes), figure("peak live", before.PeakBytes, after.PeakBytes),
		figure("peak reserved", before.ReservedBytes, after.ReservedBytes), figure("outside the device", before.AwayBytes, after.AwayBytes))
	p.line(plain, "a step is estimated at %.3g s, was %.3g s (%+.1f%%)", after.Seconds, before.Seconds, 100*(after.Seconds/before.Seconds-1))
	for _, v := range d.Values {
		p.line(plain, "  %d × %s: %s, was %s", v.Count, v.Op, v.New, v.Old)
	}
	return p.err
}
