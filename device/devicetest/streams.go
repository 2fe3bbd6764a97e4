package devicetest

import (
	"slices"
	"strings"
	"sync"

	"github.com/headroom-go/headroom/device"
)

// testStreamOrder queues work of which each piece needs the one before.
func testStreamOrder(b *bench) {
	b.needData()
	s := b.mustStream()
	const n, hops = 4096, 50
	p := b.mustAlloc(n * hops)
	data, got := pattern(n, 5), make([]byte, n)
	s.Upload(p, data)
	for i := range device.Ptr(hops - 1) {
		s.Copy(p+(i+1)*n, p+i*n, n)
	}
	s.Download(got, p+(hops-1)*n)
	b.must(s.Sync())
	if !slices.Equal(got, data) {
		b.Fatal("copies did not run in the order in which they were queued")
	}
}

// testLongQueue queues more than any queue holds.
func testLongQueue(b *bench) {
	s := b.mustStream()
	p := b.mustAlloc(4096)
	got := make([]byte, 4096)
	for i := range 2000 {
		s.Upload(p+device.Ptr(i), pattern(1, byte(i)))
	}
	s.Download(got, p)
	b.must(s.Sync())
	for i := range 2000 {
		want := byte(i)
		if b.info.Kind == device.Null {
			want = 0
		}
		if got[i] != want {
			b.Fatalf("byte %d is %d, want %d", i, got[i], want)
		}
	}
}

// testLargeCopies copies more than one thread takes on, with odd sizes.
func testLargeCopies(b *bench) {
	b.needData()
	s := b.mustStream()
	n := 5<<20 + 13
	p, q := b.mustAlloc(uint64(n)), b.mustAlloc(uint64(n))
	data := pattern(n, 6)
	s.Upload(p, data)
	s.Copy(q, p, uint64(n))
	b.expect(s, q, data)
}

func testStreamMisuse(b *bench) {
	first, second := b.mustStream(), b.mustStream()
	if first.ID() != 0 || second.ID() != 1 {
		b.Fatalf("streams %d and %d, want 0 and 1", first.ID(), second.ID())
	}
	panics(b, "a launch without a kernel", func() { first.Launch(&device.Launch{}) })
	b.must(first.Close())
	b.must(first.Close())
	b.must(first.Sync())
	kernel := &device.Kernel{Name: "test", Host: func(*device.Launch, *device.Workers) {}}
	panics(b, "a launch", func() { first.Launch(&device.Launch{Kernel: kernel}) })
	panics(b, "a copy", func() { first.Copy(1, 2, 0) })
	panics(b, "an upload", func() { first.Upload(1, nil) })
	panics(b, "a download", func() { first.Download(nil, 1) })
	panics(b, "a record", func() { first.Record() })
	panics(b, "a wait", func() { first.Wait(second.Record()) })
	third := b.mustStream()
	if third.ID() != 2 {
		b.Fatalf("third stream has number %d", third.ID())
	}
}

// panics expects f to.
func panics(b *bench, what string, f func()) {
	b.Helper()
	defer func() {
		if recover() == nil {
			b.Fatalf("%s on a closed stream or for nothing did not panic", what)
		}
	}()
	f()
}

func testEvents(b *bench) {
	s, other := b.mustStream(), b.mustStream()
	e := s.Record()
	e.Sync()
	if !e.Done() {
		b.Fatal("an event with nothing before it is not done after Sync")
	}
	p := b.mustAlloc(512)
	s.Upload(p, pattern(512, 1))
	e = s.Record()
	other.Wait(e)
	b.must(other.Sync())
	if !e.Done() {
		b.Fatal("a stream passed Wait before the event was reached")
	}
	b.must(s.Close())
	e.Sync()
	other.Wait(e)
	b.must(other.Sync())
}

// gate is a kernel that waits on the device until it is opened.
type gate struct {
	kernel device.Kernel
	opened chan struct{}
}

func newGate(b *bench) *gate {
	g := &gate{opened: make(chan struct{})}
	g.kernel = device.Kernel{Name: "gate", Host: func(*device.Launch, *device.Workers) { <-g.opened }}
	b.Cleanup(sync.OnceFunc(func() {
		select {
		case <-g.opened:
		default:
			close(g.opened)
		}
	}))
	return g
}

func (g *gate) launch(s device.Stream) { s.Launch(&device.Launch{Kernel: &g.kernel}) }

// testAsynchronous holds a stream at a gate, and queues work behind it.
func testAsynchronous(b *bench) {
	b.needHostKernels()
	s, free := b.mustStream(), b.mustStream()
	g := newGate(b)
	p := b.mustAlloc(512)
	b.write(s, p, pattern(512, 1))
	before := s.Record()
	g.launch(s)
	after := s.Record()
	s.Upload(p, pattern(512, 2))
	l := device.Launch{Kernel: fill, Int: [device.MaxInts]int{3}}
	l.Ptr[0] = p + 256
	s.Launch(&l)
	l = device.Launch{} // the queue has its own copy
	before.Sync()
	if after.Done() {
		b.Fatal("an event behind a kernel that has not ended is done")
	}
	b.expect(free, p, pattern(512, 1)) // the other stream is not held up
	close(g.opened)
	after.Sync()
	b.must(s.Sync())
	if !before.Done() || !after.Done() {
		b.Fatal("an event is not done after Sync")
	}
	b.expect(free, p, append(pattern(256, 2), slices.Repeat([]byte{3}, 256)...))
}

// fill sets 256 bytes at Ptr[0] to Int[0].
var fill = &device.Kernel{Name: "fill", Host: func(l *device.Launch, w *device.Workers) {
	data := device.Bytes(l.Ptr[0], 256)
	w.For(len(data), 16, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			data[i] = byte(l.Int[0])
		}
	})
}}

// testEventsAcrossStreams passes data around streams of which the first is
// held, so that only the events keep the order.
func testEventsAcrossStreams(b *bench) {
	b.needHostKernels()
	const streams, n = 4, 1024
	g := newGate(b)
	p := b.mustAlloc(n * streams)
	data, got := pattern(n, 7), make([]byte, n)
	var last device.Stream
	var e device.Event
	for i := range streams {
		s := b.mustStream()
		if i == 0 {
			g.launch(s)
			s.Upload(p, data)
		} else {
			s.Wait(e)
			s.Copy(p+device.Ptr(i)*n, p+device.Ptr(i-1)*n, n)
		}
		e, last = s.Record(), s
	}
	last.Download(got, p+(streams-1)*n)
	if e.Done() {
		b.Fatal("the last event is done while the first stream is held")
	}
	close(g.opened)
	b.must(last.Sync())
	if !slices.Equal(got, data) {
		b.Fatal("a stream did not wait for the event of another")
	}
}

// testStickyError fails one stream in several ways; the other stream works on.
func testStickyError(b *bench) {
	b.needHostKernels()
	p := b.mustAlloc(512)
	healthy := b.mustStream()
	for name, bad := range map[string]*device.Kernel{
		"broken":  {Name: "broken", Host: func(*device.Launch, *device.Workers) { panic("a broken kernel") }},
		"nested":  {Name: "nested", Host: func(_ *device.Launch, w *device.Workers) { w.For(1000, 1, func(lo, _ int) { _ = make([]int, 5)[lo] }) }},
		"missing": {Name: "missing"},
	} {
		b.write(healthy, p, pattern(512, 1))
		s := b.mustStream()
		s.Launch(&device.Launch{Kernel: bad})
		s.Upload(p, pattern(512, 2))
		s.Launch(&device.Launch{Kernel: &device.Kernel{Name: "later", Host: func(*device.Launch, *device.Workers) { panic("later") }}})
		e := s.Record()
		e.Sync()
		healthy.Wait(e)
		for range 2 {
			if err := s.Sync(); err == nil || !strings.Contains(err.Error(), name) {
				b.Fatalf("Sync returned %v, want an error with the kernel's name %s", err, name)
			}
		}
		b.expect(healthy, p, pattern(512, 1))
		if err := s.Close(); err == nil {
			b.Fatal("Close of a stream hides its error")
		}
		s = b.mustStream()
		s.Launch(&device.Launch{Kernel: bad})
		s.Clear()
		b.write(s, p, pattern(512, 3))
		b.expect(healthy, p, pattern(512, 3))
		b.must(s.Close())
	}
}

// testDoneAtOnce checks what a null device promises.
func testDoneAtOnce(b *bench) {
	if b.info.Kind != device.Null {
		b.Skip("not a null device")
	}
	s := b.mustStream()
	p := b.mustAlloc(512)
	data := pattern(512, 1)
	s.Launch(&device.Launch{Kernel: &device.Kernel{Name: "any"}})
	s.Download(data, p)
	if !s.Record().Done() || !slices.Equal(data, make([]byte, 512)) {
		b.Fatalf("work is not done at once, or a download is not zeros: %v…", data[:8])
	}
}
