package device

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/headroom-go/headroom/internal/size"
)

// HostOptions describe a host device.
type HostOptions struct {
	Capacity uint64 // bytes that handles and plain allocations may hold; 0: all that the machine has available now
	Workers  int    // threads that compute, stream goroutines included; 0: runtime.GOMAXPROCS
	Plain    bool   // no virtual memory, as on systems without it
}

// HostDevice computes on this machine's processors in its memory.
//
// Virtual memory needs Linux 5.7 or newer. Under the race detector, which does
// not see memory outside Go's heap, and on other systems there are plain
// allocations alone.
//
// The capacity is a hard limit on what the device hands out. Beside it stand
// the buffers that kernels borrow (Workers.ScratchBytes) and the Go program
// itself. Memory takes room in the machine when it is first touched.
type HostDevice struct {
	memory
	workers *Workers
	streams []*hostStream // all that were given, by ID; under mu
}

// OpenHost opens a host device.
func OpenHost(o HostOptions) (*HostDevice, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	plain, virtual, granularity, limit := systemMemory(o.Capacity, o.Plain)
	info := Info{
		Kind: Host, Name: "host:" + size.Exact(o.Capacity), Capacity: o.Capacity,
		Granularity: granularity, Virtual: virtual != nil, Workers: o.Workers,
	}
	d := &HostDevice{}
	d.start(info, limit, plain, virtual)
	return d, nil
}

// complete puts what the machine has where the options ask for that.
func (o *HostOptions) complete() (err error) {
	if o.Workers < 0 {
		return fmt.Errorf("host device with %d workers: give 1 or more, or 0 for one per processor", o.Workers)
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Capacity == 0 {
		o.Capacity, err = AvailableMemory()
	}
	return err
}

// start makes d a device of the memory with info's number of workers.
func (d *HostDevice) start(info Info, limit int, plain plainMemory, virtual virtualMemory) {
	d.memory.book, d.memory.plain, d.memory.virtual = newBook(info, limit), plain, virtual
	d.workers = NewWorkers(info.Workers)
}

// Workers is the pool of threads that the device's kernels share.
func (d *HostDevice) Workers() *Workers { return d.workers }

// NewStream gives a stream with a goroutine of its own. At most 256 pieces of
// work wait in its queue; queueing more waits for the first of them.
func (d *HostDevice) NewStream() (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return nil, err
	}
	s := newHostStream(len(d.streams), d.workers)
	d.streams = append(d.streams, s)
	return s, nil
}

// Close implements Device. No stream may be in use. Its error also holds those
// of the streams that were still open.
func (d *HostDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return err
	}
	var err error
	for _, s := range d.streams {
		if !s.closed {
			err = errors.Join(err, s.Close())
		}
	}
	d.workers.Close()
	return errors.Join(err, d.close())
}
