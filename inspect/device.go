package inspect

import (
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// mostDevices is more than any machine has.
const mostDevices = 1 << 10

// Devices lists the devices that a snapshot tells of: those with events or
// segments.
func Devices(s *trace.Snapshot) []int {
	there := map[int]bool{}
	for d, t := range s.Traces {
		there[d] = t.Len() > 0
	}
	for _, g := range s.Segments {
		there[g.Device] = true
	}
	var out []int
	for d := range mostDevices {
		if there[d] {
			out = append(out, d)
		}
	}
	return out
}

// Worst gives the device of a snapshot to look at first: the one that ran out
// of memory or, where none did, the one with the highest peak. The error says
// that the snapshot holds no memory.
func Worst(s *trace.Snapshot) (*History, error) {
	devices := Devices(s)
	switch len(devices) {
	case 0:
		return nil, errors.New("the snapshot holds no memory: neither events nor segments (was torch.cuda.memory._record_memory_history called?)")
	case 1:
		return NewHistory(s, devices[0]), nil
	}
	var worst *evidence
	for _, d := range devices {
		if e := examine(NewHistory(s, d)); worst == nil || e.worse(worst) {
			worst = e
		}
	}
	return worst.h, nil
}

// knows is an error if the snapshot has no such device.
func knows(s *trace.Snapshot, device int) error {
	if !slices.Contains(Devices(s), device) {
		return fmt.Errorf("device %d is not in the snapshot, which tells of %v", device, Devices(s))
	}
	return nil
}
