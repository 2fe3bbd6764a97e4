package inspect

import (
	"cmp"
	"maps"
	"slices"
)

// Difference is what changed from one record to another: of a program before
// and after a change, or of two ranks.
type Difference struct {
	Old Side `json:"old"`
	New Side `json:"new"`
	// What is live at the peaks, as it was asked for, by purpose and by call
	// site, and the growth per step of the call sites that grow in either. The
	// largest change comes first; what did not change is left out of Sites and
	// Growth. A call site whose line moved is found again by its file and
	// function.
	Purposes []Change `json:"purposes"`
	Sites    []Change `json:"sites"`
	Growth   []Change `json:"growth"`
}

// Side is one of the two records: a device of a snapshot.
type Side struct {
	Device        int    `json:"device"`
	Events        int    `json:"events"`
	PeakEvent     int    `json:"peak_event"`     // the number of events before the peak
	PeakBytes     uint64 `json:"peak_bytes"`     // live, as blocks were rounded
	ReservedBytes uint64 `json:"reserved_bytes"` // at most, at any event
}

// Change is one part of the memory in both records.
type Change struct {
	What        string `json:"what"`
	Was         string `json:"was,omitempty"` // a call site's name in the old record, where its line moved
	OldBytes    uint64 `json:"old_bytes"`
	NewBytes    uint64 `json:"new_bytes"`
	ChangeBytes int64  `json:"change_bytes"`
	OldCount    int    `json:"old_count"` // blocks; for growth, blocks more each step
	NewCount    int    `json:"new_count"`
}

// Diff compares two records at their peaks.
func Diff(before, after *History) *Difference {
	a, b := before.peakSide(), after.peakSide()
	return &Difference{
		Old: a.Side, New: b.Side,
		Purposes: changes(a.purposes, b.purposes),
		Sites:    changed(siteChanges(a.sites, b.sites)),
		Growth:   changed(siteChanges(a.growth, b.growth)),
	}
}

// peak is the memory of one record at its peak.
type peak struct {
	Side
	purposes, sites, growth []Share
}

// peakSide finds the peak of a record.
func (h *History) peakSide() *peak {
	c := h.curves()
	moment, live := top(c.live)
	_, reserved := top(c.reserved)
	return h.peakAt(Side{h.device, h.Len(), moment, live, reserved})
}

func (h *History) peakAt(side Side) *peak {
	live, sites, purposes := h.liveLeases(side.PeakEvent), newSites(), newPurposes(h)
	where := func(l *Lease) Site { return sites.site(l.Stack) }
	p := &peak{
		Side:     side,
		purposes: shares(live, func(l *Lease) string { return purposes.of(l).String() }),
		sites:    shares(live, func(l *Lease) string { return where(l).String() }),
	}
	ends, _ := h.steps()
	for _, g := range growing(h.Leases, ends, where) {
		p.growth = append(p.growth, Share{g.Site.String(), g.PerStepBytes, g.PerStepCount})
	}
	return p
}

// changes brings two lists of shares together, the largest change first; of
// equal ones the first by name.
func changes(before, after []Share) []Change {
	of := map[string]Change{}
	for _, s := range before {
		of[s.What] = Change{What: s.What, OldBytes: s.Bytes, OldCount: s.Count}
	}
	for _, s := range after {
		c := of[s.What]
		c.What, c.NewBytes, c.NewCount = s.What, s.Bytes, s.Count
		of[s.What] = c
	}
	for k, c := range of {
		c.ChangeBytes = int64(c.NewBytes - c.OldBytes)
		of[k] = c
	}
	return slices.SortedFunc(maps.Values(of), func(a, b Change) int {
		return cmp.Or(cmp.Compare(magnitude(b.ChangeBytes), magnitude(a.ChangeBytes)), cmp.Compare(a.What, b.What))
	})
}

// siteChanges is changes of call sites, whose lines may have moved.
func siteChanges(before, after []Share) []Change {
	before, was := renamed(before, after)
	all := changes(before, after)
	for i := range all {
		all[i].Was = was[all[i].What]
	}
	return all
}

// changed leaves out what is the same in bytes and blocks. The list is never
// nil.
func changed(all []Change) []Change {
	out := []Change{}
	for _, c := range all {
		if c.OldBytes != c.NewBytes || c.OldCount != c.NewCount {
			out = append(out, c)
		}
	}
	return out
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}
