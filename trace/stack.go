package trace

import (
	"encoding/binary"
	"runtime"
)

// Frame is one line of a call stack.
type Frame struct {
	File string
	Line int
	Func string
}

// Stack is a call stack that does not change. Events and blocks with the same
// stack share one *Stack, so that a snapshot names it once. Nil is no stack.
type Stack struct {
	pcs   []uintptr   // of this process, or
	ids   []uint32    // the numbers of frames
	table *frameTable // in this table
}

// NewStack gives a stack of known frames, innermost first. The stack keeps the
// slice.
func NewStack(frames []Frame) *Stack {
	ids := make([]uint32, len(frames))
	for i := range ids {
		ids[i] = uint32(i)
	}
	return &Stack{ids: ids, table: &frameTable{frames: frames}}
}

// Len is the number of frames that Frames gives, or fewer where the compiler
// has inlined calls.
func (s *Stack) Len() int {
	if s == nil {
		return 0
	}
	return len(s.pcs) + len(s.ids)
}

// Frames gives the lines, innermost first; for nil none. Each call looks them
// up anew and gives a slice of its own: where many events are looked at, do it
// once for each *Stack.
func (s *Stack) Frames() []Frame {
	if s.Len() == 0 {
		return nil
	}
	frames := make([]Frame, 0, s.Len())
	for _, id := range s.ids {
		frames = append(frames, s.table.frames[id])
	}
	if len(s.pcs) == 0 {
		return frames
	}
	for it := runtime.CallersFrames(s.pcs); ; {
		f, more := it.Next()
		frames = append(frames, Frame{File: f.File, Line: f.Line, Func: f.Function})
		if !more {
			return frames
		}
	}
}

// Stacks gives equal call stacks one *Stack. The zero value is empty and ready.
// It is used from one goroutine at a time.
type Stacks struct {
	byPCs map[string]*Stack
	key   []byte
}

// Of gives the stack of the program counters, which it copies when it meets
// them for the first time. An empty stack is nil.
func (t *Stacks) Of(pcs []uintptr) *Stack {
	if len(pcs) == 0 {
		return nil
	}
	t.key = t.key[:0]
	for _, pc := range pcs {
		t.key = binary.LittleEndian.AppendUint64(t.key, uint64(pc))
	}
	if s := t.byPCs[string(t.key)]; s != nil {
		return s
	}
	if t.byPCs == nil {
		t.byPCs = make(map[string]*Stack)
	}
	s := &Stack{pcs: append([]uintptr(nil), pcs...)}
	t.byPCs[string(t.key)] = s
	return s
}

// frameTable gives equal frames one number.
type frameTable struct {
	frames []Frame
	ids    map[Frame]uint32
}

// id gives the number of f.
func (t *frameTable) id(f Frame) uint32 {
	id, known := t.ids[f]
	if !known {
		id = uint32(len(t.frames))
		t.frames = append(t.frames, f)
		if t.ids == nil {
			t.ids = make(map[Frame]uint32)
		}
		t.ids[f] = id
	}
	return id
}

// stackReader gathers the stacks of one file: each frame and each stack stands
// in it once.
type stackReader struct {
	frames *frameTable
	shared *tables
	byIDs  map[string]uint32 // the stacks of shared by the numbers of their frames
	key    []byte
}

func newStackReader() *stackReader {
	return &stackReader{frames: &frameTable{}, shared: newTables(), byIDs: map[string]uint32{"": 0}}
}

// newTrace gives an empty trace of the file.
func (r *stackReader) newTrace() *Trace { return &Trace{shared: r.shared} }

// keyFrame adds a frame to the key.
func (r *stackReader) keyFrame(id uint32) { r.key = binary.LittleEndian.AppendUint32(r.key, id) }

// stack gives the index of the stack of the frames whose numbers stand in key.
// No frames are no stack.
func (r *stackReader) stack() uint32 {
	id, known := r.byIDs[string(r.key)]
	if !known {
		ids := make([]uint32, len(r.key)/4)
		for i := range ids {
			ids[i] = binary.LittleEndian.Uint32(r.key[4*i:])
		}
		id = r.shared.stackID(&Stack{ids: ids, table: r.frames})
		r.byIDs[string(r.key)] = id
	}
	return id
}
