package placement

import "math"

// A diver builds a placement in one go, from the ground up: it keeps the skyline
// of what is placed, takes its lowest segment and puts on it the item of the
// largest key that lives wholly within the segment. When there is none, the
// segment is raised to its lower neighbour and joined with it; that room is
// lost. A dive takes about O(n log n).
type diver struct {
	p       *part
	inside  *nest
	offsets []int64

	// The skyline: a segment is known by its first section.
	height     []int64
	next, prev []int32 // first section of the segment after and before; sections and -1 at the ends
	queue      []ledge // heap by height; entries whose segment is gone or has risen are skipped
}

// ledge is a segment of the skyline as it was when it was queued.
type ledge struct {
	height int64
	from   int32
}

func newDiver(p *part) *diver {
	return &diver{
		p: p, inside: newNest(p.items), offsets: make([]int64, len(p.items)),
		height: make([]int64, p.sections), next: make([]int32, p.sections), prev: make([]int32, p.sections),
	}
}

// dive sets the offsets by the keys, which it reads only, and returns the peak.
func (d *diver) dive(keys []float64) int64 {
	d.inside.reset(keys)
	for k := range d.height {
		d.height[k] = -1 // no segment begins here
	}
	d.queue = d.queue[:0]
	d.segment(0, int32(d.p.sections), -1, 0)
	var peak int64
	for left := len(keys); left > 0; {
		low := d.pop()
		if d.height[low.from] != low.height {
			continue
		}
		i := d.inside.best(low.from, d.next[low.from])
		if i < 0 {
			d.raise(low.from)
			continue
		}
		d.inside.remove(i)
		d.offsets[i] = low.height
		peak = max(peak, d.put(low, i))
		left--
	}
	return peak
}

// segment makes a segment and queues it.
func (d *diver) segment(from, to, before int32, height int64) {
	d.height[from], d.next[from], d.prev[from] = height, to, before
	if before >= 0 {
		d.next[before] = from
	}
	if int(to) < len(d.prev) {
		d.prev[to] = from
	}
	d.push(ledge{height, from})
}

// put splits the segment into the parts beside the item and the item's top.
func (d *diver) put(at ledge, i int32) int64 {
	it, to := d.p.items[i], d.next[at.from]
	before := d.prev[at.from]
	top := at.height + it.size
	d.height[at.from] = -1
	if at.from < it.first {
		d.segment(at.from, it.first, before, at.height)
		before = at.from
	}
	d.segment(it.first, it.end, before, top)
	if it.end < to {
		d.segment(it.end, to, it.first, at.height)
	}
	d.join(it.first)
	return top
}

// raise lifts a segment to the lower one of its neighbours.
func (d *diver) raise(from int32) {
	height := int64(math.MaxInt64)
	if b := d.prev[from]; b >= 0 {
		height = d.height[b]
	}
	if n := d.next[from]; int(n) < len(d.height) {
		height = min(height, d.height[n])
	}
	d.height[from] = height
	d.push(ledge{height, from})
	d.join(from)
}

// join unites the segment with neighbours of the same height.
func (d *diver) join(from int32) {
	if n := d.next[from]; int(n) < len(d.height) && d.height[n] == d.height[from] {
		d.absorb(from, n)
	}
	if b := d.prev[from]; b >= 0 && d.height[b] == d.height[from] {
		d.absorb(b, from)
	}
}

func (d *diver) absorb(from, gone int32) {
	d.height[gone] = -1
	d.next[from] = d.next[gone]
	if n := d.next[from]; int(n) < len(d.prev) {
		d.prev[n] = from
	}
}

func (a ledge) below(b ledge) bool {
	return a.height < b.height || a.height == b.height && a.from < b.from
}

func (d *diver) push(l ledge) {
	d.queue = append(d.queue, l)
	q := d.queue
	i := len(q) - 1
	for i > 0 && l.below(q[(i-1)/2]) {
		q[i] = q[(i-1)/2]
		i = (i - 1) / 2
	}
	q[i] = l
}

func (d *diver) pop() ledge {
	q := d.queue
	low, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	d.queue = q
	i := 0
	for {
		c := 2*i + 1
		if c+1 < len(q) && q[c+1].below(q[c]) {
			c++
		}
		if c >= len(q) || !q[c].below(last) {
			break
		}
		q[i] = q[c]
		i = c
	}
	if len(q) > 0 {
		q[i] = last
	}
	return low
}
