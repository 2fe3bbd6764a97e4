package device

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/internal/size"
)

// PeerMemory is memory of another GPU of this machine, mapped where the streams of
// the GPU that opened it read and write it: copies go over NVLink or PCIe, and pass
// no memory of the host.
type PeerMemory struct {
	own, peer *cuda.Context
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
	peer, err := c.Retain(gpu)
	if err != nil {
		return nil, err
	}
	m := &PeerMemory{own: c, peer: peer}
	if err := m.open(bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("%s of GPU %d: %w", size.Format(bytes), number, err), m.Close())
	}
	return m, nil
}

// open creates memory at the peer, and maps it for the GPU that borrows.
func (m *PeerMemory) open(bytes uint64) error {
	granularity, err := m.peer.Granularity()
	if err != nil {
		return err
	}
	m.size = (bytes + granularity - 1) / granularity * granularity
	if m.handle, err = m.peer.Create(m.size); err != nil {
		return err
	}
	if m.at, err = m.own.Reserve(m.size, granularity); err != nil {
		return err
	}
	if err = m.own.Map(m.at, m.size, m.handle); err != nil {
		return err
	}
	m.mapped = true
	return m.own.SetAccess(m.at, m.size)
}

// Range is where the memory is, for streams of the GPU that opened it.
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
		err = m.peer.Destroy(m.handle)
	}
	return errors.Join(err, m.peer.Release())
}
