package device

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/headroom-go/headroom/internal/cuda"
)

// CUDACode is kernels for GPUs in the text form PTX. A device compiles it when
// the first of its functions is launched, and keeps it. Functions take one
// parameter, the launch's Ptr, Int, Float and Type as C would lay them out in a
// struct, and of launches with members these as a second one.
type CUDACode struct {
	Name string
	// PTX gives the text for a GPU of a compute capability, such as 90 for 9.0.
	PTX func(capability int) (string, error)
}

// Grid is how a function is launched.
type Grid struct {
	X, Y, Z int // blocks; 0 stands for 1
	Block   int // threads of a block
	Shared  int // bytes of shared memory of a block, beside those that the function declares
}

// CUDAQueue is where the CUDA version of a kernel queues its work, on the
// stream of its launch. Queueing never fails: errors are kept by the stream. It
// is valid during the call.
type CUDAQueue struct{ stream *cudaStream }

// Run queues one function with l as its parameter, and l's members, if there are
// any, as its second one. A grid without blocks is nothing to do.
func (q *CUDAQueue) Run(code *CUDACode, function string, g Grid, l *Launch) {
	s := q.stream
	if g.X < 1 || g.Y < 0 || g.Z < 0 || !s.ready(l.Kernel.Name) {
		return
	}
	f, err := s.device.code.function(code, function, g.Shared)
	if err != nil {
		s.keep(err)
		return
	}
	s.params.Ptr, s.params.Float, s.params.Type = l.Ptr, l.Float, l.Type
	for i, n := range l.Int {
		s.params.Int[i] = int64(n)
	}
	slot := s.slot
	if l.Members != nil {
		s.params.Members, slot = *l.Members, s.whole
	}
	call := cuda.Call{Function: f, Grid: [3]int{g.X, max(1, g.Y), max(1, g.Z)}, Block: g.Block, Shared: g.Shared}
	s.batch.enter(uintptr(f))
	call.Early = s.device.code.early && !s.batch.capturing
	s.batch.leave(s.context.Launch(s.handle, &call, slot))
}

// Workspace gives n bytes of device memory with undefined content, which the
// work that is queued after it may use until the launch ends. It panics if the
// device's workspace has less.
func (q *CUDAQueue) Workspace(n int) Ptr {
	w := &q.stream.device.work
	if uint64(n) > w.size {
		panic(fmt.Sprintf("device: workspace of %d bytes; the device has %d", n, w.size))
	}
	return w.take(q.stream)
}

// WorkspaceBytes is what Workspace gives at most.
func (q *CUDAQueue) WorkspaceBytes() int { return int(q.stream.device.work.size) }

// Capability is the GPU's compute capability, such as 90 for 9.0.
func (q *CUDAQueue) Capability() int { return q.stream.device.code.capability }

// SharedMemory is the bytes of shared memory of each of the GPU's multiprocessors, for all
// blocks that it runs at once. Each takes 1 KiB beside its own.
func (q *CUDAQueue) SharedMemory() int { return q.stream.device.code.shared }

// cudaCode is the code that was loaded into a context.
type cudaCode struct {
	context    *cuda.Context
	capability int
	shared     int    // bytes of a multiprocessor
	early      bool   // kernels start early, and wait for those before them
	before     func() // CUDADevice.flush

	mu        sync.Mutex
	modules   map[*CUDACode]cuda.Module
	functions map[functionName]*cudaFunction
}

type functionName struct {
	code *CUDACode
	name string
}

type cudaFunction struct {
	handle cuda.Function
	shared int // bytes that launches may ask for
}

// freeShared is the shared memory that launches may have without asking.
const freeShared = 48 << 10

// function gives a function that launches with so much shared memory.
func (c *cudaCode) function(code *CUDACode, name string, shared int) (cuda.Function, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.functions[functionName{code, name}]
	if f == nil {
		var err error
		if f, err = c.load(code, name); err != nil {
			return 0, err
		}
	}
	if shared > f.shared {
		if err := c.context.AllowShared(f.handle, shared); err != nil {
			return 0, fmt.Errorf("%s with %d bytes of shared memory: %w", name, shared, err)
		}
		f.shared = shared
	}
	return f.handle, nil
}

// load finds a function, and compiles its code before if need be.
func (c *cudaCode) load(code *CUDACode, name string) (*cudaFunction, error) {
	c.before()
	m, ok := c.modules[code]
	if !ok {
		text, err := code.PTX(c.capability)
		if err != nil {
			return nil, err
		}
		if c.early {
			text = waiting(text)
		}
		if m, err = c.context.Load(text); err != nil {
			return nil, fmt.Errorf("kernels of %s: %w", code.Name, err)
		}
		if c.modules == nil {
			c.modules, c.functions = map[*CUDACode]cuda.Module{}, map[functionName]*cudaFunction{}
		}
		c.modules[code] = m
	}
	handle, err := c.context.Function(m, name)
	if err != nil {
		return nil, err
	}
	f := &cudaFunction{handle, freeShared}
	c.functions[functionName{code, name}] = f
	return f, nil
}

// waiting makes every kernel of a PTX text wait, before it does anything, for what
// is before it in its stream to be done. So it can be brought to the
// multiprocessors while that still ends (programmatic dependent launch), which
// saves about a microsecond between two kernels.
func waiting(ptx string) string {
	var out strings.Builder
	entry, body := false, false
	for line := range strings.Lines(ptx) {
		switch {
		case strings.HasPrefix(line, ".version"):
			line = ".version 7.8\n"
		case strings.HasPrefix(line, ".target"):
			line = ".target sm_90\n"
		case strings.Contains(line, ".entry "):
			entry = true
		case entry && line == "{\n":
			entry, body = false, true
		case body && !strings.HasPrefix(line, "\t."): // behind the declarations
			body = false
			out.WriteString("\tgriddepcontrol.wait;\n")
		}
		out.WriteString(line)
	}
	return out.String()
}

func (c *cudaCode) close() (err error) {
	for _, m := range c.modules {
		err = errors.Join(err, c.context.Unload(m))
	}
	return err
}
