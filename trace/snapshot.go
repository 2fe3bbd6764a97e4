package trace

// State says what a block of a segment is.
type State uint8

// The states of a block.
const (
	Live    State = iota // handed out
	Pending              // freed by the program, still in use by queued work
	Free                 // may be handed out
)

// stateNames are PyTorch's names of the states.
var stateNames = [...]string{"active_allocated", "active_pending_free", "inactive"}

// String gives PyTorch's name, such as "active_allocated".
func (s State) String() string { return stateNames[s] }

// Block is a part of a segment.
type Block struct {
	Addr      uint64
	Size      uint64 // bytes of the block
	Requested uint64 // bytes asked for; 0 for a free block
	State     State
	Purpose   Purpose
	Stack     *Stack // where it was allocated; nil if not recorded
}

// Segment is a range of addresses with memory behind it. Its blocks tile it in
// the order of their addresses.
type Segment struct {
	Device     int
	Stream     int
	Addr       uint64
	Size       uint64
	Small      bool   // holds small blocks only
	Expandable bool   // made of handles mapped into a larger range of addresses
	Stack      *Stack // where it was taken; nil if not recorded
	Blocks     []Block
}

// sizes gives the bytes in live blocks, in live and pending blocks, and those
// asked for in live and pending blocks.
func (s *Segment) sizes() (live, active, requested uint64) {
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.State == Free {
			continue
		}
		active += b.Size
		requested += b.Requested
		if b.State == Live {
			live += b.Size
		}
	}
	return live, active, requested
}

// Entry is an event as a snapshot holds it: with its stack, and PCs nil.
type Entry struct {
	Event
	Stack *Stack
	Pool  PoolID // of a PyTorch allocator
}

// Snapshot is the memory of one or more devices at one moment and the events
// that led to it.
type Snapshot struct {
	Segments []Segment
	Traces   [][]Entry // by device, oldest first
}
