package web

import (
	"cmp"
	"iter"
	"slices"
	"sort"
)

// Lives are leases of a view.
type Lives struct {
	Lives []Life `json:"lives"`
	Count int    `json:"count"` // of all that the view has
	Bytes uint64 `json:"bytes"` // of all
}

// maxLives bounds how many leases a view can ask for.
const maxLives = 5000

// Lives gives the leases that live or are pending between two moments, both
// included: those that take most of the picture, size times time, first.
func (r *Record) Lives(from, to, most int) *Lives {
	from, to = r.clamp(from), max(r.clamp(to), r.clamp(from))
	return r.choose(r.between(from, to), most, func(k int) float64 {
		l := &r.h.Leases[k]
		return float64(r.bytes(k)) * float64(min(l.Done(), to)-max(l.Born(), from-1))
	})
}

// between gives the leases that are there at some moment from one to another.
func (r *Record) between(from, to int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, k := range r.h.LiveAt(from) {
			if !yield(k) {
				return
			}
		}
		k := sort.Search(len(r.h.Leases), func(k int) bool { return r.h.Leases[k].Born() >= from })
		for ; k < len(r.h.Leases) && r.h.Leases[k].Born() < to; k++ {
			if !yield(k) {
				return
			}
		}
	}
}

// weighed is a lease with what it weighs in a view.
type weighed struct {
	weight float64
	lease  int
}

// heavier orders by weight, the heaviest first; of equals the first lease.
func heavier(a, b weighed) int {
	return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.lease, b.lease))
}

// choose keeps those that weigh most, in that order. A record has millions of
// leases, so only twice as many as are asked for are ever kept.
func (r *Record) choose(list iter.Seq[int], most int, weight func(k int) float64) *Lives {
	out := &Lives{Lives: []Life{}}
	most = min(max(most, 0), maxLives)
	var kept []weighed
	for k := range list {
		out.Count++
		out.Bytes += r.bytes(k)
		w := weighed{weight(k), k}
		if len(kept) >= most && (most == 0 || heavier(w, kept[most-1]) > 0) {
			continue // kept is sorted up to there
		}
		kept = append(kept, w)
		if len(kept) == most || len(kept) == 2*most {
			slices.SortFunc(kept, heavier)
			kept = kept[:most]
		}
	}
	slices.SortFunc(kept, heavier)
	for _, w := range kept[:min(len(kept), most)] {
		out.Lives = append(out.Lives, r.life(w.lease))
	}
	return out
}

// Weight is what the leases of one stack hold in a view.
type Weight struct {
	Stack int     `json:"stack"`
	Area  float64 `json:"area"` // bytes times microseconds, or moments where there are no times
	Bytes uint64  `json:"bytes"`
	Count int     `json:"count"`
}

// Weights adds up bytes and lifetimes between two moments, by stack.
func (r *Record) Weights(from, to int) []Weight {
	from, to = r.clamp(from), max(r.clamp(to), r.clamp(from))
	by := make([]Weight, len(r.stacks))
	for k := range r.between(from, to) {
		l := &r.h.Leases[k]
		begin, end := max(l.Born()+1, from), min(max(l.Freed(), -1)+1, to)
		if end <= begin {
			continue
		}
		w := &by[r.stackOf[l.Stack]]
		w.Area += float64(r.bytes(k)) * float64(r.time(end)-r.time(begin))
		w.Bytes += r.bytes(k)
		w.Count++
	}
	out := []Weight{}
	for i, w := range by {
		if w.Count > 0 {
			w.Stack = i
			out = append(out, w)
		}
	}
	return out
}

// Stacks are all stacks of a record by number, as rows of numbers of frames,
// innermost first, so that each frame stands there once.
type Stacks struct {
	Frames []Line  `json:"frames"`
	Stacks [][]int `json:"stacks"`
}

// Line is a frame.
type Line struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Func string `json:"func"`
}

// Stacks gives all stacks.
func (r *Record) Stacks() *Stacks {
	s := &Stacks{Frames: []Line{}}
	number := map[Line]int{}
	for _, stack := range r.stacks {
		ids := []int{}
		for _, f := range stack.Frames() {
			line := Line{f.File, f.Line, f.Func}
			id, known := number[line]
			if !known {
				id = len(s.Frames)
				number[line] = id
				s.Frames = append(s.Frames, line)
			}
			ids = append(ids, id)
		}
		s.Stacks = append(s.Stacks, ids)
	}
	return s
}
