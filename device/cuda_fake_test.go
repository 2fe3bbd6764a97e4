package device

import (
	"os"
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
	next     uintptr
	total    uint64
	plain    map[uintptr][]byte
	ranges   map[uintptr]uint64
	handles  map[uintptr][]byte
	files    map[uintptr]*os.File // in which those handles lie that can be exported
	mapped   map[uintptr]uintptr  // granule of address → handle
	within   map[uintptr]uintptr  // … → where in the handle
	access   map[uintptr]bool
	peers    map[uintptr]bool // handles that are the second GPU's, which only the first one reaches
	host     map[uintptr][]byte
	streams  map[uintptr]*fakeStream
	events   map[uintptr]*fakeMark
	retained int
	broken   []string // what the device did wrong
}

type fakeStream struct {
	queue  []func()
	queued int
	done   int
}

// fakeMark is where an event was recorded last; nil for nowhere.
type fakeMark struct {
	s *fakeStream
	n int
}

const fakeGranule = 2 << 20

func newFakeGPU() *fakeGPU {
	return &fakeGPU{next: 1 << 40, total: 1 << 40, plain: map[uintptr][]byte{}, ranges: map[uintptr]uint64{}, handles: map[uintptr][]byte{}, files: map[uintptr]*os.File{},
		mapped: map[uintptr]uintptr{}, within: map[uintptr]uintptr{}, access: map[uintptr]bool{}, peers: map[uintptr]bool{}, host: map[uintptr][]byte{}, streams: map[uintptr]*fakeStream{}, events: map[uintptr]*fakeMark{}}
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
		g.failed = symbol
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
	"cuDeviceCanAccessPeer":        func(g *fakeGPU, a []uintptr) uintptr { return put(a[0], int32(flagOf(a[1] == 0 && a[2] == 1))) },
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
	"cuStreamDestroy_v2":   (*fakeGPU).destroyStream,
	"cuStreamSynchronize":  func(g *fakeGPU, a []uintptr) uintptr { s := g.streams[a[0]]; s.run(s.queued); return 0 },
	"cuStreamWaitEvent":    (*fakeGPU).waitEvent,
	"cuEventCreate":        func(g *fakeGPU, a []uintptr) uintptr { e := g.take(1); g.events[e] = &fakeMark{}; return put(a[0], e) },
	"cuEventDestroy_v2":    func(g *fakeGPU, a []uintptr) uintptr { delete(g.events, a[0]); return 0 },
	"cuEventRecord":        (*fakeGPU).record,
	"cuEventQuery":         (*fakeGPU).query,
	"cuEventSynchronize":   func(g *fakeGPU, a []uintptr) uintptr { m := g.events[a[0]]; m.s.run(m.n); return 0 },
	"cuMemcpyDtoDAsync_v2": func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], true, true) },
	"cuMemcpyHtoDAsync_v2": func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], true, false) },
	"cuMemcpyDtoHAsync_v2": func(g *fakeGPU, a []uintptr) uintptr { return g.copy(a[3], a[0], a[1], a[2], false, true) },
}

func (g *fakeGPU) attribute(a []uintptr) uintptr {
	switch cuda.Attribute(a[1]) {
	case cuda.CapabilityMajor:
		return put(a[0], int32(9))
	case cuda.VirtualMemory:
		return put(a[0], int32(flagOf(!g.noVMM)))
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
	desc := *(*[3]int32)(Ptr(a[2]).pointer())
	if a[3] != 1 || desc != [3]int32{1, 0, 3} {
		return g.wrong("access for another device")
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
	if s := g.streams[a[0]]; s.done != s.queued {
		return g.wrong("end of a stream with work")
	}
	delete(g.streams, a[0])
	return 0
}

func (s *fakeStream) push(f func()) { s.queue, s.queued = append(s.queue, f), s.queued+1 }

// run does the work up to number n.
func (s *fakeStream) run(n int) {
	for s.done < n {
		s.queue[0]()
		s.queue, s.done = s.queue[1:], s.done+1
	}
}

func (g *fakeGPU) waitEvent(a []uintptr) uintptr {
	m := *g.events[a[1]]
	g.streams[a[0]].push(func() { m.s.run(m.n) })
	return 0
}

func (g *fakeGPU) record(a []uintptr) uintptr {
	s := g.streams[a[1]]
	*g.events[a[0]] = fakeMark{s, s.queued}
	return 0
}

// query says whether an event is reached, and then does a piece of work.
func (g *fakeGPU) query(a []uintptr) uintptr {
	m := g.events[a[0]]
	if m.s.done >= m.n {
		return 0
	}
	m.s.run(m.s.done + 1)
	return cuda.NotReady
}

// copy queues a copy. Addresses of the device are looked up when it runs.
func (g *fakeGPU) copy(stream, dst, src, n uintptr, toDevice, fromDevice bool) uintptr {
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
	return len(g.plain) + len(g.ranges) + len(g.handles) + len(g.mapped) + len(g.host) + len(g.streams) + len(g.events) + g.retained
}
