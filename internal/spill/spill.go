// Package spill gives values a place outside a device: memory of the host, a
// file, memory of another device (Near) or of another machine (Borrow, from who runs
// Lend, and BorrowWindow), and several of these in an order (Tiers).
package spill

import (
	"errors"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// Place is memory of the host or a file, a tensor.Store up to a capacity. Memory
// that is locked in place is dear to get, so what was given back is kept. Its
// methods may be called from several goroutines at once.
type Place struct {
	shelf  *shelf[[]byte]
	source source
}

// source is where the bytes of a Place come from.
type source interface {
	take(size uint64) ([]byte, error)
	close() error
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
	return &Place{shelf: newShelf(capacity, s.take), source: s}
}

// Take implements tensor.Store.
func (p *Place) Take(size uint64) (tensor.Room, error) {
	return tensor.HostStore(p.TakeBytes).Take(size)
}

// TakeBytes implements tensor.Store.
func (p *Place) TakeBytes(size uint64) (buf []byte, giveBack func(), err error) {
	buf, whole, err := p.shelf.Take(size)
	if err != nil {
		return nil, nil, err
	}
	return buf[:size], func() { p.shelf.GiveBack(buf, whole) }, nil
}

// Stats gives the figures of now.
func (p *Place) Stats() Stats { return p.shelf.Stats() }

// Close gives everything up. It returns an error if pieces are still out.
func (p *Place) Close() error { return errors.Join(p.shelf.leaks(), p.source.close()) }

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
	return device.Bytes(p, int(size)), nil
}

func (m *memory) close() error {
	var errs []error
	for _, p := range m.pieces {
		errs = append(errs, m.dev.Free(p))
	}
	return errors.Join(append(errs, m.dev.Close())...)
}
