package dist

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
)

// wire carries messages between the ranks of one group, in order for each pair.
// An engine with memory of the host is a wire; the algorithms are the same. It
// is used by one collective at a time.
type wire interface {
	// post begins to send data to a rank of the group; it stays unchanged until
	// settle. It does not wait.
	post(to int, h header, data []Buf)
	// next waits for the next message from a rank.
	next(from int, what string) (header, source, error)
	// settle waits until all that was posted is taken.
	settle() error
}

// source gives the elements of a message one after the other. A call does not
// cross the border of two buffers of the sender.
type source interface {
	floats(t device.DType, dst []float32) error
	ints(dst []int32) error
	bytes(dst []byte) error
	// done says that the message is read to its end.
	done()
}

// reader is a source of buffers in this process's memory.
type reader struct {
	bufs []Buf
	at   int // bytes of bufs[0] that are read
	end  func()
}

// take gives the address of the next n bytes.
func (r *reader) take(n int) device.Ptr {
	for r.at >= r.bufs[0].Bytes() {
		r.bufs, r.at = r.bufs[1:], 0
	}
	p := r.bufs[0].Ptr + device.Ptr(r.at)
	r.at += n
	return p
}

func (r *reader) floats(t device.DType, dst []float32) error {
	if t == device.Float32 {
		copy(dst, device.Float32s(r.take(4*len(dst)), len(dst)))
		return nil
	}
	kernel.Widen(t, dst, device.Uint16s(r.take(2*len(dst)), len(dst)))
	return nil
}

func (r *reader) ints(dst []int32) error {
	copy(dst, device.Int32s(r.take(4*len(dst)), len(dst)))
	return nil
}

func (r *reader) bytes(dst []byte) error {
	copy(dst, device.Bytes(r.take(len(dst)), len(dst)))
	return nil
}

func (r *reader) done() {
	if r.end != nil {
		r.end()
	}
}
