package device

import (
	"errors"
	"fmt"
	"os"

	"github.com/headroom-go/headroom/internal/size"
)

// Sharer is a device whose handles other processes can map. Its methods may be
// called from several goroutines at once.
//
// The two processes see each other's writes as threads do; nothing but the
// programs orders them. The exporting one must not destroy the handle before
// the other has done with it: on the host the memory would become empty under
// its eyes, and then that of a new handle; a GPU's would live on, counted by
// neither.
type Sharer interface {
	// Export gives a file that stands for the memory of h, and the offset of h
	// in it, for Import in another process. The caller hands both over (as an
	// inherited file or over a Unix socket) and closes the file. Who has the
	// file can reach that handle of a GPU, and of the host all handles of the
	// device that made h.
	Export(h Handle) (f *os.File, offset int64, err error)
	// Import gives a handle for memory that a device of the same granularity
	// exported. f remains the caller's. An imported handle of a GPU keeps a
	// file open, and those of the host one for each device that exported them.
	// The capacity does not count the memory: the exporting device does.
	// Destroy ends this device's use of it, and the content stays. The file is
	// not trusted: whatever it is, Import returns an error if memory could
	// vanish from it. So it does for a host device's own memory, for which there
	// is a handle already; a GPU cannot tell its own from another process's,
	// and gives one more handle of it.
	Import(f *os.File, offset int64) (Handle, error)
}

// SharedHost is a host device whose handles can be mapped at several places at
// once, also by other processes: they are parts of a file that lies in memory.
// It needs Linux. The race detector does not see the memory of its handles.
type SharedHost struct {
	HostDevice
	sharing
}

// sharing implements Sharer for a device's memory.
type sharing struct {
	of     *memory
	shared sharedMemory
}

// sharedMemory is virtual memory that carries out Export and Import, too.
type sharedMemory interface {
	virtualMemory
	export(h Handle) (*os.File, int64, error)
	// admit takes the granule at offset of the file as memory of h.
	admit(h Handle, f *os.File, offset int64) error
}

// OpenSharedHost opens a host device with memory that can be shared. It fails
// where the system has none.
func OpenSharedHost(o HostOptions) (*SharedHost, error) {
	if o.Plain {
		return nil, errors.New("shared host device without virtual memory: only handles can be shared")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	shared, granularity, limit, err := newSharedMemory(o.Capacity)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	info := Info{
		Kind: Host, Name: "host:" + size.Exact(o.Capacity) + ",shared", Capacity: o.Capacity,
		Granularity: granularity, Virtual: true, Alias: true, Workers: o.Workers,
	}
	plain, _, _, _ := systemMemory(o.Capacity, true)
	d := &SharedHost{}
	d.sharing = sharing{&d.memory, shared}
	d.start(info, limit, plain, shared)
	return d, nil
}

// Export implements Sharer. h may be an imported handle.
func (s *sharing) Export(h Handle) (*os.File, int64, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if err := s.of.book.checkExists(h); err != nil {
		return nil, 0, err
	}
	f, offset, err := s.shared.export(h)
	if err != nil {
		return nil, 0, s.of.book.misuse("export of handle %d: %w", h, err)
	}
	return f, offset, nil
}

// Import implements Sharer.
func (s *sharing) Import(f *os.File, offset int64) (Handle, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if err := s.of.book.checkImport(); err != nil {
		return 0, err
	}
	if err := s.shared.admit(s.of.book.nextImport, f, offset); err != nil {
		return 0, s.of.book.misuse("import of memory at offset %d: %w", offset, err)
	}
	return s.of.book.imported(), nil
}
