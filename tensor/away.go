package tensor

import (
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Store is memory outside the device for values that wait there: of the host, of
// another device, of another machine, or a file.
type Store interface {
	// Take gives room for a value of size bytes. Without room it gives an error,
	// and the value stays on the device.
	Take(size uint64) (Room, error)
	// TakeBytes gives memory that the host reads and writes, for what is computed
	// there, and a function that takes it back. A nil buf stands for memory of
	// which only the books are kept.
	TakeBytes(size uint64) (buf []byte, giveBack func(), err error)
}

// Room is a place for one value outside the device. It is used from one goroutine
// at a time. What it queues on side reads or writes all bytes of the value, and the
// device's memory stays until side has passed it.
type Room interface {
	Send(side device.Stream, from device.Ptr)
	// Fetch brings back what was sent. Where that was lost, zeros come.
	Fetch(side device.Stream, to device.Ptr)
	// Free gives the room back, when side has passed what was queued. It returns
	// an error if a Fetch brought zeros for what was lost.
	Free() error
}

// ErrLost is wrapped by the error of what was computed with zeros in the place of a
// value that was lost outside the device.
var ErrLost = errors.New("a value that waited outside the device was lost")

// HostStore is a Store in memory that the host reads: the function is its TakeBytes.
type HostStore func(size uint64) (buf []byte, giveBack func(), err error)

// TakeBytes implements Store.
func (take HostStore) TakeBytes(size uint64) (buf []byte, giveBack func(), err error) {
	return take(size)
}

// Take implements Store.
func (take HostStore) Take(size uint64) (Room, error) {
	buf, giveBack, err := take(size)
	return hostRoom{buf, giveBack}, err
}

// hostRoom is a Room in the host's memory; without a buf nothing is copied.
type hostRoom struct {
	buf      []byte
	giveBack func()
}

func (r hostRoom) Send(side device.Stream, from device.Ptr) {
	if r.buf != nil {
		side.Download(r.buf, from)
	}
}

func (r hostRoom) Fetch(side device.Stream, to device.Ptr) {
	if r.buf != nil {
		side.Upload(to, r.buf)
	}
}

func (r hostRoom) Free() error {
	r.giveBack()
	return nil
}

// UseStore lets values that a Schedule sends away go to s. They are copied on
// side, a stream of the device beside the one that computes, so that copies and
// computation overlap. Both stay the caller's.
//
// Memory that is copied is free at a place in the program (depart), in the order
// of the stream that computes. So addresses don't depend on how fast copies are,
// and a peak is the same on every device.
func (rt *Runtime) UseStore(s Store, side device.Stream) { rt.store, rt.side = s, side }

// AwayForm is how a float32 value is held outside the device. All others are
// held as they are.
type AwayForm string

const (
	AwayExact    AwayForm = ""         // as it is
	AwayBFloat16 AwayForm = "bfloat16" // half the bytes; relative error at most 2⁻⁸
	// AwayInt8 is blocks of 64 numbers in 8 bits each, about a quarter of the
	// bytes; the error is at most 1/254 of the block's greatest (kernel.Pack8).
	AwayInt8 AwayForm = "int8"
)

// Validate says whether there is such a form.
func (f AwayForm) Validate() error {
	switch f {
	case AwayExact, AwayBFloat16, AwayInt8:
		return nil
	}
	return fmt.Errorf("values outside the device as %q: want bfloat16 or int8, or nothing for all of their bits", string(f))
}

// Bytes is what n float32 values take.
func (f AwayForm) Bytes(n int) int {
	switch f {
	case AwayBFloat16:
		return 2 * n
	case AwayInt8:
		return kernel.Pack8Bytes(n)
	}
	return 4 * n
}

// pack gives t, float32 and dense, in form f, on the stream that computes.
func (f AwayForm) pack(t *Tensor) *Tensor {
	p := f.room(t.rt, t.Len())
	if f == AwayBFloat16 {
		kernel.Scale(t.rt.stream, t.Len(), p.ptr(), t.ptr(), 1, false)
	} else {
		kernel.Pack8(t.rt.stream, t.Len(), p.ptr(), t.ptr())
	}
	return p
}

// unpack queues on the side stream that p, in form f, becomes t.
func (f AwayForm) unpack(t, p *Tensor) {
	if f == AwayBFloat16 {
		kernel.Scale(t.rt.side, t.Len(), t.ptr(), p.ptr(), 1, false)
	} else {
		kernel.Unpack8(t.rt.side, t.Len(), t.ptr(), p.ptr())
	}
}

// room gives memory of the device for n values in form f.
func (f AwayForm) room(rt *Runtime, n int) *Tensor {
	if f == AwayBFloat16 {
		return rt.Empty(BFloat16, trace.Activation, n)
	}
	return rt.Empty(Int32, trace.Activation, (f.Bytes(n)+3)/4)
}

// parcel is a value's copy in the Store.
type parcel struct {
	rt      *Runtime
	form    AwayForm
	room    Room
	arrived device.Event // of the last fetch, until somebody reads
}

// send queues a copy of t, dense, to the store. Where there is none, or it has
// no room, it gives nil, and the value stays.
func (rt *Runtime) send(t *Tensor, form AwayForm) *parcel {
	if rt.store == nil {
		return nil
	}
	if t.dtype != Float32 {
		form = AwayExact
	}
	if form != AwayExact {
		t = form.pack(t)
		defer t.drop()
	}
	room, err := rt.store.Take(t.Bytes())
	if err != nil {
		return nil
	}
	rt.side.Wait(rt.stream.Record())
	room.Send(rt.side, t.ptr().Ptr)
	rt.depart(t)
	return &parcel{rt: rt, form: form, room: room}
}

// fetch queues a copy back into new memory.
func (p *parcel) fetch(shape []int, d DType) *Tensor {
	rt := p.rt
	t := rt.Empty(d, trace.Activation, shape...)
	to := t
	if p.form != AwayExact {
		to = p.form.room(rt, t.Len())
		defer to.drop()
	}
	rt.side.Wait(rt.stream.Record())
	p.room.Fetch(rt.side, to.ptr().Ptr)
	if to != t {
		p.form.unpack(t, to)
		rt.depart(to)
	}
	p.arrived = rt.side.Record()
	t.st.copied = p.arrived
	return t
}

// departure is memory that the side stream still works with.
type departure struct {
	t    *Tensor
	done device.Event
}

// mostDepartures bounds how many there are at a time.
const mostDepartures = 2

// depart keeps t's memory while what the side stream has queued works with it:
// until that many others have come after it, when what is computed waits for
// the side stream. So memory is free at a place in the program and not at a
// moment, and a step takes the same memory whenever copies end.
func (rt *Runtime) depart(t *Tensor) {
	if len(rt.departures) == mostDepartures {
		rt.endDeparture()
	}
	t = t.Detach()
	t.held = true
	rt.departures = append(rt.departures, departure{t, rt.side.Record()})
}

func (rt *Runtime) endDeparture() {
	d := rt.departures[0]
	rt.departures = append(rt.departures[:0], rt.departures[1:]...)
	rt.stream.Wait(d.done)
	d.t.drop()
}

// endDepartures ends all.
func (rt *Runtime) endDepartures() {
	for len(rt.departures) > 0 {
		rt.endDeparture()
	}
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
	p.rt.side.Record().Sync()
	if err := p.room.Free(); err != nil && p.rt.lost == nil {
		p.rt.lost = fmt.Errorf("%w: %w", ErrLost, err)
	}
}

// Lost is the first error, since it was called last, that a value was lost outside
// the device. It is complete when backward is: values are computed with zeros in its
// place until then, so that nothing may be kept of them.
func (rt *Runtime) Lost() error {
	err := rt.lost
	rt.lost = nil
	return err
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
