package tensor

import (
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// MaxDims is the greatest number of dimensions of a tensor.
const MaxDims = kernel.MaxDims

// DType is the type of a tensor's elements.
type DType = device.DType

// The element types.
const (
	Float32  = device.Float32
	Int32    = device.Int32
	BFloat16 = device.BFloat16
	Float16  = device.Float16
)

// storage is one block of memory under one or more handles.
type storage struct {
	block      *alloc.Block // nil for a past alone, and for a parameter on demand that nobody reads
	use        func()       // of a parameter on demand, before each access; nil for others
	refs       int
	version    int          // counts changes in place
	persistent bool         // a parameter's: outlives every graph, so that no Saver is asked
	maker      *node        // the operation that was recorded when it was made; nil for none
	home       *home        // where those who saved it find it under a Schedule; nil for none
	copied     device.Event // a copy on another stream that must be over before the memory is free; nil for none
}

// bytes is what its block takes, in units of the allocator's.
func (st *storage) bytes() int64 {
	const unit = 512
	if st.block == nil {
		return 0
	}
	return (int64(st.block.Size()) + unit - 1) / unit * unit
}

// Tensor is a handle on a strided array in device memory.
type Tensor struct {
	rt      *Runtime
	st      *storage
	dtype   DType
	shape   []int // never changed once set, so that handles share it
	strides []int // elements
	offset  int   // elements from the start of the storage

	room int // elements that there is memory for in what is made for a Part, at least

	node *node // the operation that made it; nil where no gradient flows
	leaf *slot // its own gradient, for leaves that ask for one

	cast       bool    // of a parameter, whose gradient is leaf
	owner      *slot   // whose gradient this handle is
	held       bool    // kept by a graph or its Saver, not by the program
	serial     uint64  // grows with every handle
	prev, next *Tensor // the runtime's ring of unreleased handles
}

// Empty gives a tensor with undefined content.
func (rt *Runtime) Empty(d DType, p trace.Purpose, shape ...int) *Tensor {
	strides := denseStrides(shape)
	st := &storage{block: rt.block(numel(shape)*d.Size(), p), maker: rt.unbound}
	if r := rt.recorder(); r != nil {
		r.took(st, st.bytes())
	}
	return rt.handle(&Tensor{st: st, dtype: d, shape: slices.Clone(shape), strides: strides})
}

// Full gives a float32 activation with all elements equal to v.
func (rt *Runtime) Full(v float32, shape ...int) *Tensor {
	t := rt.Empty(Float32, trace.Activation, shape...)
	kernel.Fill(rt.stream, t.ptr(), t.Len(), v)
	return t
}

// Parameter gives a float32 leaf with undefined content that collects a gradient.
func (rt *Runtime) Parameter(shape ...int) *Tensor {
	t := rt.Empty(Float32, trace.Parameter, shape...)
	t.st.persistent = true
	return t.RequireGrad()
}

// FromFloat32s gives a copy of data on the device; it waits until data may be reused.
func (rt *Runtime) FromFloat32s(p trace.Purpose, data []float32, shape ...int) *Tensor {
	t := rt.Empty(Float32, p, shape...)
	t.Upload(device.BytesOf(data))
	rt.mustSync()
	return t
}

// FromInt32s gives a copy of data on the device; it waits until data may be reused.
func (rt *Runtime) FromInt32s(p trace.Purpose, data []int32, shape ...int) *Tensor {
	t := rt.Empty(Int32, p, shape...)
	t.Upload(device.BytesOf(data))
	rt.mustSync()
	return t
}

func (rt *Runtime) mustSync() {
	if err := rt.Sync(); err != nil {
		panic(failure{err})
	}
}

// handle enters t into the runtime's ring and counts it on its storage.
func (rt *Runtime) handle(t *Tensor) *Tensor {
	t.rt = rt
	t.st.refs++
	rt.link(t)
	return t
}

// Retain gives another handle on the same array and the same past.
func (t *Tensor) Retain() *Tensor {
	t.use()
	c := *t
	c.owner, c.held = nil, false
	if c.node != nil {
		c.node.refs++
	}
	return t.rt.handle(&c)
}

// Past gives a handle on t's past alone, which holds none of its memory: backward
// can begin there (Backward), and the value can't be used.
func (t *Tensor) Past() *Tensor {
	t.recorded()
	t.node.refs++
	return t.rt.handle(&Tensor{st: &storage{}, dtype: t.dtype, shape: t.shape, strides: denseStrides(t.shape), node: t.node})
}

// Detach gives a handle on the same array with no past.
func (t *Tensor) Detach() *Tensor { return t.view(t.shape, t.strides, t.offset) }

// view gives a handle with no past on the same storage.
func (t *Tensor) view(shape, strides []int, offset int) *Tensor {
	t.use()
	return t.rt.handle(&Tensor{st: t.st, dtype: t.dtype, shape: shape, strides: strides, offset: offset})
}

// Release ends the handle. A second Release panics.
func (t *Tensor) Release() {
	t.use()
	t.drop()
}

// drop is Release for handles that a Rewind may have released already.
func (t *Tensor) drop() {
	if t.prev == nil {
		return
	}
	t.unlink()
	t.st.refs--
	if r := t.rt.recorder(); r != nil {
		r.dropped(t.st)
	}
	if t.st.refs == 0 && t.st.block != nil {
		if t.st.copied != nil {
			t.rt.stream.Wait(t.st.copied)
		}
		if t.st.block != nil {
			t.st.block.Free()
		}
	}
	if n := t.node; n != nil {
		n.unref()
	}
	if t.leaf != nil && !t.cast && t.st.refs == 0 {
		t.leaf.clear()
	}
	if t.owner != nil {
		t.owner.grad = nil
	}
}

// use panics if the handle is released.
func (t *Tensor) use() {
	if t.prev == nil {
		fail("tensor of shape %v was used after its release", t.shape)
	}
}

// RequireGrad makes t, a result of no operation, collect a gradient. It returns t.
func (t *Tensor) RequireGrad() *Tensor {
	t.use()
	if t.node != nil {
		fail("RequireGrad on the result of %s: only a leaf can ask for its gradient", t.node.name)
	}
	if t.leaf == nil {
		if !t.dtype.Float() {
			fail("RequireGrad on %v: only floating-point numbers have a gradient", t)
		}
		t.leaf = &slot{rt: t.rt, dtype: t.dtype, shape: t.shape, purpose: trace.Gradient}
	}
	return t
}

// NeedsGrad says whether operations on t are recorded.
func (t *Tensor) NeedsGrad() bool { return t.node != nil || t.leaf != nil }

// Grad is the gradient that backward collected for a leaf, or nil. The leaf
// owns it: Retain it to keep it beyond ZeroGrad.
func (t *Tensor) Grad() *Tensor {
	if t.leaf == nil {
		return nil
	}
	return t.leaf.grad
}

// ZeroGrad releases the leaf's gradient.
func (t *Tensor) ZeroGrad() {
	if t.leaf != nil {
		t.leaf.clear()
	}
}

// Shape is the sizes of the dimensions; the caller does not change it.
func (t *Tensor) Shape() []int { return t.shape }

// Dim is the size of dimension i; a negative i counts from the last.
func (t *Tensor) Dim(i int) int { return t.shape[axis(i, len(t.shape))] }

// Len is the number of elements.
func (t *Tensor) Len() int { return numel(t.shape) }

// Bytes is the size of the elements.
func (t *Tensor) Bytes() uint64 { return uint64(t.Len() * t.dtype.Size()) }

// DType is the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Runtime is where t was made.
func (t *Tensor) Runtime() *Runtime { return t.rt }

// String describes t without reading its elements.
func (t *Tensor) String() string { return fmt.Sprintf("%s%v", t.dtype, t.shape) }

// Upload queues a copy of src, the elements in row-major order, into t, which
// is dense. src must stay unchanged until the stream has passed it.
func (t *Tensor) Upload(src []byte) {
	t.whole("Upload", len(src))
	to := t.ptr().Ptr
	t.st.version++
	t.rt.stream.Upload(to, src)
}

// Download queues a copy of t, which is dense, into dst, which holds it after
// the next Sync.
func (t *Tensor) Download(dst []byte) {
	t.whole("Download", len(dst))
	t.rt.stream.Download(dst, t.ptr().Ptr)
}

func (t *Tensor) whole(what string, n int) {
	t.use()
	if !t.dense() || uint64(n) != t.Bytes() {
		fail("%s of %d bytes: %v has %d bytes (dense: %v)", what, n, t, t.Bytes(), t.dense())
	}
}

// Float32s waits and returns the elements in row-major order, those of 16 bits
// widened.
func (t *Tensor) Float32s() []float32 {
	d := t.contiguous()
	if t.dtype == BFloat16 || t.dtype == Float16 {
		half := d
		d = half.converted(Float32)
		half.Release()
	}
	defer d.Release()
	out := make([]float32, t.Len())
	d.Download(device.BytesOf(out))
	t.rt.mustSync()
	return out
}

// ptr is the address of the first element, with their type.
func (t *Tensor) ptr() kernel.Array {
	t.use()
	if t.st.use != nil {
		t.st.use()
	}
	if t.st.block == nil {
		fail("%v is a past alone: its value is gone", t)
	}
	return kernel.Array{Ptr: t.st.block.Ptr(), Type: t.dtype}.From(t.offset)
}

// kview is t as a kernel's operand, broadcast to shape.
func (t *Tensor) kview(shape []int) kernel.View {
	return kernel.View{Ptr: t.ptr(), Strides: broadcastStrides(t, shape)}
}

// dense says whether the elements lie in row-major order without gaps.
func (t *Tensor) dense() bool {
	want := 1
	for i := len(t.shape) - 1; i >= 0; i-- {
		if t.shape[i] != 1 && t.strides[i] != want {
			return false
		}
		want *= t.shape[i]
	}
	return true
}

// contiguous gives a dense handle with no past: t's own memory where it is dense.
func (t *Tensor) contiguous() *Tensor {
	if t.dense() {
		return t.Detach()
	}
	return t.copyDense()
}

// copyDense gives a dense copy with no past.
func (t *Tensor) copyDense() *Tensor {
	c := t.rt.Empty(t.dtype, trace.Activation, t.shape...)
	kernel.Copy(t.rt.stream, t.shape, c.kview(t.shape), t.kview(t.shape), false)
	return c
}

// Set replaces the elements of t, dense and floating-point, by data, rounded
// where t has 16 bits; it waits until data may be reused.
func (t *Tensor) Set(data []float32) {
	if t.dtype == BFloat16 || t.dtype == Float16 {
		t.whole("Set", len(data)*t.dtype.Size())
		from := t.rt.FromFloat32s(trace.Workspace, data, t.shape...)
		defer from.Release()
		t.st.version++
		kernel.Copy(t.rt.stream, t.shape, t.kview(t.shape), from.kview(t.shape), false)
		return
	}
	t.Upload(device.BytesOf(data))
	t.rt.mustSync()
}
