package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/size"
)

// memory is the part of a device that deals in memory: a book that holds the
// rules, and what carries them out. Every method asks the book, acts, and
// enters what was done; a step that fails on the way is never entered.
type memory struct {
	mu      sync.Mutex
	book    book
	plain   plainMemory
	virtual virtualMemory // nil where Info.Virtual is false
}

// plainMemory carries out Alloc and Free.
type plainMemory interface {
	alloc(size uint64) (Ptr, error)
	free(p Ptr, size uint64) error
}

// virtualMemory carries out the calls on addresses and handles.
type virtualMemory interface {
	reserve(size uint64) (Ptr, error)
	// release gives back addresses where nothing is mapped.
	release(p Ptr, size uint64) error
	// create takes memory from the system for a handle that is new.
	create(h Handle) error
	// attach maps all handles, or none and returns an error.
	attach(p Ptr, handles []Handle) error
	// detach is the reverse of attach, all or none.
	detach(p Ptr, handles []Handle) error
	// discard gives the memory of a handle back to the system.
	discard(h Handle) error
	// close gives back everything but the ranges of reserve.
	close() error
}

// Info describes the device.
func (m *memory) Info() Info {
	return m.book.info
}

// Alloc implements Device.
func (m *memory) Alloc(n uint64) (Ptr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.book.checkAlloc(n)
	if err != nil {
		return 0, err
	}
	p, err := m.plain.alloc(n)
	if err != nil {
		return 0, m.lacking(n, err)
	}
	m.book.alloc(p, n)
	return p, nil
}

// Free implements Device.
func (m *memory) Free(p Ptr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.book.checkFree(p)
	if err != nil {
		return err
	}
	if err := m.plain.free(p, n); err != nil {
		return m.book.misuse("free of %#x: %w", uint64(p), err)
	}
	m.book.free(p)
	return nil
}

// Reserve implements Device.
func (m *memory) Reserve(n uint64) (Ptr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.book.checkReserve(n); err != nil {
		return 0, err
	}
	p, err := m.virtual.reserve(n)
	if err != nil {
		return 0, m.book.misuse("reservation of %s of addresses: %w", size.Format(n), err)
	}
	m.book.reserve(p, n)
	return p, nil
}

// Release implements Device.
func (m *memory) Release(p Ptr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.book.checkRelease(p)
	if err != nil {
		return err
	}
	if err := m.virtual.release(p, n); err != nil {
		return m.book.misuse("release of %#x: %w", uint64(p), err)
	}
	m.book.release(p)
	return nil
}

// Create implements Device.
func (m *memory) Create() (Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.book.checkCreate(); err != nil {
		return 0, err
	}
	h := m.book.create()
	if err := m.virtual.create(h); err != nil {
		m.book.destroy(h)
		return 0, m.lacking(m.book.info.Granularity, err)
	}
	return h, nil
}

// lacking is the error of a request that the system cannot serve.
func (m *memory) lacking(n uint64, err error) error {
	return fmt.Errorf("%w: the system has no %s for %s: %w", ErrOutOfMemory, size.Format(n), m.book.info.Name, err)
}

// Destroy implements Device.
func (m *memory) Destroy(h Handle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.book.checkDestroy(h); err != nil {
		return err
	}
	if err := m.virtual.discard(h); err != nil {
		return m.book.misuse("destruction of handle %d: %w", h, err)
	}
	m.book.destroy(h)
	return nil
}

// Map implements Device.
func (m *memory) Map(p Ptr, handles []Handle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.book.checkMap(p, handles); err != nil {
		return err
	}
	if err := m.virtual.attach(p, handles); err != nil {
		return m.book.misuse("mapping of %d granules at %#x: %w", len(handles), uint64(p), err)
	}
	m.book.mapAt(p, handles)
	return nil
}

// Unmap implements Device.
func (m *memory) Unmap(p Ptr, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	handles, err := m.book.checkUnmap(p, n)
	if err != nil {
		return err
	}
	if err := m.virtual.detach(p, handles); err != nil {
		return m.book.misuse("unmapping of %d granules at %#x: %w", n, uint64(p), err)
	}
	m.book.unmap(p, handles)
	return nil
}

// close gives all memory back and returns an error that names what the program
// had not given back. m.mu must be held and the book open.
func (m *memory) close() error {
	err := m.book.leaks()
	if invariant.Enabled {
		err = errors.Join(err, m.book.check())
	}
	err = errors.Join(err, m.giveBack())
	m.book.close()
	return err
}

// giveBack returns all memory to the system. m.mu must be held.
func (m *memory) giveBack() (err error) {
	for p, n := range m.book.plain {
		err = errors.Join(err, m.plain.free(p, n))
	}
	for p, h := range m.book.allMapped() {
		err = errors.Join(err, m.virtual.detach(p, []Handle{h}))
	}
	for _, r := range m.book.ranges {
		err = errors.Join(err, m.virtual.release(r.start, r.size))
	}
	if m.virtual != nil {
		err = errors.Join(err, m.virtual.close())
	}
	return err
}
