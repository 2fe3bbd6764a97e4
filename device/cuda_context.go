package device

import "github.com/headroom-go/headroom/internal/cuda"

// For libraries that queue work of their own on a GPU's streams.

// Context is where the device's memory and streams are.
func (d *CUDADevice) Context() *cuda.Context { return d.context }

// Call calls f, which queues work of a library on the launch's stream. An error
// is kept by the stream.
func (q *CUDAQueue) Call(f func(s cuda.Stream) error) {
	if s := q.stream; s.ready(s.last) {
		s.batch.flush()
		s.keep(f(s.handle))
	}
}
