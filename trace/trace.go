// Package trace is the record of device memory: events, segments, blocks,
// settings and annotations, read and written in the format of PyTorch's memory
// snapshots and in one of our own.
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
// keeps it. Its [Trace] and the allocator's segments make a [Snapshot], which
// WritePickle writes so that pytorch.org/memory_viz and PyTorch's
// _memory_viz.py open it.
//
// # From a file to events
//
// [Read] takes PyTorch's snapshots of all versions, our own files, and the
// records of PyTorch's profiler that tell allocations. It is made for files
// from strangers: it runs no code, its memory is bounded by what the file
// tells, and of a damaged file it gives what can be read.
//
// # JSON lines
//
// WriteJSONLines writes one object a line, for tools. Fields that are zero,
// empty or false may be missing, readers ignore fields and kinds that they do
// not know, and addresses and sizes are integers of up to 64 bits. The first line is the
// header:
//
//	{"format":"headroom-trace","version":1,"devices":1,
//	 "settings":{"conf":"","max_split_size_bytes":-1,"expandable_segments":false,…},
//	 "annotations":[{"name":"step","begin":true,"device":0,"time_us":1700000000000000}]}
//
// Without "settings" they are not known. "no_addresses" says that addresses
// are made up. Then come the segments, each with the blocks that tile it, and
// the events, those of each device in their order:
//
//	{"kind":"segment","device":0,"stream":0,"address":4096,"size_bytes":2097152,"small":true,
//	 "blocks":[{"address":4096,"size_bytes":512,"requested_bytes":500,"state":"active_allocated",
//	            "purpose":"parameter","stack":1,"frames":[{"file":"train.py","line":7,"func":"main"}]}]}
//	{"kind":"event","device":0,"stream":0,"action":"alloc","address":4096,"size_bytes":500,
//	 "time_us":1700000000000000,"purpose":"parameter","stack":1}
//
// Actions and states are PyTorch's, purposes ours. "stack" is the number of a
// call stack, from 1 on; its "frames", innermost first, stand where the number
// is used for the first time. An event "oom" has "device_free_bytes" in place
// of "address". Further fields are "pool" (two numbers), "expandable" and
// "totals" ("live_bytes", "active_bytes", "requested_bytes") of a segment,
// "compile_context" and "note" of an event.
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
	UserDefined                 // the program said something: see Event.Note
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
	Note    string    // what the program or the allocator said (PyTorch's user_metadata); empty if nothing
	PCs     []uintptr // the call stack, innermost first; nil if not recorded. The receiver copies it.
}

// Sink receives events in the order in which they happened. The allocator
// calls it with its lock held: Record must return quickly and must not call
// the allocator.
type Sink interface{ Record(Event) }
