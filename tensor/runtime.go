package tensor

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// Runtime makes tensors on one device and records what they came from. It is
// used from one goroutine at a time.
type Runtime struct {
	mem    *alloc.Allocator
	stream device.Stream

	noGrad bool
	saver  Saver
	rerun  bool // a function runs a second time for a checkpoint
	casts  casts
	seed   uint64 // of random choices
	draws  uint64 // seeds drawn since SetSeed
	nodes  uint64 // nodes made so far

	logitRows int // at a time; see WithLogitRows

	unbound *node    // begun, and without its result yet
	waiting *waiting // the Schedule or Record in force; nil for none
	store   Store
	lost    error         // the first that Lost has not given yet
	side    device.Stream // of copies to and from the store

	departures []departure // the oldest first

	handles Tensor // head of the ring of unreleased handles, oldest first
	serial  uint64 // of the newest handle
	live    int

	retain   bool      // backward keeps the graph
	deferred *Deferred // what backward puts off; nil where it does all
	observer Observer  // nil: nobody looks
	ranges   int       // open ones that the observer knows
}

// New gives a runtime whose tensors lie in mem and are computed on stream.
func New(mem *alloc.Allocator, stream device.Stream) *Runtime {
	rt := &Runtime{mem: mem, stream: stream}
	rt.handles.prev, rt.handles.next = &rt.handles, &rt.handles
	return rt
}

// Allocator is where the tensors' memory comes from.
func (rt *Runtime) Allocator() *alloc.Allocator { return rt.mem }

// Stream is where the tensors are computed.
func (rt *Runtime) Stream() device.Stream { return rt.stream }

// Holds says whether the device keeps data: false on the null device, where
// there is no sense in making any.
func (rt *Runtime) Holds() bool { return rt.mem.Device().Info().Kind != device.Null }

// ChannelsLast says whether images are better kept as [N, H, W, C] than as
// [N, C, H, W] on the device.
func (rt *Runtime) ChannelsLast() bool { return rt.mem.Device().Info().ChannelsLast }

// Sync waits for all that was queued and returns its first error.
func (rt *Runtime) Sync() error { return rt.stream.Sync() }

// NoGrad runs f without recording operations.
func (rt *Runtime) NoGrad(f func()) {
	defer rt.setMode(rt.noGrad, rt.saver)
	rt.noGrad = true
	f()
}

// WithSaver runs f with s packing what its operations save; nil stands for
// plain handles.
func (rt *Runtime) WithSaver(s Saver, f func()) {
	defer rt.setMode(rt.noGrad, rt.saver)
	rt.saver = s
	f()
}

func (rt *Runtime) setMode(noGrad bool, s Saver) { rt.noGrad, rt.saver = noGrad, s }

// SetSeed starts the random choices of Dropout and attention anew: the same
// operations after the same seed make the same choices.
func (rt *Runtime) SetSeed(seed uint64) { rt.seed, rt.draws = seed, 0 }

// draw gives an operation a seed of its own.
func (rt *Runtime) draw() uint64 {
	rt.draws++
	return rand.NewPCG(rt.seed, rt.draws).Uint64()
}

// Live is the number of handles that are not released.
func (rt *Runtime) Live() int { return rt.live }

// Mark is a place in the sequence of handles.
type Mark uint64

// Mark returns the present place, for Rewind.
func (rt *Runtime) Mark() Mark { return Mark(rt.serial) }

// Rewind releases every handle made since m that is not released yet: what
// an expression left behind when it panicked.
func (rt *Runtime) Rewind(m Mark) {
	for rt.handles.prev.serial > uint64(m) {
		rt.handles.prev.drop()
	}
}

// link enters t as the newest handle.
func (rt *Runtime) link(t *Tensor) {
	rt.serial++
	rt.live++
	t.serial = rt.serial
	t.prev, t.next = rt.handles.prev, &rt.handles
	t.prev.next, t.next.prev = t, t
}

// unlink takes t out of the handles.
func (t *Tensor) unlink() {
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	t.rt.live--
}

// failure carries an error through a panic up to Try.
type failure struct{ err error }

func (f failure) String() string { return f.err.Error() }

// fail panics with a misuse error, which Try returns.
func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Fail panics with err, for Try.
func Fail(err error) { panic(failure{err}) }

// Failure is what Try makes of a value that was recovered: its error, or nil where
// Try would panic with it again.
func Failure(recovered any) error {
	if f, ok := recovered.(failure); ok {
		return f.err
	}
	return nil
}

// Try runs f and returns what it panicked with, if that was misuse of this
// package or a lack of memory; errors.As finds *alloc.OutOfMemoryError in it.
// All that f made and did not release is released; the tape's modes are as
// before.
func (rt *Runtime) Try(f func()) (err error) {
	mark := rt.Mark()
	noGrad, saver, open := rt.noGrad, rt.saver, rt.ranges
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			rt.setMode(noGrad, saver)
			rt.endRanges(open)
			rt.dropUnbound()
			rt.endDepartures()
			if rt.side != nil {
				rt.stream.Wait(rt.side.Record())
			}
			rt.Rewind(mark)
			err = errors.Join(r.err, rt.Sync())
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// block allocates device memory or panics for Try.
func (rt *Runtime) block(size int, p trace.Purpose) *alloc.Block {
	b, err := rt.mem.Alloc(uint64(max(size, 1)), p, rt.stream)
	if err != nil {
		panic(failure{err})
	}
	return b
}
