package tensor

import (
	"hash/maphash"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// Store is memory outside the device for values that wait there: pinned host
// memory, or a file.
type Store interface {
	// Take gives size bytes, and a function that takes them back. Without room it
	// gives an error, and the value stays on the device. A nil buf stands for
	// memory of which only the books are kept: nothing is copied.
	Take(size uint64) (buf []byte, giveBack func(), err error)
}

// UseStore lets values that a Schedule sends away go to s. They are copied on
// side, a stream of the device beside the one that computes, so that copies and
// computation overlap. Both stay the caller's.
//
// Memory that is copied is free in the order of the stream that computes, which
// waits for the copy where it lets go of the memory. So addresses don't depend on
// how fast copies are, and a peak is the same on every device.
func (rt *Runtime) UseStore(s Store, side device.Stream) { rt.store, rt.side = s, side }

// parcel is a value's copy in the Store.
type parcel struct {
	rt       *Runtime
	buf      []byte // nil: nothing is copied
	giveBack func()
	arrived  device.Event // of the last fetch, until somebody reads
}

// send queues a copy of t, dense, to the store. Where there is none, or it has
// no room, it gives nil, and the value stays.
func (rt *Runtime) send(t *Tensor) *parcel {
	if rt.store == nil {
		return nil
	}
	buf, giveBack, err := rt.store.Take(t.Bytes())
	if err != nil {
		return nil
	}
	rt.side.Wait(rt.stream.Record())
	if buf != nil {
		rt.side.Download(buf, t.ptr().Ptr)
	}
	t.st.copied = rt.side.Record()
	return &parcel{rt: rt, buf: buf, giveBack: giveBack}
}

// fetch queues a copy back into new memory.
func (p *parcel) fetch(shape []int, d DType) *Tensor {
	rt := p.rt
	t := rt.Empty(d, trace.Activation, shape...)
	rt.side.Wait(rt.stream.Record())
	if p.buf != nil {
		rt.side.Upload(t.ptr().Ptr, p.buf)
	}
	p.arrived = rt.side.Record()
	t.st.copied = p.arrived
	return t
}

// arrive lets what is computed from now on wait for the last fetch.
func (p *parcel) arrive() {
	if p.arrived != nil {
		p.rt.stream.Wait(p.arrived)
		p.arrived = nil
	}
}

// end gives the store's memory back once the copies are done.
func (p *parcel) end() {
	if p.buf != nil {
		p.rt.side.Record().Sync()
	}
	p.giveBack()
}

// digest is what a value was, to find an operation that makes another one the
// second time.
type digest uint64

var digestSeed = maphash.MakeSeed()

func digestOf(t *Tensor) *digest {
	if !t.rt.Holds() {
		return nil
	}
	buf := make([]byte, t.Bytes())
	t.Download(buf)
	t.rt.mustSync()
	d := digest(maphash.Bytes(digestSeed, buf))
	return &d
}

// compare panics if t is another value. A nil digest is of none.
func (d *digest) compare(op string, t *Tensor) {
	if d == nil {
		return
	}
	if again := digestOf(t); *again != *d {
		fail("%s gave another result when it was run again for backward: a value that it read has changed, or it is not deterministic", op)
	}
}
