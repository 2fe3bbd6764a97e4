package web

import (
	"cmp"
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
		return float64(r.bytes(k)) * float64(min(l.Done, to)-max(l.Born, from-1))
	})
}

// between lists the leases that are there at some moment from one to another.
func (r *Record) between(from, to int) []int {
	list := r.h.LiveAt(from)
	k := sort.Search(len(r.h.Leases), func(k int) bool { return r.h.Leases[k].Born >= from })
	for ; k < len(r.h.Leases) && r.h.Leases[k].Born < to; k++ {
		list = append(list, k)
	}
	return list
}

// choose keeps those that weigh most, in that order; of equals the first.
func (r *Record) choose(list []int, most int, weight func(k int) float64) *Lives {
	out := &Lives{Lives: []Life{}, Count: len(list)}
	for _, k := range list {
		out.Bytes += r.bytes(k)
	}
	slices.SortFunc(list, func(a, b int) int { return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a, b)) })
	for _, k := range list[:min(len(list), max(most, 0), maxLives)] {
		out.Lives = append(out.Lives, r.life(k))
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
	for _, k := range r.between(from, to) {
		l := &r.h.Leases[k]
		begin, end := max(l.Born+1, from), min(max(l.Freed, -1)+1, to)
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
