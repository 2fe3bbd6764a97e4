// The loader. Workers (goroutines) make whole batches ahead of the training
// loop. There are Prefetch+1 buffers, made once and used again and again: one
// for the caller, the others filled or in filling.
//
// A worker first takes a free buffer and only then the number of the next batch
// to make. So of the batches that were begun and not given out, the one with the
// lowest number always has its buffer: an ordered loader cannot come to a stop
// with all buffers full of later batches.
//
// Which samples a batch has follows from its number alone (order.go), so the
// place to resume from is the number of batches given out, written as an epoch
// and a position in it.

package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
)

// fieldAlignment is where in a buffer the fields of a batch begin.
const fieldAlignment = 64

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("data: the loader is closed")

// LoaderOptions says what a Loader does.
type LoaderOptions struct {
	Batch    int  // samples in a batch
	Epochs   int  // how many; the last batch of all may be short. 0: without end
	Workers  int  // goroutines that make batches; more than Prefetch have nothing to do
	Prefetch int  // batches made ahead of the one that the caller has
	Shuffle  bool // see Order
	Seed     uint64
	Rank     int // see Order
	Ranks    int // 0 is 1

	// Unordered gives batches out as they get ready, so that a slow one holds up
	// no other. Each batch is what it would be in order.
	Unordered bool

	// Start is the place to begin at, from State of a loader with the same
	// sources, Shuffle, Seed and Ranks.
	Start Place

	// NewBuffer makes the memory for a batch, of so many bytes, and says how to
	// free it; for instance memory from which a device copies directly. It is
	// called Prefetch+1 times. nil: the memory is Go's.
	NewBuffer func(bytes int) (buffer []byte, free func(), err error)
}

// Batch is some samples of all sources.
type Batch struct {
	Len     int      // samples; the loader's Batch, save at the end
	Samples []int    // which they are
	Fields  [][]byte // for each source, its samples one after the other

	number int
	err    error
	buffer []byte
	free   func()
	out    bool // the caller has it
	loader *Loader
}

// SampleError says which sample could not be read.
type SampleError struct {
	Source int // which of the loader's sources
	Sample int
	Err    error
}

func (e *SampleError) Error() string {
	return fmt.Sprintf("data: sample %d of source %d: %v", e.Sample, e.Source, e.Err)
}

// Unwrap gives the source's error.
func (e *SampleError) Unwrap() error { return e.Err }

// Loader gives the samples of sources that belong together, such as images and
// their labels, in batches. Next and State are for one goroutine; Release and
// Close may be called from any.
type Loader struct {
	options LoaderOptions
	order   Order
	sources []Source
	offsets []int // of the fields in a buffer
	sizes   []int // of a sample of each source
	total   int   // samples to give out; MaxInt: without end
	batches int   // to give out

	ctx   context.Context
	stop  context.CancelCauseFunc
	work  sync.WaitGroup
	idle  chan *Batch // buffers to fill
	ready chan *Batch

	early map[int]*Batch // made, but the turn is another's (ordered)
	ahead map[int]bool   // given out after a lower number that is not (unordered)
	done  int            // all batches below were given out
	err   error          // that Next returned, and returns from then on

	mu     sync.Mutex // guards what follows and Batch.out
	slots  []*Batch
	next   int // number of the next batch to make
	closed bool
}

// NewLoader starts the workers. They end when ctx is cancelled or Close is
// called; Close must be called in any case, for it frees the buffers.
func NewLoader(ctx context.Context, sources []Source, o LoaderOptions) (*Loader, error) {
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	l := &Loader{options: o, sources: sources, early: map[int]*Batch{}, ahead: map[int]bool{}}
	if err := l.plan(); err != nil {
		return nil, err
	}
	if err := l.allocate(); err != nil {
		return nil, err
	}
	l.ctx, l.stop = context.WithCancelCause(ctx)
	for range min(o.Workers, o.Prefetch+1) {
		l.work.Go(l.worker)
	}
	return l, nil
}

// plan checks the options and works out what is to be given out.
func (l *Loader) plan() error {
	o := l.options
	if o.Batch < 1 || o.Workers < 1 || o.Prefetch < 1 || o.Epochs < 0 {
		return fmt.Errorf("data: a loader with batches of %d, %d workers, %d batches ahead and %d epochs: all but the epochs must be positive", o.Batch, o.Workers, o.Prefetch, o.Epochs)
	}
	if len(l.sources) == 0 {
		return errors.New("data: a loader without sources")
	}
	l.order = Order{l.sources[0].Len(), o.Shuffle, o.Seed, o.Rank, o.Ranks}
	for i, s := range l.sources {
		if s.Len() != l.order.Samples {
			return fmt.Errorf("data: source 0 has %d samples, source %d has %d", l.order.Samples, i, s.Len())
		}
	}
	if err := l.order.check(); err != nil {
		return err
	}
	per := l.order.Len()
	if o.Start.Position < 0 || o.Start.Position > per {
		return fmt.Errorf("data: the place to start is broken: position %d in an epoch of %d samples", o.Start.Position, per)
	}
	l.total, l.batches = math.MaxInt, math.MaxInt
	if o.Epochs > 0 {
		left := uint64(o.Epochs) - min(uint64(o.Epochs), o.Start.Epoch)
		if left > uint64(math.MaxInt/per) {
			return fmt.Errorf("data: %d epochs of %d samples are too many to count", o.Epochs, per)
		}
		l.total = max(0, int(left)*per-o.Start.Position)
		l.batches = (l.total-1)/o.Batch + 1
		if l.total == 0 {
			l.batches = 0
		}
	}
	return nil
}

// allocate lays out the fields and makes the buffers.
func (l *Loader) allocate() error {
	size := 0
	for _, s := range l.sources {
		one := SampleBytes(s)
		bytes, err := product([]int{l.options.Batch}, one)
		if err != nil || int(bytes) > math.MaxInt-size-2*fieldAlignment {
			return fmt.Errorf("data: a batch of %d samples of %d bytes is too large for this platform", l.options.Batch, one)
		}
		l.offsets, l.sizes = append(l.offsets, size), append(l.sizes, one)
		size += (int(bytes) + fieldAlignment - 1) / fieldAlignment * fieldAlignment
	}
	n := l.options.Prefetch + 1
	l.idle, l.ready = make(chan *Batch, n), make(chan *Batch, n)
	for range n {
		b := &Batch{loader: l, Samples: make([]int, 0, l.options.Batch), Fields: make([][]byte, len(l.sources))}
		if err := b.allocate(size, l.options.NewBuffer); err != nil {
			l.freeAll()
			return fmt.Errorf("data: a buffer of %d bytes for a batch: %w", size, err)
		}
		l.slots = append(l.slots, b)
		l.idle <- b
	}
	return nil
}

func (b *Batch) allocate(size int, newBuffer func(int) ([]byte, func(), error)) (err error) {
	if newBuffer == nil {
		b.buffer, b.free = make([]byte, size), func() {}
		return nil
	}
	if b.buffer, b.free, err = newBuffer(size); err == nil && len(b.buffer) < size {
		panic(fmt.Sprintf("data: NewBuffer gave %d bytes, %d were asked for", len(b.buffer), size))
	}
	return err
}

// freeAll frees the buffers that the caller does not have.
func (l *Loader) freeAll() {
	for _, b := range l.slots {
		if !b.out {
			b.free()
		}
	}
}

// worker makes batches until there are no more to make.
func (l *Loader) worker() {
	for {
		select {
		case <-l.ctx.Done():
			return
		case b := <-l.idle:
			var more bool
			if b.number, more = l.take(); !more {
				return
			}
			b.err = l.fill(b)
			l.ready <- b
		}
	}
}

// take gives the number of the next batch to make.
func (l *Loader) take() (number int, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == l.batches {
		return 0, false
	}
	l.next++
	return l.next - 1, true
}

// fill reads the samples of a batch.
func (l *Loader) fill(b *Batch) error {
	first := b.number * l.options.Batch
	place := l.order.after(l.options.Start, first)
	at := l.order.Epoch(place.Epoch)
	b.Samples = b.Samples[:0]
	for range min(l.options.Batch, l.total-first) {
		if l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
		if err := l.read(b, at(place.Position)); err != nil {
			return err
		}
		if place.Position++; place.Position == l.order.Len() {
			place = Place{place.Epoch + 1, 0}
			at = l.order.Epoch(place.Epoch)
		}
	}
	b.Len = len(b.Samples)
	for i, size := range l.sizes {
		b.Fields[i] = b.buffer[l.offsets[i]:][: b.Len*size : b.Len*size]
	}
	return nil
}

// read appends a sample to a batch.
func (l *Loader) read(b *Batch, sample int) error {
	row := len(b.Samples)
	for i, s := range l.sources {
		size := l.sizes[i]
		dst := b.buffer[l.offsets[i]+row*size:][:size:size]
		if err := s.Read(sample, dst); err != nil {
			return &SampleError{i, sample, err}
		}
	}
	b.Samples = append(b.Samples, sample)
	return nil
}

// Next waits for a batch and gives it out. The caller must Release it, and may
// hold several at a time, but not all Prefetch+1. After the last one the error
// is io.EOF. A sample that cannot be read gives a *SampleError, a cancelled
// context its cause; after an error, Next gives the same one again.
func (l *Loader) Next() (*Batch, error) {
	if l.err == nil {
		var b *Batch
		if b, l.err = l.receive(); l.err == nil {
			return b, nil
		}
	}
	return nil, l.err
}

func (l *Loader) receive() (*Batch, error) {
	if l.done+len(l.ahead) == l.batches {
		return nil, io.EOF
	}
	b, err := l.wait()
	if err != nil {
		return nil, err
	}
	if err := b.err; err != nil {
		l.idle <- b // from here on another's
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	b.out = true
	l.count(b.number)
	return b, nil
}

// wait gives the batch whose turn it is.
func (l *Loader) wait() (*Batch, error) {
	for {
		if b := l.early[l.done]; b != nil {
			delete(l.early, l.done)
			return b, nil
		}
		select {
		case <-l.ctx.Done():
			return nil, context.Cause(l.ctx)
		case b := <-l.ready:
			if l.options.Unordered {
				return b, nil
			}
			l.early[b.number] = b
		}
	}
}

// count marks a batch as given out.
func (l *Loader) count(number int) {
	l.ahead[number] = true
	for l.ahead[l.done] {
		delete(l.ahead, l.done)
		l.done++
	}
}

// State is the place to resume from: behind the last batch that Next gave out.
// Of an unordered loader it is the first batch not given out; those after it
// that were, at most Prefetch, come a second time.
func (l *Loader) State() Place {
	return l.order.after(l.options.Start, min(l.done*l.options.Batch, l.total))
}

// Release gives the batch's memory back to the loader. To release a batch twice
// is misuse and panics.
func (b *Batch) Release() {
	l := b.loader
	l.mu.Lock()
	defer l.mu.Unlock()
	if !b.out {
		panic("data: a batch was released twice")
	}
	b.out = false
	if l.closed {
		b.free()
		return
	}
	l.idle <- b // has room for all
}

// Close ends the workers, waits for them, and frees the buffers; one that the
// caller has is freed by its Release. Closing again does nothing.
func (l *Loader) Close() {
	l.stop(ErrClosed)
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.freeAll()
	}
}
