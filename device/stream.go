package device

import (
	"fmt"
	"runtime/debug"
)

// hostStream is a queue of work and the goroutine that does it.
//
// The queue is a ring of queueLength places; place number n is n modulo the
// length. The goroutine that uses the stream fills places and counts them in
// queued, the stream's goroutine works through them and counts in passed:
//
//	passed <= queued <= passed + queueLength
//
// A full ring makes the user wait, which cannot deadlock: work waits only for
// events that were recorded before it was queued.
type hostStream struct {
	id      int
	workers *Workers
	ring    [queueLength]work
	queued  counter
	passed  counter
	closed  bool  // set by the user
	err     error // the first error; set before passed counts the work that failed
}

// queueLength is how far the user may be ahead of the work. The ring takes
// 124 KiB.
const queueLength = 256

// work is one place of the queue.
type work struct {
	kind   workKind
	launch Launch // copies: Kernel for its name, Ptr[0] destination, Ptr[1] source
	bytes  uint64 // copies within the device: their length
	host   []byte // upload: source, download: destination
	event  Event  // wait
}

type workKind uint8

const (
	doLaunch workKind = iota
	doCopy
	doUpload
	doDownload
	doWait
	doEnd
)

// Copies have a kernel for their name, in errors and in the records of the
// null device.
var (
	copyKernel     = &Kernel{Name: "copy"}
	uploadKernel   = &Kernel{Name: "upload"}
	downloadKernel = &Kernel{Name: "download"}
)

func newHostStream(id int, w *Workers) *hostStream {
	s := &hostStream{id: id, workers: w}
	s.queued.init()
	s.passed.init()
	go s.serve()
	return s
}

func (s *hostStream) ID() int { return s.id }

func (s *hostStream) Launch(l *Launch) {
	checkLaunch(l)
	w := s.place(doLaunch)
	w.launch = *l
	s.queued.increment()
}

func (s *hostStream) Copy(dst, src Ptr, n uint64) {
	w := s.place(doCopy)
	w.launch.Kernel, w.launch.Ptr[0], w.launch.Ptr[1], w.bytes = copyKernel, dst, src, n
	s.queued.increment()
}

func (s *hostStream) Upload(dst Ptr, src []byte) {
	w := s.place(doUpload)
	w.launch.Kernel, w.launch.Ptr[0], w.host = uploadKernel, dst, src
	s.queued.increment()
}

func (s *hostStream) Download(dst []byte, src Ptr) {
	w := s.place(doDownload)
	w.launch.Kernel, w.launch.Ptr[1], w.host = downloadKernel, src, dst
	s.queued.increment()
}

func (s *hostStream) Record() Event {
	checkOpen(s.id, s.closed)
	return &hostEvent{s, s.queued.value.Load()}
}

func (s *hostStream) Wait(e Event) {
	w := s.place(doWait)
	w.event = e
	s.queued.increment()
}

func (s *hostStream) Sync() error {
	s.passed.wait(s.queued.value.Load())
	return s.err
}

func (s *hostStream) Clear() {
	s.Sync()
	s.err = nil // its goroutine reads it once more is queued
}

func (s *hostStream) Close() error {
	if !s.closed {
		s.place(doEnd)
		s.queued.increment()
		s.closed = true
	}
	return s.Sync()
}

// place gives the next free place of the ring, waiting for one if need be. The
// caller fills it and counts it in queued.
func (s *hostStream) place(kind workKind) *work {
	checkOpen(s.id, s.closed)
	n := s.queued.value.Load()
	if n >= queueLength {
		s.passed.wait(n - queueLength + 1)
	}
	w := &s.ring[n%queueLength]
	w.kind = kind
	return w
}

// serve does the work, one place after the other.
func (s *hostStream) serve() {
	debug.SetPanicOnFault(true)
	for n := uint64(0); ; n++ {
		s.queued.wait(n + 1)
		w := &s.ring[n%queueLength]
		s.pass(w)
		end := w.kind == doEnd
		w.host, w.event = nil, nil
		s.passed.increment() // from here on the place belongs to the user
		if end {
			return
		}
	}
}

// pass does one piece of work. After an error it waits for events only.
func (s *hostStream) pass(w *work) {
	switch {
	case w.kind == doWait:
		w.event.Sync()
	case w.kind != doEnd && s.err == nil:
		s.err = w.do(s.id, s.workers)
	}
}

// do computes or copies, and turns a panic into an error.
func (w *work) do(stream int, workers *Workers) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("stream %d: %s: %w", stream, w.launch.Kernel.Name, asPanic(v))
		}
	}()
	switch dst, src := w.launch.Ptr[0], w.launch.Ptr[1]; w.kind {
	case doCopy:
		copyBytes(Bytes(dst, int(w.bytes)), Bytes(src, int(w.bytes)), workers)
	case doUpload:
		copyBytes(Bytes(dst, len(w.host)), w.host, workers)
	case doDownload:
		copyBytes(w.host, Bytes(src, len(w.host)), workers)
	default:
		if w.launch.Kernel.Host == nil {
			return fmt.Errorf("stream %d: kernel %s has no version for the host", stream, w.launch.Kernel.Name)
		}
		w.launch.Kernel.Host(&w.launch, workers)
	}
	return nil
}

// copyBytes copies on one thread what one thread copies in the time that
// sharing the work would take.
func copyBytes(dst, src []byte, workers *Workers) {
	const grain = 256 << 10
	if len(dst) <= grain {
		copy(dst, src)
		return
	}
	workers.For(len(dst), grain, func(lo, hi int) { copy(dst[lo:hi], src[lo:hi]) })
}

// checkLaunch panics if there is nothing to launch.
func checkLaunch(l *Launch) {
	if l.Kernel == nil {
		panic("device: launch without a kernel")
	}
}

// checkOpen panics if work is queued on a closed stream.
func checkOpen(stream int, closed bool) {
	if closed {
		panic(fmt.Sprintf("device: work queued on stream %d, which is closed", stream))
	}
}

// hostEvent is reached when the stream has passed the first count places.
type hostEvent struct {
	stream *hostStream
	count  uint64
}

func (e *hostEvent) Done() bool { return e.stream.passed.reached(e.count) }
func (e *hostEvent) Sync()      { e.stream.passed.wait(e.count) }
