// Package spill gives values a place outside a device: memory of the host, or
// a file.
//
// Both hold on to what was given back and give it out again for the same size,
// since a training step asks for the same sizes again and again, and memory
// that is locked in place is dear to get.
package spill

import (
	"errors"
	"fmt"
	"sync"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
)

// Place is memory for values, up to a capacity. Its methods may be called from
// several goroutines at once.
type Place struct {
	mu       sync.Mutex
	source   source
	capacity uint64
	used     uint64 // taken from the source, given out or not
	out      int    // pieces given out
	free     map[uint64][][]byte
}

// source is where the bytes of a Place come from.
type source interface {
	take(size uint64) ([]byte, error)
	close() error
}

// Stats are the figures of a Place.
type Stats struct {
	CapacityBytes uint64
	UsedBytes     uint64 // taken from the host or the file, given out or not
	Pieces        int    // given out
}

// Memory gives a Place in memory of the host, locked where that can be done, so
// that d copies from and to it at full speed; d may be nil. Close it before d.
func Memory(d device.Device, capacity uint64) (*Place, error) {
	pinned, err := device.OpenPinnedFor(d, capacity)
	if err != nil {
		return nil, err
	}
	return newPlace(&memory{dev: pinned}, capacity), nil
}

func newPlace(s source, capacity uint64) *Place {
	return &Place{source: s, capacity: capacity, free: map[uint64][][]byte{}}
}

// unit is what sizes are rounded up to.
const unit = 4096

// Take gives size bytes of undefined content, and a function that takes them
// back. It fails when that would pass the capacity or the source has no more.
func (p *Place) Take(size uint64) (buf []byte, giveBack func(), err error) {
	whole := (max(size, 1) + unit - 1) / unit * unit
	p.mu.Lock()
	defer p.mu.Unlock()
	buf, err = p.find(whole)
	if err != nil {
		return nil, nil, err
	}
	p.out++
	return buf[:size], func() { p.giveBack(buf) }, nil
}

// find gives a piece of that size that was given back, or a new one, or where
// there is no room for one the smallest free piece that is large enough.
func (p *Place) find(whole uint64) ([]byte, error) {
	if buf := p.reuse(whole); buf != nil {
		return buf, nil
	}
	if whole > p.capacity-p.used {
		if larger := p.larger(whole); larger > 0 {
			return p.reuse(larger), nil
		}
		return nil, fmt.Errorf("%s more would pass the %s set aside for values outside the device: %s are in use or kept for other sizes",
			size.Format(whole), size.Format(p.capacity), size.Format(p.used))
	}
	buf, err := p.source.take(whole)
	if err == nil {
		p.used += whole
	}
	return buf, err
}

func (p *Place) reuse(size uint64) []byte {
	list := p.free[size]
	if len(list) == 0 {
		return nil
	}
	p.free[size] = list[:len(list)-1]
	return list[len(list)-1]
}

// larger is the smallest size above whole of which a piece is free, or 0.
func (p *Place) larger(whole uint64) (size uint64) {
	for s, list := range p.free {
		if s > whole && len(list) > 0 && (size == 0 || s < size) {
			size = s
		}
	}
	return size
}

func (p *Place) giveBack(buf []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	whole := uint64(cap(buf))
	p.free[whole] = append(p.free[whole], buf)
	p.out--
}

// Stats gives the figures of now.
func (p *Place) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{p.capacity, p.used, p.out}
}

// Close gives everything up. It returns an error if pieces are still out.
func (p *Place) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.source.close()
	if p.out > 0 {
		err = errors.Join(fmt.Errorf("%d values are still outside the device", p.out), err)
	}
	return err
}

// memory is a source on a device whose memory the host reads.
type memory struct {
	dev    device.Device
	pieces []device.Ptr
}

func (m *memory) take(size uint64) ([]byte, error) {
	p, err := m.dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	m.pieces = append(m.pieces, p)
	return device.Bytes(p, int(size))[:size:size], nil
}

func (m *memory) close() error {
	var errs []error
	for _, p := range m.pieces {
		errs = append(errs, m.dev.Free(p))
	}
	return errors.Join(append(errs, m.dev.Close())...)
}
