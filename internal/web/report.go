package web

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/inspect"
)

// ReportOptions are the choices of a report.
type ReportOptions struct {
	Version string // of the program, for the foot of the page
	// Try are the other settings to try; nil: expandable segments on or off,
	// whichever was not recorded, and Headroom's allocator.
	Try []Setting
	// Most bounds the bytes of all records together; 0: 64 MiB. The one that is shown
	// first is on the page in any case.
	Most int
}

// WriteReport writes one page that needs nothing else, about files, of each of which it
// is given the records. Several files are the ranks of a job, whose memory is that of
// the first record of each: the page begins with what is said of the job, and shows the
// job's rank. The other records can be chosen and compared with it, as many as there is
// room for (ReportOptions.Most); of other ranks the page has the figures alone. The error is
// w's or says why a setting cannot be tried.
func WriteReport(w io.Writer, files [][]*Record, o ReportOptions) error {
	records := slices.Concat(files...)
	if len(records) == 0 {
		panic("web: a report about no record")
	}
	p := &page{mode: "report", version: o.Version, title: title(files)}
	if len(files) == 1 {
		verdict := records[0].verdict()
		p.plain = fmt.Sprintf("%s: %s", verdict.Verdict, verdict.Summary)
	} else {
		p.job = explainJob(files)
		p.plain = fmt.Sprintf("%s: %s", p.job.Verdict, p.job.Summary)
		mine := files[p.job.Rank][0]
		records = append([]*Record{mine}, slices.DeleteFunc(records, func(r *Record) bool { return r == mine })...)
	}
	shown, err := p.fill(records, o)
	if err != nil {
		return err
	}
	if p.job != nil {
		p.job.show(files, shown)
	}
	return p.write(w)
}

// fill puts records on the page as long as there is room, and gives those.
func (p *page) fill(records []*Record, o ReportOptions) (shown []*Record, err error) {
	room := cmp.Or(o.Most, 64<<20)
	for i, r := range records {
		d, columns, err := r.describe(o.Try)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		if room -= len(d) + base64.StdEncoding.EncodedLen(len(columns)); room < 0 && i > 0 {
			break
		}
		p.records, p.columns = append(p.records, d), append(p.columns, columns)
	}
	return records[:len(p.records)], nil
}

// title names the files.
func title(files [][]*Record) string {
	const most = 3
	var names []string
	for _, records := range files[:min(len(files), most)] {
		names = append(names, records[0].name)
	}
	if more := len(files) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ") + " · Headroom"
}

// describe gives all that a report holds of a record: as JSON, and its columns.
func (r *Record) describe(try []Setting) (text json.RawMessage, packed []byte, err error) {
	if try == nil {
		try = r.otherSettings()
	}
	d := described{Meta: r.meta(), Findings: r.findings(), Stacks: r.Stacks(), Sites: r.sites, WhatIf: []*WhatIf{}, Summary: r.summary.size, RestMax: inspect.RestMax, MaxSplit: r.h.Conf.MaxSplit}
	for _, s := range try {
		got, err := r.WhatIf(s)
		if err != nil {
			return nil, nil, fmt.Errorf("settings %s: %w", s.name, err)
		}
		d.WhatIf = append(d.WhatIf, got)
	}
	c := r.columns()
	d.Columns = c.table
	if packed, err = compressed(c.bytes); err != nil {
		return nil, nil, err
	}
	text, err = json.Marshal(d)
	return text, packed, err
}
