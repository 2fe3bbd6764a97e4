package device

import (
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// fakeGPU is a CUDA driver in Go memory: the oracle of the CUDA device where
// there is no GPU. It checks what the real driver would not forgive, runs
// queued work as late as it may (when somebody waits or asks), and fails the
// nth call on demand.
type fakeGPU struct {
	mu       sync.Mutex
	calls    int
	fail     int // number of the call to fail, from 1 on
	failed   string
	noVMM    bool
	noFiles  bool // memory cannot be exported
	fast     bool // work is done when somebody asks for it
	updates  int  // of graphs
	refuse   int  // number of the update that does not fit
	next     uintptr
	total    uint64
	plain    map[uintptr][]byte
	ranges   map[uintptr]uint64
	handles  map[uintptr][]byte
	files    map[uintptr]*os.File // in which those handles lie that can be exported or were imported
	imports  map[uintptr]bool
	mapped   map[uintptr]uintptr // granule of address → handle
	within   map[uintptr]uintptr // … → where in the handle
	access   map[uintptr]bool
	peers    map[uintptr]bool // handles that are the second GPU's, which only the first one reaches
	host     map[uintptr][]byte
	streams  map[uintptr]*fakeStream
	events   map[uintptr]*fakeMark
	graphs   map[uintptr]fakeGraph
	execs    map[uintptr]fakeGraph
	retained int
	broken   []string // what the device did wrong
}

type fakeStream struct {
	queue    []func()
	queued   int
	done     int
	captures bool
	captured fakeGraph
	clock    float64   // seconds that the work took so far
	passed   []float64 // what it was behind each piece of work
}

// fakeGraph is launches, and their functions.
type fakeGraph struct {
	work      []func()
	functions []uintptr
}

// fakeMark is where an event was recorded last; nil for nowhere.
type fakeMark struct {
	s     *fakeStream
	n     int
	timed bool
}

// time is when the stream passed the mark.
func (m *fakeMark) time() float64 {
	if m.n == 0 {
		return 0
	}
	return m.s.passed[m.n-1]
}

const fakeGranule = 2 << 20

func newFakeGPU() *fakeGPU {
	return &fakeGPU{next: 1 << 40, total: 1 << 40, plain: map[uintptr][]byte{}, ranges: map[uintptr]uint64{}, handles: map[uintptr][]byte{}, files: map[uintptr]*os.File{}, imports: map[uintptr]bool{},
		mapped: map[uintptr]uintptr{}, within: map[uintptr]uintptr{}, access: map[uintptr]bool{}, peers: map[uintptr]bool{}, host: map[uintptr][]byte{}, streams: map[uintptr]*fakeStream{}, events: map[uintptr]*fakeMark{},
		graphs: map[uintptr]fakeGraph{}, execs: map[uintptr]fakeGraph{}}
}

func (g *fakeGPU) wrong(what string) uintptr {
	g.broken = append(g.broken, what)
	return 1
}

func (g *fakeGPU) take(n uintptr) uintptr {
	p := g.next
	g.next += (n + fakeGranule - 1) &^ (fakeGranule - 1)
	return p
}

// put writes a result to where the caller wants it.
func put[T any](p uintptr, v T) uintptr {
	*(*T)(Ptr(p).pointer()) = v
	return 0
}

func (g *fakeGPU) call(symbol string, a []uintptr) uintptr {
	g.mu.Lock()
	defer g.mu.Unlock()
	if symbol == "cuGetErrorName" || symbol == "cuGetErrorString" {
		return 1
	}
	if g.calls++; g.calls == g.fail {
		if g.failed = symbol; symbol == "cuStreamEndCapture" {
			g.streams[a[0]].captured, g.streams[a[0]].captures = fakeGraph{}, false
		}
		return cuda.OutOfMemory
	}
	if f := fakeCalls[symbol]; f != nil {
		return f(g, a)
	}
	return g.wrong("call of " + symbol)
}

var fakeCalls = map[string]func(g *fakeGPU, a []uintptr) uintptr{
	"cuInit":                       func(g *fakeGPU, a []uintptr) uintptr { return 0 },
	"cuDeviceGetCount":             func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], int32(2)) },
	"cuDeviceGet":                  func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], int32(a[1])) },
	"cuDeviceGetName":              func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], [5]byte{'f', 'a', 'k', 'e'}) },
	"cuDeviceGetAttribute":         (*fakeGPU).attribute,
	"cuDeviceCanAccessPeer":        func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], int32(flagOf(a[1]+a[2] == 1))) },
	"cuDevicePrimaryCtxRetain":     func(g *fakeGPU, a []uintptr) uintptr { g.retained++; return put(a[0], 7+a[1]) },
	"cuDevicePrimaryCtxRelease_v2": func(g *fakeGPU, a []uintptr) uintptr { g.retained--; return 0 },
	"cuCtxSetCurrent": func(g *fakeGPU, a []uintptr) uintptr {
		if a[0] < 7 || a[0] >= 7+uintptr(g.retained) {
			return g.wrong("context that does not exist")
		}
		return 0
	},
	"cuMemGetInfo_v2": func(g *fakeGPU, a []uintptr) uintptr { put(a[0], g.total); return put(a[1], g.total) },
	"cuMemAlloc_v2": func(g *fakeGPU, a []uintptr) uintptr {
		p := g.take(a[1])
		g.plain[p] = make([]byte, a[1])
		return put(a[0], p)
	},
	"cuMemFree_v2": func(g *fakeGPU, a []uintptr) uintptr {
		if g.plain[a[0]] == nil {
			return g.wrong("free of no allocation")
		}
		delete(g.plain, a[0])
		return 0
	},
	"cuMemHostAlloc": func(g *fakeGPU, a []uintptr) uintptr {
		b := make([]byte, a[1]+512)
		p := (uintptr(unsafe.Pointer(&b[0])) + 511) &^ 511
		g.host[p] = b
		return put(a[0], p)
	},
	"cuMemFreeHost":                 func(g *fakeGPU, a []uintptr) uintptr { delete(g.host, a[0]); return 0 },
	"cuMemGetAllocationGranularity": func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], uint64(fakeGranule)) },
	"cuMemAddressReserve":           (*fakeGPU).reserve,
	"cuMemAddressFree":              (*fakeGPU).unreserve,
	"cuMemCreate": func(g *fakeGPU, a []uintptr) uintptr {
		h := g.take(1)
		prop := *(*[4]int32)(Ptr(a[2]).pointer())
		g.handles[h] = g.memory(h, a[1], prop[1])
		if prop[3] == 1 {
			g.peers[h] = true
		}
		return put(a[0], h)
	},
	"cuMemRelease":                   (*fakeGPU).release,
	"cuMemMap":                       (*fakeGPU).mapAt,
	"cuMemUnmap":                     (*fakeGPU).unmap,
	"cuMemSetAccess":                 (*fakeGPU).setAccess,
	"cuMemExportToShareableHandle":   (*fakeGPU).export,
	"cuMemImportFromShareableHandle": (*fakeGPU).admit,
	"cuStreamCreate": func(g *fakeGPU, a []uintptr) uintptr {
		s := g.take(1)
		g.streams[s] = &fakeStream{}
		return put(a[0], s)
	},
	"cuStreamDestroy_v2":     (*fakeGPU).destroyStream,
	"cuStreamSynchronize":    (*fakeGPU).sync,
	"cuStreamWaitEvent":      (*fakeGPU).waitEvent,
	"cuStreamWaitValue64_v2": (*fakeGPU).waitCount,
	"cuStreamWriteValue64_v2": func(g *fakeGPU, a []uintptr) uintptr {
		count, n := g.count(a[1]), uint64(a[2])
		g.streams[a[0]].push(func() { *count = n })
		return 0
	},
	"cuEventCreate": func(g *fakeGPU, a []uintptr) uintptr {
		e := g.take(1)
		g.events[e] = &fakeMark{timed: a[1] == 0}
		return put(a[0], e)
	},
	"cuEventElapsedTime":  (*fakeGPU).elapsed,
	"cuEventDestroy_v2":   func(g *fakeGPU, a []uintptr) uintptr { delete(g.events, a[0]); return 0 },
	"cuEventRecord":       (*fakeGPU).record,
	"cuEventQuery":        (*fakeGPU).query,
	"cuEventSynchronize":  func(g *fakeGPU, a []uintptr) uintptr { m := g.events[a[0]]; m.s.run(m.n); return 0 },
	"cuModuleLoadDataEx":  func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], g.take(1)) },
	"cuModuleUnload":      func(g *fakeGPU, a []uintptr) uintptr { return 0 },
	"cuModuleGetFunction": func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], g.take(1)) },
	"cuLaunchKernel":      func(g *fakeGPU, a []uintptr) uintptr { return g.launch(a[0], a[8], a[10]) },
	"cuLaunchKernelEx": func(g *fakeGPU, a []uintptr) uintptr {
		return g.launch(a[1], *(*uintptr)(Ptr(a[0] + 32).pointer()), a[3])
	},
	"cuStreamBeginCapture_v2": func(g *fakeGPU, a []uintptr) uintptr {
		if s := g.streams[a[0]]; s.captures {
			return g.wrong("capture in a capture")
		} else {
			s.captures = true
		}
		return 0
	},
	"cuStreamEndCapture":          (*fakeGPU).endCapture,
	"cuGraphInstantiateWithFlags": (*fakeGPU).instantiate,
	"cuGraphExecUpdate_v2":        (*fakeGPU).updateExec,
	"cuGraphLaunch":               (*fakeGPU).launchGraph,
	"cuGraphDestroy":              func(g *fakeGPU, a []uintptr) uintptr { delete(g.graphs, a[0]); return 0 },
	"cuGraphExecDestroy":          func(g *fakeGPU, a []uintptr) uintptr { delete(g.execs, a[0]); return 0 },
	"cuMemcpyDtoDAsync_v2":        func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], true, true) },
	"cuMemcpyHtoDAsync_v2":        func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], true, false) },
	"cuMemcpyDtoHAsync_v2":        func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], false, true) },
}

func (g *fakeGPU) attribute(a []uintptr) uintptr {
	switch cuda.Attribute(a[1]) {
	case cuda.CapabilityMajor:
		return put(a[0], int32(9))
	case cuda.VirtualMemory:
		return put(a[0], int32(flagOf(!g.noVMM)))
	case cuda.StreamCounts, cuda.RemoteFlush:
		return put(a[0], int32(1))
	case cuda.FileHandles:
		return put(a[0], int32(flagOf(!g.noFiles)))
	}
	return put(a[0], int32(0))
}

func flagOf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (g *fakeGPU) reserve(a []uintptr) uintptr {
	if a[1] > 1<<44 {
		return 1
	}
	p := g.take(a[1])
	g.ranges[p] = uint64(a[1])
	return put(a[0], p)
}

func (g *fakeGPU) unreserve(a []uintptr) uintptr {
	for p := a[0]; p < a[0]+a[1]; p += fakeGranule {
		if g.mapped[p] != 0 {
			return g.wrong("release of mapped addresses")
		}
	}
	if g.ranges[a[0]] != uint64(a[1]) {
		return g.wrong("release of no range")
	}
	delete(g.ranges, a[0])
	return 0
}

func (g *fakeGPU) release(a []uintptr) uintptr {
	for _, h := range g.mapped {
		if h == a[0] {
			return g.wrong("release of a mapped handle")
		}
	}
	if g.handles[a[0]] == nil {
		return g.wrong("release of no handle")
	}
	g.forget(a[0])
	return 0
}

func (g *fakeGPU) mapAt(a []uintptr) uintptr {
	if g.handles[a[3]] == nil || uintptr(len(g.handles[a[3]])) != a[1] || a[0]%fakeGranule != 0 {
		return g.wrong("mapping")
	}
	for at := uintptr(0); at < a[1]; at += fakeGranule {
		if g.mapped[a[0]+at] != 0 {
			return g.wrong("mapping")
		}
		g.mapped[a[0]+at], g.within[a[0]+at] = a[3], at
	}
	return 0
}

func (g *fakeGPU) unmap(a []uintptr) uintptr {
	for p := a[0]; p < a[0]+a[1]; p += fakeGranule {
		if g.mapped[p] == 0 {
			return g.wrong("unmapping")
		}
	}
	for p := a[0]; p < a[0]+a[1]; p += fakeGranule {
		delete(g.mapped, p)
		delete(g.access, p)
	}
	return 0
}

func (g *fakeGPU) setAccess(a []uintptr) uintptr {
	for i := range a[3] {
		if desc := *(*[3]int32)(Ptr(a[2] + 12*i).pointer()); desc != [3]int32{1, int32(i), 3} { // the first GPU, and the second one
			return g.wrong("access for another device")
		}
	}
	for p := a[0]; p < a[0]+a[1]; p += fakeGranule {
		if g.mapped[p] == 0 {
			return g.wrong("access without mapping")
		}
		g.access[p] = true
	}
	return 0
}

func (g *fakeGPU) destroyStream(a []uintptr) uintptr {
	if s := g.streams[a[0]]; s.done != s.queued || s.captures {
		return g.wrong("end of a stream with work")
	}
	delete(g.streams, a[0])
	return 0
}

// push queues f, or captures it.
func (s *fakeStream) push(f func()) {
	if s.captures {
		s.captured.work = append(s.captured.work, f)
		return
	}
	s.queue, s.queued = append(s.queue, f), s.queued+1
}

// run does the work up to number n.
func (s *fakeStream) run(n int) {
	for s.done < n {
		s.queue[0]()
		s.queue, s.done, s.passed = s.queue[1:], s.done+1, append(s.passed, s.clock)
	}
}

func (g *fakeGPU) sync(a []uintptr) uintptr {
	s := g.streams[a[0]]
	if s.captures {
		return g.wrong("waiting for a capture")
	}
	s.run(s.queued)
	return 0
}

// launch is what every kernel of the GPU does: Ptr[0], a number, is tripled, and
// Int[0] added.
func (g *fakeGPU) launch(function, stream, extra uintptr) uintptr {
	if s := g.streams[stream]; s.captures {
		s.captured.functions = append(s.captured.functions, function)
	}
	p := *(*cudaParams)(Ptr((*(*[5]uintptr)(Ptr(extra).pointer()))[1]).pointer())
	g.streams[stream].push(func() {
		b := g.bytes(uintptr(p.Ptr[0]), 8, true)
		if len(b) < 8 {
			if g.failed == "" {
				g.wrong("kernel at addresses without memory")
			}
			return
		}
		*(*int64)(unsafe.Pointer(&b[0])) = 3**(*int64)(unsafe.Pointer(&b[0])) + p.Int[0]
	})
	return 0
}

func (g *fakeGPU) endCapture(a []uintptr) uintptr {
	s, graph := g.streams[a[0]], g.take(1)
	if !s.captures {
		return 401 // CUDA_ERROR_ILLEGAL_STATE
	}
	g.graphs[graph], s.captured, s.captures = s.captured, fakeGraph{}, false
	return put(a[1], graph)
}

func (g *fakeGPU) instantiate(a []uintptr) uintptr {
	exec := g.take(1)
	g.execs[exec] = g.graphs[a[1]]
	return put(a[0], exec)
}

func (g *fakeGPU) updateExec(a []uintptr) uintptr {
	if !slices.Equal(g.execs[a[0]].functions, g.graphs[a[1]].functions) {
		return g.wrong("change to a graph of other kernels")
	}
	g.updates++
	if g.updates == g.refuse {
		return 910
	}
	g.execs[a[0]] = g.graphs[a[1]]
	return 0
}

func (g *fakeGPU) launchGraph(a []uintptr) uintptr {
	s := g.streams[a[1]]
	if _, ok := g.execs[a[0]]; s.captures || !ok {
		return g.wrong("launch of a graph")
	}
	for _, f := range g.execs[a[0]].work {
		s.push(f)
	}
	return 0
}

func (g *fakeGPU) waitEvent(a []uintptr) uintptr {
	if g.streams[a[0]].captures {
		return g.wrong("wait in a capture")
	}
	m := *g.events[a[1]]
	g.streams[a[0]].push(func() { m.s.run(m.n) })
	return 0
}

// count is 64 bits of page-locked memory.
func (g *fakeGPU) count(p uintptr) *uint64 {
	for at, b := range g.host {
		if p >= at && p < at+uintptr(len(b)) && p%8 == 0 {
			return (*uint64)(Ptr(p).pointer())
		}
	}
	g.wrong("count in other memory")
	return new(uint64)
}

func (g *fakeGPU) waitCount(a []uintptr) uintptr {
	s, count, n := g.streams[a[0]], g.count(a[1]), uint64(a[2])
	if a[3] != 1<<30 {
		return g.wrong("a wait that flushes nothing")
	}
	s.push(func() {
		for _, other := range g.streams {
			if other != s && *count < n {
				other.run(other.queued)
			}
		}
		if *count < n && g.failed == "" {
			g.wrong("a wait for a count that nobody sets")
		}
	})
	return 0
}

func (g *fakeGPU) record(a []uintptr) uintptr {
	s, m := g.streams[a[1]], g.events[a[0]]
	if s.captures {
		return g.wrong("event in a capture")
	}
	m.s, m.n = s, s.queued
	return 0
}

func (g *fakeGPU) elapsed(a []uintptr) uintptr {
	from, to := g.events[a[1]], g.events[a[2]]
	if from == nil || to == nil || !from.timed || !to.timed || from.s == nil || to.s == nil || from.s.done < from.n || to.s.done < to.n {
		if g.failed == "" {
			g.wrong("time of events that take none or are not done")
		}
		return 1
	}
	return put(a[0], float32(1e3*(to.time()-from.time())))
}

// query says whether an event is reached, and then does a piece of work.
func (g *fakeGPU) query(a []uintptr) uintptr {
	m := g.events[a[0]]
	if g.fast {
		m.s.run(m.n)
	}
	if m.s.done >= m.n {
		return 0
	}
	m.s.run(m.s.done + 1)
	return cuda.NotReady
}

// copy queues a copy. Addresses of the device are looked up when it runs.
func (g *fakeGPU) copy(stream, dst, src, n uintptr, toDevice, fromDevice bool) uintptr {
	if g.streams[stream].captures {
		return g.wrong("copy in a capture")
	}
	g.streams[stream].push(func() {
		for n > 0 {
			to, from := g.bytes(dst, n, toDevice), g.bytes(src, n, fromDevice)
			k := uintptr(copy(to, from))
			if k == 0 && g.failed == "" { // after a failure the program may not have waited
				g.wrong("copy at addresses without memory")
			}
			if k == 0 {
				return
			}
			dst, src, n = dst+k, src+k, n-k
		}
	})
	return 0
}

// bytes is memory from p on, at most n bytes and perhaps less.
func (g *fakeGPU) bytes(p, n uintptr, onDevice bool) []byte {
	if !onDevice {
		return Bytes(Ptr(p), int(n))
	}
	if h := g.mapped[p&^(fakeGranule-1)]; h != 0 && g.access[p&^(fakeGranule-1)] {
		b := g.handles[h][g.within[p&^(fakeGranule-1)]+p%fakeGranule:]
		b = b[:min(len(b), fakeGranule-int(p%fakeGranule))]
		return b[:min(n, uintptr(len(b)))]
	}
	for start, b := range g.plain {
		if p >= start && p < start+uintptr(len(b)) {
			b = b[p-start:]
			return b[:min(n, uintptr(len(b)))]
		}
	}
	return nil
}

// left says what of the GPU is still in use.
func (g *fakeGPU) left() (n int) {
	return len(g.plain) + len(g.ranges) + len(g.handles) + len(g.mapped) + len(g.host) + len(g.streams) + len(g.events) + len(g.graphs) + len(g.execs) + g.retained
}
