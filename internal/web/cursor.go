package web

// figures are what is known of one moment.
type figures struct {
	moment   int
	live     int64
	reserved int64
	parts    [numSplits][maxParts]int64
}

// cursor goes through the moments of a record, one after another.
type cursor struct {
	figures
	r      *Record
	unsaid int // the next one
	change int // the next one
}

// start gives a cursor at moment 0.
func (r *Record) start() *cursor {
	c := &cursor{r: r}
	for k := range r.h.Leases {
		l := &r.h.Leases[k]
		if l.Born() >= 0 {
			break
		}
		if l.Freed() >= 0 {
			c.add(k, 1)
		}
	}
	c.reserve()
	return c
}

// next goes on to the next moment: past one event.
func (c *cursor) next() {
	i := c.moment
	c.moment++
	for ; c.unsaid < len(c.r.unsaid) && c.r.unsaid[c.unsaid].event == i; c.unsaid++ {
		c.add(c.r.unsaid[c.unsaid].lease, -1)
	}
	if k := c.r.h.Lease(i); k >= 0 {
		l := &c.r.h.Leases[k]
		if l.Born() == i {
			c.add(k, 1)
		}
		if l.Freed() == i {
			c.add(k, -1)
		}
	}
	c.reserve()
}

// add enters a lease, or takes it out where sign is -1.
func (c *cursor) add(k int, sign int64) {
	n := sign * int64(c.r.bytes(k))
	c.live += n
	for s := range c.parts {
		c.parts[s][c.r.splits[s].of[k]] += n
	}
}

// reserve enters the changes of reserved bytes up to the moment.
func (c *cursor) reserve() {
	for ; c.change < len(c.r.changes) && c.r.changes[c.change].moment <= c.moment; c.change++ {
		c.reserved += c.r.changes[c.change].bytes
	}
}
