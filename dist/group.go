// Package dist lets several ranks compute one thing: collectives on device
// memory, and the engines that carry them.
//
// # Ranks and groups
//
// A job has a fixed number of ranks, 0 to Size−1. Each has a device of its own
// and sees the others through a Group. Ranks are goroutines of one process
// (Local) or processes on one or more machines (Join). Null stands for a rank
// of a job that is not there, so that a null device can foresee what its
// program does.
//
// # Collectives
//
// A collective is queued on a stream, like a kernel: the call returns at once,
// and what is queued behind it sees its result. All ranks of a group call the
// same collectives in the same order, with buffers of the same types and
// lengths; those of one group are queued on one stream, or on streams that
// events put in order. What differs between ranks is found and is an error on
// all of them, and no rank waits forever.
//
// Sums are taken in the order of the ranks, in float32 for types of 16 bits and
// rounded once, so that every rank has the same bits, in every run.
//
// # Failures
//
// Where a rank dies, fails (Group.Fail) or departs from the others, the job has
// failed on every rank: all collectives end, streams keep an *Error that names
// the rank, and Group.Err gives it. Nothing goes on after that but Close.
//
// # Attempts
//
// What a rank has to give up, all can begin again. From one Group.Attempt to the
// next, ranks are in one attempt, which each of them may abandon for all: its
// collectives end as where the job failed, with an *Error that says Abandoned, but
// in the next attempt all begin anew, and nothing of the old one is received. Each
// rank finds out at its own time, and none waits for the others: attempts have
// numbers, so that one which is abandoned before some rank came to it is over for
// that rank, too, when it comes, and not before.
//
// Ranks must agree on which attempts were abandoned. So one that comes to its end
// has a collective of all ranks, such as a Barrier, behind which none abandons it.
package dist

import (
	"cmp"
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// Group is the ranks that take part in collectives, as one of them sees it.
// Methods that take a stream queue work and are called from the goroutine that
// uses the stream; the others from any.
type Group interface {
	// Rank is this rank's number in the group, 0 … Size−1.
	Rank() int
	// Size is the number of ranks.
	Size() int

	// AllReduce combines the buffers of all ranks, element by element, in place.
	AllReduce(s device.Stream, op Op, bufs ...Buf)
	// ReduceScatter combines the buffers src of all ranks and gives each rank its
	// Part of the result, in dst. dst[i] may be this rank's part of src[i]; the
	// rest of src stays as it is.
	ReduceScatter(s device.Stream, op Op, dst, src []Buf)
	// AllGather puts the parts of all ranks, src, together in dst: the reverse of
	// ReduceScatter. src[i] may be this rank's part of dst[i].
	AllGather(s device.Stream, dst, src []Buf)
	// Broadcast copies root's buffers to all others.
	Broadcast(s device.Stream, root int, bufs ...Buf)
	// Exchange sends and receives between pairs of ranks, all at the same time:
	// to each rank its messages in their order. Memory that is sent and memory
	// that is received don't overlap.
	Exchange(s device.Stream, send, receive []Message)

	// Barrier waits until every rank has come to it.
	Barrier() error

	// Sub gives the group of some of this one's ranks, in the order given, of
	// which the caller is one. Each of them calls it with the same name, which is
	// used once.
	Sub(name string, ranks ...int) (Group, error)

	// Attempt begins the next attempt. All ranks call it equally often, when their
	// collectives are over and their streams were waited for; after an attempt that
	// was abandoned they have been cleared, too (device.Stream). The error is that of
	// the job. One call is for all groups of a job that this rank is in.
	Attempt() error
	// Abandon ends the attempt in progress on all ranks, for a reason of this
	// rank's. Only the first one counts.
	Abandon(err error)

	// Fail ends the job on all ranks with an error of this rank's. Only the first
	// failure counts.
	Fail(err error)
	// Err is the *Error that the job failed with, or the attempt in progress was
	// abandoned with, or nil.
	Err() error
	// Close leaves the job. Of a job that has not failed it waits until all ranks
	// close it, too. Groups of Sub are closed with the one that they came from.
	Close() error
}

// Buf is elements in a device's memory.
type Buf struct {
	Ptr  device.Ptr
	Len  int // elements
	Type device.DType
	Unit int // elements at a multiple of which it is cut into parts; 0 stands for 64
}

// Bytes is the size of b.
func (b Buf) Bytes() int { return b.Len * b.Type.Size() }

// Range is the elements of b from lo up to but not including hi.
func (b Buf) Range(lo, hi int) Buf {
	return Buf{b.Ptr + device.Ptr(lo*b.Type.Size()), hi - lo, b.Type, b.Unit}
}

// Part is what rank has of b in ReduceScatter and AllGather among so many ranks.
func (b Buf) Part(size, rank int) Buf {
	return b.Range(part(b.Len, size, rank, cmp.Or(b.Unit, partUnit)))
}

const partUnit = 64

// Part is which of n elements a rank has among so many: the parts are in the
// order of the ranks, as long as each other, in units of 64 elements; the last
// ones may be shorter or empty.
func Part(n, size, rank int) (lo, hi int) {
	return part(n, size, rank, partUnit)
}

func part(n, size, rank, unit int) (lo, hi int) {
	each := ((n+size-1)/size + unit - 1) / unit * unit
	lo = min(n, rank*each)
	return lo, min(n, lo+each)
}

// Message is a buffer with the rank that it goes to or comes from.
type Message struct {
	Rank int
	Buf
}

// Op is how elements are combined.
type Op uint8

// The operations. Mean is for floating-point types. Max of numbers one of which
// is not a number is not a number.
const (
	Sum Op = iota
	Mean
	Max
)

// String gives the name, as in sum.
func (o Op) String() string { return [...]string{"sum", "mean", "max"}[o] }

// Error is why a job failed, or an attempt was abandoned, as every rank is told.
type Error struct {
	Rank      int // of the job, whose fault it was
	Err       error
	Abandoned bool // the attempt alone
}

func (e *Error) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Send queues sending bufs to a rank, which receives them.
func Send(g Group, s device.Stream, to int, bufs ...Buf) { g.Exchange(s, messages(to, bufs), nil) }

// Receive queues receiving bufs from a rank, which sends them.
func Receive(g Group, s device.Stream, from int, bufs ...Buf) {
	g.Exchange(s, nil, messages(from, bufs))
}

// AllToAll queues sending send[i] to rank i, and receiving receive[i] from it,
// this rank's own included.
func AllToAll(g Group, s device.Stream, receive, send []Buf) {
	var out, in []Message
	for i := range send {
		out, in = append(out, Message{i, send[i]}), append(in, Message{i, receive[i]})
	}
	g.Exchange(s, out, in)
}

func messages(rank int, bufs []Buf) []Message {
	var ms []Message
	for _, b := range bufs {
		ms = append(ms, Message{rank, b})
	}
	return ms
}
