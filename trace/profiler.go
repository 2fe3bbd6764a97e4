// Records of PyTorch's profiler.
//
// The raw memory timeline is an array of rows [time in ns, action, bytes,
// category]. It has no addresses: frees are given to the last allocation of the
// same size and category that is still live, and addresses are made up.
//
// A Kineto trace is an object whose traceEvents hold, among kernels and calls,
// instants named [memory]: an address and the bytes allocated (more than 0) or
// freed (less). They are in no order and have no stacks. Those of the host are
// ignored.
package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// instant is a [memory] event of a Kineto trace.
type instant struct {
	Name string      `json:"name"`
	Time json.Number `json:"ts"` // microseconds
	Args struct {
		Addr   json.Number `json:"Addr"`
		Bytes  json.Number `json:"Bytes"`
		Device json.Number `json:"Device Id"`
		Type   json.Number `json:"Device Type"` // 0 is the host
	} `json:"args"`
}

// memoryEvent is what is kept of an instant until all are sorted.
type memoryEvent struct {
	time   float64
	device int
	row    row
}

// kineto reads the value of traceEvents.
func (r *jsonReader) kineto() error {
	start, err := r.dec.Token()
	if err != nil {
		return err
	}
	if start != json.Delim('[') {
		return &FormatError{KindJSON, "traceEvents is no list"}
	}
	return r.kinetoEvents(nil)
}

// kinetoEvents reads first and the elements after it.
func (r *jsonReader) kinetoEvents(first json.RawMessage) (err error) {
	var all []memoryEvent
	defer func() { r.sorted(all) }()
	found := false
	for raw := first; ; {
		if bytes.Contains(raw, []byte(`"[memory]"`)) {
			found = true
			if all, err = appendInstant(all, raw); err != nil {
				return fmt.Errorf("a [memory] event before byte %d: %w", r.dec.InputOffset(), err)
			}
		}
		if !r.dec.More() {
			break
		}
		if err := r.dec.Decode(&raw); err != nil {
			return err
		}
	}
	_, err = r.dec.Token()
	if err == nil && !found {
		err = &FormatError{KindJSON, "a trace of the profiler without [memory] events; record with profile_memory=True"}
	}
	return err
}

// appendInstant adds a [memory] event of an accelerator.
func appendInstant(all []memoryEvent, raw json.RawMessage) ([]memoryEvent, error) {
	var e instant
	if err := json.Unmarshal(raw, &e); err != nil {
		return all, err
	}
	device, _ := e.Args.Device.Int64()
	if device < 0 || e.Args.Type == "0" || e.Name != "[memory]" {
		return all, nil
	}
	if device >= maxDevices {
		return all, fmt.Errorf("device %d is not below %d", device, maxDevices)
	}
	n, err := e.Args.Bytes.Int64()
	if err != nil {
		return all, err
	}
	time, err := e.Time.Float64()
	if err != nil {
		return all, err
	}
	var addr uint64
	if err := json.Unmarshal([]byte(cmp.Or(e.Args.Addr, "0")), &addr); err != nil {
		return all, err
	}
	m := memoryEvent{time, int(device), row{addr: addr, size: uint64(n), timeUS: microseconds(time), action: Alloc}}
	if n < 0 {
		m.row.action, m.row.size = FreeCompleted, -uint64(n)
	}
	return append(all, m), nil
}

// microseconds cuts off a fraction, and what no clock shows.
func microseconds(t float64) int64 {
	if math.Abs(t) < 1<<62 {
		return int64(t)
	}
	return 0
}

// sorted makes traces of events.
func (r *jsonReader) sorted(all []memoryEvent) {
	slices.SortStableFunc(all, func(a, b memoryEvent) int { return cmp.Compare(a.time, b.time) })
	for _, e := range all {
		for e.device >= len(r.s.Traces) {
			r.s.Traces = append(r.s.Traces, r.newTrace())
		}
		r.s.Traces[e.device].add(e.row)
	}
}

// The actions of a raw memory timeline.
const (
	timelinePreexisting = iota + 1
	timelineCreate
	timelineVersion // two rows: minus the old bytes, plus the new ones
	timelineDestroy
)

// categories are the purposes of the categories of a raw memory timeline:
// parameter, optimizer state, input, temporary, activation, gradient, autograd
// detail, unknown.
var categories = [...]Purpose{Parameter, OptimizerState, Input, Workspace, Activation, Gradient, Other, Other}

// place is what a timeline's frees are matched by.
type place struct {
	size     uint64
	category int64
}

// timeline reads first and the rows after it.
func (r *jsonReader) timeline(first json.RawMessage) error {
	t := r.newTrace()
	r.s.Traces, r.s.NoAddresses = []*Trace{t}, true
	m := matcher{trace: t, live: make(map[place][]uint64)}
	for raw, n := first, 1; ; n++ {
		var fields []json.Number
		if err := json.Unmarshal(raw, &fields); err != nil || len(fields) != 4 {
			return &FormatError{KindJSON, fmt.Sprintf("row %d is not [time, action, bytes, category]; of the profiler's memory timelines only the raw one (.raw.json.gz) tells allocations", n)}
		}
		if err := m.row(fields); err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
		if !r.dec.More() {
			break
		}
		if err := r.dec.Decode(&raw); err != nil {
			return err
		}
	}
	_, err := r.dec.Token()
	return err
}

// matcher gives allocations addresses and finds those that are freed.
type matcher struct {
	trace *Trace
	live  map[place][]uint64 // addresses
	next  uint64
}

// row adds the event of a row.
func (m *matcher) row(fields []json.Number) error {
	var v [4]int64
	for i := range v {
		var err error
		if v[i], err = fields[i].Int64(); err != nil {
			return err
		}
	}
	timeNS, action, n, category := v[0], v[1], v[2], v[3]
	if action < timelinePreexisting || action > timelineDestroy || category < 0 || category >= int64(len(categories)) {
		return fmt.Errorf("action %d with category %d is not known", action, category)
	}
	free := n < 0 || action == timelineDestroy
	at := place{uint64(max(n, -n)), category}
	e := row{size: at.size, timeUS: max(timeNS, 0) / 1000, purpose: categories[category], action: Alloc}
	if free {
		e.action, e.addr = FreeCompleted, m.free(at)
	} else {
		e.addr = m.fresh(at.size)
		m.live[at] = append(m.live[at], e.addr)
	}
	m.trace.add(e)
	return nil
}

// fresh gives an address that no other allocation has or had.
func (m *matcher) fresh(size uint64) uint64 {
	const apart = 512
	addr := m.next
	m.next += (size/apart + 1) * apart
	return addr
}

// free gives the address of the last live allocation at a place. If there is
// none it was made before the record began.
func (m *matcher) free(at place) uint64 {
	live := m.live[at]
	if len(live) == 0 {
		return m.fresh(at.size)
	}
	m.live[at] = live[:len(live)-1]
	return live[len(live)-1]
}
