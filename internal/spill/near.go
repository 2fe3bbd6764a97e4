package spill

import (
	"errors"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// Near is a tensor.Store in memory that a device's streams reach as they reach the
// device's own: that of a peer (device.OpenPeer). The host computes nothing there.
type Near struct{ shelf *shelf[device.Ptr] }

// NewNear gives a Near of size bytes from p on, which stay the caller's.
func NewNear(p device.Ptr, size uint64) *Near {
	return &Near{newShelf(size, func(n uint64) (device.Ptr, error) {
		p += device.Ptr(n)
		return p - device.Ptr(n), nil
	})}
}

// Take implements tensor.Store.
func (n *Near) Take(size uint64) (tensor.Room, error) {
	p, whole, err := n.shelf.Take(size)
	return &nearRoom{n, p, size, whole}, err
}

// TakeBytes implements tensor.Store: there is nothing that the host reads.
func (n *Near) TakeBytes(uint64) (buf []byte, giveBack func(), err error) {
	return nil, nil, errors.New("memory of another device is none that the host computes in")
}

type nearRoom struct {
	of          *Near
	at          device.Ptr
	size, whole uint64
}

func (r *nearRoom) Send(side device.Stream, from device.Ptr) { side.Copy(r.at, from, r.size) }
func (r *nearRoom) Fetch(side device.Stream, to device.Ptr)  { side.Copy(to, r.at, r.size) }

func (r *nearRoom) Free() error {
	r.of.shelf.GiveBack(r.at, r.whole)
	return nil
}
