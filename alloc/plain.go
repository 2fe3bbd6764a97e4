package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// plain is the source of devices without virtual memory: each segment is an
// allocation of the device. Small requests share segments of 2 MiB; larger
// ones get one of their size, rounded up to 2 MiB if that fits. What a segment
// has left serves other requests; only a segment that is wholly free can be
// given back.
type plain struct{ a *Allocator }

// grow allocates a segment for r. If it then fails to, wholly free segments
// may have been given back: that is the only change.
func (p *plain) grow(r request) (*Block, error) {
	if r.size > p.a.limit {
		return nil, errLimit
	}
	b, err := p.segment(r.pool, roundUp(r.size, plainUnit))
	if errors.Is(err, device.ErrOutOfMemory) && r.size%plainUnit != 0 {
		if exact, exactErr := p.segment(r.pool, r.size); exactErr == nil {
			b, err = exact, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return p.a.cut(b, b.addr, b.addr+r.size), nil
}

// kept gives nil: nothing is stitched here.
func (p *plain) kept(request, when) *Block { return nil }

// segment allocates a segment of size bytes, after giving back wholly free
// ones if it does not fit otherwise.
func (p *plain) segment(pl *pool, size uint64) (*Block, error) {
	if err := p.makeRoom(size); err != nil {
		return nil, err
	}
	ptr, err := p.a.dev.Alloc(size)
	if errors.Is(err, device.ErrOutOfMemory) {
		freed, trimErr := p.trim(0)
		if freed == 0 || trimErr != nil {
			return nil, errors.Join(err, trimErr)
		}
		ptr, err = p.a.dev.Alloc(size)
	}
	if err != nil {
		return nil, err
	}
	return p.enter(pl, ptr, size), nil
}

// enter makes a segment of an allocation.
func (p *plain) enter(pl *pool, ptr device.Ptr, size uint64) *Block {
	p.a.stats.Reserved += size
	p.a.stats.Creates++
	p.a.recordRange(trace.SegmentAlloc, uint64(ptr), size)
	return p.a.join(p.a.newSegment(pl, uint64(ptr), size, free))
}

// makeRoom gives back wholly free segments, the smallest first, until size
// bytes fit the limit, and as many as size where there are so many: sizes that
// change from step to step then don't pile up segments. If size would never
// fit, it gives back none.
func (p *plain) makeRoom(size uint64) error {
	whole := p.whole()
	var idle uint64
	for _, seg := range whole {
		idle += seg.size
	}
	reserved := p.a.stats.Reserved
	if reserved-idle+size > p.a.limit {
		return errLimit
	}
	beside := p.a.limit - size
	if idle >= size {
		beside = min(beside, reserved-size)
	}
	for _, seg := range whole {
		if p.a.stats.Reserved <= beside {
			return nil
		}
		if err := p.release(seg); err != nil {
			return err
		}
	}
	return nil
}

// whole lists the wholly free segments, the smallest first.
func (p *plain) whole() []*segment {
	var list []*segment
	for _, seg := range p.a.segments {
		if !seg.pool.keep && seg.first.state == free && seg.first.next == nil {
			list = append(list, seg)
		}
	}
	slices.SortStableFunc(list, func(x, y *segment) int { return cmp.Compare(x.size, y.size) })
	return list
}

// release gives a wholly free segment back.
func (p *plain) release(seg *segment) error {
	p.a.sync(seg.first.uses)
	if err := p.a.dev.Free(device.Ptr(seg.base)); err != nil {
		return err
	}
	seg.first.tree.remove(seg.first)
	p.a.recycle(seg.first)
	seg.first = nil
	p.a.segments = slices.DeleteFunc(p.a.segments, func(s *segment) bool { return s == seg })
	p.a.stats.Reserved -= seg.size
	p.a.stats.Destroys++
	p.a.recordRange(trace.SegmentFree, seg.base, seg.size)
	return nil
}

// prepare allocates a segment. It gives nothing back for that.
func (p *plain) prepare(size uint64) error {
	size = roundUp(size, unit)
	if size > p.a.limit-p.a.stats.Reserved {
		return errLimit
	}
	size = min(roundUp(size, plainUnit), roundDown(p.a.limit-p.a.stats.Reserved, unit))
	ptr, err := p.a.dev.Alloc(size)
	if err == nil {
		p.enter(p.a.pools[1], ptr, size)
	}
	return err
}

// trim gives wholly free segments back, the smallest first.
func (p *plain) trim(keep uint64) (uint64, error) {
	var freed uint64
	for _, seg := range p.whole() {
		if p.a.stats.Reserved <= keep {
			break
		}
		if err := p.release(seg); err != nil {
			return freed, err
		}
		freed += seg.size
	}
	return freed, nil
}

// close gives all segments back.
func (p *plain) close() error {
	var failed error
	for _, seg := range p.a.segments {
		err := p.a.dev.Free(device.Ptr(seg.base))
		failed = errors.Join(failed, err)
		if err == nil {
			p.a.stats.Reserved -= seg.size
			p.a.stats.Destroys++
		}
	}
	return failed
}

func (p *plain) unplaced() uint64 { return 0 }

// check compares reserved with the segments.
func (p *plain) check() error {
	var sum uint64
	for _, seg := range p.a.segments {
		sum += seg.size
		for b := seg.first; b != nil; b = b.next {
			if b.state == unbacked {
				return fmt.Errorf("block %#x of a plain segment is unbacked", b.addr)
			}
		}
	}
	if sum != p.a.stats.Reserved {
		return fmt.Errorf("reserved is %d bytes, yet the segments have %d", p.a.stats.Reserved, sum)
	}
	return nil
}
