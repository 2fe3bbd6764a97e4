// Package trace is the record of device memory: events, segments, blocks and
// statistics, written in the format of PyTorch's memory snapshots.
//
// # Words
//
// live = bytes in blocks handed out; reserved = bytes taken from the device;
// pending = freed by the program, still in use by queued work; cached =
// reserved − live − pending. PyTorch calls them allocated, reserved,
// active_pending_free and inactive.
//
// # From events to a file
//
// An allocator tells a [Sink] what happens. A [Recorder] is the sink that
// keeps it. Its entries and the allocator's segments make a [Snapshot], which
// WritePickle writes so that pytorch.org/memory_viz and PyTorch's
// _memory_viz.py open it.
package trace

import "fmt"

// Purpose says what a block holds.
type Purpose uint8

// The purposes of blocks. NumPurposes is how many there are.
const (
	Other Purpose = iota
	Parameter
	Gradient
	OptimizerState
	Activation
	Workspace
	Input
	NumPurposes int = iota
)

// purposeNames are the names of the purposes in files and messages.
var purposeNames = [NumPurposes]string{"other", "parameter", "gradient", "optimizer_state", "activation", "workspace", "input"}

// String gives the name as it stands in snapshots and messages, such as
// "optimizer_state".
func (p Purpose) String() string {
	if int(p) < len(purposeNames) {
		return purposeNames[p]
	}
	return fmt.Sprintf("Purpose(%d)", uint8(p))
}

// Action is what happened to memory. The names are PyTorch's.
type Action uint8

// The actions.
const (
	Alloc         Action = iota // a block was handed out
	FreeRequested               // the program gave a block back
	FreeCompleted               // its memory may be used again
	SegmentAlloc                // plain memory was taken from the device
	SegmentFree                 // plain memory was given back
	SegmentMap                  // handles were mapped into a range
	SegmentUnmap                // handles were unmapped from a range
	OOM                         // a request failed
	SnapshotTaken               // the program took a snapshot
	UserDefined                 // the program said something: see Entry.Note
	Unknown                     // an action that is not of this list
)

// actionNames are PyTorch's names of the actions.
var actionNames = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "snapshot", "user_defined", "unknown"}

// String gives PyTorch's name, such as "free_requested".
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// ofBlock says whether the action is about a block and not a segment.
func (a Action) ofBlock() bool { return a <= FreeCompleted }

// Event is one thing that happened to memory.
type Event struct {
	Action  Action
	Purpose Purpose
	Stream  int
	Addr    uint64    // the block or range; for OOM the bytes free on the device
	Size    uint64    // Alloc and Free…: bytes asked for; Segment…: bytes of the range; OOM: bytes asked for
	TimeUS  int64     // microseconds since 1970
	PCs     []uintptr // the call stack, innermost first; nil if not recorded. The receiver copies it.
}

// Sink receives events in the order in which they happened. The allocator
// calls it with its lock held: Record must return quickly and must not call
// the allocator.
type Sink interface{ Record(Event) }
