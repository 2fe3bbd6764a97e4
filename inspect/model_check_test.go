package inspect

import (
	"errors"
	"fmt"
)

// checkModel recounts everything that the model keeps books of.
func checkModel(m *model) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var live, pending, requested, reserved uint64
	free, unmapped := map[*block]bool{}, map[*block]bool{}
	for i, seg := range m.segments {
		if seg.place != i {
			wrong("segment %d thinks it is %d", i, seg.place)
		}
		at := seg.addr
		var prev *block
		for b := seg.first; b != nil; prev, b = b, b.next {
			if b.addr != at || b.seg != seg || b.prev != prev || b.size == 0 {
				wrong("block of %d bytes at %#x: expected at %#x", b.size, b.addr, at)
			}
			if prev != nil && prev.state == b.state && (b.state == isFree || b.state == isUnmapped) {
				wrong("neighbours at %#x are both in state %d", b.addr, b.state)
			}
			at += b.size
			switch b.state {
			case isFree:
				free[b] = true
			case isUnmapped:
				unmapped[b] = true
				if seg.page == 0 || (b.addr-seg.addr)%seg.page != 0 || b.size%seg.page != 0 {
					wrong("unmapped block of %d bytes at %#x is not whole pages", b.size, b.addr-seg.addr)
				}
				continue
			case isLive:
				live += b.size
				requested += b.requested
			case isPending:
				pending += b.size
				requested += b.requested
				if m.pending[b.waiting] != b {
					wrong("pending block at %#x is not in the list", b.addr)
				}
			}
			reserved += b.size
		}
		if at != seg.addr+seg.size {
			wrong("blocks end at %#x, their segment at %#x", at, seg.addr+seg.size)
		}
	}
	f := m.figures
	if f.live != live || f.pending != pending || f.requested != requested || f.reserved != reserved {
		wrong("figures %+v, recount live %d pending %d requested %d reserved %d", f, live, pending, requested, reserved)
	}
	if f.peakLive < live || f.peakReserved < reserved || f.peakRequested < requested {
		wrong("peaks of %+v are below what is", f)
	}
	if f.reserved > m.capacity || f.reserved > m.allowed && !m.conf.Expandable { // pages are not counted before they are mapped
		wrong("reserved %d of %d, allowed %d", f.reserved, m.capacity, m.allowed)
	}
	for _, pair := range m.pools {
		for i := range pair {
			wrong := checkTree(&pair[i], free, unmapped)
			errs = append(errs, wrong...)
		}
	}
	if len(free)+len(unmapped) > 0 {
		wrong("%d free and %d unmapped blocks are in no tree", len(free), len(unmapped))
	}
	return errors.Join(errs...)
}

// checkTree checks order and membership and takes what it finds out of the sets.
func checkTree(p *pool, free, unmapped map[*block]bool) (errs []error) {
	for _, t := range []struct {
		tree *tree
		set  map[*block]bool
	}{{&p.free, free}, {&p.unmapped, unmapped}} {
		list := t.tree.all()
		for i, b := range list {
			if !t.set[b] || b.seg.pool != p {
				errs = append(errs, fmt.Errorf("block at %#x does not belong into this tree", b.addr))
			}
			if i > 0 && !before(list[i-1], b) {
				errs = append(errs, fmt.Errorf("block at %#x is out of order", b.addr))
			}
			delete(t.set, b)
		}
	}
	return errs
}
