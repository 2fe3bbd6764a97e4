package web

// summaryBins is how many spans of moments a summary has at most.
const summaryBins = 1 << 14

// summary is the record in spans of size moments. Of each it knows the moment
// with most live bytes, the first of equals, and the most reserved bytes.
type summary struct {
	size   int
	bins   []figures // reserved is the most of the span
	starts []cursor  // by span: at its first moment
}

func (r *Record) summarise() summary {
	s := summary{size: 1}
	for (r.moments()+s.size-1)/s.size > summaryBins {
		s.size *= 2
	}
	c := r.start()
	for m := range r.moments() {
		if m > 0 {
			c.next()
		}
		if m%s.size == 0 {
			s.starts = append(s.starts, *c)
			s.bins = append(s.bins, c.figures)
		}
		s.bins[len(s.bins)-1].merge(&c.figures)
	}
	return s
}

// merge keeps the higher of two figures, the first of equals.
func (f *figures) merge(other *figures) {
	reserved := max(f.reserved, other.reserved)
	if other.live > f.live {
		*f = *other
	}
	f.reserved = reserved
}

// Samples are figures of a view, by sample. Each lasts until the next one.
type Samples struct {
	Moments  []int                `json:"moments"`
	Times    []int64              `json:"times"` // microseconds since the first event
	Reserved []int64              `json:"reserved"`
	Parts    [numSplits][][]int64 `json:"parts"` // by purpose and by call site; by part
}

// maxWidth bounds the width that a view can ask for.
const maxWidth = 4096

// Samples gives the moments from one to another, both included, as at most
// twice width samples.
func (r *Record) Samples(from, to, width int) *Samples {
	from, to = r.clamp(from), max(r.clamp(to), r.clamp(from))
	width = min(max(width, 1), maxWidth)
	first, last := from/r.summary.size, to/r.summary.size
	if bins := last - first + 1; bins >= width {
		return r.sampled(r.summary.bins[first:last+1], bins/width)
	}
	group := max((to-from+1)/width, 1)
	c := r.cursorAt(from)
	var bins []figures
	for {
		if (c.moment-from)%group == 0 {
			bins = append(bins, c.figures)
		}
		bins[len(bins)-1].merge(&c.figures)
		if c.moment == to {
			return r.sampled(bins, 1)
		}
		c.next()
	}
}

// cursorAt gives a cursor at a moment.
func (r *Record) cursorAt(moment int) *cursor {
	c := r.summary.starts[moment/r.summary.size]
	for c.moment < moment {
		c.next()
	}
	return &c
}

func (r *Record) clamp(moment int) int { return min(max(moment, 0), r.h.Len()) }

// sampled merges so many neighbours into one sample.
func (r *Record) sampled(bins []figures, group int) *Samples {
	s := &Samples{}
	for i := range s.Parts {
		s.Parts[i] = make([][]int64, len(r.splits[i].names))
	}
	for ; len(bins) > 0; bins = bins[min(group, len(bins)):] {
		f := bins[0]
		for i := range bins[:min(group, len(bins))] {
			f.merge(&bins[i])
		}
		s.Moments = append(s.Moments, f.moment)
		s.Times = append(s.Times, r.time(f.moment))
		s.Reserved = append(s.Reserved, f.reserved)
		for i, parts := range s.Parts {
			for p := range parts {
				parts[p] = append(parts[p], f.parts[i][p])
			}
		}
	}
	return s
}
