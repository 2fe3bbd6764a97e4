package device

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// cudaStream is a queue of the driver's. What queueing it reports is kept as
// the stream's error; errors of the work itself come from Sync, and are errors
// of the whole context, since a GPU does not say which work failed.
type cudaStream struct {
	device  *CUDADevice
	context *cuda.Context
	id      int
	handle  cuda.Stream
	events  cudaEvents
	batch   cudaBatch
	queue   CUDAQueue
	closed  bool

	launch Launch // the one that is being queued
	params cudaParams
	slot   *cuda.Params // points to params without members
	whole  *cuda.Params // points to all of params
	host   hostRefs

	mu   sync.Mutex
	last string // the kernel that was queued last
	err  error  // the first error
}

// cudaParams are the parameters of kernels: the arguments of a launch, and for
// those that take them its members as a second one.
// internal/kernel/cuda/launch.cuh has the same in C.
type cudaParams struct {
	Ptr   [MaxPtrs]Ptr
	Int   [MaxInts]int64
	Float [MaxFloats]float32
	Type  [MaxPtrs]DType

	Members Members
}

func newCUDAStream(d *CUDADevice, id int) (*cudaStream, error) {
	handle, err := d.context.NewStream()
	if err != nil {
		return nil, err
	}
	s := &cudaStream{device: d, context: d.context, id: id, handle: handle}
	s.slot = cuda.NewParams(unsafe.Pointer(&s.params), unsafe.Offsetof(s.params.Members))
	s.whole = cuda.NewParams(unsafe.Pointer(&s.params), unsafe.Sizeof(s.params))
	s.queue.stream, s.events.stream = s, s
	s.batch.stream, s.batch.able, s.batch.met = s, d.context.Captures(), map[uintptr]bool{}
	return s, nil
}

func (s *cudaStream) ID() int { return s.id }

// ready says whether work may be queued: after an error it is skipped.
func (s *cudaStream) ready(what string) bool {
	checkOpen(s.id, s.closed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.last = what
	}
	return s.err == nil
}

// keep keeps the first error.
func (s *cudaStream) keep(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("stream %d: %s: %w", s.id, s.last, err)
	}
}

func (s *cudaStream) Launch(l *Launch) {
	checkLaunch(l)
	if !s.ready(l.Kernel.Name) {
		return
	}
	if l.Kernel.CUDA == nil {
		s.keep(fmt.Errorf("kernel %s has no version for CUDA", l.Kernel.Name))
		return
	}
	s.launch = *l
	l.Kernel.CUDA(&s.launch, &s.queue)
}

func (s *cudaStream) Copy(dst, src Ptr, n uint64) {
	if s.ready("copy") && n > 0 {
		s.batch.flush()
		s.keep(s.context.Copy(s.handle, cuda.Ptr(dst), cuda.Ptr(src), n))
	}
}

func (s *cudaStream) Upload(dst Ptr, src []byte) {
	if s.ready("upload") && len(src) > 0 {
		s.batch.flush()
		s.keep(s.context.Upload(s.handle, cuda.Ptr(dst), unsafe.Pointer(&src[0]), len(src)))
		s.host.hold(s, src)
	}
}

func (s *cudaStream) Download(dst []byte, src Ptr) {
	if s.ready("download") && len(dst) > 0 {
		s.batch.flush()
		s.keep(s.context.Download(s.handle, unsafe.Pointer(&dst[0]), cuda.Ptr(src), len(dst)))
		s.host.hold(s, dst)
	}
}

func (s *cudaStream) Record() Event {
	checkOpen(s.id, s.closed)
	return &cudaEvent{&s.events, s.events.record()}
}

func (s *cudaStream) Wait(e Event) {
	checkOpen(s.id, s.closed)
	event, ok := e.(*cudaEvent)
	if !ok {
		e.Sync() // of another device
		return
	}
	event.of.waitFor(s, event.number)
}

func (s *cudaStream) Sync() error {
	if !s.closed {
		s.batch.flush()
		s.keep(s.context.SyncStream(s.handle))
		s.host.drop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Clear forgets errors of queueing; those of the context come again.
func (s *cudaStream) Clear() {
	s.Sync()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
}

func (s *cudaStream) Close() error {
	err := s.Sync()
	if !s.closed {
		s.closed = true
		s.device.work.leave(s) // until then others may record events of s
		s.events.finish()
		s.keep(errors.Join(s.batch.close(), s.context.DestroyStream(s.handle)))
		err = s.Sync()
	}
	return err
}

// hostRefs keeps memory of the garbage collector's alive while copies may use
// it.
type hostRefs struct {
	held []hostRef // the oldest first
}

type hostRef struct {
	data   []byte
	number uint64 // of the event behind the copy
}

// hold keeps data until s has passed what is queued now.
func (r *hostRefs) hold(s *cudaStream, data []byte) {
	passed := s.events.passedNow()
	done := 0
	for done < len(r.held) && r.held[done].number <= passed {
		r.held[done].data = nil
		done++
	}
	r.held = append(r.held[done:], hostRef{data, s.events.record()})
}

func (r *hostRefs) drop() { clear(r.held); r.held = r.held[:0] }
