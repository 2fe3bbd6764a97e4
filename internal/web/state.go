package web

import (
	"cmp"
	"slices"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// Tile is a block of a segment as the page draws it.
type Tile struct {
	Lease   int    `json:"lease"` // -1: free
	Addr    uint64 `json:"addr"`
	Size    uint64 `json:"size"`
	Pending bool   `json:"pending,omitempty"`
	Purpose int    `json:"purpose"` // part of the split by purpose
	Site    int    `json:"site"`    // part of the split by call site
	Stack   int    `json:"stack"`
}

// Segment is a segment at one moment. Its tiles tile it.
type Segment struct {
	Addr       uint64 `json:"addr"`
	Size       uint64 `json:"size"`
	Stream     int    `json:"stream"`
	Small      bool   `json:"small"`
	Expandable bool   `json:"expandable"`
	Stack      int    `json:"stack"`
	Tiles      []Tile `json:"tiles"`
}

// State is a device at one moment.
type State struct {
	Moment   int       `json:"moment"`
	Time     int64     `json:"time"`
	Segments []Segment `json:"segments"` // by address
	Stray    int       `json:"stray"`    // blocks that lie in no segment, or on others
}

// State gives the state after so many events.
func (r *Record) State(moment int) *State {
	moment = r.clamp(moment)
	s := &State{Moment: moment, Time: r.time(moment), Segments: r.segments(moment)}
	alive := r.h.LiveAt(moment)
	slices.SortFunc(alive, func(a, b int) int {
		return cmp.Or(cmp.Compare(r.h.Leases[a].Addr, r.h.Leases[b].Addr), cmp.Compare(a, b))
	})
	for i := range s.Segments {
		alive = r.tile(s, &s.Segments[i], alive)
	}
	s.Stray += len(alive)
	return s
}

// segments are those of a moment, by address. Pages that touch are one segment
// if they belong together.
func (r *Record) segments(moment int) []Segment {
	var there []*inspect.Span
	for i := range r.spans {
		if s := &r.spans[i]; s.From < moment && s.To >= moment {
			there = append(there, s)
		}
	}
	slices.SortStableFunc(there, func(a, b *inspect.Span) int { return cmp.Compare(a.Addr, b.Addr) })
	out := []Segment{}
	var last *inspect.Span
	for _, s := range there {
		if n := len(out) - 1; n >= 0 && continues(last, s) && out[n].Addr+out[n].Size == s.Addr {
			out[n].Size += s.Size
		} else {
			out = append(out, Segment{Addr: s.Addr, Size: s.Size, Stream: s.Stream, Small: s.Small, Expandable: s.Expandable, Stack: int(r.stackOf[s.Stack]), Tiles: []Tile{}})
		}
		last = s
	}
	return out
}

func continues(a, b *inspect.Span) bool {
	return a.Expandable && b.Expandable && a.Stream == b.Stream && a.Pool == b.Pool && a.Small == b.Small
}

// tile fills a segment with the leases that begin in it, and free tiles
// between them, and gives the leases behind it.
func (r *Record) tile(s *State, seg *Segment, alive []int) []int {
	at, end := seg.Addr, seg.Addr+seg.Size
	for ; len(alive) > 0 && r.h.Leases[alive[0]].Addr < end; alive = alive[1:] {
		t := r.lease(alive[0])
		if t.Addr < at {
			s.Stray++
			continue
		}
		limit := end
		if len(alive) > 1 {
			limit = min(end, r.h.Leases[alive[1]].Addr)
		}
		t.Size = r.h.BlockSize(&r.h.Leases[t.Lease], &trace.Segment{Small: seg.Small, Expandable: seg.Expandable}, limit-t.Addr)
		if t.Size == 0 {
			s.Stray++
			continue
		}
		t.Pending = r.h.Leases[t.Lease].Freed() < s.Moment
		seg.free(at, t.Addr)
		seg.Tiles = append(seg.Tiles, t)
		at = t.Addr + t.Size
	}
	seg.free(at, end)
	return alive
}

func (s *Segment) free(from, to uint64) {
	if from < to {
		s.Tiles = append(s.Tiles, Tile{Lease: -1, Addr: from, Size: to - from})
	}
}

// lease gives lease k as a tile.
func (r *Record) lease(k int) Tile {
	l := &r.h.Leases[k]
	return Tile{Lease: k, Addr: l.Addr, Size: r.bytes(k), Purpose: int(r.splits[byPurpose].of[k]), Site: int(r.splits[bySite].of[k]), Stack: int(r.stackOf[l.Stack])}
}

// Block is everything about one lease.
type Block struct {
	Life
	Requested uint64       `json:"requested"`
	Stream    int          `json:"stream"`
	Pool      trace.PoolID `json:"pool"`
	Where     inspect.Site `json:"where"`
	Frames    []Line       `json:"frames"` // innermost first
}

// Life is a lease with its time. Moments outside the record are -1 and one
// more than its last.
type Life struct {
	Tile
	Born      int   `json:"born"`  // the first moment in which it lives
	Freed     int   `json:"freed"` // the first one after the program's free
	Done      int   `json:"done"`  // the first one in which its memory may be used again
	BornTime  int64 `json:"born_time"`
	FreedTime int64 `json:"freed_time"`
}

// Block gives lease k, or nil if there is none.
func (r *Record) Block(k int) *Block {
	if k < 0 || k >= len(r.h.Leases) {
		return nil
	}
	l := &r.h.Leases[k]
	frames := []Line{}
	for _, f := range l.Stack.Frames() {
		frames = append(frames, Line{f.File, f.Line, f.Func})
	}
	return &Block{r.life(k), l.Size, l.Stream(), l.Pool(), r.site(l), frames}
}

func (r *Record) life(k int) Life {
	l := &r.h.Leases[k]
	end := func(event int) int { return min(max(event, -1)+1, r.moments()) }
	born := l.Born() + 1
	if l.Born() < 0 {
		born = -1
	}
	return Life{r.lease(k), born, end(l.Freed()), end(l.Done()), r.time(r.clamp(born)), r.time(r.clamp(end(l.Freed())))}
}
