package inspect

import (
	"cmp"
	"slices"
)

// Growth is a call site whose live bytes at the ends of steps grow.
type Growth struct {
	Site         Site   `json:"site"`
	Bytes        uint64 `json:"bytes"`          // live at the last end
	Count        int    `json:"count"`          // blocks live at the last end
	PerStepBytes uint64 `json:"per_step_bytes"` // median growth
	PerStepCount int    `json:"per_step_count"` // median growth in blocks
	Steps        int    `json:"steps"`          // looked at
}

const (
	// warmup is the number of first steps that leak nothing whatever they
	// keep: optimizers make their states, caches fill.
	warmup = 2
	// steady is the share of steps in which a leak must grow. Growth by a new
	// longest sequence or batch comes in few steps.
	steady = 0.8
)

// growing finds the call sites that grow from step to step, the fastest first.
func growing(all []Lease, ends []int, where func(*Lease) Site) []Growth {
	if len(ends) < warmup+minSteps {
		return nil
	}
	ends = ends[warmup:]
	perSite := map[Site]*series{}
	for k := range all {
		l := &all[k]
		from, _ := slices.BinarySearch(ends, l.Born())
		to, _ := slices.BinarySearch(ends, l.Freed())
		if from == to {
			continue // between two ends
		}
		site := where(l)
		s := perSite[site]
		if s == nil {
			s = &series{make([]int64, len(ends)+1), make([]int64, len(ends)+1)}
			perSite[site] = s
		}
		s.add(from, to, int64(l.Size))
	}
	var out []Growth
	for site, s := range perSite {
		if g, ok := s.growth(); ok {
			g.Site, g.Steps = site, len(ends)
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b Growth) int {
		return cmp.Or(cmp.Compare(b.PerStepBytes, a.PerStepBytes), cmp.Compare(a.Site.String(), b.Site.String()))
	})
	return out
}

// series is the bytes and blocks of a site that live at each end, as
// differences from one end to the next.
type series struct{ bytes, count []int64 }

// add enters a block that lives at the ends [from, to).
func (s *series) add(from, to int, size int64) {
	s.bytes[from] += size
	s.bytes[to] -= size
	s.count[from]++
	s.count[to]--
}

// growth says whether the series grows steadily, in bytes and in blocks.
func (s *series) growth() (Growth, bool) {
	n := len(s.bytes) - 1
	var bytes, count int64
	ups := 0
	for i := range n {
		bytes += s.bytes[i]
		count += s.count[i]
		if i > 0 && s.bytes[i] > 0 && s.count[i] > 0 {
			ups++
		}
	}
	g := Growth{Bytes: uint64(max(bytes, 0)), Count: int(count)}
	g.PerStepBytes, g.PerStepCount = uint64(max(median(s.bytes[1:n]), 0)), int(median(s.count[1:n]))
	return g, float64(ups) >= steady*float64(n-1) && g.PerStepBytes > 0
}

func median(x []int64) int64 {
	y := slices.Sorted(slices.Values(x))
	return y[len(y)/2]
}
