package train

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// How a training keeps its optimizer outside the device.
//
// Adam needs 12 bytes a weight beside the weight: two moments and the gradient.
// They are used once a step. Under Strategy.StateAway they wait in the Store,
// and with them a second copy of the weights, of which the optimizer is then.
// The update is computed there, on the host, by the same code:
//
//	backward   each gradient goes out as soon as it is complete, and its
//	           memory is free for the rest of backward
//	update     the host updates weight after weight, and each that is done
//	           goes back while the next is computed
//
// So 8 bytes a weight are moved in a step. To bring the moments to the device
// and back would move 16, and take memory there. The method is that of Ren et
// al., "ZeRO-Offload" (2021), without its delayed update, so that the numbers
// are those of a training on the device, bit for bit where the device rounds as
// the host does.
//
// The norm of all gradients is needed before the first weight may change, and a
// step that fails must have changed nothing. Therefore the update waits for the
// end of backward. Since gradients wait outside until then, that costs no
// memory of the device.
//
// With micro-batches, gradients stay on the device until the last one has added
// to them. Under Strategy.GradientsAway they go out after each, and come back
// before the next one adds to them: the next in the order in which backward came
// to them in the first micro-batch is fetched ahead.

// outside is the optimizer's side of a training under StateAway. The methods
// of a nil one do nothing.
type outside struct {
	dev     *storeDevice
	mem     *alloc.Allocator
	near    *tensor.Runtime // of the device
	rt      *tensor.Runtime
	side    device.Stream
	between bool // gradients wait here between micro-batches, too

	params []*nn.Parameter // here
	twins  []*tensor.Twin
	stale  bool // the weights on the device are others

	first, last bool   // the micro-batch of now
	order       []int  // of twins, as backward came to them in the first micro-batch
	place       []int  // of each twin in order
	touched     []bool // in this micro-batch
	updated     []device.Event
}

// buildOutside makes the optimizer in the store, to compute on host.
func (t *Trainer) buildOutside(s tensor.Store, host device.Device) (err error) {
	if host.Info().Kind == device.CUDA {
		return errors.New("a GPU cannot compute in memory outside it: UseStore needs a host device for the optimizer's state")
	}
	o := &outside{dev: &storeDevice{Device: host, store: s}, near: t.rt, side: t.side, between: t.Strategy.GradientsAway, stale: true}
	if o.mem, err = alloc.New(o.dev, alloc.Options{}); err != nil {
		return err
	}
	stream, err := o.dev.NewStream()
	if err != nil {
		return errors.Join(err, o.mem.Close())
	}
	o.rt = tensor.New(o.mem, stream)
	err = o.rt.Try(func() {
		seen := map[*tensor.Tensor]bool{}
		for _, p := range t.model.Parameters() {
			if !seen[p.Tensor] {
				seen[p.Tensor] = true
				o.add(p)
			}
		}
		t.opt = t.optimizer(o.params)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("the optimizer's state finds no room outside the device: %w", err), o.endMemory())
	}
	o.place, o.touched = make([]int, len(o.twins)), make([]bool, len(o.twins))
	for i, w := range o.twins {
		w.OnGrad(func() { o.touch(i) }, func() { o.complete(i) })
	}
	t.opt.OnUpdate = func(*nn.Parameter) { o.updated = append(o.updated, o.rt.Stream().Record()) }
	t.outside = o
	return nil
}

func (o *outside) add(p *nn.Parameter) {
	w := tensor.NewTwin(o.rt, p.Tensor)
	o.twins = append(o.twins, w)
	o.params = append(o.params, &nn.Parameter{Name: p.Name, Tensor: w.Far()})
}

// begin is told of every micro-batch.
func (o *outside) begin(i int, last bool) {
	if o == nil {
		return
	}
	o.first, o.last = i == 0, last
	clear(o.touched)
	if o.first {
		o.order = o.order[:0]
	}
}

// touch is told that backward adds to the gradient of twin i.
func (o *outside) touch(i int) {
	o.twins[i].FetchGrad()
	o.twins[i].Arrive()
	if o.touched[i] {
		return
	}
	o.touched[i] = true
	if o.first {
		o.place[i] = len(o.order)
		o.order = append(o.order, i)
		return
	}
	if next := o.place[i] + 1; next < len(o.order) && !o.touched[o.order[next]] {
		o.twins[o.order[next]].FetchGrad()
	}
}

// complete is told that backward has added all to the gradient of twin i.
func (o *outside) complete(i int) {
	if o.last || o.between {
		o.twins[i].SendGrad()
	}
}

// gather gives the parameters here, with all that they need for the update.
func (o *outside) gather() []*nn.Parameter {
	for _, w := range o.twins {
		w.SendGrad() // what no operation completed
		if o.stale {
			w.SendWeights()
		}
	}
	o.stale = false
	o.near.EndSends()
	o.side.Record().Sync()
	return o.params
}

// bring takes the weights to the device, each when it is updated.
func (o *outside) bring() {
	if o == nil {
		return
	}
	done := 0
	for i, p := range o.params {
		if p.Grad() != nil {
			o.updated[done].Sync()
			o.twins[i].FetchWeights()
			done++
		}
	}
}

// zeroGrad forgets the gradients and ends the step. The next one starts when
// the weights are on the device.
func (o *outside) zeroGrad() {
	if o == nil {
		return
	}
	o.near.EndSends()
	for _, w := range o.twins {
		w.ZeroGrad()
	}
	clear(o.updated)
	o.updated = o.updated[:0]
}

// sync waits for all that was queued.
func (o *outside) sync() error {
	if o == nil {
		return nil
	}
	return errors.Join(o.rt.Sync(), o.side.Sync())
}

// weightsChanged says that the weights on the device are others.
func (o *outside) weightsChanged() {
	if o != nil {
		o.stale = true
	}
}

// release frees what is here, but the optimizer.
func (o *outside) release() {
	if o == nil {
		return
	}
	for _, w := range o.twins {
		w.Release()
	}
}

// close gives the memory back.
func (o *outside) close() error {
	if o == nil {
		return nil
	}
	return errors.Join(o.sync(), o.endMemory())
}

func (o *outside) endMemory() error {
	return errors.Join(o.rt.Sync(), o.mem.Close(), o.rt.Stream().Close())
}

// piece is memory of a Store. Holding buf keeps it alive, where it is Go's: the
// device knows it by its address alone.
type piece struct {
	buf      []byte
	giveBack func()
}

// storeDevice is a device whose memory is a Store's, in plain allocations, and
// whose streams are those of a device that computes in the host's memory.
type storeDevice struct {
	device.Device
	store tensor.Store
	given map[device.Ptr]piece
	next  device.Ptr // of addresses of memory of which only the books are kept
}

// firstBooked lies under all addresses of the null device.
const firstBooked = 1 << 40

func (d *storeDevice) Info() device.Info {
	i := d.Device.Info()
	return device.Info{Kind: i.Kind, Name: "store", Capacity: 1 << 62, Granularity: i.Granularity, Workers: i.Workers}
}

func (d *storeDevice) Alloc(size uint64) (device.Ptr, error) {
	buf, giveBack, err := d.store.TakeBytes(size)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	p := device.Addr(buf)
	if buf == nil {
		p = max(d.next, firstBooked)
		d.next = p + device.Ptr(size)
	}
	if d.given == nil {
		d.given = map[device.Ptr]piece{}
	}
	d.given[p] = piece{buf, giveBack}
	return p, nil
}

func (d *storeDevice) Free(p device.Ptr) error {
	given, ok := d.given[p]
	if !ok {
		return fmt.Errorf("the store gave no memory at %#x", p)
	}
	delete(d.given, p)
	given.giveBack()
	return nil
}
