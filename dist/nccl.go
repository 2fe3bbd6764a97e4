package dist

import (
	"fmt"
	"sync"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/cuda"
)

// NCCL is a group whose devices are GPUs, each rank's its own. Collectives are
// those of NVIDIA's library, on the streams that they are queued on; another
// group, of the same ranks on memory of the host, lets them meet and tells of
// failures. What ranks differ in is not found: it makes them wait until Patience
// ends in the other group, or for ever.
type NCCL struct {
	Group   // the other one
	lib     *cuda.NCCL
	context *cuda.Context
	subs    []*NCCL

	mu   sync.Mutex
	comm *communicator
}

// NewNCCL makes the group of GPUs for a rank of base, on dev. All ranks call it;
// it fails where the library is not found. folders are patterns of where to look
// for it after the loader did. End comes before the device closes.
func NewNCCL(base Group, dev *device.CUDADevice, folders []string) (*NCCL, error) {
	lib, err := cuda.OpenNCCL(folders)
	if err != nil {
		return nil, fmt.Errorf("collectives between GPUs need NCCL, such as from pip install nvidia-nccl-cu13: %w", err)
	}
	return newNCCL(base, lib, dev.Context())
}

func newNCCL(base Group, lib *cuda.NCCL, context *cuda.Context) (*NCCL, error) {
	g := &NCCL{Group: base, lib: lib, context: context}
	if err := g.connect(); err != nil {
		return nil, err
	}
	if h, ok := base.(*hostGroup); ok {
		h.me.onOver(func(a *attempt) { // so that what waits goes on
			if c := g.communicator(); c.generation <= a.number {
				c.abort()
			}
		})
	}
	return g, nil
}

// connect makes the communicator.
func (g *NCCL) connect() (err error) {
	var id cuda.UniqueID
	if g.Rank() == 0 {
		if id, err = g.lib.UniqueID(); err != nil {
			return err
		}
	}
	if err := tell(g.Group, id[:]); err != nil {
		return err
	}
	c := &communicator{}
	if h, ok := g.Group.(*hostGroup); ok {
		c.generation = h.me.now.Load().generation
	}
	if c.Comm, err = g.lib.Init(g.context, g.Size(), g.Rank(), id); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.comm = c
	return nil
}

// communicator is one of the library's, which ends once.
type communicator struct {
	*cuda.Comm
	generation int // of attempts
	end        sync.Once
}

func (c *communicator) abort() { c.end.Do(func() { c.Abort() }) }

// communicator is that of the attempt in progress.
func (g *NCCL) communicator() *communicator {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.comm
}

// Attempt implements Group. After an attempt that was abandoned there are new
// communicators, for which all ranks wait for each other.
func (g *NCCL) Attempt() error {
	anew := g.Err() != nil
	if err := g.Group.Attempt(); err != nil || !anew {
		return err
	}
	if err := g.renew(); err != nil {
		g.Fail(err)
		return err
	}
	return unlessAbandoned(g.Barrier()) // nobody abandons an attempt while others make their communicators
}

func (g *NCCL) renew() error {
	g.communicator().abort()
	err := g.connect()
	for _, s := range g.subs {
		if err == nil {
			err = s.renew()
		}
	}
	return err
}

// tell copies data of rank 0, in memory of the host, to all ranks.
func tell(g Group, data []byte) (err error) {
	dev, err := device.OpenHost(device.HostOptions{Capacity: 1 << 20, Workers: 1, Plain: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	p, err := dev.Alloc(uint64(len(data)))
	if err != nil {
		return err
	}
	defer dev.Free(p)
	s.Upload(p, data)
	g.Broadcast(s, 0, Buf{Ptr: p, Len: len(data) / 4, Type: device.Int32})
	s.Download(data, p)
	return s.Close()
}

// End ends the library's part in the group, and of those that Sub gave; the other
// group stays.
func (g *NCCL) End() (err error) {
	for _, s := range g.subs {
		if failed := s.End(); err == nil {
			err = failed
		}
	}
	c := g.communicator()
	c.end.Do(func() {
		if failed := c.Destroy(); err == nil {
			err = failed
		}
	})
	return err
}

// Sub implements Group.
func (g *NCCL) Sub(name string, ranks ...int) (Group, error) {
	base, err := g.Group.Sub(name, ranks...)
	if err != nil {
		return nil, err
	}
	s, err := newNCCL(base, g.lib, g.context)
	if err == nil {
		g.subs = append(g.subs, s)
	}
	return s, err
}

// queue queues calls of the library as one.
func (g *NCCL) queue(s device.Stream, what opcode, moved int, calls func(c *communicator, s cuda.Stream) error) {
	k := &device.Kernel{Name: what.String(), CUDA: func(_ *device.Launch, q *device.CUDAQueue) {
		q.Call(func(s cuda.Stream) error {
			if err := g.Err(); err != nil {
				return err
			}
			c := g.communicator()
			return c.Group(func() error { return calls(c, s) })
		})
	}}
	s.Launch(&device.Launch{Kernel: k, Bytes: uint64(moved)})
}

// ncclType is the library's number of a type.
func ncclType(d device.DType) int {
	return [...]int{device.Float32: cuda.NCCLFloat32, device.Int32: cuda.NCCLInt32, device.BFloat16: cuda.NCCLBFloat16, device.Float16: cuda.NCCLFloat16}[d]
}

// ncclOp is the library's number of an operation.
func ncclOp(op Op) int { return [...]int{Sum: cuda.NCCLSum, Mean: cuda.NCCLAvg, Max: cuda.NCCLMax}[op] }

// AllReduce implements Group.
func (g *NCCL) AllReduce(s device.Stream, op Op, bufs ...Buf) {
	checkOp(op, bufs)
	g.queue(s, allReduce, 4*total(bufs), func(c *communicator, s cuda.Stream) error {
		for _, b := range bufs {
			if err := c.AllReduce(cuda.Ptr(b.Ptr), cuda.Ptr(b.Ptr), b.Len, ncclType(b.Type), ncclOp(op), s); err != nil {
				return err
			}
		}
		return nil
	})
}

// even is the length of every rank's part where they are all as long, else 0.
func (g *NCCL) even(b Buf) int {
	if n := b.Part(g.Size(), 0).Len; n*g.Size() == b.Len {
		return n
	}
	return 0
}

// ReduceScatter implements Group. Parts of different lengths are reduced rank by
// rank.
func (g *NCCL) ReduceScatter(s device.Stream, op Op, dst, src []Buf) {
	checkOp(op, src)
	checkParts("ReduceScatter", g, dst, src)
	g.queue(s, reduceScatter, total(src)+total(dst), func(c *communicator, s cuda.Stream) error {
		for i, b := range src {
			if n := g.even(b); n > 0 {
				if err := c.ReduceScatter(cuda.Ptr(dst[i].Ptr), cuda.Ptr(b.Ptr), n, ncclType(b.Type), ncclOp(op), s); err != nil {
					return err
				}
				continue
			}
			for r := range g.Size() {
				part := b.Part(g.Size(), r)
				if part.Len == 0 {
					continue
				}
				if err := c.Reduce(cuda.Ptr(dst[i].Ptr), cuda.Ptr(part.Ptr), part.Len, ncclType(b.Type), ncclOp(op), r, s); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// AllGather implements Group. Parts of different lengths come rank by rank.
func (g *NCCL) AllGather(s device.Stream, dst, src []Buf) {
	checkParts("AllGather", g, src, dst)
	g.queue(s, allGather, total(src)+total(dst), func(c *communicator, s cuda.Stream) error {
		for i, b := range dst {
			if n := g.even(b); n > 0 {
				if err := c.AllGather(cuda.Ptr(b.Ptr), cuda.Ptr(src[i].Ptr), n, ncclType(b.Type), s); err != nil {
					return err
				}
				continue
			}
			for r := range g.Size() {
				part := b.Part(g.Size(), r)
				if part.Len == 0 {
					continue
				}
				if err := c.Broadcast(cuda.Ptr(part.Ptr), cuda.Ptr(src[i].Ptr), part.Len, ncclType(b.Type), r, s); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Broadcast implements Group.
func (g *NCCL) Broadcast(s device.Stream, root int, bufs ...Buf) {
	g.queue(s, broadcast, total(bufs), func(c *communicator, s cuda.Stream) error {
		for _, b := range bufs {
			if err := c.Broadcast(cuda.Ptr(b.Ptr), cuda.Ptr(b.Ptr), b.Len, ncclType(b.Type), root, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// Exchange implements Group.
func (g *NCCL) Exchange(s device.Stream, send, receive []Message) {
	moved := 0
	for _, m := range append(append([]Message(nil), send...), receive...) {
		moved += m.Bytes()
	}
	g.queue(s, exchange, moved, func(c *communicator, s cuda.Stream) error {
		for _, m := range send {
			if err := c.Send(cuda.Ptr(m.Ptr), m.Len, ncclType(m.Type), m.Rank, s); err != nil {
				return err
			}
		}
		for _, m := range receive {
			if err := c.Receive(cuda.Ptr(m.Ptr), m.Len, ncclType(m.Type), m.Rank, s); err != nil {
				return err
			}
		}
		return nil
	})
}
