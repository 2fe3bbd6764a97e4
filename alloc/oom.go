package alloc

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// OutOfMemoryError is returned when a request does not fit the memory that
// there is. errors.Is(err, device.ErrOutOfMemory) holds. The figures are those
// of the moment of the failure.
type OutOfMemoryError struct {
	Device        string // its name
	Asked         uint64 // bytes, rounded up to 512
	Purpose       trace.Purpose
	Limit         uint64 // bytes that may be reserved
	Capacity      uint64 // of the device
	Live          uint64
	LiveByPurpose PurposeBytes
	Pending       uint64
	Cached        uint64
	Reserved      uint64
	LargestFree   uint64 // the largest free block
	Evictions     uint64 // times that an evictor has freed memory until now
	Sites         []Site // the places that hold most, if stacks are recorded
	Err           error  // what the device said; nil if the request does not fit the limit
}

// Unwrap gives what the device said.
func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// Is says that the error is a device.ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == device.ErrOutOfMemory }

// Error says what was asked for, what there is and what would have helped.
func (e *OutOfMemoryError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "out of memory on %s: %s for %s; %s live", e.Device, size.Format(e.Asked), e.Purpose, size.Format(e.Live))
	separator := " ("
	for p, n := range e.LiveByPurpose {
		if n > 0 {
			fmt.Fprintf(&s, "%s%s %s", separator, trace.Purpose(p), size.Format(n))
			separator = ", "
		}
	}
	if e.Live > 0 {
		s.WriteString(")")
	}
	fmt.Fprintf(&s, ", %s cached in pieces of at most %s, %s pending, %s reserved of %s. %s",
		size.Format(e.Cached), size.Format(e.LargestFree), size.Format(e.Pending), size.Format(e.Reserved), size.Format(e.Limit), e.advice())
	if e.Err != nil {
		fmt.Fprintf(&s, " The device says: %v.", e.Err)
	}
	for i, site := range e.Sites {
		if i == 0 {
			s.WriteString(" Most is held by:")
		}
		fmt.Fprintf(&s, "\n\t%s", site)
	}
	return s.String()
}

// advice says what would have helped.
func (e *OutOfMemoryError) advice() string {
	left := e.Limit - min(e.Limit, e.Live) // for everything but live blocks
	switch {
	case e.Err != nil:
		return fmt.Sprintf("The device has no more memory although the limit allows %s: another process or library holds it, free some of that.",
			size.Format(e.Limit-min(e.Limit, e.Reserved)))
	case e.Asked > e.Capacity:
		return fmt.Sprintf("The request alone is %s more than the device has: check its size, or split it.", size.Format(e.Asked-e.Capacity))
	case e.Asked > left && e.Asked-left <= e.Capacity-e.Limit:
		return fmt.Sprintf("The limit is too low by %s; the device has %s.", size.Format(e.Asked-left), size.Format(e.Capacity))
	case e.Asked > left:
		return fmt.Sprintf("%s are missing: free that much, or use a device with more memory.", size.Format(e.Asked-left))
	}
	return fmt.Sprintf("Fragmentation: %s are not live, but in pieces that live blocks keep apart; free blocks beside them, or allocate large blocks first.", size.Format(left))
}

// oomSites is the number of places that an OutOfMemoryError names.
const oomSites = 5

// failed counts a failed request and gives the error for it. size is what was
// asked for, err what the source said.
func (a *Allocator) failed(size uint64, p trace.Purpose, s *stream, err error) error {
	if !errors.Is(err, device.ErrOutOfMemory) {
		return fmt.Errorf("allocating %d bytes for %v: %w", size, p, err)
	}
	a.stats.OOMs++
	info := a.dev.Info()
	if a.sink != nil {
		a.sink.Record(trace.Event{Action: trace.OOM, Purpose: p, Stream: s.id, Addr: info.Capacity - min(info.Capacity, a.stats.Reserved),
			Size: rounded(size), TimeUS: a.time, PCs: a.callers(3)})
	}
	if err == errLimit {
		err = nil
	}
	return &OutOfMemoryError{
		Device: info.Name, Asked: rounded(size), Purpose: p, Limit: a.limit, Capacity: info.Capacity,
		Live: a.stats.Live, LiveByPurpose: a.stats.LiveByPurpose(), Pending: a.stats.Pending, Reserved: a.stats.Reserved,
		Evictions: a.stats.Evictions, Sites: a.sites(oomSites),
		Cached: a.stats.Reserved - a.stats.Live - a.stats.Pending, LargestFree: a.largestFree(), Err: err,
	}
}

// largestFree gives the size of the largest free block.
func (a *Allocator) largestFree() uint64 {
	var size uint64
	for _, p := range a.pools {
		for _, t := range p.free {
			if b := t.last(); b != nil {
				size = max(size, b.size)
			}
		}
	}
	return size
}

// rounded gives size in whole units, or the largest number there is.
func rounded(size uint64) uint64 {
	if size > math.MaxUint64-unit {
		return math.MaxUint64
	}
	return roundUp(size, unit)
}
