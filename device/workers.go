package device

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Workers is a pool of host threads that share the loops of kernels.
//
// A pool of n has n−1 goroutines of its own; the goroutine that calls For is
// the n-th. A loop is cut into chunks whose bounds depend on its length and
// grain alone, and the caller and the idle workers take chunk after chunk
// until none is left. The caller never waits for a worker to begin, only for
// those that hold a chunk, and a worker that holds one waits only for loops
// nested in it: so loops may nest and run side by side without deadlock.
//
// A worker without work watches for new loops for some ten microseconds, long
// enough for the next kernel of a busy stream, then sleeps.
//
// The methods may be called from several goroutines at once.
type Workers struct {
	n int

	mu     sync.Mutex
	work   sync.Cond
	open   []*loop      // loops with chunks left to take, the newest last
	count  atomic.Int32 // len(open), for those who look without the lock
	spare  []*loop      // for reuse
	closed atomic.Bool
	ended  sync.WaitGroup

	scratch scratch
}

// loop is one call of For.
type loop struct {
	body             func(lo, hi int)
	n, grain, chunks int
	next             atomic.Int64          // number of the next chunk to take
	users            atomic.Int32          // goroutines that may still touch this loop
	panicked         atomic.Pointer[Panic] // the first panic of a chunk
	left             chan struct{}         // receives one token when users falls to zero
}

// NewWorkers gives a pool of n ≥ 1 threads, the caller of For included. Close
// ends it.
func NewWorkers(n int) *Workers {
	if n < 1 {
		panic(fmt.Sprintf("device: NewWorkers(%d): a pool needs one thread or more", n))
	}
	w := &Workers{n: n, scratch: scratch{free: map[int][][]float32{}}}
	w.work.L = &w.mu
	for range n - 1 {
		w.ended.Go(w.serve)
	}
	return w
}

// N is the number of threads that share a loop.
func (w *Workers) N() int { return w.n }

// For calls body(lo, hi) for chunks of grain indices (the last may be shorter)
// that cover [0, n), in any order and at the same time on several threads, and
// returns when all are done. Chunk bounds do not depend on the number of
// workers. body may call For. A panic in body keeps further chunks from
// starting and reaches the caller as a *Panic.
func (w *Workers) For(n, grain int, body func(lo, hi int)) {
	if grain < 1 {
		panic(fmt.Sprintf("device: For over %d indices with a grain of %d", n, grain))
	}
	if n <= 0 {
		return
	}
	chunks := (n-1)/grain + 1
	if chunks == 1 || w.n == 1 {
		runInline(n, grain, chunks, body)
		return
	}
	l := w.begin(n, grain, chunks, body)
	l.run()
	w.retire(l)
	l.leave()
	awaitToken(l.left)
	p := l.panicked.Load()
	w.recycle(l)
	if p != nil {
		panic(p)
	}
}

// runInline is For on the caller's thread alone.
func runInline(n, grain, chunks int, body func(lo, hi int)) {
	defer func() {
		if v := recover(); v != nil {
			panic(asPanic(v))
		}
	}()
	for i := range chunks {
		body(bounds(i, n, grain))
	}
}

// bounds gives the indices [lo, hi) of chunk i.
func bounds(i, n, grain int) (lo, hi int) {
	lo = i * grain
	return lo, lo + min(grain, n-lo)
}

// begin opens a loop to the workers, with the caller as its first user.
func (w *Workers) begin(n, grain, chunks int, body func(lo, hi int)) *loop {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		panic("device: For on closed Workers")
	}
	l := w.newLoop()
	l.body, l.n, l.grain, l.chunks = body, n, grain, chunks
	l.next.Store(0)
	l.users.Store(1)
	l.panicked.Store(nil)
	w.open = append(w.open, l)
	w.count.Store(int32(len(w.open)))
	for range min(chunks, w.n) - 1 {
		w.work.Signal()
	}
	return l
}

// newLoop gives a loop that nobody uses. w.mu must be held.
func (w *Workers) newLoop() *loop {
	last := len(w.spare) - 1
	if last < 0 {
		return &loop{left: make(chan struct{}, 1)}
	}
	l := w.spare[last]
	w.spare = w.spare[:last]
	return l
}

// recycle keeps a loop that nobody uses any more for the next call of For.
func (w *Workers) recycle(l *loop) {
	l.body = nil
	w.mu.Lock()
	w.spare = append(w.spare, l)
	w.mu.Unlock()
}

// retire closes a loop, all of whose chunks are taken, to further users. The
// caller is one of its users.
func (w *Workers) retire(l *loop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range w.open {
		if o == l {
			w.open = append(w.open[:i], w.open[i+1:]...)
			w.count.Store(int32(len(w.open)))
			return
		}
	}
}

// serve is the life of one worker.
func (w *Workers) serve() {
	debug.SetPanicOnFault(true)
	for {
		spin(func() bool { return w.count.Load() > 0 || w.closed.Load() })
		l := w.join()
		if l == nil {
			return
		}
		l.run()
		w.retire(l)
		l.leave()
	}
}

// join waits for an open loop and becomes a user of it. It returns nil when
// the pool is closed.
func (w *Workers) join() *loop {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.open) == 0 {
		if w.closed.Load() {
			return nil
		}
		w.work.Wait()
	}
	l := w.open[len(w.open)-1]
	l.users.Add(1)
	return l
}

// run takes chunks until none is left or one panics.
func (l *loop) run() {
	defer func() {
		if v := recover(); v != nil {
			l.panicked.CompareAndSwap(nil, asPanic(v))
			l.next.Store(int64(l.chunks))
		}
	}()
	for {
		i := int(l.next.Add(1)) - 1
		if i >= l.chunks {
			return
		}
		l.body(bounds(i, l.n, l.grain))
	}
}

// leave ends one use of the loop; the last one tells the caller of For.
func (l *loop) leave() {
	if l.users.Add(-1) == 0 {
		l.left <- struct{}{}
	}
}

// awaitToken receives from c, spinning first.
func awaitToken(c chan struct{}) {
	spin(func() bool { return len(c) > 0 })
	<-c
}

// Close ends the threads. No loop may be running.
func (w *Workers) Close() {
	w.mu.Lock()
	w.closed.Store(true)
	w.work.Broadcast()
	w.mu.Unlock()
	w.ended.Wait()
}
