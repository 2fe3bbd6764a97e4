package trace

import (
	"fmt"
	"strings"
)

// salvage closes what is open at the end of a cut file, from the inside out.
// Lists keep what they have. Dictionaries that may not be complete are
// forgotten, but the outermost, which keeps what it has.
func (u *unpickler) salvage() {
	for at := max(1, u.bottom()); at < len(u.stack); at++ {
		u.forget(at)
	}
	for len(u.marks) > 0 {
		items, at, _ := u.sinceMark()
		switch {
		case at == u.bottom():
		case at == 1 && u.isDict(0):
			u.stack = u.stack[:1+len(items)&^1] // the last key may have no value
			_ = u.set(0)
		default:
			u.forget(at - 1)
			u.add(u.stack[at-1], items)
		}
		u.stack = u.stack[:at]
	}
	if len(u.stack) > 0 {
		u.root = u.stack[0]
	}
}

// isDict says whether index at of the stack is an open dictionary.
func (u *unpickler) isDict(at int) bool {
	o := u.object(u.stack[at])
	return o != nil && o.isDict
}

// forget makes an open dictionary nothing.
func (u *unpickler) forget(at int) {
	if u.isDict(at) {
		u.close(u.stack[at], value{})
		u.stack[at] = value{}
	}
}

// snapshot assembles what the root of the pickle refers to. found is false if
// the root is no snapshot.
func (u *unpickler) snapshot() (s *Snapshot, found bool) {
	u.frames.ids = nil // no more are to come
	o := u.object(u.root)
	switch {
	case o == nil:
		return nil, false
	case o.isDict:
		return u.fromDict(o.items)
	}
	s = &Snapshot{Oddities: u.oddities}
	for _, v := range o.items { // the oldest format: segments alone
		if v.kind == kindSegment {
			s.Segments = append(s.Segments, u.segments[v.n])
		}
	}
	return s, len(s.Segments) > 0 || len(o.items) == 0 && o.trace == nil
}

func (u *unpickler) fromDict(items []value) (s *Snapshot, found bool) {
	s = &Snapshot{Oddities: u.oddities}
	for key, v := range known(items) {
		switch key {
		case keySegments:
			found = true
			for _, v := range u.elements(v, kindSegment) {
				s.Segments = append(s.Segments, u.rows.segments[v.n])
			}
		case keyDeviceTraces:
			found = true
			s.Traces = u.tracesOf(v)
		case keySettings:
			if v.kind == kindSettings {
				s.Settings = u.settings
			}
		case keyAnnotations:
			for _, v := range u.elements(v, kindAnnotation) {
				s.Annotations = append(s.Annotations, u.annotations[v.n])
			}
		}
	}
	return s, found
}

// tracesOf gives the traces of a list of lists of events, one for each device.
func (u *unpickler) tracesOf(v value) []*Trace {
	var traces []*Trace
	if v.kind != kindList {
		return nil
	}
	for _, v := range u.lists[v.n] {
		t := u.newTrace()
		if v.kind == kindTrace {
			t = u.traces[v.n]
		}
		traces = append(traces, t)
	}
	return traces
}

// describe says what a value is, for a message.
func (u *unpickler) describe(v value) string {
	o := u.object(v)
	switch {
	case o != nil && !o.isDict:
		return "a list"
	case v.kind == kindText:
		return "a string"
	case v.kind >= kindInt:
		return "a number"
	case o == nil:
		return "something else"
	}
	var keys []string
	const most = 5
	for i := 0; i+1 < len(o.items) && len(keys) < most; i += 2 {
		if o.items[i].kind == kindText {
			keys = append(keys, fmt.Sprintf("%q", printable([]byte(u.string(o.items[i])))))
		}
	}
	if len(keys) == 0 {
		return "a dictionary"
	}
	return "a dictionary with the keys " + strings.Join(keys, ", ")
}
