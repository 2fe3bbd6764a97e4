// Replay: the same program on an allocator.
//
// A trace tells what a program asked for and when it gave it back. A replay
// asks an allocator for the same, and tells what that would have reserved, up
// to the first request that fails. Three questions are asked this way:
//
//   - Under the recorded settings, without a capacity, the model of PyTorch's
//     allocator (model.go) starts from the recorded state and puts segments
//     where they were. It is told when memory was given back, since the record
//     does not tell why. Everything else it must find by itself: which block
//     is handed out, which segment is taken for which request. If every
//     address, every change of a segment and every block at the end are as
//     recorded, the replay is exact, and the model is right for this trace.
//   - Under other settings or a capacity, the rules decide all. Blocks that
//     are there before the first event are placed first, by address, unless
//     the settings are the recorded ones: then they stay where they were.
//   - On Headroom's allocator over a null device.
//
// What work is finished when is taken from the record: a block that is freed
// while other streams use it may be used again when the record says so, or
// when the allocator waits for all of them.

package inspect

import (
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// Policy names the allocator of a replay.
type Policy string

// The policies.
const (
	PyTorch  Policy = "pytorch"  // PyTorch's caching allocator
	Headroom Policy = "headroom" // the allocator of package alloc
	Planned  Policy = "planned"  // the same, following a plan made from the whole trace
)

// Options are the choices of a replay. The zero value replays device 0 as it
// was recorded.
type Options struct {
	Device   int
	Policy   Policy // empty: PyTorch
	Conf     *Conf  // settings of PyTorch's allocator; nil: the recorded ones
	Capacity uint64 // bytes that the device has for the allocator; 0: any number
	// Observe, if it is there, is told the figures of the allocator after each
	// event: of PyTorch's only Live, Pending, Cached and Reserved.
	Observe func(event int, s alloc.Stats)
}

// asRecorded says whether a replay is the one under the recorded settings.
func (o *Options) asRecorded() bool {
	return o.Conf == nil && o.Capacity == 0 && o.Observe == nil && (o.Policy == "" || o.Policy == PyTorch)
}

// Result is what a replay tells.
type Result struct {
	Device             int    `json:"device"`
	Policy             Policy `json:"policy"`
	AllocConf          string `json:"alloc_conf"`           // settings that differ from PyTorch's default
	Events             int    `json:"events"`               // replayed: all of the trace, or those before the one that failed
	PeakLiveBytes      uint64 `json:"peak_live_bytes"`      // in blocks handed out, as they were rounded
	PeakRequestedBytes uint64 `json:"peak_requested_bytes"` // as they were asked for, pending ones included
	PeakReservedBytes  uint64 `json:"peak_reserved_bytes"`
	FinalLiveBytes     uint64 `json:"final_live_bytes"`
	FinalReservedBytes uint64 `json:"final_reserved_bytes"`
	Exact              bool   `json:"exact"`              // the replay equals the record in every address, segment and block
	Mismatch           string `json:"mismatch,omitempty"` // the first difference, if there is one
	Retries            int    `json:"retries"`            // requests for which all cached memory was given back; as far as the record tells, where it is followed
	EmptyCaches        int    `json:"empty_caches"`       // times the program gave all cached memory back
	AvoidedOOMs        int    `json:"avoided_ooms"`       // requests that failed in the record and are served here
	OOM                *OOM   `json:"oom"`                // the first request that failed; nil: none did
	// Notes say what about the settings or the record may surprise.
	Notes []string `json:"notes,omitempty"`
}

// OOM is a request that failed, with the figures of that moment.
type OOM struct {
	Event              int    `json:"event"` // -1: a block from before the first event
	Recorded           bool   `json:"recorded"`
	RequestBytes       uint64 `json:"request_bytes"`
	SegmentBytes       uint64 `json:"segment_bytes"` // what the device was asked for; 0: not known
	FreeBytes          uint64 `json:"free_bytes"`    // of the device
	LiveBytes          uint64 `json:"live_bytes"`
	PendingBytes       uint64 `json:"pending_bytes"`
	CachedBytes        uint64 `json:"cached_bytes"`         // reserved and neither live nor pending
	LargestCachedBytes uint64 `json:"largest_cached_bytes"` // the largest piece of it that the request could have used
	ReservedBytes      uint64 `json:"reserved_bytes"`
	CapacityBytes      uint64 `json:"capacity_bytes"` // what the allocator might reserve; 0: not known
}

// Replay replays the trace of one device of a snapshot: see Options. The error
// says what is wrong with the options; a trace that contradicts itself is
// replayed as far as it makes sense, and Mismatch tells.
func Replay(s *trace.Snapshot, o Options) (*Result, error) {
	if o.Device < 0 || o.Device >= max(len(s.Traces), 1) {
		return nil, fmt.Errorf("device %d is not in the snapshot, which has traces of %d devices", o.Device, len(s.Traces))
	}
	return NewHistory(s, o.Device).Replay(o)
}

// Replay is as the function of this name, for one who replays a trace more
// than once. Options.Device is not looked at. The result is not to be changed:
// that under the recorded settings is worked out once.
func (h *History) Replay(o Options) (*Result, error) {
	if o.asRecorded() {
		return h.recorded()
	}
	return h.replay(o)
}

func (h *History) replay(o Options) (*Result, error) {
	replay := h.replayPyTorch
	switch o.Policy {
	case "", PyTorch:
	case Headroom, Planned:
		replay = h.replayHeadroom
	default:
		return nil, fmt.Errorf("policy %q is none of %s, %s, %s", o.Policy, PyTorch, Headroom, Planned)
	}
	r, err := replay(o)
	switch {
	case err != nil:
	case !h.told() && h.snapshot.Cut == nil:
		r.Notes = append(r.Notes, "the record holds no events of memory, so that nothing was replayed (was torch.cuda.memory._record_memory_history called?)")
	case o.Conf != nil || o.Capacity > 0 || r.Policy != PyTorch:
		r.Notes = append(r.Notes, "where the driver would put segments is not known, so that the figures are right within about 1 % only")
	}
	return r, err
}

// replayPyTorch checks what the model is asked to do.
func (h *History) replayPyTorch(o Options) (*Result, error) {
	conf := h.Conf
	if o.Conf != nil {
		conf = *o.Conf
	}
	if conf.Backend != "native" {
		return nil, fmt.Errorf("backend %s keeps its memory in the driver, whose rules are not known: only native can be replayed", conf.Backend)
	}
	if o.Conf != nil && o.Capacity == 0 && conf.MemoryFraction < 1 {
		return nil, fmt.Errorf("per_process_memory_fraction:%s is a share of the device: say how much it has (capacity)", formatFloat(conf.MemoryFraction))
	}
	p := newReplayer(h, conf, o.Capacity)
	p.observe = o.Observe
	r := p.run()
	if o.Conf != nil && conf.GCThreshold > 0 && conf.MemoryFraction >= 1 {
		r.Notes = append(r.Notes, "garbage_collection_threshold does nothing without per_process_memory_fraction below 1")
	}
	return r, nil
}

// String says what did not fit, for messages.
func (o *OOM) String() string {
	who := fmt.Sprintf("event %d", o.Event)
	if o.Event < 0 {
		who = "a block from before the first event"
	}
	return fmt.Sprintf("%s asked for %s with %s live, %s cached and %s reserved", who, size.Format(o.RequestBytes),
		size.Format(o.LiveBytes), size.Format(o.CachedBytes), size.Format(o.ReservedBytes))
}
