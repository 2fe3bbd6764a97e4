package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/internal/library"
	"github.com/headroom-go/headroom/internal/size"
)

// CUDAOptions describe a GPU to open.
type CUDAOptions struct {
	Number    int      // of the GPU, as the driver counts them, from 0 on
	Budget    uint64   // bytes of its memory for capacity and workspace; 0: what is free now, but for 256 MiB
	Workspace uint64   // bytes for intermediate results of kernels; 0: a 32nd of the budget, from 32 to 256 MiB
	Plain     bool     // no virtual memory, as on GPUs without it
	Folders   []string // patterns of where to look for libraries after the loader did

	shared bool           // memory can be exported, as OpenSharedCUDA wants it
	driver *cuda.Driver   // in place of the system's, in tests
	blas   library.Caller // likewise for cuBLASLt
	dnn    library.Caller // likewise for cuDNN
}

// CUDADevice computes on a GPU in its memory.
//
// The budget holds the workspace, a block that kernels use for intermediate
// results, and the capacity, which is the rest. Beside it stands the context,
// which the driver takes for itself and for the kernels' code: Info.Overhead
// says how much context and workspace took when the device was opened. A GPU's
// memory belongs to no program: where others take it, Create and Alloc fail
// with ErrOutOfMemory before the capacity is reached.
//
// Its kernels need no library but the driver; matrix products are faster with
// cuBLASLt, and convolutions and attention with cuDNN, which are loaded where
// they are found.
type CUDADevice struct {
	memory
	context *cuda.Context
	code    cudaCode
	blas    cudaBLAS
	dnn     cudaDNN
	work    cudaWorkspace

	streams []*cudaStream // all that were given, by ID; under mu
}

// The workspace has at least what cuBLASLt's fastest algorithms ask for.
// cuDNN's convolutions and gradients of attention fill as much as there is: the
// more, the more images and heads are computed at once.
const (
	leastWorkspace = 32 << 20
	mostWorkspace  = 256 << 20
	workspaceShare = 32 // of the budget
)

// spareBytes are left free where there is no budget, for the code of kernels,
// which the driver loads when it is first used.
const spareBytes = 256 << 20

// OpenCUDA opens a GPU. It fails with an error that says what is missing where
// there is no driver or no such GPU.
func OpenCUDA(o CUDAOptions) (*CUDADevice, error) {
	if o.Workspace == 0 && o.Budget != 0 {
		o.Workspace = defaultWorkspace(o.Budget)
	}
	if o.Budget != 0 && o.Budget <= o.Workspace {
		return nil, fmt.Errorf("GPU with a budget of %s: kernels take %s of it as their workspace", size.Format(o.Budget), size.Format(o.Workspace))
	}
	driver, gpu, err := findGPU(&o)
	if err != nil {
		return nil, err
	}
	before := usedBytes(driver, gpu, &o)
	context, err := driver.Retain(gpu)
	if err != nil {
		return nil, err
	}
	d := &CUDADevice{context: context}
	d.code.before, d.dnn.before = d.flush, d.flush
	if err := d.start(&o, before); err != nil {
		return nil, errors.Join(err, d.end())
	}
	return d, nil
}

// CUDAOf gives the GPU that d is, or that d watches or shares; nil for other
// devices.
func CUDAOf(d Device) *CUDADevice { return within[*CUDADevice](d) }

// within gives d as a T, or the device that d watches or shares; the zero T where
// neither is one.
func within[T any](d Device) (t T) {
	if t, ok := d.(T); ok {
		return t
	}
	if around, ok := d.(interface{ Unwrap() Device }); ok {
		return within[T](around.Unwrap())
	}
	return t
}

func defaultWorkspace(budget uint64) uint64 {
	return max(leastWorkspace, min(mostWorkspace, budget/workspaceShare)) &^ (2<<20 - 1)
}

// findGPU gives the driver and the GPU that o names.
func findGPU(o *CUDAOptions) (driver *cuda.Driver, gpu cuda.Device, err error) {
	if driver = o.driver; driver == nil {
		if driver, err = cuda.OpenDriver(o.Folders); err != nil {
			return nil, 0, err
		}
	}
	n, err := driver.Devices()
	if err != nil {
		return nil, 0, err
	}
	if o.Number >= n {
		return nil, 0, fmt.Errorf("GPU %d does not exist: the driver knows %d of them, from 0 on", o.Number, n)
	}
	gpu, err = driver.Device(o.Number)
	return driver, gpu, err
}

// start takes the workspace and opens the books. before is what programs held
// of the GPU before its context was there.
func (d *CUDADevice) start(o *CUDAOptions, before uint64) error {
	c := d.context
	name, err := c.DeviceName(c.Device)
	if err != nil {
		return err
	}
	if d.code.capability, err = c.Capability(); err != nil {
		return err
	}
	if d.code.shared, err = c.Attribute(c.Device, cuda.SharedMemory); err != nil {
		return err
	}
	d.code.context, d.code.early = c, c.StartsEarly(d.code.capability)
	free, _, err := c.MemInfo()
	if err != nil {
		return err
	}
	if o.Workspace == 0 {
		o.Workspace = defaultWorkspace(free)
	}
	if d.work.ptr, err = c.MemAlloc(o.Workspace); err != nil {
		return fmt.Errorf("workspace of %s: %w", size.Format(o.Workspace), err)
	}
	d.work.size = o.Workspace
	least := *o // so that products choose the same algorithms with every budget
	least.Workspace = min(o.Workspace, leastWorkspace)
	d.blas.start(c, &least)
	d.dnn.start(c, o)
	if free, _, err = c.MemInfo(); err != nil {
		return err
	}
	info := Info{Kind: CUDA, Model: name, Name: fmt.Sprintf("cuda:%d", o.Number), Granularity: 2 << 20, ChannelsLast: d.dnn.dnn != nil}
	if used := usedBytes(c.Driver, c.Device, o); used > before {
		info.Overhead = used - before
	}
	info.Capacity = (free - min(free, spareBytes)) &^ (info.Granularity - 1)
	if o.Budget != 0 {
		info.Name += "," + size.Exact(o.Budget)
		info.Capacity = o.Budget - o.Workspace
	}
	return d.openMemory(info, o)
}

// openMemory opens the book with what the GPU has.
func (d *CUDADevice) openMemory(info Info, o *CUDAOptions) (err error) {
	m := &cudaMemory{context: d.context, imports: map[Handle]cudaImport{}}
	has, err := d.context.Attribute(d.context.Device, cuda.VirtualMemory)
	if err != nil {
		return err
	}
	info.Virtual = has != 0 && !o.Plain && d.context.Has("cuMemMap")
	if o.shared {
		if err := d.allowExport(info.Virtual); err != nil {
			return err
		}
		info.Name += ",shared"
	}
	if info.Virtual {
		if info.Granularity, err = d.context.Granularity(); err != nil {
			return err
		}
		m.granularity, info.Alias, d.memory.virtual = info.Granularity, true, m
	}
	d.memory.book, d.memory.plain = newBook(info, 0), m
	return nil
}

// NewStream gives a stream of the GPU.
func (d *CUDADevice) NewStream() (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return nil, err
	}
	s, err := newCUDAStream(d, len(d.streams))
	if err != nil {
		return nil, d.book.misuse("new stream: %w", err)
	}
	d.streams = append(d.streams, s)
	return s, nil
}

// flush queues what streams have captured. It comes before something that the
// driver may do at no time of a capture.
func (d *CUDADevice) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		s.batch.flush()
	}
}

// forgetGraphs gives back the graphs that streams keep. It comes before handles that
// they are known by may stand for something else.
func (d *CUDADevice) forgetGraphs() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		err = errors.Join(err, s.batch.forget())
	}
	return err
}

// Close implements Device. No stream may be in use. Its error also holds those
// of the streams that were still open.
func (d *CUDADevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return err
	}
	var err error
	for _, s := range d.streams {
		if !s.closed {
			err = errors.Join(err, s.Close())
		}
		err = errors.Join(err, s.events.close())
	}
	return errors.Join(err, d.memory.close(), d.end())
}

// end gives back what start took.
func (d *CUDADevice) end() error {
	err := errors.Join(d.dnn.close(), d.blas.close(), d.code.close())
	if d.work.ptr != 0 {
		err = errors.Join(err, d.context.MemFree(d.work.ptr))
	}
	return errors.Join(err, d.context.Release())
}

// cudaWorkspace is memory for intermediate results, which one stream has at a
// time.
type cudaWorkspace struct {
	ptr  cuda.Ptr
	size uint64

	mu   sync.Mutex
	user *cudaStream // the last to take it
}

// take gives the workspace to s, after the work that the last user has queued.
func (w *cudaWorkspace) take(s *cudaStream) Ptr {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.user != nil && w.user != s {
		w.user.events.waitFor(s, w.user.events.record())
	}
	w.user = s
	return Ptr(w.ptr)
}

// leave is told that s has ended, and its work with it.
func (w *cudaWorkspace) leave(s *cudaStream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.user == s {
		w.user = nil
	}
}
