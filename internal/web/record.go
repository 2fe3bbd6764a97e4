package web

import (
	"cmp"
	"slices"
	"sync"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// Record is the memory of one device as a file tells it, prepared to be looked
// at. It may be used from several goroutines at once.
type Record struct {
	name    string
	h       *inspect.History
	timed   bool
	spans   []inspect.Span
	splits  [numSplits]split
	sites   []inspect.Site // of the stacks, by number
	stacks  []*trace.Stack // all stacks of leases and spans; the first is none
	stackOf map[*trace.Stack]int32
	unsaid  []unsaid    // ends of leases that another lease's event is
	changes []spanEvent // of reserved bytes, in order
	summary summary

	verdict  func() *inspect.Report
	recorded func() *inspect.Result
	steps    func() *steps
	tries    []func() (*WhatIf, error) // of otherSettings
}

// The two ways in which live bytes are split.
const (
	byPurpose = iota
	bySite
	numSplits
)

// maxParts is how many parts a split has at most: one colour for each.
const maxParts = 8

// split says which part of the live bytes each lease belongs to.
type split struct {
	names []string
	of    []uint8 // by lease
}

// unsaid is a lease that ends at an event which is not about it: its free was
// not recorded, and its address is used again.
type unsaid struct {
	event, lease int
}

// spanEvent is by how much an event changes the reserved bytes.
type spanEvent struct {
	moment int // the first one that sees the change
	bytes  int64
}

// Records prepares all devices that a snapshot tells of, the one to look at
// first in front. name is the file's. The error says that the snapshot holds no
// memory.
func Records(name string, s *trace.Snapshot) ([]*Record, error) {
	worst, err := inspect.Worst(s)
	if err != nil {
		return nil, err
	}
	out := []*Record{newRecord(name, worst)}
	for _, d := range inspect.Devices(s) {
		if d != worst.Device() && len(out) < maxRecords {
			out = append(out, newRecord(name, inspect.NewHistory(s, d)))
		}
	}
	return out, nil
}

// maxRecords is how many devices of one file are shown.
const maxRecords = 16

func newRecord(name string, h *inspect.History) *Record {
	r := &Record{name: name, h: h, timed: h.Timed(), spans: h.Spans()}
	r.numberStacks()
	r.splitByPurpose()
	r.splitBySite()
	r.findUnsaid()
	r.findSpanEvents()
	r.summary = r.summarise()
	r.verdict = sync.OnceValue(h.Explain)
	r.recorded = sync.OnceValue(func() *inspect.Result {
		result, err := h.Replay(inspect.Options{})
		if err != nil {
			return nil
		}
		return result
	})
	r.steps = sync.OnceValue(r.findSteps)
	for _, s := range r.otherSettings() {
		r.tries = append(r.tries, sync.OnceValues(func() (*WhatIf, error) { return r.WhatIf(s) }))
	}
	return r
}

// moments is the number of moments.
func (r *Record) moments() int { return r.h.Len() + 1 }

// numberStacks gives every stack a number and finds its site.
func (r *Record) numberStacks() {
	r.stackOf = map[*trace.Stack]int32{}
	r.number(nil)
	for i := range r.h.Leases {
		r.number(r.h.Leases[i].Stack)
	}
	for i := range r.spans {
		r.number(r.spans[i].Stack)
	}
	site := inspect.Sites()
	for _, s := range r.stacks {
		r.sites = append(r.sites, site(s))
	}
}

func (r *Record) number(s *trace.Stack) {
	if _, known := r.stackOf[s]; !known {
		r.stackOf[s] = int32(len(r.stacks))
		r.stacks = append(r.stacks, s)
	}
}

// site is where a lease was allocated.
func (r *Record) site(l *inspect.Lease) inspect.Site { return r.sites[r.stackOf[l.Stack]] }

// bytes is the size of lease k's block or, where the record does not tell it,
// the least that it can be.
func (r *Record) bytes(k int) uint64 {
	l := &r.h.Leases[k]
	return max(l.Block, r.h.Conf.Round(l.Size))
}

func (r *Record) splitByPurpose() {
	order, of := inspect.PurposeOrder(), r.h.Purposes()
	s := &r.splits[byPurpose]
	for _, p := range order {
		s.names = append(s.names, p.String())
	}
	s.of = make([]uint8, len(r.h.Leases))
	for k := range s.of {
		s.of[k] = uint8(slices.Index(order, of(&r.h.Leases[k])))
	}
}

// splitBySite gives the call sites with most live bytes at the moment of the
// verdict a part of their own.
func (r *Record) splitBySite() {
	sum := map[inspect.Site]uint64{}
	for _, k := range r.h.LiveAt(r.h.Peak()) {
		sum[r.site(&r.h.Leases[k])] += r.bytes(k)
	}
	var top []inspect.Site
	for site := range sum {
		top = append(top, site)
	}
	slices.SortFunc(top, func(a, b inspect.Site) int {
		return cmp.Or(cmp.Compare(sum[b], sum[a]), cmp.Compare(a.String(), b.String()))
	})
	top = top[:min(len(top), maxParts-1)]
	part := map[inspect.Site]uint8{}
	s := &r.splits[bySite]
	for i, site := range top {
		part[site] = uint8(i)
		s.names = append(s.names, site.String())
	}
	s.names = append(s.names, "all others")
	s.of = make([]uint8, len(r.h.Leases))
	for k := range s.of {
		i, own := part[r.site(&r.h.Leases[k])]
		if !own {
			i = uint8(len(top))
		}
		s.of[k] = i
	}
}

func (r *Record) findUnsaid() {
	for k := range r.h.Leases {
		if end := r.h.Leases[k].Freed(); end >= 0 && end < r.h.Len() && r.h.Lease(end) != k {
			r.unsaid = append(r.unsaid, unsaid{end, k})
		}
	}
	slices.SortFunc(r.unsaid, func(a, b unsaid) int { return cmp.Compare(a.event, b.event) })
}

func (r *Record) findSpanEvents() {
	for i := range r.spans {
		s := &r.spans[i]
		r.changes = append(r.changes, spanEvent{s.From + 1, int64(s.Size)})
		if s.To < r.h.Len() {
			r.changes = append(r.changes, spanEvent{max(s.To, s.From) + 1, -int64(s.Size)})
		}
	}
	slices.SortFunc(r.changes, func(a, b spanEvent) int { return cmp.Compare(a.moment, b.moment) })
}

// time is that of moment n since the first event, in microseconds, or n where
// the record has no times.
func (r *Record) time(n int) int64 {
	if !r.timed {
		return int64(n)
	}
	return r.h.Time(n, true) - r.h.Time(0, true)
}

// Device is the number of the device.
func (r *Record) Device() int { return r.h.Device() }
