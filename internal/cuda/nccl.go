package cuda

import (
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

const (
	ncclGetVersion = iota
	ncclGetUniqueID
	ncclCommInitRankScalable
	ncclCommDestroy
	ncclCommAbort
	ncclGroupStart
	ncclGroupEnd
	ncclAllReduce
	ncclReduceScatter
	ncclReduce
	ncclAllGather
	ncclBroadcast
	ncclSend
	ncclRecv
	libcSetenv
)

// ncclSymbols are NCCL's functions, and one of the C library below it.
var ncclSymbols = []string{
	ncclGetVersion:           "ncclGetVersion",
	ncclGetUniqueID:          "ncclGetUniqueId",
	ncclCommInitRankScalable: "ncclCommInitRankScalable",
	ncclCommDestroy:          "ncclCommDestroy",
	ncclCommAbort:            "ncclCommAbort",
	ncclGroupStart:           "ncclGroupStart",
	ncclGroupEnd:             "ncclGroupEnd",
	ncclAllReduce:            "ncclAllReduce",
	ncclReduceScatter:        "ncclReduceScatter",
	ncclReduce:               "ncclReduce",
	ncclAllGather:            "ncclAllGather",
	ncclBroadcast:            "ncclBroadcast",
	ncclSend:                 "ncclSend",
	ncclRecv:                 "ncclRecv",
	libcSetenv:               "setenv",
}

// NCCL computes collectives between GPUs. Its methods may be called from several
// goroutines at once.
type NCCL struct{ *library.Library }

// OpenNCCL loads NCCL, of 2.23 or newer. folders are patterns of where to look
// for it after the loader did. Collectives inside the switch (NVLS), whose
// buffers take much memory, are off unless the environment says otherwise.
func OpenNCCL(folders []string) (*NCCL, error) {
	l, err := library.Open([]string{"libnccl.so.2"}, folders, ncclSymbols)
	if err != nil {
		return nil, err
	}
	return startNCCL(l), nil
}

// FakeNCCL is an NCCL whose calls go to f, for tests.
func FakeNCCL(f library.Caller) *NCCL { return startNCCL(library.Fake("fake", ncclSymbols, f)) }

func startNCCL(l *library.Library) *NCCL {
	name, value := []byte("NCCL_NVLS_ENABLE\x00"), []byte("0\x00")
	l.Call(libcSetenv, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&value[0])), 0) // it reads C's copy of the environment
	return &NCCL{l}
}

func (n *NCCL) check(symbol, code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Library: n.Name, Call: n.Symbol(symbol), Code: code, Text: ncclTexts[code], Advice: "with NCCL_DEBUG=WARN in the environment the library says more"}
}

var ncclTexts = map[int]string{
	library.NotFound: "the library does not have it: install NCCL 2.23 or newer",
	1:                "a call of CUDA's failed",
	2:                "a call of the system's failed",
	3:                "internal error",
	4:                "a value that it does not take",
	5:                "the calls don't fit together",
	6:                "another rank failed, or the network did",
	7:                "it is still in progress",
}

// Version is the library's version, such as 22703 for 2.27.3.
func (n *NCCL) Version() (int, error) {
	var v int32
	err := n.check(ncclGetVersion, n.Call(ncclGetVersion, uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

// UniqueID names a communicator: one rank makes it, and tells the others.
type UniqueID [128]byte

// UniqueID makes a new one.
func (n *NCCL) UniqueID() (id UniqueID, err error) {
	err = n.check(ncclGetUniqueID, n.Call(ncclGetUniqueID, uintptr(unsafe.Pointer(&id))))
	return id, err
}

// Comm is one rank of a communicator, on one GPU.
type Comm struct {
	*NCCL
	context *Context
	handle  uintptr
}

// Init makes the communicator of size ranks in a context; it waits until all
// ranks make theirs. End it by Destroy or Abort.
func (n *NCCL) Init(c *Context, size, rank int, id UniqueID) (*Comm, error) {
	m := &Comm{NCCL: n, context: c}
	return m, c.Do(func() error {
		return n.check(ncclCommInitRankScalable, n.Call(ncclCommInitRankScalable, uintptr(unsafe.Pointer(&m.handle)), uintptr(size), uintptr(rank), 1, uintptr(unsafe.Pointer(&id)), 0))
	})
}

// Destroy ends the communicator once its work is done.
func (m *Comm) Destroy() error { return m.do(ncclCommDestroy) }

// Abort ends the communicator with all that waits in it.
func (m *Comm) Abort() error { return m.do(ncclCommAbort) }

func (m *Comm) do(symbol int) error {
	return m.context.Do(func() error { return m.check(symbol, m.Plain(symbol, m.handle)) })
}

// Group queues the calls that f makes as one.
func (m *Comm) Group(f func() error) error {
	return m.context.Do(func() error { // a group belongs to its thread
		if err := m.check(ncclGroupStart, m.Plain(ncclGroupStart)); err != nil {
			return err
		}
		err := f()
		if end := m.check(ncclGroupEnd, m.Plain(ncclGroupEnd)); err == nil {
			err = end
		}
		return err
	})
}

// Types of elements and operations of NCCL.
const (
	NCCLInt32    = 2
	NCCLFloat16  = 6
	NCCLFloat32  = 7
	NCCLBFloat16 = 9

	NCCLSum = 0
	NCCLMax = 2
	NCCLAvg = 4
)

// The calls of a Group. n counts the elements, of the type t.

// AllReduce combines n elements of all ranks.
func (m *Comm) AllReduce(dst, src Ptr, n, t, op int, s Stream) error {
	return m.check(ncclAllReduce, m.Plain(ncclAllReduce, uintptr(src), uintptr(dst), uintptr(n), uintptr(t), uintptr(op), m.handle, uintptr(s)))
}

// ReduceScatter combines n elements for each rank.
func (m *Comm) ReduceScatter(dst, src Ptr, n, t, op int, s Stream) error {
	return m.check(ncclReduceScatter, m.Plain(ncclReduceScatter, uintptr(src), uintptr(dst), uintptr(n), uintptr(t), uintptr(op), m.handle, uintptr(s)))
}

// Reduce combines n elements for the rank root; dst is its.
func (m *Comm) Reduce(dst, src Ptr, n, t, op, root int, s Stream) error {
	return m.check(ncclReduce, m.Plain(ncclReduce, uintptr(src), uintptr(dst), uintptr(n), uintptr(t), uintptr(op), uintptr(root), m.handle, uintptr(s)))
}

// AllGather puts n elements of each rank together.
func (m *Comm) AllGather(dst, src Ptr, n, t int, s Stream) error {
	return m.check(ncclAllGather, m.Plain(ncclAllGather, uintptr(src), uintptr(dst), uintptr(n), uintptr(t), m.handle, uintptr(s)))
}

// Broadcast copies n elements of the rank root, its src, to the dst of all.
func (m *Comm) Broadcast(dst, src Ptr, n, t, root int, s Stream) error {
	return m.check(ncclBroadcast, m.Plain(ncclBroadcast, uintptr(src), uintptr(dst), uintptr(n), uintptr(t), uintptr(root), m.handle, uintptr(s)))
}

// Send sends n elements to a rank, which receives them.
func (m *Comm) Send(src Ptr, n, t, to int, s Stream) error {
	return m.check(ncclSend, m.Plain(ncclSend, uintptr(src), uintptr(n), uintptr(t), uintptr(to), m.handle, uintptr(s)))
}

// Receive receives n elements from a rank, which sends them.
func (m *Comm) Receive(dst Ptr, n, t, from int, s Stream) error {
	return m.check(ncclRecv, m.Plain(ncclRecv, uintptr(dst), uintptr(n), uintptr(t), uintptr(from), m.handle, uintptr(s)))
}
