package device

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/internal/size"
)

// PeerMemory is memory of one GPU of this machine, mapped where streams of another
// one read and write it: copies go over NVLink or PCIe, and pass no memory of the
// host.
type PeerMemory struct {
	own, home *cuda.Context // of whose streams use it, and where it lies; may be the same
	size      uint64
	at        cuda.Ptr
	handle    cuda.Handle
	mapped    bool
}

// OpenPeer takes memory of the GPU of that number, all at once, for the streams of
// d, which must be a GPU, too, and reach the other's memory. size is rounded up to
// what the driver deals in. Close it before d.
func OpenPeer(d Device, number int, size uint64) (*PeerMemory, error) {
	gpu := CUDAOf(d)
	if gpu == nil {
		return nil, fmt.Errorf("%s reaches no memory of GPU %d: only another GPU does", d.Info().Name, number)
	}
	return gpu.openPeer(number, size)
}

func (d *CUDADevice) openPeer(number int, bytes uint64) (*PeerMemory, error) {
	c := d.context
	n, err := c.Devices()
	if err != nil {
		return nil, err
	}
	if number < 0 || number >= n {
		return nil, fmt.Errorf("GPU %d does not exist: the driver knows %d of them, from 0 on", number, n)
	}
	gpu, err := c.Driver.Device(number)
	if err != nil {
		return nil, err
	}
	if reach, err := c.CanReach(gpu); err != nil || !reach || gpu == c.Device || d.virtual == nil {
		return nil, errors.Join(fmt.Errorf("%s does not reach memory of GPU %d: give it memory of the host instead", d.Info().Name, number), err)
	}
	home, err := c.Retain(gpu)
	if err != nil {
		return nil, err
	}
	m := &PeerMemory{own: c, home: home}
	if err := m.open(bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("%s of GPU %d: %w", size.Format(bytes), number, err), m.Close())
	}
	return m, nil
}

// open creates memory at home, and maps it for the GPU that uses it, and others.
func (m *PeerMemory) open(bytes uint64, others ...cuda.Device) error {
	granularity, err := m.home.Granularity()
	if err != nil {
		return err
	}
	m.size = (bytes + granularity - 1) / granularity * granularity
	if m.handle, err = m.home.Create(m.size); err != nil {
		return err
	}
	if m.at, err = m.own.Reserve(m.size, granularity); err != nil {
		return err
	}
	if err = m.own.Map(m.at, m.size, m.handle); err != nil {
		return err
	}
	m.mapped = true
	return m.own.SetAccess(m.at, m.size, others...)
}

// Range is where the memory is, for streams of those that use it.
func (m *PeerMemory) Range() (p Ptr, size uint64) { return Ptr(m.at), m.size }

// Close gives the memory back. No queued work may still touch it.
func (m *PeerMemory) Close() (err error) {
	if m.mapped {
		err = m.own.Unmap(m.at, m.size)
	}
	if m.at != 0 && err == nil {
		err = m.own.Unreserve(m.at, m.size)
	}
	if m.handle != 0 && err == nil {
		err = m.home.Destroy(m.handle)
	}
	if m.home != m.own {
		err = errors.Join(err, m.home.Release())
	}
	return err
}

// Inbox is memory of a GPU into which streams of other GPUs of this process write,
// with counts, in page-locked memory of the host, by which the streams tell each
// other how far they are.
type Inbox struct {
	PeerMemory
	Flush  bool // who waits for a count to read the memory must flush
	counts uintptr
	n      int
}

// countBytes is what a count takes, so that no two are in one cache line.
const countBytes = 128

// OpenInbox takes memory of d for the streams of d and of others, GPUs which must
// reach it, with so many counts of 0. It lies outside of d's capacity. Close it
// before d.
func (d *CUDADevice) OpenInbox(bytes uint64, counts int, others []*CUDADevice) (*Inbox, error) {
	c := d.context
	var from []cuda.Device
	for _, o := range others {
		if able, err := o.writes(d); err != nil || !able {
			return nil, errors.Join(fmt.Errorf("%s writes no memory of %s", o.Info().Name, d.Info().Name), err)
		}
		from = append(from, o.context.Device)
	}
	flush, err := c.Attribute(c.Device, cuda.RemoteFlush)
	if err != nil {
		return nil, err
	}
	b := &Inbox{PeerMemory: PeerMemory{own: c, home: c}, Flush: flush != 0, n: counts}
	err = b.open(bytes, from...)
	if err == nil {
		b.counts, err = c.HostAlloc(uint64(counts) * countBytes)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s of %s for other GPUs: %w", size.Format(bytes), d.Info().Name, err), b.Close())
	}
	b.SetCounts(0)
	return b, nil
}

// writes says whether streams of d can write memory of another GPU, and count. Those
// of one GPU can't be told so: they share a context, in which to load a kernel waits
// for all that is queued, also for what waits for the one who loads.
func (d *CUDADevice) writes(to *CUDADevice) (bool, error) {
	reach, err := d.context.CanReach(to.context.Device)
	if err != nil || !reach || d.context.Device == to.context.Device || to.virtual == nil {
		return false, err
	}
	return d.context.Counts()
}

// Count is the address of count i, of 64 bits, for streams of all GPUs.
func (b *Inbox) Count(i int) Ptr { return Ptr(b.counts) + Ptr(i*countBytes) }

// SetCounts sets all counts, from the host.
func (b *Inbox) SetCounts(n uint64) {
	for i := range b.n {
		atomic.StoreUint64((*uint64)(b.Count(i).pointer()), n)
	}
}

// Close gives the memory back. No queued work may still touch it.
func (b *Inbox) Close() (err error) {
	if b.counts != 0 {
		err = b.own.HostFree(b.counts)
	}
	return errors.Join(err, b.PeerMemory.Close())
}
