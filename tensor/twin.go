package tensor

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// Twin is a parameter a second time, on another runtime, whose memory lies
// outside the device and is read by the host. An optimizer of the twin keeps
// its state there and computes there. What goes between the two goes on the
// stream of UseStore, beside what is computed.
//
// The gradient is at one of both at a time, and nothing of it is lost when it
// goes there and back: what is added up, and in which order, stays the same.
//
// On a null device nothing is copied, but the twin's device is told of the
// copies.
type Twin struct {
	near, far *Tensor
	room      *Tensor      // for the gradient, outside, for good
	away      bool         // the gradient is there
	coming    device.Event // of a gradient on its way back, until it is added to
}

// NewTwin makes a twin of p, a parameter, with undefined weights.
func NewTwin(far *Runtime, p *Tensor) *Twin {
	t := &Twin{near: p, far: far.Parameter(p.shape...)}
	t.room = far.Empty(Float32, trace.Gradient, p.shape...)
	return t
}

// Far is the parameter outside, whose gradient is there once it was sent.
func (t *Twin) Far() *Tensor { return t.far }

// OnGrad has before called in backward before each contribution to p's
// gradient, and after when no operation is left that may contribute.
func (t *Twin) OnGrad(before, after func()) { t.near.leaf.before, t.near.leaf.after = before, after }

// SendGrad queues that the gradient goes out, and frees its memory on the
// device. Without one there it does nothing.
func (t *Twin) SendGrad() {
	g := t.near.Grad()
	if g == nil {
		return
	}
	t.Arrive()
	t.down(t.room, g)
	t.near.rt.depart(g)
	t.far.leaf.clear()
	t.far.leaf.set(t.room.Detach())
	t.near.leaf.clear()
	t.away = true
}

// FetchGrad queues that a gradient that was sent comes back. Arrive comes
// before it is used.
func (t *Twin) FetchGrad() {
	if !t.away {
		return
	}
	g := t.near.rt.Empty(Float32, trace.Gradient, t.near.shape...)
	t.up(g, t.room)
	t.near.leaf.set(g)
	t.far.leaf.clear()
	t.away, t.coming = false, t.near.rt.side.Record()
}

// Arrive lets what is computed from now on wait for a gradient that comes back.
func (t *Twin) Arrive() {
	if t.coming != nil {
		t.near.rt.stream.Wait(t.coming)
		t.coming = nil
	}
}

// ZeroGrad forgets the gradient, on either side.
func (t *Twin) ZeroGrad() {
	t.Arrive()
	t.near.ZeroGrad()
	t.far.ZeroGrad()
	t.away, t.coming = false, nil
}

// EndSends lets what is computed from now on wait for the gradients that go out,
// and frees the last of their memory.
func (rt *Runtime) EndSends() { rt.endDepartures() }

// SendWeights queues that the weights of the device become the twin's.
func (t *Twin) SendWeights() {
	t.down(t.far, t.near)
	t.far.st.version++
}

// FetchWeights queues that the twin's weights become the device's. Nothing may
// be queued that changes the twin.
func (t *Twin) FetchWeights() {
	t.up(t.near, t.far)
	t.near.st.version++
}

// Release frees what is outside. The parameter on the device is as any other
// then.
func (t *Twin) Release() {
	t.OnGrad(nil, nil)
	t.ZeroGrad()
	t.room.Release()
	t.far.Release()
}

// down queues a copy from the device.
func (t *Twin) down(to, from *Tensor) {
	rt := t.near.rt
	rt.side.Wait(rt.stream.Record())
	if rt.Holds() {
		rt.side.Download(device.Bytes(to.ptr().Ptr, int(to.Bytes())), from.ptr().Ptr)
	} else {
		t.far.rt.stream.Copy(to.ptr().Ptr, from.ptr().Ptr, to.Bytes())
	}
}

// up queues a copy to the device.
func (t *Twin) up(to, from *Tensor) {
	rt := t.near.rt
	rt.side.Wait(rt.stream.Record())
	if rt.Holds() {
		rt.side.Upload(to.ptr().Ptr, device.Bytes(from.ptr().Ptr, int(from.Bytes())))
	} else {
		t.far.rt.stream.Copy(to.ptr().Ptr, from.ptr().Ptr, to.Bytes())
	}
}
