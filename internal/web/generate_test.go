package web_test

import (
	"fmt"
	"testing"

	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// job makes up the record of a training job: parameters, then steps whose
// activations are allocated forwards and freed backwards, and, where it leaks,
// a block a step that stays.
type job struct {
	trace    trace.Trace
	segments []trace.Segment
	top      uint64 // everything below is taken
	live     []trace.Block
	time     int64
	stacks   map[string]*trace.Stack
	file     string // of the frames
}

const (
	jobStart   = uint64(0x7f00_0000_0000)
	jobSegment = 20 << 20
	jobLayers  = 120
)

// newJob gives a snapshot with at least so many events.
func newJob(events int, file string, leaks bool) *trace.Snapshot {
	j := &job{top: jobStart, stacks: map[string]*trace.Stack{}, file: file}
	for i := range 40 {
		j.alloc("__init__", i, 2<<20+uint64(i)*4096)
	}
	for step := 0; j.trace.Len() < events; step++ {
		if leaks {
			j.alloc("keep", 1, 3<<20)
		}
		for i := range jobLayers - step%7 {
			j.alloc("forward", i, 1<<20+512*uint64(1+(i*37+step*101)%4000))
		}
		for range jobLayers - step%7 {
			j.free()
		}
	}
	for s := range j.segments {
		j.tile(&j.segments[s])
	}
	return &trace.Snapshot{Segments: j.segments, Traces: []*trace.Trace{&j.trace}}
}

func (j *job) event(a trace.Action, addr, size uint64, s *trace.Stack) {
	j.time += 3
	j.trace.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, TimeUS: 1_700_000_000_000_000 + j.time}, Stack: s})
}

// stack gives the stack of a layer's function.
func (j *job) stack(function string, layer int) *trace.Stack {
	key := fmt.Sprint(function, layer%12)
	if j.stacks[key] == nil {
		j.stacks[key] = trace.NewStack([]trace.Frame{
			{File: "/src/c10/cuda/CUDACachingAllocator.cpp", Line: 0, Func: "malloc"},
			{File: j.file, Line: 100 + layer%12, Func: function},
			{File: "/home/user/train.py", Line: 7, Func: "<module>"},
		})
	}
	return j.stacks[key]
}

func (j *job) alloc(function string, layer int, size uint64) {
	s := j.stack(function, layer)
	n := len(j.segments)
	if end := jobStart + uint64(n)*jobSegment; j.top+size > end || n == 0 {
		at := (j.top - jobStart + jobSegment - 1) / jobSegment
		j.top = jobStart + at*jobSegment
		if int(at) == n {
			j.segments = append(j.segments, trace.Segment{Addr: j.top, Size: jobSegment, Stack: s})
			j.event(trace.SegmentAlloc, j.top, jobSegment, s)
		}
	} else if into := (j.top - jobStart) % jobSegment; into+size > jobSegment {
		j.top += jobSegment - into
	}
	j.event(trace.Alloc, j.top, size, s)
	j.live = append(j.live, trace.Block{Addr: j.top, Size: size, Requested: size, Stack: s})
	j.top += size
}

// free frees the newest block.
func (j *job) free() {
	b := j.live[len(j.live)-1]
	j.live = j.live[:len(j.live)-1]
	j.event(trace.FreeRequested, b.Addr, b.Size, nil)
	j.event(trace.FreeCompleted, b.Addr, b.Size, nil)
	j.top = b.Addr
}

func (j *job) tile(s *trace.Segment) {
	at := s.Addr
	for _, b := range j.live {
		if b.Addr < s.Addr || b.Addr >= s.Addr+s.Size {
			continue
		}
		if b.Addr > at {
			s.Blocks = append(s.Blocks, trace.Block{Addr: at, Size: b.Addr - at, State: trace.Free})
		}
		s.Blocks = append(s.Blocks, b)
		at = b.Addr + b.Size
	}
	if end := s.Addr + s.Size; at < end {
		s.Blocks = append(s.Blocks, trace.Block{Addr: at, Size: end - at, State: trace.Free})
	}
}

// recordOf prepares the one device of a snapshot.
func recordOf(t testing.TB, s *trace.Snapshot) *web.Record {
	t.Helper()
	records, err := web.Records("job.pickle", s)
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	return records[0]
}
