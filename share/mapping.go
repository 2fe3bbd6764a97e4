package share

import (
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/headroom-go/headroom/device"
)

// Mapping is a block that another process lends, at addresses of this one. Its
// methods may be called from several goroutines at once.
type Mapping struct {
	borrower *Borrower
	id       uint64
	offset   uint64
	size     uint64

	mu     sync.Mutex
	window window
	told   bool // the owner knows that the memory is no longer used
}

// Ptr is the block's first address. It is aligned as the block is at its owner.
func (m *Mapping) Ptr() device.Ptr {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.window.mapped {
		panic("share: Ptr of a mapping that is closed")
	}
	return m.window.base + device.Ptr(m.offset)
}

// Size is the size of the block in bytes.
func (m *Mapping) Size() uint64 { return m.size }

// Close takes the memory away from its addresses, gives the addresses back to
// the device, and the block to its owner. All work on it must be done. When a
// call of the device fails, what could not be done is done by the next Close;
// the owner gets the block back as soon as it is mapped no more. Close waits
// for room in the connection, which the owner's Lender makes at once. Closing
// twice is no error.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.window.close()
	if !m.window.mapped && !m.told {
		told := m.tell()
		m.told, err = told == nil, errors.Join(err, told)
	}
	if err == nil {
		m.borrower.forget(m)
	}
	return err
}

// tell gives the block back. An owner that is gone needs no telling.
func (m *Mapping) tell() error {
	_, err := m.borrower.c.Write(appendPrelude(nil, kindReturn, m.id))
	if isGone(err) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (b *Borrower) forget(m *Mapping) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mappings, m)
}

// window is a range of addresses that shows imported handles. It may be
// partly open.
type window struct {
	dev     device.Device
	base    device.Ptr // 0: no addresses
	handles []device.Handle
	mapped  bool
}

// open imports and maps what is offered. After an error close undoes what was
// done.
func (w *window) open(s device.Sharer, o *offer) (err error) {
	if w.base, err = w.dev.Reserve(o.granules() * o.granularity); err != nil {
		return err
	}
	for _, x := range o.extents {
		for i := range uint64(x.granules) {
			h, err := s.Import(o.files[x.file], int64(x.offset+i*o.granularity))
			if err != nil {
				return err
			}
			w.handles = append(w.handles, h)
		}
	}
	err = w.dev.Map(w.base, w.handles)
	w.mapped = err == nil
	return err
}

// close undoes what of open is still done. It can be called again after an
// error.
func (w *window) close() (err error) {
	if w.mapped {
		if err := w.dev.Unmap(w.base, len(w.handles)); err != nil {
			return err
		}
		w.mapped = false
	}
	if w.base != 0 {
		if err = w.dev.Release(w.base); err == nil {
			w.base = 0
		}
	}
	w.handles = slices.DeleteFunc(w.handles, func(h device.Handle) bool {
		failed := w.dev.Destroy(h)
		err = errors.Join(err, failed)
		return failed == nil
	})
	return err
}
