package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Module is code that was loaded into a context.
type Module uintptr

// Function is a kernel of a module.
type Function uintptr

// Load compiles PTX for the context's device and loads it. The driver keeps
// what it compiled on disk, so that a second program starts sooner.
func (c *Context) Load(ptx string) (m Module, err error) {
	const logBuffer, logBytes = 5, 6 // CU_JIT_ERROR_LOG_BUFFER and its size
	text := append([]byte(ptx), 0)
	jit := &struct { // one object, so that all of it lies on the heap
		log     [4096]byte
		options [2]int32
		values  [2]uintptr
	}{options: [2]int32{logBuffer, logBytes}}
	jit.values = [2]uintptr{uintptr(unsafe.Pointer(&jit.log)), uintptr(len(jit.log))}
	err = c.in(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(jit.options)), uintptr(unsafe.Pointer(&jit.options)), uintptr(unsafe.Pointer(&jit.values)))
	var failure *Error
	if message, _, _ := bytes.Cut(jit.log[:], []byte{0}); errors.As(err, &failure) && len(message) > 0 {
		err = fmt.Errorf("%w: %s", err, message)
	}
	return m, err
}

// Unload takes a module out of the context.
func (c *Context) Unload(m Module) error { return c.in(cuModuleUnload, uintptr(m)) }

// Function finds a kernel of a module.
func (c *Context) Function(m Module, name string) (f Function, err error) {
	text := append([]byte(name), 0)
	err = c.in(cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&text[0])))
	if err != nil {
		err = fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, err
}

// AllowShared lets launches of f ask for n bytes of shared memory for a block.
func (c *Context) AllowShared(f Function, n int) error {
	const maxDynamicShared = 8
	return c.in(cuFuncSetAttribute, uintptr(f), maxDynamicShared, uintptr(n))
}

// Call is one launch of a kernel with its parameters in one piece of memory.
type Call struct {
	Function Function
	Grid     [3]int
	Block    int // threads
	Shared   int // bytes of shared memory for a block

	// Early lets the kernel start while the one before it in the queue still runs.
	// It must wait for that itself (griddepcontrol.wait) before it reads or writes.
	Early bool
}

// Params is where launches find the parameters of kernels. It lies on the heap,
// so that the driver can read it, and serves one launch at a time.
type Params struct {
	pointer unsafe.Pointer
	size    uintptr
	extra   [5]uintptr

	config launchConfig
	early  launchAttribute
}

// launchConfig is CUlaunchConfig, and launchAttribute CUlaunchAttribute.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      Stream
	attributes  *launchAttribute
	count       uint32
}

type launchAttribute struct {
	id    uint64
	value [16]uint32
}

// NewParams gives Params for size bytes at p, which is not on a stack.
func NewParams(p unsafe.Pointer, size uintptr) *Params {
	const bufferPointer, bufferSize, end = 1, 2, 0 // CU_LAUNCH_PARAM_…
	params := &Params{pointer: p, size: size}
	params.extra = [5]uintptr{bufferPointer, uintptr(p), bufferSize, uintptr(unsafe.Pointer(&params.size)), end}
	const streamSerialization = 6 // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
	params.early = launchAttribute{id: streamSerialization, value: [16]uint32{1}}
	params.config = launchConfig{attributes: &params.early, count: 1}
	return params
}

// Launch queues a kernel. The driver has copied the parameters when it returns.
func (c *Context) Launch(s Stream, k *Call, p *Params) error {
	if k.Early {
		return c.launchEarly(s, k, p)
	}
	err := c.plainIn(cuLaunchKernel, uintptr(k.Function),
		uintptr(k.Grid[0]), uintptr(k.Grid[1]), uintptr(k.Grid[2]), uintptr(k.Block), 1, 1,
		uintptr(k.Shared), uintptr(s), 0, uintptr(unsafe.Pointer(&p.extra)))
	runtime.KeepAlive(p)
	return err
}

// StartsEarly says whether launches can be Early: on GPUs of compute capability
// 9.0 or newer, with CUDA 12.
func (c *Context) StartsEarly(capability int) bool {
	return capability >= 90 && c.Address(cuLaunchKernelEx) != 0
}

func (c *Context) launchEarly(s Stream, k *Call, p *Params) error {
	g := &p.config
	g.grid, g.block = [3]uint32{uint32(k.Grid[0]), uint32(k.Grid[1]), uint32(k.Grid[2])}, [3]uint32{uint32(k.Block), 1, 1}
	g.shared, g.stream = uint32(k.Shared), s
	err := c.plainIn(cuLaunchKernelEx, uintptr(unsafe.Pointer(g)), uintptr(k.Function), 0, uintptr(unsafe.Pointer(&p.extra)))
	runtime.KeepAlive(p)
	return err
}
