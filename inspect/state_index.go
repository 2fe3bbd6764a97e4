package inspect

import "sort"

// intervals finds the things that are alive at a moment. Thing k is alive
// after n events if it began at an event before n and has not ended at one
// before n; things are numbered in the order in which they begin.
//
// Marks hold all that is alive at some moments. A mark is set after as many
// beginnings as there are things alive, so that marks together take no more
// memory than the things do, and a question looks at no more than twice what
// was alive then, plus markEvery.
type intervals struct {
	n     int
	span  func(k int) (from, to int)
	marks []mark
}

// markEvery is the least number of beginnings between two marks.
const markEvery = 1 << 10

type mark struct {
	next  int32   // the first thing that begins after the mark
	alive []int32 // things before it that are alive when next begins
}

// newIntervals builds the index of n things; span(k) gives the events at which
// k begins, −1 for before the first, and ends.
func newIntervals(n int, span func(k int) (from, to int)) intervals {
	x := intervals{n: n, span: span, marks: []mark{{}}}
	for k := range n {
		from, _ := span(k)
		last := &x.marks[len(x.marks)-1]
		if k-int(last.next) >= max(markEvery, len(last.alive)) {
			x.marks = append(x.marks, mark{int32(k), x.since(last, k, from)})
		}
	}
	return x
}

// since lists the things from a mark on, before thing end, that have not ended
// before event n.
func (x *intervals) since(m *mark, end, n int) []int32 {
	var alive []int32
	for _, k := range m.alive {
		if _, to := x.span(int(k)); to >= n {
			alive = append(alive, k)
		}
	}
	for k := m.next; int(k) < end; k++ {
		if _, to := x.span(int(k)); to >= n {
			alive = append(alive, k)
		}
	}
	return alive
}

// at lists the things that are alive after n events, in their order.
func (x *intervals) at(n int) []int {
	end := sort.Search(x.n, func(k int) bool { from, _ := x.span(k); return from >= n })
	m := sort.Search(len(x.marks), func(i int) bool { return int(x.marks[i].next) >= end }) - 1
	alive := x.since(&x.marks[max(m, 0)], end, n)
	out := make([]int, len(alive))
	for i, k := range alive {
		out[i] = int(k)
	}
	return out
}
