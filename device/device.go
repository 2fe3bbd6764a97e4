// Package device offers memory, streams, events, copies and launches behind one
// interface, with three devices: host (this machine's memory and processors),
// null (addresses of any size, nothing computed) and CUDA (a GPU). Host memory
// also comes shared (OpenSharedHost) and pinned (OpenPinned, and OpenPinned of
// a CUDA device), and a GPU's shared (OpenSharedCUDA).
//
// # The model
//
// A device has memory that only its own streams may touch. The program holds
// addresses (Ptr) and queues work; nothing above this package may assume that
// the processor can read them. Work on one stream runs in the order in which
// it was queued, asynchronously to the caller; work on two streams is ordered
// only by events.
//
// # Memory
//
// Addresses and memory are separate. The states of a range, and the calls that
// lead from one to the next:
//
//	None --Reserve--> Reserved --Map(handles)--> Mapped --Unmap--> Reserved --Release--> None
//	                  Create --> Handle --Map--> (mapped) --Unmap--> Handle --Destroy-->
//
// A handle is physical memory of one granule. It is mapped at one place at
// most or, where Info.Alias is true, at any number of places at once, which
// then all show the same content. A device without virtual memory
// (Info.Virtual is false) offers Alloc and Free alone, which are there on
// every device. Capacity counts handles and plain allocations:
//
//	used = granularity × handles + Σ plain allocations ≤ capacity
//
// It counts memory where it was created: handles that were imported from
// another process (Sharer) count there.
package device

import (
	"errors"
	"fmt"
)

// Ptr is an address in a device's memory. Zero is no address.
type Ptr uint64

// Handle is one granule of physical memory. Zero is no handle.
type Handle uint64

// Kind says what stands behind a device.
type Kind uint8

const (
	// Host computes on this machine's processors in its memory.
	Host Kind = iota
	// Null hands out addresses, holds no data and computes nothing.
	Null
	// CUDA computes on a GPU in its memory.
	CUDA
)

// Info describes a device. It never changes while the device is open.
type Info struct {
	Kind        Kind
	Name        string // as Open takes it, such as "host:256MiB" (but for OpenPinned's)
	Capacity    uint64 // bytes that handles and plain allocations may hold together
	Granularity uint64 // size in bytes of a handle, and the unit of Reserve, Map and Unmap
	Virtual     bool   // Reserve, Release, Create, Destroy, Map and Unmap work
	Alias       bool   // a handle may be mapped at several places at once
	Workers     int    // host threads that compute; 0 where there are none
	Model       string // what a GPU's maker calls it; empty for others
	Overhead    uint64 // bytes of a GPU's memory that this program takes beside the capacity: its context and workspace

	// ChannelsLast: convolutions are faster on images [N, H, W, C] than on
	// [N, C, H, W].
	ChannelsLast bool
}

// ErrOutOfMemory is returned (wrapped, with the figures) by Alloc and Create
// when the request would pass the device's capacity or the system has no
// memory left, and where the system bounds the number of mappings, by any call
// that needs one more. The device is as it was before the call.
var ErrOutOfMemory = errors.New("device out of memory")

// Device is one memory with the streams that work on it. Its methods may be
// called from several goroutines at once.
//
// Misuse (an address or handle that did not come from this device, a size
// that is no multiple of the granularity, a range in the wrong state) is
// returned as an error and changes nothing.
type Device interface {
	Info() Info

	// Alloc gives size bytes of memory, aligned to 512 bytes, content
	// undefined. Capacity counts the size rounded up to 512 bytes. It fails
	// with ErrOutOfMemory.
	Alloc(size uint64) (Ptr, error)
	// Free takes back what Alloc gave. No queued work may still touch it.
	Free(p Ptr) error

	// Reserve gives a range of addresses with no memory behind it, aligned to
	// the granularity. size is a multiple of the granularity.
	Reserve(size uint64) (Ptr, error)
	// Release takes back a whole range that Reserve gave. Nothing is mapped in it.
	Release(p Ptr) error

	// Create gives one granule of physical memory, content undefined. It fails
	// with ErrOutOfMemory.
	Create() (Handle, error)
	// Destroy takes back a handle that is mapped nowhere.
	Destroy(h Handle) error

	// Map puts the handles, one granule each, behind consecutive addresses
	// from p on. All of them or, when it fails, none of them is mapped.
	// The addresses are Reserved. Unless Info.Alias is true, each handle is
	// given once and mapped nowhere else.
	Map(p Ptr, handles []Handle) error
	// Unmap takes the memory of n granules from p on away from these
	// addresses; the handles keep their content, other mappings of theirs
	// stay, and they may be mapped elsewhere. No queued work may still touch
	// the addresses.
	Unmap(p Ptr, n int) error

	// NewStream gives a stream with nothing queued. Stream 0, the first, is
	// by convention the one that computes.
	NewStream() (Stream, error)

	// Close ends the streams and gives all memory back, after which no method
	// but Info works. No stream may be in use. It returns an error that names
	// what was still allocated, reserved or mapped.
	Close() error
}

// Stream is a queue of work that runs in order. A stream is used from one
// goroutine at a time; Event methods may be called from any.
//
// Queueing never fails: the first error of queued work is kept and returned
// by Sync from then on, and work behind it is skipped; events are reached all
// the same. A kernel that panics is such an error, with the kernel's name,
// and wraps a *Panic. Queueing on a closed stream panics.
type Stream interface {
	// ID is the stream's number on its device: 0, 1, 2 …
	ID() int
	// Launch queues a computation. l is copied.
	Launch(l *Launch)
	// Copy queues a copy of n bytes within the device. The ranges don't overlap.
	Copy(dst, src Ptr, n uint64)
	// Upload queues a copy from host memory. src must stay unchanged until the
	// stream has passed it.
	Upload(dst Ptr, src []byte)
	// Download queues a copy to host memory. dst holds the data once the
	// stream has passed it. On the null device it is filled with zeros.
	Download(dst []byte, src Ptr)
	// Record marks this place in the queue. Unlike the other methods it may be
	// called from any goroutine.
	Record() Event
	// Wait keeps later work of this stream from starting before e, which may
	// belong to another stream of the device, is reached.
	Wait(e Event)
	// Sync returns when all queued work is done, with its first error. Behind one
	// nothing is computed or copied any more.
	Sync() error
	// Clear returns when all queued work is done, and forgets its error: what is
	// queued from now on is done again.
	Clear()
	// Close waits for the queued work, ends the stream and returns what Sync
	// does.
	Close() error
}

// Event is a place in a stream's queue.
type Event interface {
	// Done says whether the stream has passed the event. It does not wait.
	Done() bool
	// Sync returns when the stream has passed the event.
	Sync()
}

// Limits of a Launch's arguments.
const (
	MaxPtrs   = 12
	MaxInts   = 32
	MaxFloats = 8

	MaxMembers    = 64 // with the other arguments below 4 KiB, which is what a GPU takes
	MaxMemberPtrs = 5
)

// DType is the type of the elements at an address.
type DType uint8

// The element types. BFloat16 has the exponent of Float32 and 7 bits of
// fraction, Float16 (IEEE 754 binary16) 5 bits of exponent and 10 of fraction.
const (
	Float32 DType = iota
	Int32
	BFloat16
	Float16
)

// Size is the number of bytes of an element.
func (d DType) Size() int { return [...]int{4, 4, 2, 2}[d] }

// Float says whether the elements are floating-point numbers.
func (d DType) Float() bool { return d != Int32 }

// String returns the name, as in float32.
func (d DType) String() string { return [...]string{"float32", "int32", "bfloat16", "float16"}[d] }

// MarshalText gives the name, for JSON.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText takes a name that String gives.
func (d *DType) UnmarshalText(name []byte) error {
	for t := Float32; t <= Float16; t++ {
		if t.String() == string(name) {
			*d = t
			return nil
		}
	}
	return fmt.Errorf("unknown element type %q: want float32, bfloat16, float16 or int32", name)
}

// Members are groups of arrays of different lengths that one launch goes over,
// each by itself.
type Members struct {
	N  int64 // how many there are
	Of [MaxMembers]Member
}

// Member is one group: arrays of as many elements each.
type Member struct {
	Ptr   [MaxMemberPtrs]Ptr
	Len   int64
	First int32 // number of its first block of threads; for CUDA
	Type  DType // of the elements at Ptr[0]; the others are of float32
}

// Launch is one computation with its arguments and its cost. It holds no
// pointers to Go memory but the kernel and its members, so queueing one
// allocates nothing.
type Launch struct {
	Kernel *Kernel
	// Members, if not nil, are more arguments. They lie on the heap, and stay as
	// they are until the launch is done.
	Members *Members
	Ptr     [MaxPtrs]Ptr
	Type    [MaxPtrs]DType // of the elements at Ptr
	Int     [MaxInts]int
	Float   [MaxFloats]float32
	Bytes   uint64 // least memory traffic: operands read and results written once
	Flops   uint64 // floating-point operations
	Link    uint64 // bytes to or from other devices, whichever are more; of collectives
}

// Kernel is a computation as each kind of device knows it.
type Kernel struct {
	Name string
	// Host runs the launch on the host device, spread over w. l is valid until
	// it returns.
	Host func(l *Launch, w *Workers)
	// CUDA queues the launch on a CUDA device's stream; nil if the kernel has no
	// version for it. l is a copy that the function may change.
	CUDA func(l *Launch, q *CUDAQueue)
}
