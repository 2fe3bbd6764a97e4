package device

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/internal/cuda"
)

// cudaMemory is memory of a GPU. A mapping costs the driver about 50 µs for
// each handle, whether it is new or taken from elsewhere.
type cudaMemory struct {
	context     *cuda.Context
	granularity uint64
	handles     []cuda.Handle // by number − 1; 0 where there is none
	imports     map[Handle]cudaImport
}

// handle gives the driver's handle for h.
func (m *cudaMemory) handle(h Handle) cuda.Handle {
	if h >= firstImport {
		return m.imports[h].memory
	}
	return m.handles[h-1]
}

func (m *cudaMemory) alloc(size uint64) (Ptr, error) {
	p, err := m.context.MemAlloc(size)
	if err == nil && p%allocUnit != 0 {
		return 0, errors.Join(fmt.Errorf("the driver gave an address, %#x, that is no multiple of %d", uint64(p), allocUnit), m.context.MemFree(p))
	}
	return Ptr(p), err
}

func (m *cudaMemory) free(p Ptr, _ uint64) error { return m.context.MemFree(cuda.Ptr(p)) }

func (m *cudaMemory) reserve(size uint64) (Ptr, error) {
	p, err := m.context.Reserve(size, m.granularity)
	return Ptr(p), err
}

func (m *cudaMemory) release(p Ptr, size uint64) error {
	return m.context.Unreserve(cuda.Ptr(p), size)
}

func (m *cudaMemory) create(h Handle) error {
	memory, err := m.context.Create(m.granularity)
	if err != nil {
		return err
	}
	for int(h) > len(m.handles) {
		m.handles = append(m.handles, 0)
	}
	m.handles[h-1] = memory
	return nil
}

// attach maps handle by handle, and allows access to all at once.
func (m *cudaMemory) attach(p Ptr, handles []Handle) (err error) {
	n := 0
	for ; n < len(handles) && err == nil; n++ {
		at := cuda.Ptr(uint64(p) + uint64(n)*m.granularity)
		err = m.context.Map(at, m.granularity, m.handle(handles[n]))
	}
	if err != nil {
		n-- // the one that failed
	} else if err = m.context.SetAccess(cuda.Ptr(p), uint64(n)*m.granularity); err == nil {
		return nil
	}
	if n > 0 {
		err = errors.Join(err, m.detach(p, handles[:n]))
	}
	return err
}

func (m *cudaMemory) detach(p Ptr, handles []Handle) error {
	return m.context.Unmap(cuda.Ptr(p), uint64(len(handles))*m.granularity)
}

func (m *cudaMemory) discard(h Handle) error {
	if err := m.context.Destroy(m.handle(h)); err != nil {
		return err
	}
	if h >= firstImport {
		_ = m.imports[h].file.Close() // nothing was written
		delete(m.imports, h)
	} else {
		m.handles[h-1] = 0
	}
	return nil
}

func (m *cudaMemory) close() (err error) {
	for i, h := range m.handles {
		if h != 0 {
			err = errors.Join(err, m.discard(Handle(i+1)))
		}
	}
	for h := range m.imports {
		err = errors.Join(err, m.discard(h))
	}
	return err
}

// usedBytes is what all programs together hold of a GPU's memory; 0 where the
// system does not say.
func usedBytes(driver *cuda.Driver, gpu cuda.Device, o *CUDAOptions) uint64 {
	if o.driver != nil {
		return 0
	}
	nvml, err := cuda.OpenNVML(o.Folders)
	if err != nil {
		return 0
	}
	defer nvml.Close()
	bus, err := driver.DeviceBus(gpu)
	if err != nil {
		return 0
	}
	m, err := nvml.Memory(bus)
	if err != nil {
		return 0
	}
	return m.Used
}

// cudaHostMemory is page-locked memory of the host.
type cudaHostMemory struct{ context *cuda.Context }

func (m cudaHostMemory) alloc(size uint64) (Ptr, error) {
	p, err := m.context.HostAlloc(size)
	return Ptr(p), err
}

func (m cudaHostMemory) free(p Ptr, _ uint64) error { return m.context.HostFree(uintptr(p)) }

// OpenPinned opens host memory that the driver has page-locked, so that copies
// to and from GPUs run beside the computation, at the full speed of the bus.
// capacity is as for the function OpenPinned. Close it before the device.
func (d *CUDADevice) OpenPinned(capacity uint64) (*PinnedHost, error) {
	return openPinned(capacity, cudaHostMemory{d.context}, 0, func(Ptr, uint64) error { return nil })
}
