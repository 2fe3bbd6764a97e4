package alloc

import (
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
)

// Note [Stream order]
//
// Work on one stream runs in order. So a block that was freed on a stream may
// be handed out at once to work that is queued there later: what touches the
// memory first is done first. Another stream t must not touch it before
// stream s has passed the place in its queue where it was freed.
//
// Every free on s advances the tick of s by one. A use (s, n) on a free block
// says: what s had queued at its n-th free may still touch this memory. For t
// the use is satisfied when
//
//	t = s                     by the order of the queue
//	n ≤ s.done                s has passed it
//	n ≤ t.seen[s]             t already waits for it
//
// and otherwise t is made to wait for an event on s with a tick of at least n,
// on the device; the host does not wait. Once t has done so, its own later
// frees imply it, so a block that goes live forgets its uses and comes back
// with one.
//
// While the allocator knows a single stream, nobody waits, and no events are
// recorded. From the second stream on, each free records one: an event that is
// recorded late makes others wait for work that came after the free. Ticks
// without an event get one when somebody asks (event), which is later than
// needed but right.

// use is work that may still touch a free block.
type use struct {
	stream int // index in Allocator.streams, the stream's ID
	tick   uint64
}

// stream is what the allocator knows of a device's stream.
type stream struct {
	id   int
	dev  device.Stream
	tick uint64   // number of frees
	done uint64   // the stream has passed this tick
	seen []uint64 // by stream: the tick of it that this one waits for

	marks []mark // recorded events with ascending ticks; those before head have been passed
	head  int
}

// mark is an event that covers all frees up to a tick.
type mark struct {
	tick  uint64
	event device.Event
}

// known gives the allocator's view of s.
func (a *Allocator) known(s device.Stream) *stream {
	id := s.ID()
	if id < len(a.streams) && a.streams[id] != nil {
		if a.streams[id].dev != s {
			panic(fmt.Sprintf("alloc: stream %d is not the one that was used before: it is of another device", id))
		}
		return a.streams[id]
	}
	if id >= len(a.streams) {
		a.streams = append(a.streams, make([]*stream, id+1-len(a.streams))...)
		for _, p := range a.pools {
			p.addClasses(ownClass + len(a.streams))
		}
	}
	a.streams[id] = &stream{id: id, dev: s}
	a.nstreams++
	return a.streams[id]
}

// freed counts a free on s.
func (a *Allocator) freed(s *stream) use {
	s.tick++
	if a.several() {
		a.mark(s)
	}
	return use{s.id, s.tick}
}

// mark records an event at the present place in the queue of s.
func (a *Allocator) mark(s *stream) mark {
	a.look(s)
	if s.head > 64 && s.head > len(s.marks)/2 {
		s.marks = slices.Delete(s.marks, 0, s.head)
		s.head = 0
	}
	m := mark{s.tick, s.dev.Record()}
	s.marks = append(s.marks, m)
	return m
}

// look finds out how far s has come, without waiting.
func (a *Allocator) look(s *stream) {
	for s.head < len(s.marks) && s.marks[s.head].event.Done() {
		s.pass(s.marks[s.head].tick)
		s.head++
		a.progress++
	}
}

// poll looks at all streams.
func (a *Allocator) poll() {
	for _, s := range a.streams {
		if s != nil {
			a.look(s)
		}
	}
}

// pass notes that the stream has passed a tick.
func (s *stream) pass(tick uint64) { s.done = max(s.done, tick) }

// event gives the first event that covers a tick that is not done.
func (a *Allocator) event(s *stream, tick uint64) mark {
	i, _ := slices.BinarySearchFunc(s.marks[s.head:], tick, func(m mark, tick uint64) int {
		if m.tick < tick {
			return -1
		}
		return 1
	})
	if s.head+i < len(s.marks) {
		return s.marks[s.head+i]
	}
	return a.mark(s)
}

// several says whether more than one stream is known.
func (a *Allocator) several() bool { return a.nstreams > 1 }

// passed says whether the work of u is known to be done.
func (a *Allocator) passed(u use) bool { return u.tick <= a.streams[u.stream].done }

// order makes later work of t come after the uses.
func (a *Allocator) order(t *stream, uses []use) {
	for _, u := range uses {
		if u.stream == t.id || a.passed(u) || u.stream < len(t.seen) && u.tick <= t.seen[u.stream] {
			continue
		}
		s := a.streams[u.stream]
		m := a.event(s, u.tick)
		if m.event.Done() {
			s.pass(m.tick)
			continue
		}
		t.dev.Wait(m.event)
		a.stats.Waits++
		a.note("wait", t.id, 0)
		if u.stream >= len(t.seen) {
			t.seen = append(t.seen, make([]uint64, u.stream+1-len(t.seen))...)
		}
		t.seen[u.stream] = m.tick
	}
}

// sync waits on the host until the uses are done.
func (a *Allocator) sync(uses []use) {
	for _, u := range uses {
		if a.passed(u) {
			continue
		}
		s := a.streams[u.stream]
		m := a.event(s, u.tick)
		if !m.event.Done() {
			m.event.Sync()
			a.stats.Syncs++
			a.note("sync", u.stream, 0)
		}
		s.pass(m.tick)
	}
}

// addUse notes a use, unless it is done or implied by a later one.
func (a *Allocator) addUse(b *Block, u use) {
	if a.passed(u) {
		return
	}
	for i := range b.uses {
		if b.uses[i].stream == u.stream {
			b.uses[i].tick = max(b.uses[i].tick, u.tick)
			return
		}
	}
	b.uses = append(b.uses, u)
}

// undone gives the uses that are not known to be done.
func (a *Allocator) undone(uses []use) []use {
	return slices.DeleteFunc(uses, a.passed)
}

// class is the class of a free block with these uses.
func class(uses []use) int {
	switch len(uses) {
	case 0:
		return clean
	case 1:
		return ownClass + uses[0].stream
	}
	return mixed
}
