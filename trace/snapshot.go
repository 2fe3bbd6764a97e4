package trace

import "slices"

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
	Pool       PoolID // of a PyTorch allocator
	Stack      *Stack // where it was taken; nil if not recorded
	Blocks     []Block
	Totals     Totals // as the record gives them beside the blocks
}

// Totals are sums over the blocks of a segment.
type Totals struct {
	Known     bool   `json:"-"`               // false: the record does not give them, and the rest is zero
	Live      uint64 `json:"live_bytes"`      // in live blocks: PyTorch's allocated_size
	Active    uint64 `json:"active_bytes"`    // in live and pending blocks: active_size
	Requested uint64 `json:"requested_bytes"` // asked for in live and pending blocks: requested_size
}

// Sum counts the totals of the segment's blocks.
func (s *Segment) Sum() Totals {
	t := Totals{Known: true}
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.State == Free {
			continue
		}
		t.Active += b.Size
		t.Requested += b.Requested
		if b.State == Live {
			t.Live += b.Size
		}
	}
	return t
}

// Annotation is a mark that the program set into the record: the begin or the
// end of a named span, such as an optimizer's step.
type Annotation struct {
	Name   string
	Begin  bool // the span begins here, and ends if false
	Device int
	TimeUS int64 // microseconds since 1970
}

// Settings are the settings of a PyTorch allocator as its snapshots tell them.
type Settings struct {
	Known            bool   // false: the file does not tell, and the rest is zero
	Backend          string // whose allocator it was, or ProfileBackend; empty in PyTorch's files
	Conf             string // PYTORCH_CUDA_ALLOC_CONF as it was given
	MaxSplitSize     int64  // bytes from which blocks are not split; -1 is no limit
	GCThreshold      float64
	Expandable       bool
	RoundupDivisions [16]uint64 // by size: 1, 2, 4 … 32768 MiB and more; 0 is none
	ReleaseLock      bool       // release_lock_on_cudamalloc
	GraphReuse       bool       // graph_capture_record_stream_reuse
	PinnedRegister   bool       // pinned_use_cuda_host_register
	PinnedThreads    uint64     // pinned_num_register_threads
}

// Snapshot is the memory of one or more devices at one moment and the events
// that led to it.
type Snapshot struct {
	Segments    []Segment // of all devices
	Traces      []*Trace  // by device, oldest first; none is nil
	Settings    Settings
	Annotations []Annotation // in the order of the file
	Cut         error        // not nil: the file ended early, and this is what stood before its end
	Damage      error        // not nil: all could be read, and yet the file is not as it was written: a checksum differs, or something stands behind the end
	Oddities    Oddities     // values that were read as zero or as the nearest one that can be
	NoAddresses bool         // the file held no addresses: those here only tell blocks apart
}

// Oddities counts the values in a file that are not what their keys say: a size
// that is text, negative, or missing.
type Oddities struct {
	Count int
	First string // the first of them
}

// Empty says whether there is neither a segment nor an event.
func (s *Snapshot) Empty() bool {
	return len(s.Segments) == 0 && !slices.ContainsFunc(s.Traces, func(t *Trace) bool { return t.Len() > 0 })
}
