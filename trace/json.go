package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// jsonReader gathers a snapshot from one of the formats that are JSON.
type jsonReader struct {
	*stackReader
	dec    *json.Decoder
	stacks map[int]uint32 // by their names in JSON lines
	s      Snapshot
}

// readJSON reads one of the formats that are JSON: our lines, or what PyTorch's
// profiler writes.
func readJSON(in *input) (*Snapshot, error) {
	r := &jsonReader{stackReader: newStackReader(), dec: json.NewDecoder(in), stacks: map[int]uint32{0: 0}}
	err := r.read()
	r.frames.ids = nil // no more are to come
	var damage *json.SyntaxError
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || err != nil && errors.Is(err, in.err) {
		return r.cut(in.ends(""))
	}
	if errors.As(err, &damage) {
		return nil, &FormatError{KindJSON, fmt.Sprintf("it is damaged at byte %d: %v", damage.Offset, err)}
	}
	if err != nil {
		return nil, err
	}
	return &r.s, nil
}

// cut gives what was read of a file that ended early.
func (r *jsonReader) cut(err error) (*Snapshot, error) {
	if r.s.Empty() {
		return nil, fmt.Errorf("nothing could be read: %w", err)
	}
	r.s.Cut = err
	return &r.s, nil
}

// read finds out which format it is and reads it.
func (r *jsonReader) read() error {
	start, err := r.dec.Token()
	switch {
	case err != nil:
		return err
	case start == json.Delim('['):
		return r.array()
	}
	return r.object()
}

// object reads a Kineto trace, or JSON lines, of which the object is the first.
func (r *jsonReader) object() error {
	fields := make(map[string]json.RawMessage)
	kineto := false
	for r.dec.More() {
		key, err := r.dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if key == "traceEvents" {
			kineto = true
			err = r.kineto()
		} else {
			err = r.dec.Decode(&value)
		}
		if err != nil {
			return err
		}
		fields[key.(string)] = value
	}
	if _, err := r.dec.Token(); err != nil || kineto {
		return err
	}
	return r.linesAfter(fields)
}

// linesAfter reads JSON lines after their header.
func (r *jsonReader) linesAfter(fields map[string]json.RawMessage) error {
	if string(fields["format"]) != `"`+jsonFormat+`"` {
		const most = 5
		keys := slices.Sorted(maps.Keys(fields))
		for i := range keys {
			keys[i] = fmt.Sprintf("%q", printable([]byte(keys[i])))
		}
		return &FormatError{KindJSON, "an object with the keys " + strings.Join(keys[:min(len(keys), most)], ", ") + ", and neither our JSON lines nor a trace of PyTorch's profiler"}
	}
	var h jsonHeader
	all, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(all, &h)
	}
	if err != nil {
		return fmt.Errorf("line 1: %w", err)
	}
	return r.lines(&h)
}

// array reads a raw memory timeline, or the events of a Kineto trace alone.
func (r *jsonReader) array() error {
	if !r.dec.More() {
		return &FormatError{KindJSON, "it is an empty list"}
	}
	var first json.RawMessage
	if err := r.dec.Decode(&first); err != nil {
		return err
	}
	switch first[0] {
	case '[':
		return r.timeline(first)
	case '{':
		return r.kinetoEvents(first)
	}
	return &FormatError{KindJSON, "it is a list that begins " + quoted(first)}
}
