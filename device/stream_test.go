package device

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

var nothing = &Kernel{Name: "nothing", Host: func(*Launch, *Workers) {}}

func openStream(t testing.TB, workers int) (*HostDevice, Stream) {
	t.Helper()
	d, err := OpenHost(HostOptions{Capacity: 64 << 20, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return d, s
}

// TestQueueAllocatesNothing queues launches and copies in a steady state.
func TestQueueAllocatesNothing(t *testing.T) {
	d, s := openStream(t, 1)
	p, err := d.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	l, data := &Launch{Kernel: nothing}, make([]byte, 100)
	allocs := testing.AllocsPerRun(100, func() {
		for range 10 {
			s.Launch(l)
			s.Copy(p, p+1024, 100)
			s.Upload(p, data)
			s.Download(data, p)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("40 pieces of work make %g allocations", allocs)
	}
}

// TestLaunchArguments checks that a kernel gets what was launched, even when
// the caller changes its Launch at once, over several rounds of the ring.
func TestLaunchArguments(t *testing.T) {
	_, s := openStream(t, 1)
	var got []Launch
	record := &Kernel{Name: "record", Host: func(l *Launch, _ *Workers) { got = append(got, *l) }}
	var l Launch
	l.Kernel = record
	for i := range 3 * queueLength {
		l.Ptr[MaxPtrs-1], l.Int[MaxInts-1], l.Float[MaxFloats-1] = Ptr(i), -i, float32(i)
		l.Bytes, l.Flops = uint64(i), uint64(2*i)
		s.Launch(&l)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	for i, l := range got {
		if l.Ptr[MaxPtrs-1] != Ptr(i) || l.Int[MaxInts-1] != -i || l.Float[MaxFloats-1] != float32(i) || l.Bytes != uint64(i) || l.Flops != uint64(2*i) {
			t.Fatalf("launch %d arrived as %+v", i, l)
		}
	}
	if len(got) != 3*queueLength {
		t.Fatalf("%d launches arrived", len(got))
	}
}

// TestQueueIsBounded fills the queue of a stream that is held up: the user must
// wait, and go on when the stream does.
func TestQueueIsBounded(t *testing.T) {
	_, s := openStream(t, 1)
	gate := make(chan struct{})
	var queued atomic.Int64
	s.Launch(&Launch{Kernel: &Kernel{Name: "gate", Host: func(*Launch, *Workers) { <-gate }}})
	done := make(chan struct{})
	go func() {
		for range 2 * queueLength {
			s.Launch(&Launch{Kernel: nothing})
			queued.Add(1)
		}
		close(done)
	}()
	for queued.Load() < queueLength-1 {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	if n := queued.Load(); n != queueLength-1 {
		t.Fatalf("%d pieces of work queued behind one that does not end, want %d", n, queueLength-1)
	}
	close(gate)
	<-done
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestManyStreams works from many goroutines with a stream each, on one pool.
// Each stream adds to what the one before has computed in the same round, with
// nothing but events to order them.
func TestManyStreams(t *testing.T) {
	d, _ := openStream(t, 3)
	const streams, rounds = 6, 200
	var cells [streams + 1][rounds]int
	var events [streams + 1]chan Event
	events[0] = make(chan Event)
	close(events[0])
	var users sync.WaitGroup
	for i := range streams {
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		add := &Kernel{Name: "add", Host: func(l *Launch, w *Workers) {
			var n atomic.Int64
			w.For(10, 3, func(lo, hi int) { n.Add(int64(hi - lo)) })
			cells[i+1][l.Int[0]] = cells[i][l.Int[0]] + int(n.Load())
		}}
		events[i+1] = make(chan Event, rounds)
		users.Go(func() {
			for round := range rounds {
				if e := <-events[i]; e != nil {
					s.Wait(e)
				}
				s.Launch(&Launch{Kernel: add, Int: [MaxInts]int{round}})
				events[i+1] <- s.Record()
			}
			if err := s.Sync(); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	for round, n := range cells[streams] {
		if n != 10*streams {
			t.Errorf("round %d added up to %d, want %d", round, n, 10*streams)
		}
	}
}

// TestCounter lets goroutines wait for different numbers.
func TestCounter(t *testing.T) {
	var c counter
	c.init()
	var mu sync.Mutex
	var woken []int
	var waiters sync.WaitGroup
	for n := range 50 {
		waiters.Go(func() {
			c.wait(uint64(n))
			mu.Lock()
			defer mu.Unlock()
			if v := c.value.Load(); v < uint64(n) {
				t.Errorf("waited for %d, woken at %d", n, v)
			}
			woken = append(woken, n)
		})
	}
	for range 49 {
		c.increment()
		runtime.Gosched()
	}
	waiters.Wait()
	slices.Sort(woken)
	if len(woken) != 50 || woken[49] != 49 {
		t.Errorf("woken: %v", woken)
	}
}

func TestCloseReportsStreamErrors(t *testing.T) {
	d, s := openStream(t, 1)
	s.Launch(&Launch{Kernel: &Kernel{Name: "missing"}})
	if err := d.Close(); err == nil {
		t.Error("Close hides the error of an open stream")
	}
}

func BenchmarkLaunch(b *testing.B) {
	_, s := openStream(b, 1)
	l := &Launch{Kernel: nothing}
	b.ReportAllocs()
	for b.Loop() {
		s.Launch(l)
	}
	_ = s.Sync()
}

func BenchmarkLaunchSync(b *testing.B) {
	_, s := openStream(b, 1)
	l := &Launch{Kernel: nothing}
	b.ReportAllocs()
	for b.Loop() {
		s.Launch(l)
		_ = s.Sync()
	}
}

func BenchmarkRecordWait(b *testing.B) {
	d, s := openStream(b, 1)
	other, err := d.NewStream()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		other.Wait(s.Record())
	}
	_ = other.Sync()
}

// BenchmarkLaunchFor is a stream of small kernels that share their work.
func BenchmarkLaunchFor(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			_, s := openStream(b, workers)
			l := &Launch{Kernel: &Kernel{Name: "for", Host: func(_ *Launch, w *Workers) {
				w.For(8, 1, func(lo, hi int) {})
			}}}
			b.ReportAllocs()
			for b.Loop() {
				s.Launch(l)
			}
			_ = s.Sync()
		})
	}
}
