package cuda

import "unsafe"

// Stream is a queue of the driver's.
type Stream uintptr

// Event is a mark in a queue.
type Event uintptr

// NewStream gives a queue that does not wait for the default one.
func (c *Context) NewStream() (s Stream, err error) {
	const nonBlocking = 1
	err = c.in(cuStreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, err
}

// DestroyStream ends a queue once its work is done, without waiting for that.
func (c *Context) DestroyStream(s Stream) error { return c.in(cuStreamDestroy, uintptr(s)) }

// SyncStream waits for the queue's work. It returns the first error of the
// device, which may be another queue's.
func (c *Context) SyncStream(s Stream) error { return c.plainIn(cuStreamSynchronize, uintptr(s)) }

// NewEvent gives an event that takes no times, or with timing one that does.
func (c *Context) NewEvent(timing bool) (e Event, err error) {
	flags := uintptr(2) // no timing
	if timing {
		flags = 0
	}
	err = c.in(cuEventCreate, uintptr(unsafe.Pointer(&e)), flags)
	return e, err
}

// DestroyEvent ends an event. Work may still wait for it.
func (c *Context) DestroyEvent(e Event) error { return c.in(cuEventDestroy, uintptr(e)) }

// RecordEvent moves the event to the queue's end.
func (c *Context) RecordEvent(e Event, s Stream) error {
	return c.plainIn(cuEventRecord, uintptr(e), uintptr(s))
}

// WaitEvent keeps later work of the queue from starting before the event.
func (c *Context) WaitEvent(s Stream, e Event) error {
	return c.plainIn(cuStreamWaitEvent, uintptr(s), uintptr(e), 0)
}

// EventDone says whether the queue has passed the event.
func (c *Context) EventDone(e Event) (bool, error) {
	switch code := c.code(cuEventQuery, uintptr(e)); code {
	case 0:
		return true, nil
	case NotReady:
		return false, nil
	default:
		return false, c.failure(cuEventQuery, code)
	}
}

// SyncEvent waits until the queue has passed the event.
func (c *Context) SyncEvent(e Event) error { return c.plainIn(cuEventSynchronize, uintptr(e)) }

// Elapsed is the time in seconds between two events that take times and that
// are done.
func (c *Context) Elapsed(from, to Event) (float64, error) {
	var ms float32
	err := c.in(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(to))
	return float64(ms) / 1e3, err
}

// Counts says whether the device has WaitCount and SetCount: from CUDA 11.7 on.
func (c *Context) Counts() (bool, error) {
	if c.Address(cuStreamWaitValue64) == 0 || c.Address(cuStreamWriteValue64) == 0 {
		return false, nil
	}
	able, err := c.Attribute(c.Device, StreamCounts)
	return able != 0, err
}

// WaitCount keeps later work of the queue from starting before the 64 bits at p,
// in page-locked memory, are n or more. Nobody sees whether anything sets them.
// With flush, which not all devices can, what others wrote to the device's memory
// before they set the count is seen by that work for sure.
func (c *Context) WaitCount(s Stream, p Ptr, n uint64, flush bool) error {
	const greaterOrEqual, flushed = 0, 1 << 30
	flags := uintptr(greaterOrEqual)
	if flush {
		flags |= flushed
	}
	return c.plainIn(cuStreamWaitValue64, uintptr(s), uintptr(p), uintptr(n), flags)
}

// SetCount sets the 64 bits at p, in page-locked memory, to n when the queue comes
// to it. Who sees that sees what the work before it wrote, on other devices too.
func (c *Context) SetCount(s Stream, p Ptr, n uint64) error {
	const fenced = 0
	return c.plainIn(cuStreamWriteValue64, uintptr(s), uintptr(p), uintptr(n), fenced)
}

// Copy queues a copy within device memory, or to memory of another device that this
// one reaches.
func (c *Context) Copy(s Stream, dst, src Ptr, n uint64) error {
	return c.plainIn(cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// Upload queues a copy of n bytes from host memory, which is not on a stack
// and must stay in use until the queue has passed the copy.
func (c *Context) Upload(s Stream, dst Ptr, src unsafe.Pointer, n int) error {
	return c.plainIn(cuMemcpyHtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// Download queues a copy of n bytes to host memory, which is not on a stack
// and must stay in use until the queue has passed the copy.
func (c *Context) Download(s Stream, dst unsafe.Pointer, src Ptr, n int) error {
	return c.plainIn(cuMemcpyDtoHAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}
