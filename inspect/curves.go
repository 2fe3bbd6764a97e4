package inspect

import (
	"slices"

	"github.com/headroom-go/headroom/trace"
)

// curves are figures of a device after each event; element 0 is before the
// first, so that element n belongs to the moment n of History.At.
type curves struct {
	live     []uint64 // bytes of blocks handed out, as they were rounded
	reserved []uint64 // bytes taken from the device
}

func (h *History) curves() curves {
	return curves{summed(h.liveChanges()), summed(h.reservedChanges())}
}

// reservedChanges is as liveChanges, of the reserved bytes.
func (h *History) reservedChanges() []int64 {
	change := make([]int64, h.Len()+2)
	for i := range h.spans {
		s := &h.spans[i]
		add(change, s.from, s.to, s.size)
	}
	return change
}

// liveChanges is by how much each event changes the live bytes: element 0 is
// what is live before the first, and the last one lies behind the end.
func (h *History) liveChanges() []int64 {
	change := make([]int64, h.Len()+2)
	for i := range h.Leases {
		l := &h.Leases[i]
		add(change, l.Born(), l.Freed(), max(l.Block, h.Conf.Round(l.Size)))
	}
	return change
}

// add enters what is there from one event to another as two changes.
func add(change []int64, from, to int, size uint64) {
	change[from+1] += int64(size)
	change[max(to, from)+1] -= int64(size)
}

// summed gives the sums of the changes, but the last, which lies behind the
// end.
func summed(change []int64) []uint64 {
	out := make([]uint64, len(change)-1)
	var sum int64
	for i := range out {
		sum += change[i]
		out[i] = uint64(max(sum, 0))
	}
	return out
}

// highest is the highest sum of the changes.
func highest(change []int64) uint64 {
	var sum, most int64
	for _, c := range change[:len(change)-1] {
		sum += c
		most = max(most, sum)
	}
	return uint64(most)
}

// top is the first moment at which a curve is highest, and how high.
func top(curve []uint64) (moment int, most uint64) {
	most = slices.Max(curve)
	return slices.Index(curve, most), most
}

// liveLeases lists the blocks that are live after the first n events.
func (h *History) liveLeases(n int) []*Lease {
	var out []*Lease
	for _, k := range h.LiveAt(n) {
		if l := &h.Leases[k]; l.stateAt(n) == trace.Live {
			out = append(out, l)
		}
	}
	return out
}
