package web

import (
	"cmp"
	"encoding/binary"
)

// Columns of a report.
//
// What the page can't ask a server for, it has in columns of whole numbers.
// A column is a row of variable-length integers of seven bits a byte, least
// first. Columns that go up and down hold differences, with the sign in the
// lowest bit. Every column is followed by the next one; the table of columns
// says where each begins. All together are compressed and written into the
// page in base64.

// column says where a column is.
type column struct {
	Name   string `json:"name"`
	Count  int    `json:"count"`
	Offset int    `json:"offset"`
	Delta  bool   `json:"delta"`
}

// columns are columns that are being written.
type columns struct {
	table []column
	bytes []byte
}

// add writes count numbers as they are.
func (c *columns) add(name string, count int, at func(i int) uint64) {
	c.table = append(c.table, column{name, count, len(c.bytes), false})
	for i := range count {
		c.bytes = binary.AppendUvarint(c.bytes, at(i))
	}
}

// addDeltas writes count numbers as differences, each from the one before.
func (c *columns) addDeltas(name string, count int, at func(i int) int64) {
	c.table = append(c.table, column{name, count, len(c.bytes), true})
	var last int64
	for i := range count {
		v := at(i)
		c.bytes = binary.AppendVarint(c.bytes, v-last)
		last = v
	}
}

// columns writes what assets/embedded.js reads.
func (r *Record) columns() *columns {
	c := &columns{}
	leases, n := r.h.Leases, len(r.h.Leases)
	events := r.h.Len()
	c.addDeltas("born", n, func(k int) int64 { return int64(leases[k].Born()) })
	c.add("freed", n, func(k int) uint64 { return uint64(max(leases[k].Freed()-leases[k].Born(), 0)) })
	c.add("done", n, func(k int) uint64 { return uint64(max(leases[k].Done()-leases[k].Freed(), 0)) })
	c.addDeltas("addr", n, func(k int) int64 { return int64(leases[k].Addr) })
	c.add("asked", n, func(k int) uint64 { return leases[k].Size })
	c.addDeltas("bytes", n, func(k int) int64 { return int64(r.bytes(k)) - int64(leases[k].Size) })
	c.add("open", n, func(k int) uint64 { return flag(leases[k].Block == 0, 1) })
	c.add("short", n, func(k int) uint64 { return r.bytes(k) - cmp.Or(leases[k].Block, r.bytes(k)) })
	c.addDeltas("stream", n, func(k int) int64 { return int64(leases[k].Stream()) })
	c.addDeltas("pool", n, func(k int) int64 { return int64(leases[k].Pool()[0]) })
	c.addDeltas("pool2", n, func(k int) int64 { return int64(leases[k].Pool()[1]) })
	c.add("stack", n, func(k int) uint64 { return uint64(r.stackOf[leases[k].Stack]) })
	c.add("purpose", n, func(k int) uint64 { return uint64(r.splits[byPurpose].of[k]) })
	c.add("site", n, func(k int) uint64 { return uint64(r.splits[bySite].of[k]) })
	if r.timed {
		c.addDeltas("time", events+1, func(m int) int64 { return r.time(m) })
	}
	r.spanColumns(c)
	r.summaryColumns(c)
	return c
}

func (r *Record) spanColumns(c *columns) {
	n := len(r.spans)
	c.addDeltas("span addr", n, func(i int) int64 { return int64(r.spans[i].Addr) })
	c.add("span size", n, func(i int) uint64 { return r.spans[i].Size })
	c.addDeltas("span from", n, func(i int) int64 { return int64(r.spans[i].From) })
	c.addDeltas("span to", n, func(i int) int64 { return int64(r.spans[i].To) })
	c.addDeltas("span stream", n, func(i int) int64 { return int64(r.spans[i].Stream) })
	c.addDeltas("span pool", n, func(i int) int64 { return int64(r.spans[i].Pool[0]) })
	c.addDeltas("span pool2", n, func(i int) int64 { return int64(r.spans[i].Pool[1]) })
	c.add("span flags", n, func(i int) uint64 { return flag(r.spans[i].Small, 1) | flag(r.spans[i].Expandable, 2) })
	c.add("span stack", n, func(i int) uint64 { return uint64(r.stackOf[r.spans[i].Stack]) })
}

// flag is a bit if b.
func flag(b bool, bit uint64) uint64 {
	if b {
		return bit
	}
	return 0
}

func (r *Record) summaryColumns(c *columns) {
	bins := r.summary.bins
	c.addDeltas("bin moment", len(bins), func(i int) int64 { return int64(bins[i].moment) })
	c.addDeltas("bin reserved", len(bins), func(i int) int64 { return bins[i].reserved })
	for s := range r.splits {
		for p := range r.splits[s].names {
			c.addDeltas([]string{"purpose", "site"}[s]+" "+string(rune('0'+p)), len(bins), func(i int) int64 { return bins[i].parts[s][p] })
		}
	}
}
