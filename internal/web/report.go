package web

import (
	"fmt"
	"io"
	"strings"

	"github.com/headroom-go/headroom/inspect"
)

// ReportOptions are the choices of a report.
type ReportOptions struct {
	Version string // of the program, for the foot of the page
	// Try are the other settings to try; nil: expandable segments on or off,
	// whichever was not recorded, and Headroom's allocator.
	Try []Setting
}

// WriteReport writes one page about records that needs nothing else: the first
// one is shown, the others can be chosen and compared with it. The error is w's
// or says why a setting cannot be tried.
func WriteReport(w io.Writer, records []*Record, o ReportOptions) error {
	if len(records) == 0 {
		panic("web: a report about no record")
	}
	p := &page{mode: "report", version: o.Version, title: title(records)}
	for _, r := range records {
		d, columns, err := r.describe(o.Try)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		p.records, p.columns = append(p.records, d), append(p.columns, columns)
	}
	first := p.records[0].Findings.Explain
	p.plain = fmt.Sprintf("%s: %s", first.Verdict, first.Summary)
	return p.write(w)
}

// title names the files.
func title(records []*Record) string {
	var names []string
	for _, r := range records {
		if len(names) == 0 || names[len(names)-1] != r.name {
			names = append(names, r.name)
		}
	}
	return strings.Join(names, ", ") + " · Headroom"
}

// describe gives all that a report holds of a record.
func (r *Record) describe(try []Setting) (described, []byte, error) {
	if try == nil {
		try = r.otherSettings()
	}
	d := described{Meta: r.meta(), Findings: r.findings(), Stacks: r.Stacks(), Sites: r.sites, WhatIf: []*WhatIf{}, Summary: r.summary.size, RestMax: inspect.RestMax, MaxSplit: r.h.Conf.MaxSplit}
	for _, s := range try {
		got, err := r.WhatIf(s)
		if err != nil {
			return d, nil, fmt.Errorf("settings %s: %w", s.name, err)
		}
		d.WhatIf = append(d.WhatIf, got)
	}
	c := r.columns()
	d.Columns = c.table
	packed, err := compressed(c.bytes)
	return d, packed, err
}
