package alloc

import (
	"errors"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/trace"
)

// Faults that users of other allocators have reported, each as a test of what
// happens here instead. Those of sharing memory are in package share.

// TestSearchAgainAfterWait: a request that fits once a wait is over does not
// fail (PyTorch issue 189504).
func TestSearchAgainAfterWait(t *testing.T) {
	d, a := openLagging(t, Options{Limit: 8 * mib})
	b := mustAlloc(t, a, 8*mib, d.streams[0])
	d.touch(d.streams[0], b.addr, b.end())
	b.Use(d.streams[1])
	d.share(d.streams[1], b.addr, b.end())
	b.Free()
	if p := a.Stats().Pending; p != 8*mib {
		t.Fatalf("%d bytes are pending", p)
	}
	c := mustAlloc(t, a, 8*mib, d.streams[0])
	d.touch(d.streams[0], c.addr, c.end())
	if st := a.Stats(); st.Waits != 1 || st.OOMs != 0 || d.err != nil {
		t.Errorf("%d waits, %d failures, %v", st.Waits, st.OOMs, d.err)
	}
}

// openLagging opens a device of 64 MiB with two streams that stand still, and
// an allocator.
func openLagging(t *testing.T, o Options) (*lagging, *Allocator) {
	t.Helper()
	d := newLagging(t, device.NullOptions{Capacity: 64 * mib, Virtual: true, Granularity: 2 * mib})
	a, err := New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	return d, a
}

// TestReservedStaysBounded: no combination of options lets cycles of changing
// sizes pile up memory (PyTorch issue 123548: 220 MiB grew to 14,060).
func TestReservedStaysBounded(t *testing.T) {
	for _, o := range []Options{{}, {SoftLimit: 16 * mib}, {TrimEvery: 3}, {NoVirtual: true}, {PlanSteps: true}, {Preallocate: 32 * mib, SoftLimit: 8 * mib}, {LimitFraction: 0.9}} {
		d := newLagging(t, device.NullOptions{Capacity: 1 << 30, Virtual: true, Alias: true, Granularity: 2 * mib})
		a, err := New(d, o)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := d.NewStream()
		for i := range uint64(100) {
			small := mustAlloc(t, a, 3000+i, s)
			large := mustAlloc(t, a, 20*mib+i*64*1024, s)
			large.Free()
			other := mustAlloc(t, a, 18*mib+i*40*1024, s)
			other.Free()
			small.Free()
			if err := a.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if st := a.Stats(); st.PeakReserved > 2*st.PeakLive+4*mib {
			t.Errorf("%+v: %d bytes reserved for at most %d live", o, st.PeakReserved, st.PeakLive)
		}
	}
}

// TestFailedMapLeavesNothingHalfMapped: after a mapping has failed the next
// request is served (PyTorch issue 188008).
func TestFailedMapLeavesNothingHalfMapped(t *testing.T) {
	for _, alias := range []bool{false, true} {
		inner, err := device.OpenNull(device.NullOptions{Capacity: 64 * mib, Virtual: true, Alias: alias, Granularity: 2 * mib})
		if err != nil {
			t.Fatal(err)
		}
		d := devicetest.Fail(inner, devicetest.Map, 1, errInjected)
		a, err := New(d, Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := d.NewStream()
		if _, err := a.Alloc(10*mib, trace.Other, s); !errors.Is(err, errInjected) {
			t.Fatalf("the failure became %v", err)
		}
		if st := a.Stats(); st.Reserved != 0 {
			t.Errorf("%d bytes stay reserved after the failure", st.Reserved)
		}
		mustAlloc(t, a, 10*mib, s).Free()
		closeAll(t, a, s)
	}
}

// TestPoolHasItsOwnMemory: a pool lies apart, and destroying it sets all its
// memory free, whatever was live (PyTorch issue 147851: 0 bytes).
func TestPoolHasItsOwnMemory(t *testing.T) {
	d, a := openLagging(t, Options{})
	other := mustAlloc(t, a, mib, d.streams[0])
	p := a.NewPool(PoolOptions{Keep: true})
	for range 5 {
		if _, err := p.Alloc(3*mib, trace.Parameter, d.streams[0]); err != nil {
			t.Fatal(err)
		}
	}
	if st := p.Stats(); st.Live != 15*mib || st.Blocks != 5 || st.Reserved != 16*mib {
		t.Errorf("the pool has %+v", st)
	}
	p.Destroy()
	p.Destroy()
	if freed, err := a.Trim(0); err != nil || freed != 16*mib || a.Stats().Live != mib {
		t.Errorf("%d bytes given back, %v; %d live", freed, err, a.Stats().Live)
	}
	other.Free()
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

// TestTrimReturnsPoolMemory: what a pool holds free is given back like all else
// (PyTorch issue 145168), but for a pool that keeps its memory.
func TestTrimReturnsPoolMemory(t *testing.T) {
	for keep, want := range map[bool]uint64{false: 4 * mib, true: 0} {
		d, a := openLagging(t, Options{})
		p := a.NewPool(PoolOptions{Keep: keep})
		b, err := p.Alloc(4*mib, trace.Other, d.streams[0])
		if err != nil {
			t.Fatal(err)
		}
		b.Free()
		if freed, err := a.Trim(0); err != nil || freed != want {
			t.Errorf("keep %v: %d bytes given back, %v", keep, freed, err)
		}
	}
}

// TestPoolClimbsTheLadder: a pool's request takes what is cached elsewhere
// before it fails (PyTorch issue 159674), and asks the evictors.
func TestPoolClimbsTheLadder(t *testing.T) {
	d, a := openLagging(t, Options{Limit: 8 * mib})
	mustAlloc(t, a, 8*mib, d.streams[0]).Free()
	p := a.NewPool(PoolOptions{})
	b, err := p.Alloc(8*mib, trace.Other, d.streams[0])
	if err != nil {
		t.Fatal(err)
	}
	remove := a.OnShortage(func(need uint64) bool {
		if need != 6*mib || b == nil {
			return false
		}
		b.Free()
		b = nil
		return true
	})
	if _, err := p.Alloc(6*mib, trace.Other, d.streams[0]); err != nil {
		t.Error(err)
	}
	if st := a.Stats(); st.Evictions != 1 || st.OOMs != 0 {
		t.Errorf("%d evictions, %d failures", st.Evictions, st.OOMs)
	}
	remove()
	if _, err := p.Alloc(6*mib, trace.Other, d.streams[0]); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("without evictors: %v", err)
	}
}

// TestUseHoldsNoMemoryHostage: a block that another stream has read is handed
// out again before the pool grows (PyTorch issue 147168).
func TestUseHoldsNoMemoryHostage(t *testing.T) {
	d, a := openLagging(t, Options{})
	for range 10 { // an all-gather buffer a layer, read by the stream that computes
		b := mustAlloc(t, a, 4*mib, d.streams[0])
		d.touch(d.streams[0], b.addr, b.end())
		b.Use(d.streams[1])
		d.share(d.streams[1], b.addr, b.end())
		b.Free()
	}
	if st := a.Stats(); st.PeakReserved != 4*mib || d.err != nil {
		t.Errorf("%d bytes were reserved for one buffer of 4 MiB, %v", st.PeakReserved, d.err)
	}
}

// TestStreamsShareMemory: what one stream has freed serves others (PyTorch pull
// request 129721).
func TestStreamsShareMemory(t *testing.T) {
	d, a := openLagging(t, Options{})
	for i := range 10 {
		s := d.streams[i%2]
		b := mustAlloc(t, a, 6*mib, s)
		d.touch(s, b.addr, b.end())
		b.Free()
	}
	if st := a.Stats(); st.PeakReserved != 6*mib || st.Waits == 0 || d.err != nil {
		t.Errorf("%d bytes reserved, %d waits, %v", st.PeakReserved, st.Waits, d.err)
	}
}

// TestNoCliffAtOneMiB: a smaller block never needs more memory (PyTorch keeps
// 2 MiB and then 0.5 MiB in 22).
func TestNoCliffAtOneMiB(t *testing.T) {
	before := uint64(0)
	for n := uint64(512); n <= 4*mib; n += 12800 {
		d, a := openLagging(t, Options{})
		mustAlloc(t, a, 2*mib, d.streams[0])
		mustAlloc(t, a, n, d.streams[0])
		r := a.Stats().Reserved
		if r < before || r > 2*mib+roundUp(n, 2*mib) {
			t.Errorf("%d bytes beside 2 MiB: %d reserved, %d for a smaller one", n, r, before)
		}
		before = r
	}
}

// TestPinnedMemoryIsNotRounded: pinned host memory is taken in its size
// (PyTorch issue 95823: 2.25 GiB became 4).
func TestPinnedMemoryIsNotRounded(t *testing.T) {
	d, err := device.OpenPinned(64 * mib)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	b := mustAlloc(t, a, 36*mib+4096, s) // 2^n would be 64 MiB
	if r := a.Stats().Reserved; r > 38*mib {
		t.Errorf("%d bytes reserved for %d", r, b.Size())
	}
	b.Free()
	closeAll(t, a, s)
}
