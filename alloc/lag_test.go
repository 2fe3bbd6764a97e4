package alloc

import (
	"fmt"
	"maps"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// lagging is a null device whose streams get on only when the test says so. It
// knows which work comes before which, and so checks that memory is handed
// over in order:
//
//   - touch(t, b) queues work of stream t on memory. It must come after all
//     work that other streams queued there.
//   - Unmap and Free want all work on the memory to be done.
//
// The first violation is kept in err.
type lagging struct {
	device.Device
	streams []*lagStream
	touched []touch // the last work of each stream on each piece of memory
	err     error
}

// touch is work of a stream at a place of its queue on [from, to).
type touch struct {
	from, to uint64
	stream   int
	place    int
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
	return &lagging{Device: dev}
}

func (d *lagging) NewStream() (device.Stream, error) {
	s := &lagStream{d: d, id: len(d.streams), waits: map[int]*lagEvent{}, after: map[int]int{}}
	d.streams = append(d.streams, s)
	return s, nil
}

func (d *lagging) Unmap(p device.Ptr, n int) error {
	d.idle(uint64(p), uint64(p)+uint64(n)*d.Info().Granularity)
	return d.Device.Unmap(p, n)
}

func (d *lagging) Free(p device.Ptr) error {
	d.idle(uint64(p), uint64(p)+1)
	return d.Device.Free(p)
}

// idle wants all work on [from, to) to be done, and forgets it.
func (d *lagging) idle(from, to uint64) {
	for _, w := range d.touched {
		if w.from < to && from < w.to && d.streams[w.stream].passed < w.place {
			d.err = fmt.Errorf("memory %#x-%#x taken while stream %d has passed %d and place %d works on it", from, to, w.stream, d.streams[w.stream].passed, w.place)
		}
	}
}

// touch queues work of s on [from, to).
func (d *lagging) touch(s *lagStream, from, to uint64) {
	s.place++
	var rest []touch
	for _, w := range d.touched {
		if w.from >= to || from >= w.to {
			rest = append(rest, w)
			continue
		}
		if w.stream != s.id && s.after[w.stream] < w.place && d.streams[w.stream].passed < w.place {
			d.err = fmt.Errorf("stream %d works on %#x-%#x, not after place %d of stream %d", s.id, from, to, w.place, w.stream)
		}
		if w.from < from {
			rest = append(rest, touch{w.from, from, w.stream, w.place})
		}
		if to < w.to {
			rest = append(rest, touch{to, w.to, w.stream, w.place})
		}
	}
	d.touched = append(rest, touch{from, to, s.id, s.place})
}

// share queues work of s on memory that its owner orders itself.
func (d *lagging) share(s *lagStream, from, to uint64) {
	s.place++
	d.touched = append(d.touched, touch{from, to, s.id, s.place})
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
func (s *lagStream) Copy(dst, src device.Ptr, n uint64)  { s.place++ }
func (s *lagStream) Upload(dst device.Ptr, src []byte)   { s.place++ }
func (s *lagStream) Download(dst []byte, src device.Ptr) { s.place++ }
func (s *lagStream) Close() error                        { return s.Sync() }
func (s *lagStream) Sync() error                         { s.Record().Sync(); return nil }

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
