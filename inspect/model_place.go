package inspect

import "slices"

// placer gives addresses to segments. False is that there are none left.
type placer interface {
	plain(size uint64, stream int) (uint64, bool)
	expandable(size uint64) (uint64, bool)
	release(addr, size uint64) // the segment there is gone
	ends(addr uint64) bool     // the addresses of the expandable segment that has nothing mapped from addr on are used up
}

// driver places segments as the CUDA driver was seen to: addresses come in
// pieces of 32 MiB from the top down; a segment begins at the lowest address
// of a new piece, or at the lowest address where the rest of an older one
// holds it. The order of addresses decides ties, and so a little of what is
// reserved.
type driver struct {
	start  uint64   // pieces lie below, expandable segments above
	bottom uint64   // of the pieces
	top    uint64   // of the expandable segments
	holes  []extent // by address, apart from each other
}

type extent struct{ addr, size uint64 }

const (
	driverTop   = 1 << 46
	driverPiece = 32 * mib
)

func newDriver() *driver { return newDriverAt(driverTop) }

func newDriverAt(start uint64) *driver { return &driver{start: start, bottom: start, top: start} }

// newDriverBeside gives a driver whose addresses lie far from those of spans.
func newDriverBeside(spans []span) *driver {
	for _, start := range []uint64{driverTop, driverTop << 8, driverTop << 14} {
		if !slices.ContainsFunc(spans, func(s span) bool { return s.addr < start+start/2 && s.addr+s.size > start/2 }) {
			return newDriverAt(start)
		}
	}
	return newDriver() // the record uses addresses of all sizes, which no driver gives
}

func (d *driver) plain(size uint64, _ int) (uint64, bool) {
	size = roundUp(size, roundLarge)
	for i := range d.holes {
		if h := &d.holes[i]; h.size >= size {
			addr := h.addr
			h.addr, h.size = h.addr+size, h.size-size
			if h.size == 0 {
				d.holes = slices.Delete(d.holes, i, i+1)
			}
			return addr, true
		}
	}
	piece := roundUp(size, driverPiece)
	if piece >= d.bottom {
		return 0, false
	}
	d.bottom -= piece
	if piece > size {
		d.holes = slices.Insert(d.holes, 0, extent{d.bottom + size, piece - size})
	}
	return d.bottom, true
}

func (d *driver) expandable(size uint64) (uint64, bool) {
	addr := d.top
	if addr+size < addr {
		return 0, false
	}
	d.top += size
	return addr, true
}

func (d *driver) ends(uint64) bool { return false }

// release makes a hole of a plain segment's addresses. Those of expandable
// segments are not used again.
func (d *driver) release(addr, size uint64) {
	if addr < d.bottom || addr >= d.start {
		return
	}
	size = roundUp(size, roundLarge)
	i, _ := slices.BinarySearchFunc(d.holes, addr, func(h extent, addr uint64) int {
		if h.addr < addr {
			return -1
		}
		return 1
	})
	d.holes = slices.Insert(d.holes, i, extent{addr, size})
	if i+1 < len(d.holes) && addr+size == d.holes[i+1].addr {
		d.holes[i].size += d.holes[i+1].size
		d.holes = slices.Delete(d.holes, i+1, i+2)
	}
	if i > 0 && d.holes[i-1].addr+d.holes[i-1].size == addr {
		d.holes[i-1].size += d.holes[i].size
		d.holes = slices.Delete(d.holes, i, i+1)
	}
}
