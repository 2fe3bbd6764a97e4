package alloc

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// lagging is a null device whose streams get on only when the test says so. It
// knows which work comes before which, and so checks that memory is handed
// over in order:
//
//   - touch queues work of a stream. It must come after all work that other
//     streams queued on the same memory, through whatever addresses.
//   - Unmap and Free want all work on the addresses to be done, Destroy all
//     work on the memory.
//
// Memory is named by a physical address: handle × granularity + offset for
// mapped memory, the address itself for plain allocations. The first violation
// is kept in err.
type lagging struct {
	device.Device
	page      uint64
	streams   []*lagStream
	handles   map[device.Handle]bool   // that exist
	behind    map[uint64]device.Handle // by address of a mapped granule
	plain     map[uint64]uint64        // size of plain allocations
	addresses []touch                  // work that is not done, by address
	memory    []touch                  // the last work of each stream on each piece of memory
	err       error
}

// interval is a part of the addresses, or of memory.
type interval struct{ from, to uint64 }

func (i interval) overlaps(j interval) bool { return i.from < j.to && j.from < i.to }

// touch is work of a stream at a place of its queue.
type touch struct {
	interval
	stream int
	place  int
}

// lagStream is a queue of places 1, 2, …; those up to passed are done.
type lagStream struct {
	d      *lagging
	id     int
	place  int               // of the last work queued
	passed int               // of the last work done
	waits  map[int]*lagEvent // by the place that waits
	after  map[int]int       // by stream: the place that all later work comes after
}

// lagEvent is a place of a stream and what comes before it.
type lagEvent struct {
	stream *lagStream
	place  int
	after  map[int]int
}

func newLagging(t testing.TB, o device.NullOptions) *lagging {
	t.Helper()
	dev, err := device.OpenNull(o)
	if err != nil {
		t.Fatal(err)
	}
	return &lagging{
		Device: dev, page: dev.Info().Granularity,
		handles: map[device.Handle]bool{}, behind: map[uint64]device.Handle{}, plain: map[uint64]uint64{},
	}
}

func (d *lagging) NewStream() (device.Stream, error) {
	s := &lagStream{d: d, id: len(d.streams), waits: map[int]*lagEvent{}, after: map[int]int{}}
	d.streams = append(d.streams, s)
	return s, nil
}

func (d *lagging) Alloc(n uint64) (device.Ptr, error) {
	p, err := d.Device.Alloc(n)
	if err == nil {
		d.plain[uint64(p)] = n
	}
	return p, err
}

func (d *lagging) Free(p device.Ptr) error {
	d.idle(d.addresses, interval{uint64(p), uint64(p) + d.plain[uint64(p)]})
	delete(d.plain, uint64(p))
	return d.Device.Free(p)
}

func (d *lagging) Create() (device.Handle, error) {
	h, err := d.Device.Create()
	if err == nil {
		d.handles[h] = true
	}
	return h, err
}

func (d *lagging) Destroy(h device.Handle) error {
	d.idle(d.memory, interval{uint64(h) * d.page, uint64(h+1) * d.page})
	delete(d.handles, h)
	return d.Device.Destroy(h)
}

func (d *lagging) Map(p device.Ptr, handles []device.Handle) error {
	err := d.Device.Map(p, handles)
	if err == nil {
		for i, h := range handles {
			d.behind[uint64(p)+uint64(i)*d.page] = h
		}
	}
	return err
}

func (d *lagging) Unmap(p device.Ptr, n int) error {
	d.idle(d.addresses, interval{uint64(p), uint64(p) + uint64(n)*d.page})
	for i := range uint64(n) {
		delete(d.behind, uint64(p)+i*d.page)
	}
	return d.Device.Unmap(p, n)
}

// physical gives the memory behind addresses, neighbours joined, and ok if
// there is memory behind all of them.
func (d *lagging) physical(from, to uint64) (memory []interval, ok bool) {
	if !d.Info().Virtual || len(d.plain) > 0 {
		return []interval{{from, to}}, true
	}
	for at := from; at < to; {
		start := at &^ (d.page - 1)
		h, backed := d.behind[start]
		if !backed {
			return nil, false
		}
		next := min(to, start+d.page)
		base := uint64(h)*d.page - start
		if n := len(memory); n > 0 && memory[n-1].to == base+at {
			memory[n-1].to = base + next
		} else {
			memory = append(memory, interval{base + at, base + next})
		}
		at = next
	}
	return memory, true
}

// done says whether the work is.
func (d *lagging) done(w touch) bool { return w.place <= d.streams[w.stream].passed }

// idle wants all work on a part to be done.
func (d *lagging) idle(work []touch, part interval) {
	for _, w := range work {
		if w.overlaps(part) && !d.done(w) {
			d.err = fmt.Errorf("%#x-%#x taken while stream %d has passed %d and place %d works on it", part.from, part.to, w.stream, d.streams[w.stream].passed, w.place)
		}
	}
}

// queue notes work of s on addresses and gives the memory behind them.
func (d *lagging) queue(s *lagStream, from, to uint64) []interval {
	s.place++
	memory, ok := d.physical(from, to)
	if !ok {
		d.err = fmt.Errorf("stream %d works on %#x-%#x, where memory is missing", s.id, from, to)
	}
	d.addresses = append(slices.DeleteFunc(d.addresses, d.done), touch{interval{from, to}, s.id, s.place})
	d.memory = slices.DeleteFunc(d.memory, d.done)
	return memory
}

// touch queues work of s on [from, to).
func (d *lagging) touch(s *lagStream, from, to uint64) {
	for _, part := range d.queue(s, from, to) {
		d.work(s, part)
	}
}

// work lets the last work of s be the last on a part of memory.
func (d *lagging) work(s *lagStream, part interval) {
	var rest []touch
	for _, w := range d.memory {
		if !w.overlaps(part) {
			rest = append(rest, w)
			continue
		}
		if w.stream != s.id && s.after[w.stream] < w.place && !d.done(w) {
			d.err = fmt.Errorf("stream %d works on memory %#x-%#x, not after place %d of stream %d", s.id, part.from, part.to, w.place, w.stream)
		}
		if w.from < part.from {
			rest = append(rest, touch{interval{w.from, part.from}, w.stream, w.place})
		}
		if part.to < w.to {
			rest = append(rest, touch{interval{part.to, w.to}, w.stream, w.place})
		}
	}
	d.memory = append(rest, touch{part, s.id, s.place})
}

// share queues work of s on memory that its owner orders itself.
func (d *lagging) share(s *lagStream, from, to uint64) {
	for _, part := range d.queue(s, from, to) {
		d.memory = append(d.memory, touch{part, s.id, s.place})
	}
}

// advance does up to n pieces of work of a stream, fewer if it has to wait.
func (s *lagStream) advance(n int) {
	for ; n > 0 && s.passed < s.place; n-- {
		if e := s.waits[s.passed+1]; e != nil && !e.Done() {
			return
		}
		s.passed++
	}
}

func (s *lagStream) ID() int                             { return s.id }
func (s *lagStream) Launch(*device.Launch)               { s.place++ }
func (s *lagStream) Upload(dst device.Ptr, src []byte)   { s.place++ }
func (s *lagStream) Download(dst []byte, src device.Ptr) { s.place++ }

func (s *lagStream) Copy(dst, src device.Ptr, n uint64) {
	s.d.share(s, uint64(src), uint64(src)+n)
	s.d.touch(s, uint64(dst), uint64(dst)+n)
}

func (s *lagStream) Close() error { return s.Sync() }
func (s *lagStream) Sync() error  { s.Record().Sync(); return nil }
func (s *lagStream) Clear()       {}

func (s *lagStream) Record() device.Event {
	after := maps.Clone(s.after)
	after[s.id] = s.place
	return &lagEvent{s, s.place, after}
}

func (s *lagStream) Wait(e device.Event) {
	event := e.(*lagEvent)
	s.place++
	s.waits[s.place] = event
	for stream, place := range event.after {
		s.after[stream] = max(s.after[stream], place)
	}
}

func (e *lagEvent) Done() bool { return e.stream.passed >= e.place }

// Sync lets the stream get on to the event, and others to what it waits for.
func (e *lagEvent) Sync() {
	for s := e.stream; s.passed < e.place; s.passed++ {
		if w := s.waits[s.passed+1]; w != nil {
			w.Sync()
		}
	}
}
