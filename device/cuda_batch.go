package device

import (
	"errors"
	"math/bits"
	"slices"
	"sync"

	"github.com/headroom-go/headroom/internal/cuda"
)

// Launches in batches.
//
// To queue a launch takes the host several microseconds. Where kernels take less,
// the GPU waits for the host. Then the launches of a stream are captured, and
// every batch of them is queued as one graph, which takes a third. Nothing has to
// repeat for that: a batch is some launches in a row, whatever they compute, and
// ends before anything else that is done with the stream, such as a copy, an event
// or a wait. So nobody sees batches but by the time that they take.
//
//	direct × 8 | graph of 56 | graph of 64 | graph of 17 | copy, direct × 8 | …
//
// The first launches after something else are direct, so that the GPU starts
// early, and a stream that is waited for after each of them has no graphs.
//
// Where the GPU is behind, graphs save nothing, and direct launches something: a
// kernel can be brought to the multiprocessors while the one before it ends
// (waiting), which one of a graph could only if all graphs were alike. So after
// each 64 launches the GPU is asked whether it is done with those before.
//
// To make a graph into what the driver can launch is slow. To give that other
// parameters is not, where the kernels are the same. So some are kept, by what was
// launched: in a program that repeats, the same batches come again. (The driver
// also takes other kernels, as many of them. But on a graph that was changed so, a
// kernel kept its old parameters, and the loss of a BERT stood still.)
//
// The driver loads the code of a kernel, also of libraries, when it first meets
// it, and that may not be captured. So all batches end before something is loaded,
// planned or launched for the first time (CUDADevice.flush), and what comes next is
// direct.

const (
	directLaunches = 8  // after something else
	batchLaunches  = 64 // after which the GPU is asked
	keptGraphs     = 64
)

// cudaBatch is the batch of a stream in the making.
type cudaBatch struct {
	stream *cudaStream
	able   bool // the driver can capture

	mu        sync.Mutex       // held from enter to leave
	met       map[uintptr]bool // handles that were launched
	launches  int              // of the batch, captured or not
	behind    bool             // the GPU has work for longer than a batch takes
	mark      cuda.Event       // behind the last batch
	marked    bool             // since something else was done
	capturing bool
	kernels   uint64 // a hash of what was captured
	graph     cuda.Graph
	info      cuda.UpdateInfo
	kept      []keptGraph // the one that was used last at the end
	launched  int         // graphs so far
}

type keptGraph struct {
	kernels uint64
	exec    cuda.GraphExec
}

// enter comes before a launch is queued, of a function or a plan with that handle,
// and leave after it, with its error.
func (b *cudaBatch) enter(handle uintptr) {
	b.mu.Lock()
	if !b.met[handle] {
		b.mu.Unlock()
		b.stream.device.flush()
		b.mu.Lock()
		b.met[handle] = true
	}
	b.begin()
	b.kernels = (bits.RotateLeft64(b.kernels, 7) ^ uint64(handle)) * 0x9e3779b97f4a7c15
}

// begin begins a batch that is captured, if it is time for one.
func (b *cudaBatch) begin() {
	if b.capturing || b.behind || !b.able || !b.marked && b.launches < directLaunches {
		return
	}
	err := b.stream.context.BeginCapture(b.stream.handle)
	b.capturing, b.kernels = err == nil, 0
	b.stream.keep(err)
}

func (b *cudaBatch) leave(err error) {
	defer b.mu.Unlock()
	b.stream.keep(err)
	if b.launches++; b.launches == batchLaunches && b.able {
		b.launches = 0
		b.launch()
		b.stream.keep(b.look())
	}
}

// look sees whether the GPU is behind, and marks the batch that was queued.
func (b *cudaBatch) look() (err error) {
	c := b.stream.context
	if b.marked {
		var done bool
		if done, err = c.EventDone(b.mark); err != nil {
			return err
		}
		b.behind = !done
	}
	if b.mark == 0 {
		if b.mark, err = c.NewEvent(false); err != nil {
			return err
		}
	}
	b.marked = true
	return c.RecordEvent(b.mark, b.stream.handle)
}

// flush queues what was captured, before something else is done.
func (b *cudaBatch) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.launches, b.marked = 0, false
	b.launch()
}

// launch queues what was captured. b.mu must be held.
func (b *cudaBatch) launch() {
	if !b.capturing {
		return
	}
	c, s := b.stream.context, b.stream
	b.capturing = false
	err := c.EndCapture(s.handle, &b.graph)
	if err != nil {
		_ = c.EndCapture(s.handle, &b.graph) // where the call itself was not made
	}
	if b.graph != 0 {
		err = errors.Join(err, b.run(), c.DestroyGraph(b.graph))
	}
	s.keep(err)
}

// run launches b.graph.
func (b *cudaBatch) run() error {
	exec, err := b.find()
	if err != nil {
		return err
	}
	b.kept = append(b.kept, keptGraph{b.kernels, exec})
	b.launched++
	return b.stream.context.LaunchGraph(exec, b.stream.handle)
}

// find makes what can launch b.graph, out of what launched the same kernels where
// that is kept.
func (b *cudaBatch) find() (cuda.GraphExec, error) {
	c := b.stream.context
	at := slices.IndexFunc(b.kept, func(k keptGraph) bool { return k.kernels == b.kernels })
	if at >= 0 {
		exec := b.take(at)
		fits, err := c.Update(exec, b.graph, &b.info)
		if fits {
			return exec, nil
		}
		if err = errors.Join(err, c.DestroyExec(exec)); err != nil {
			return 0, err
		}
	} else if len(b.kept) == keptGraphs {
		if err := c.DestroyExec(b.take(0)); err != nil {
			return 0, err
		}
	}
	return c.Instantiate(b.graph)
}

// take gives one that is kept, which is not kept any longer.
func (b *cudaBatch) take(at int) cuda.GraphExec {
	exec := b.kept[at].exec
	b.kept = slices.Delete(b.kept, at, at+1)
	return exec
}

// forget queues what was captured, gives the graphs back that are kept, and knows no
// handles any more.
func (b *cudaBatch) forget() (err error) {
	b.flush()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.kept {
		err = errors.Join(err, b.stream.context.DestroyExec(k.exec))
	}
	b.kept = nil
	clear(b.met)
	return err
}

// close gives back what is kept, once the stream's work is done.
func (b *cudaBatch) close() error {
	err := b.forget()
	if b.mark != 0 {
		err = errors.Join(err, b.stream.context.DestroyEvent(b.mark))
		b.mark = 0
	}
	return err
}
