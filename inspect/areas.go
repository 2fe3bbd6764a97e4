package inspect

import (
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// Areas are the live bytes of a device over its record, split by what they are
// for or, where the record does not say that, by who allocated them. What is
// drawn over one another adds up to the live bytes of that moment.
type Areas struct {
	By       string     // "purpose" or "call site"
	Parts    []string   // what the bytes are split by, from the bottom up
	Bytes    [][]uint64 // by part, then by sample
	Reserved []uint64   // by sample: bytes taken from the device
	Moments  []int      // by sample: as History.At takes it
	Time     []int64    // by sample: microseconds since 1970, or the number of the event where the record has no times
	Timed    bool       // Time is microseconds
	Peak     int        // the sample with most live bytes
}

// purposeOrder is the order in which purposes are drawn: what stays, at the bottom.
var purposeOrder = []trace.Purpose{trace.Parameter, trace.OptimizerState, trace.Gradient, trace.Activation, trace.Workspace, trace.Input, trace.Other}

// topParts is how many call sites have an area of their own.
const topParts = 7

// Areas samples the record at n moments or few more: of each of n spans of
// time the moment with most live bytes, and every moment where there are fewer.
func (h *History) Areas(n int) *Areas {
	a := &Areas{Timed: h.timed()}
	all := h.curves()
	a.sample(h, all, max(n, 1))
	parts, of := h.parts()
	changes := make([][]int64, len(parts.names))
	for k := range changes {
		changes[k] = make([]int64, h.Len()+2)
	}
	for i := range h.Leases {
		l := &h.Leases[i]
		add(changes[of(l)], l.Born(), l.Freed(), max(l.Block, h.Conf.Round(l.Size)))
	}
	a.By = parts.by
	for k, change := range changes {
		curve := summed(change)
		if slices.Max(curve) > 0 {
			a.Parts, a.Bytes = append(a.Parts, parts.names[k]), append(a.Bytes, at(curve, a.Moments))
		}
	}
	a.Reserved = at(all.reserved, a.Moments)
	return a
}

func at(curve []uint64, moments []int) []uint64 {
	out := make([]uint64, len(moments))
	for i, n := range moments {
		out[i] = curve[n]
	}
	return out
}

// sample chooses the moments: in each span of time the highest, the first of
// equals; the first moment, the last one and the peaks of both curves are among them.
func (a *Areas) sample(h *History, all curves, n int) {
	times := make([]int64, h.Len()+1)
	for m := range times {
		times[m] = h.time(m, a.Timed)
		if m > 0 {
			times[m] = max(times[m], times[m-1]) // where a clock was set back
		}
	}
	last := h.Len()
	peak, _ := top(all.live)
	reserved, _ := top(all.reserved)
	chosen := []int{0, peak, reserved, last}
	if len(times) <= n {
		chosen = chosen[:0]
		for m := range times {
			chosen = append(chosen, m)
		}
	} else {
		width := float64(times[last]-times[0])/float64(n) + 1e-9
		best, in := 0, 0
		for m := range times {
			bin := int(float64(times[m]-times[0]) / width)
			if bin != in {
				chosen, best, in = append(chosen, best), m, bin
			}
			if all.live[m] > all.live[best] {
				best = m
			}
		}
		chosen = append(chosen, best)
	}
	slices.Sort(chosen)
	a.Moments = slices.Compact(chosen)
	a.Peak = slices.Index(a.Moments, peak)
	for _, m := range a.Moments {
		a.Time = append(a.Time, times[m])
	}
}

// parts is what live bytes are split by.
type parts struct {
	by    string
	names []string
}

// parts gives the parts, and the one that a lease belongs to.
func (h *History) parts() (parts, func(*Lease) int) {
	if slices.ContainsFunc(h.Leases, func(l Lease) bool { return l.Purpose != trace.Other }) {
		p := parts{by: "purpose"}
		for _, purpose := range purposeOrder {
			p.names = append(p.names, purpose.String())
		}
		return p, func(l *Lease) int { return slices.Index(purposeOrder, l.Purpose) }
	}
	s, p := newSites(), parts{by: "call site"}
	key := func(l *Lease) string { return s.site(l.Stack).String() }
	for _, share := range first(topParts, shares(h.liveLeases(h.Peak()), key)) {
		p.names = append(p.names, share.What)
	}
	rest := len(p.names)
	p.names = append(p.names, "all others")
	return p, func(l *Lease) int {
		if i := slices.Index(p.names[:rest], key(l)); i >= 0 {
			return i
		}
		return rest
	}
}
