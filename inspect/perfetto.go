package inspect

import (
	"bufio"
	"cmp"
	wire "encoding/binary"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/headroom-go/headroom/trace"
)

// A Perfetto trace is a protobuf message: a row of TracePackets, each with a
// time and a TrackEvent, or the description of a track. The messages and the
// numbers of their fields are those of perfetto/protos/perfetto/trace.
const (
	tracePacket = 1

	packetTimestamp  = 8 // nanoseconds
	packetSequence   = 10
	packetEvent      = 11
	packetFlags      = 13
	packetDescriptor = 60

	trackUUID    = 1
	trackName    = 2
	trackParent  = 5
	trackCounter = 8

	counterUnit = 3
	unitBytes   = 3

	eventAnnotation = 4
	eventType       = 9
	eventTrack      = 11
	eventCategory   = 22
	eventName       = 23
	eventCounter    = 30

	annotationUint = 3
	annotationName = 10
)

// Types of a TrackEvent.
const (
	sliceBegin = 1 + iota
	sliceEnd
	instant
	counterValue
)

// Our tracks by their numbers. Those of annotations follow.
const (
	trackDevice uint64 = 1 + iota
	trackLive
	trackReserved
	trackFailures
	trackSpans
)

// WritePerfetto writes the record of a device as a trace for ui.perfetto.dev:
// live and reserved bytes as counters, failed requests as instant events,
// annotations as slices. Where the file has no times, an event takes a
// microsecond. The error is w's, or says that the snapshot has no such device.
func WritePerfetto(w io.Writer, s *trace.Snapshot, device int) error {
	if err := knows(s, device); err != nil {
		return err
	}
	h := NewHistory(s, device)
	p := &perfetto{w: bufio.NewWriter(w), h: h, timed: h.timed()}
	p.track(trackDevice, 0, "device "+strconv.Itoa(device), false)
	p.counters(h.curves())
	p.failures()
	p.spans()
	return p.w.Flush()
}

// timed says whether the events have times.
func (h *History) timed() bool {
	for _, e := range h.trace.All() {
		if e.TimeUS != 0 {
			return true
		}
	}
	return false
}

// perfetto writes packets; the writer keeps the first error to the end.
type perfetto struct {
	w       *bufio.Writer
	h       *History
	timed   bool
	started bool
}

// protobuf is a message that is being written.
type protobuf []byte

func (m protobuf) uint(field int, v uint64) protobuf {
	return wire.AppendUvarint(wire.AppendUvarint(m, uint64(field)<<3), v)
}

func (m protobuf) bytes(field int, b []byte) protobuf {
	m = wire.AppendUvarint(m, uint64(field)<<3|2)
	return append(wire.AppendUvarint(m, uint64(len(b))), b...)
}

// packet writes a packet with one more field.
func (p *perfetto) packet(timeUS int64, field int, content protobuf) {
	const sequence, stateCleared = 1, 1
	m := protobuf{}.uint(packetSequence, sequence).bytes(field, content)
	if field == packetEvent {
		m = m.uint(packetTimestamp, uint64(max(timeUS, 0))*1000)
	}
	if !p.started {
		m = m.uint(packetFlags, stateCleared)
		p.started = true
	}
	_, _ = p.w.Write(protobuf{}.bytes(tracePacket, m))
}

// track describes a track.
func (p *perfetto) track(id, parent uint64, name string, counter bool) {
	m := protobuf{}.uint(trackUUID, id).bytes(trackName, []byte(name))
	if parent != 0 {
		m = m.uint(trackParent, parent)
	}
	if counter {
		m = m.bytes(trackCounter, protobuf{}.uint(counterUnit, unitBytes))
	}
	p.packet(0, packetDescriptor, m)
}

func event(kind, track uint64) protobuf {
	return protobuf{}.uint(eventType, kind).uint(eventTrack, track)
}

func (p *perfetto) time(n int) int64 { return p.h.time(n, p.timed) }

// time is the time of moment n: of the event that led to it or, where the
// events have no times, its number.
func (h *History) time(n int, timed bool) int64 {
	i := max(n-1, 0)
	if !timed || h.Len() == 0 {
		return int64(i)
	}
	return h.Event(i).TimeUS
}

// counters writes both curves where they change.
func (p *perfetto) counters(c curves) {
	p.track(trackLive, trackDevice, "live", true)
	p.track(trackReserved, trackDevice, "reserved", true)
	for n := range c.live {
		for _, c := range []struct {
			track uint64
			curve []uint64
		}{{trackLive, c.live}, {trackReserved, c.reserved}} {
			if n == 0 || c.curve[n] != c.curve[n-1] {
				p.packet(p.time(n), packetEvent, event(counterValue, c.track).uint(eventCounter, c.curve[n]))
			}
		}
	}
}

// failures writes the failed requests, with their figures.
func (p *perfetto) failures() {
	p.track(trackFailures, trackDevice, "out of memory", false)
	for i, e := range p.h.trace.All() {
		if e.Action != trace.OOM {
			continue
		}
		m := event(instant, trackFailures).bytes(eventCategory, []byte("memory")).bytes(eventName, []byte("out of memory"))
		m = m.bytes(eventAnnotation, protobuf{}.bytes(annotationName, []byte("request_bytes")).uint(annotationUint, e.Size))
		m = m.bytes(eventAnnotation, protobuf{}.bytes(annotationName, []byte("free_bytes")).uint(annotationUint, e.Addr))
		p.packet(p.time(i+1), packetEvent, m)
	}
}

// note is an annotation from its begin to its end.
type note struct {
	name     string
	from, to int64
}

// notes pairs begins and ends of one name, the inner ones first. What has no
// end lasts to the last event or annotation; what has no begin is left out.
func (h *History) notes() []note {
	var out []note
	open := map[string][]int{} // by name: indices in out
	var last int64
	if n := h.Len(); n > 0 {
		last = h.Event(n - 1).TimeUS
	}
	for _, a := range h.snapshot.Annotations {
		if a.Device != h.device {
			continue
		}
		last = max(last, a.TimeUS)
		begun := open[a.Name]
		switch n := len(begun); {
		case a.Begin:
			open[a.Name] = append(begun, len(out))
			out = append(out, note{a.Name, a.TimeUS, -1})
		case n > 0:
			out[begun[n-1]].to = max(a.TimeUS, out[begun[n-1]].from)
			open[a.Name] = begun[:n-1]
		}
	}
	for i := range out {
		if out[i].to < 0 {
			out[i].to = max(last, out[i].from)
		}
	}
	slices.SortStableFunc(out, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
	})
	return out
}

// spans writes the annotations. Slices of one track must lie inside one
// another, and annotations of several threads do not: each goes to the first
// track into which it fits.
func (p *perfetto) spans() {
	var lanes []lane
	for _, n := range p.h.notes() {
		at := slices.IndexFunc(lanes, func(l lane) bool { return l.fits(n) })
		if at < 0 {
			at = len(lanes)
			lanes = append(lanes, lane{id: trackSpans + uint64(at)})
			p.track(lanes[at].id, trackDevice, "annotations", false)
		}
		p.end(&lanes[at], n.from)
		lanes[at].open = append(lanes[at].open, n.to)
		m := event(sliceBegin, lanes[at].id).bytes(eventCategory, []byte("annotation")).bytes(eventName, []byte(n.name))
		p.packet(n.from, packetEvent, m)
	}
	for i := range lanes {
		p.end(&lanes[i], math.MaxInt64)
	}
}

// lane is a track of slices with the ends of those that are open, the
// innermost last.
type lane struct {
	id   uint64
	open []int64
}

// fits says whether n lies inside the innermost slice that is open when it
// begins, or after all of them.
func (l *lane) fits(n note) bool {
	for i := len(l.open) - 1; i >= 0; i-- {
		if l.open[i] > n.from {
			return n.to <= l.open[i]
		}
	}
	return true
}

// end ends the slices of a lane that are over at a time.
func (p *perfetto) end(l *lane, time int64) {
	for n := len(l.open) - 1; n >= 0 && l.open[n] <= time; n-- {
		p.packet(l.open[n], packetEvent, event(sliceEnd, l.id))
		l.open = l.open[:n]
	}
}
