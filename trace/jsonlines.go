package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// jsonFormat and jsonVersion stand in the first line.
const (
	jsonFormat  = "headroom-trace"
	jsonVersion = 1
)

// jsonHeader is the first line.
type jsonHeader struct {
	Format      string           `json:"format"`
	Version     int              `json:"version"`
	Devices     int              `json:"devices"`
	NoAddresses bool             `json:"no_addresses,omitempty"`
	Settings    *jsonSettings    `json:"settings,omitempty"`
	Annotations []jsonAnnotation `json:"annotations,omitempty"`
}

type jsonSettings struct {
	Backend          string     `json:"backend,omitempty"`
	Conf             string     `json:"conf"`
	MaxSplitSize     int64      `json:"max_split_size_bytes"`
	GCThreshold      float64    `json:"garbage_collection_threshold"`
	Expandable       bool       `json:"expandable_segments"`
	RoundupDivisions [16]uint64 `json:"roundup_power2_divisions"`
	ReleaseLock      bool       `json:"release_lock_on_cudamalloc"`
	GraphReuse       bool       `json:"graph_capture_record_stream_reuse"`
	PinnedRegister   bool       `json:"pinned_use_cuda_host_register"`
	PinnedThreads    uint64     `json:"pinned_num_register_threads"`
}

type jsonAnnotation struct {
	Name   string `json:"name"`
	Begin  bool   `json:"begin"`
	Device int    `json:"device"`
	TimeUS int64  `json:"time_us"`
}

// jsonLine is a segment or an event.
type jsonLine struct {
	Kind       string      `json:"kind"`
	Device     int         `json:"device"`
	Stream     int         `json:"stream"`
	Action     string      `json:"action,omitempty"`
	Address    uint64      `json:"address,omitempty"`
	FreeBytes  uint64      `json:"device_free_bytes,omitempty"`
	Size       uint64      `json:"size_bytes"`
	TimeUS     int64       `json:"time_us,omitempty"`
	Purpose    string      `json:"purpose,omitempty"`
	Pool       PoolID      `json:"pool,omitzero"`
	Compiled   string      `json:"compile_context,omitempty"`
	Note       string      `json:"note,omitempty"`
	Small      bool        `json:"small,omitempty"`
	Expandable bool        `json:"expandable,omitempty"`
	Blocks     []jsonBlock `json:"blocks,omitempty"`
	Totals     *Totals     `json:"totals,omitempty"`
	jsonStack
}

type jsonBlock struct {
	Address   uint64 `json:"address"`
	Size      uint64 `json:"size_bytes"`
	Requested uint64 `json:"requested_bytes"`
	State     string `json:"state"`
	Purpose   string `json:"purpose,omitempty"`
	jsonStack
}

// jsonStack names a stack. Where the name is used for the first time the
// frames follow it.
type jsonStack struct {
	Stack  int         `json:"stack,omitempty"` // 0 is none
	Frames []jsonFrame `json:"frames,omitempty"`
}

type jsonFrame struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Func string `json:"func"`
}

// WriteJSONLines writes the snapshot as JSON lines, which the package's
// documentation describes. It returns the first error of w.
func (s *Snapshot) WriteJSONLines(w io.Writer) error {
	buf := bufio.NewWriterSize(w, flushAt)
	enc := jsonWriter{json.NewEncoder(buf), make(map[*Stack]int)}
	err := enc.header(s)
	for i := 0; i < len(s.Segments) && err == nil; i++ {
		err = enc.segment(&s.Segments[i])
	}
	for device, t := range s.Traces {
		for i := 0; i < t.Len() && err == nil; i++ {
			err = enc.event(device, t.Entry(i))
		}
	}
	return errors.Join(err, buf.Flush())
}

// jsonWriter writes lines and knows the stacks that were written.
type jsonWriter struct {
	*json.Encoder
	stacks map[*Stack]int
}

func (w *jsonWriter) header(s *Snapshot) error {
	h := jsonHeader{Format: jsonFormat, Version: jsonVersion, Devices: len(s.Traces), NoAddresses: s.NoAddresses}
	if t := s.Settings; t.Known {
		h.Settings = &jsonSettings{t.Backend, t.Conf, t.MaxSplitSize, t.GCThreshold, t.Expandable, t.RoundupDivisions,
			t.ReleaseLock, t.GraphReuse, t.PinnedRegister, t.PinnedThreads}
	}
	for _, a := range s.Annotations {
		h.Annotations = append(h.Annotations, jsonAnnotation(a))
	}
	return w.Encode(h)
}

func (w *jsonWriter) segment(s *Segment) error {
	l := jsonLine{Kind: "segment", Device: s.Device, Stream: s.Stream, Address: s.Addr, Size: s.Size, Pool: s.Pool,
		Small: s.Small, Expandable: s.Expandable, jsonStack: w.stack(s.Stack)}
	if s.Totals.Known {
		l.Totals = &s.Totals
	}
	for _, b := range s.Blocks {
		l.Blocks = append(l.Blocks, jsonBlock{b.Addr, b.Size, b.Requested, b.State.String(), purposeName(b.Purpose), w.stack(b.Stack)})
	}
	return w.Encode(l)
}

func (w *jsonWriter) event(device int, e Entry) error {
	l := jsonLine{Kind: "event", Device: device, Stream: e.Stream, Action: e.Action.String(), Address: e.Addr, Size: e.Size, TimeUS: e.TimeUS,
		Purpose: purposeName(e.Purpose), Pool: e.Pool, Compiled: e.Compiled, Note: e.Note, jsonStack: w.stack(e.Stack)}
	if e.Action == OOM {
		l.Address, l.FreeBytes = 0, e.Addr
	}
	return w.Encode(l)
}

// purposeName is empty for Other, which most blocks of PyTorch's have.
func purposeName(p Purpose) string {
	if p == Other {
		return ""
	}
	return p.String()
}

func (w *jsonWriter) stack(s *Stack) jsonStack {
	id, known := w.stacks[s]
	switch {
	case s.Len() == 0:
		return jsonStack{}
	case known:
		return jsonStack{Stack: id}
	}
	id = len(w.stacks) + 1
	w.stacks[s] = id
	frames := s.Frames()
	out := jsonStack{Stack: id, Frames: make([]jsonFrame, len(frames))}
	for i, f := range frames {
		out.Frames[i] = jsonFrame(f)
	}
	return out
}

// maxDevices bounds the devices that a file of JSON lines can name.
const maxDevices = 1 << 12

// lines reads what follows the header.
func (r *jsonReader) lines(h *jsonHeader) error {
	if err := r.useHeader(h); err != nil {
		return err
	}
	for n := 2; ; n++ {
		var l jsonLine
		err := r.dec.Decode(&l)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = r.line(&l)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

func (r *jsonReader) useHeader(h *jsonHeader) error {
	if h.Version != jsonVersion {
		return fmt.Errorf("version %d of the JSON lines is not the version %d that can be read", h.Version, jsonVersion)
	}
	if h.Devices < 0 || h.Devices > maxDevices {
		return fmt.Errorf("%d devices are not 0 to %d", h.Devices, maxDevices)
	}
	for range h.Devices {
		r.s.Traces = append(r.s.Traces, r.newTrace())
	}
	if t := h.Settings; t != nil {
		r.s.Settings = Settings{true, t.Backend, t.Conf, t.MaxSplitSize, t.GCThreshold, t.Expandable, t.RoundupDivisions,
			t.ReleaseLock, t.GraphReuse, t.PinnedRegister, t.PinnedThreads}
	}
	r.s.NoAddresses = h.NoAddresses
	for _, a := range h.Annotations {
		r.s.Annotations = append(r.s.Annotations, Annotation(a))
	}
	return nil
}

// line reads one line. Kinds that are not known are ignored.
func (r *jsonReader) line(l *jsonLine) error {
	if l.Stack < 0 || l.Stack > math.MaxInt32 {
		return fmt.Errorf("stack %d is not a name of a stack", l.Stack)
	}
	switch l.Kind {
	case "segment":
		return r.segment(l)
	case "event":
		return r.event(l)
	}
	return nil
}

func (r *jsonReader) segment(l *jsonLine) error {
	stack, err := r.stackOf(l.jsonStack)
	s := Segment{Device: l.Device, Stream: l.Stream, Addr: l.Address, Size: l.Size, Small: l.Small, Expandable: l.Expandable, Pool: l.Pool, Stack: r.shared.stacks[stack]}
	if l.Totals != nil {
		s.Totals = *l.Totals
		s.Totals.Known = true
	}
	for _, b := range l.Blocks {
		stack, e := r.stackOf(b.jsonStack)
		err = errors.Join(err, e)
		s.Blocks = append(s.Blocks, Block{b.Address, b.Size, b.Requested, stateOf(b.State), purposeOf(b.Purpose), r.shared.stacks[stack]})
	}
	r.s.Segments = append(r.s.Segments, s)
	return err
}

func (r *jsonReader) event(l *jsonLine) error {
	if l.Device < 0 || l.Device >= len(r.s.Traces) {
		return fmt.Errorf("device %d is not one of the %d that the first line tells", l.Device, len(r.s.Traces))
	}
	stack, err := r.stackOf(l.jsonStack)
	action, addr := actionOf(l.Action), l.Address
	if action == OOM {
		addr = l.FreeBytes
	}
	r.s.Traces[l.Device].add(row{addr: addr, size: l.Size, timeUS: l.TimeUS, stack: stack, action: action, purpose: purposeOf(l.Purpose),
		origin: r.shared.originID(origin{l.Stream, l.Pool, l.Compiled, l.Note})})
	return err
}

// stackOf gives the index of a stack, which the frames define.
func (r *jsonReader) stackOf(s jsonStack) (uint32, error) {
	if len(s.Frames) > 0 {
		r.key = r.key[:0]
		for _, f := range s.Frames {
			r.keyFrame(r.frames.id(Frame(f)))
		}
		r.stacks[s.Stack] = r.stack()
	}
	id, known := r.stacks[s.Stack]
	if !known {
		return 0, fmt.Errorf("stack %d is used before its frames are given", s.Stack)
	}
	return id, nil
}
