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
	pcs    []uintptr
	frames []Frame
}

// NewStack gives a stack of known frames, innermost first, such as a file
// holds. The stack keeps the slice.
func NewStack(frames []Frame) *Stack { return &Stack{frames: frames} }

// Frames gives the lines, innermost first; for nil none. A stack of program
// counters is looked up anew by every call.
func (s *Stack) Frames() []Frame {
	if s == nil || s.frames != nil || len(s.pcs) == 0 {
		return s.known()
	}
	frames := make([]Frame, 0, len(s.pcs))
	for it := runtime.CallersFrames(s.pcs); ; {
		f, more := it.Next()
		frames = append(frames, Frame{File: f.File, Line: f.Line, Func: f.Function})
		if !more {
			return frames
		}
	}
}

// known gives the frames that need no lookup.
func (s *Stack) known() []Frame {
	if s == nil {
		return nil
	}
	return s.frames
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
