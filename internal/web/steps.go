package web

import (
	"sort"

	"github.com/headroom-go/headroom/trace"
)

// steps are the steps of a record.
type steps struct {
	By    string `json:"by"` // how they were found
	Count int    `json:"count"`
	List  []step `json:"list"` // the first and the last ones
}

// step is one step: the moments after From up to To.
type step struct {
	Number       int   `json:"number"` // from 1
	From         int   `json:"from"`
	To           int   `json:"to"`
	Duration     int64 `json:"duration"` // microseconds, or moments where there are no times
	PeakLive     int64 `json:"peak_live_bytes"`
	PeakReserved int64 `json:"peak_reserved_bytes"`
	EndLive      int64 `json:"end_live_bytes"`
	Growth       int64 `json:"growth_bytes"` // of the live bytes at its end
	Blocks       int   `json:"blocks"`       // allocated in it
}

// maxSteps is how many steps a table shows at each end.
const maxSteps = 50

func (r *Record) findSteps() *steps {
	ends, by := r.h.Steps()
	s := &steps{By: by, Count: len(ends), List: []step{}}
	for i := range ends {
		if i < maxSteps || i >= len(ends)-maxSteps {
			s.List = append(s.List, r.step(ends, i))
		}
	}
	return s
}

// step is the i-th of the steps with these last events.
func (r *Record) step(ends []int, i int) step {
	t := step{Number: i + 1, To: ends[i] + 1}
	if i > 0 {
		t.From = ends[i-1] + 1
	}
	t.Duration = r.time(t.To) - r.time(t.From)
	c := r.cursorAt(t.From)
	before := c.live
	for c.moment < t.To {
		c.next()
		t.PeakLive, t.PeakReserved = max(t.PeakLive, c.live), max(t.PeakReserved, c.reserved)
		if k := r.h.Lease(c.moment - 1); k >= 0 && r.h.Leases[k].Born() == c.moment-1 {
			t.Blocks++
		}
	}
	t.EndLive, t.Growth = c.live, c.live-before
	return t
}

// failure is a request that failed.
type failure struct {
	Moment  int    `json:"moment"`
	Request uint64 `json:"request_bytes"`
	Free    uint64 `json:"free_bytes"`
}

// annotation is a span that the program named, in moments.
type annotation struct {
	Name string `json:"name"`
	From int    `json:"from"`
	To   int    `json:"to"`
	Lane int    `json:"lane"` // below those that it lies in
}

// What a page shows at most of what is marked in a record.
const (
	maxFailures    = 500
	maxAnnotations = 2000
	maxLanes       = 6
)

// failures gives the requests that failed.
func (r *Record) failures() []failure {
	out := []failure{}
	for i := 0; i < r.h.Len() && len(out) < maxFailures; i++ {
		if e := r.h.Event(i); e.Action == trace.OOM {
			out = append(out, failure{i + 1, e.Size, e.Addr})
		}
	}
	return out
}

// annotations gives the spans that the program named and that lie in the
// record, the longest of too many, lane by lane.
func (r *Record) annotations() []annotation {
	out := []annotation{}
	if !r.timed {
		return out
	}
	for i, lane := range r.h.Annotations(maxAnnotations, maxLanes) {
		for _, a := range lane {
			if from, to := r.momentAt(a.From), r.momentAt(a.To); from < to {
				out = append(out, annotation{a.Name, from, to, i})
			}
		}
	}
	return out
}

// momentAt is the moment at a time since 1970.
func (r *Record) momentAt(timeUS int64) int {
	return sort.Search(r.h.Len(), func(i int) bool { return r.h.Event(i).TimeUS > timeUS })
}
