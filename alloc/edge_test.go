package alloc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// openAlias opens a null device of 128 MiB that maps pages of 2 MiB twice.
func openAlias(t testing.TB, o Options) (*Allocator, device.Stream) {
	t.Helper()
	return openNull(t, device.NullOptions{Capacity: 128 * mib, Virtual: true, Alias: true, Granularity: 2 * mib}, o)
}

// TestCompactLeavesSharedBlocks: another stream may still write to them.
func TestCompactLeavesSharedBlocks(t *testing.T) {
	d, a := openLagging(t, Options{})
	var kept, gone []*Block
	for i := range 16 {
		b := mustAlloc(t, a, mib/4, d.streams[0])
		if i%8 == 3 {
			kept = append(kept, b)
		} else {
			gone = append(gone, b)
		}
	}
	for _, b := range gone {
		b.Free()
	}
	kept[0].Use(d.streams[1])
	for _, m := range a.Compact(kept) {
		if m.From == kept[0] {
			t.Error("a block that another stream uses was moved")
		}
	}
	other, s := openAlias(t, Options{})
	b := mustAlloc(t, other, mib, s)
	mustPanic(t, "another allocator's", func() { a.Compact([]*Block{b}) })
	mustPanic(t, "another device", func() { _, _ = a.Alloc(1, trace.Other, s) })
}

// TestPlanStepsWithSurvivors: blocks that outlive a step, as optimizer state of
// the first one does, are no obstacle to a plan.
func TestPlanStepsWithSurvivors(t *testing.T) {
	a, s := openAlias(t, Options{PlanSteps: true})
	var state []*Block
	for step := range 6 {
		activation := mustAlloc(t, a, 3*mib, s)
		if step == 0 {
			state = append(state, mustAlloc(t, a, 5*mib, s))
		}
		workspace := mustAlloc(t, a, mib, s)
		activation.Free()
		workspace.Free()
		if err := a.Step(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if a.Stats().Planned < 4 {
		t.Errorf("%d requests were planned", a.Stats().Planned)
	}
	for _, b := range state {
		b.Free()
	}
	closeAll(t, a, s)
}

// fewMappings refuses to map more pages than it may.
type fewMappings struct {
	device.Device
	mapped, most int
}

func (d *fewMappings) Map(p device.Ptr, h []device.Handle) error {
	if d.mapped+len(h) > d.most {
		return fmt.Errorf("%w: too many mappings", device.ErrOutOfMemory)
	}
	err := d.Device.Map(p, h)
	if err == nil {
		d.mapped += len(h)
	}
	return err
}

func (d *fewMappings) Unmap(p device.Ptr, n int) error {
	err := d.Device.Unmap(p, n)
	if err == nil {
		d.mapped -= n
	}
	return err
}

// TestViewsGiveWay: idle views don't keep a request from the mappings that the
// system allows.
func TestViewsGiveWay(t *testing.T) {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 128 * mib, Virtual: true, Alias: true, Granularity: 2 * mib})
	if err != nil {
		t.Fatal(err)
	}
	d := &fewMappings{Device: dev, most: 20}
	a, err := New(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := d.NewStream()
	stitched := stitchOne(t, a, s)
	stitched.Free()
	if a.views.pages == 0 {
		t.Fatal("no view is idle")
	}
	for size := uint64(2 * mib); ; size += 2 * mib { // up to what the mappings allow
		b, err := a.Alloc(size, trace.Other, s)
		if err != nil {
			t.Fatalf("%d bytes with %d of %d mappings in use, %d of them by idle views: %v", size, d.mapped, d.most, a.views.pages, err)
		}
		b.Free()
		if size == 28*mib {
			break
		}
	}
}

// stitchOne makes a block of the parts of two holes.
func stitchOne(t testing.TB, a *Allocator, s device.Stream) *Block {
	t.Helper()
	tail := mustAlloc(t, a, mib, s)
	mustAlloc(t, a, mib, s)
	mustAlloc(t, a, mib, s)
	head := mustAlloc(t, a, mib, s)
	mustAlloc(t, a, 2*mib, s)
	tail.Free()
	head.Free()
	b := mustAlloc(t, a, 2*mib-512, s)
	if b.view == nil {
		t.Fatal("the block is not stitched")
	}
	return b
}

// TestPoolThatIsGone: a request that comes too late fails, also when an evictor
// has destroyed its pool.
func TestPoolThatIsGone(t *testing.T) {
	a, s := openAlias(t, Options{Limit: 8 * mib})
	p := a.NewPool(PoolOptions{})
	if _, err := p.Alloc(6*mib, trace.Other, s); err != nil {
		t.Fatal(err)
	}
	remove := a.OnShortage(func(uint64) bool { p.Destroy(); return true })
	if _, err := p.Alloc(4*mib, trace.Other, s); !errors.Is(err, errDestroyed) {
		t.Errorf("from a pool that an evictor destroyed: %v", err)
	}
	remove()
	if _, err := p.Alloc(mib, trace.Other, s); !errors.Is(err, errDestroyed) || p.Stats() != (PoolStats{}) {
		t.Errorf("from a destroyed pool: %v, %+v", err, p.Stats())
	}
	mustAlloc(t, a, 8*mib, s).Free()
	closeAll(t, a, s)
}

// TestPoolsKeepNoAddresses: pools may come and go for ever.
func TestPoolsKeepNoAddresses(t *testing.T) {
	a, s := openAlias(t, Options{})
	for range 100 {
		p := a.NewPool(PoolOptions{})
		if _, err := p.Alloc(3*mib, trace.Other, s); err != nil {
			t.Fatal(err)
		}
		p.Destroy()
	}
	if n := len(a.segments); n > 4 {
		t.Errorf("%d segments are left of 100 pools", n)
	}
	closeAll(t, a, s)
}

// TestNoAddresses: where addresses are missing the ladder goes on.
func TestNoAddresses(t *testing.T) {
	a, err := New(fewAddresses{faultDevice(t, true), mib / 2}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := a.Device().NewStream()
	asked := false
	a.OnShortage(func(uint64) bool { asked = true; return false })
	var oom *OutOfMemoryError
	if _, err := a.Alloc(mib, trace.Other, s); !errors.As(err, &oom) || !errors.Is(err, errInjected) || !asked {
		t.Errorf("without addresses: %v, evictors asked: %v", err, asked)
	}
}

// TestSoftLimitKeepsViews: a soft limit that can't be met costs no mappings.
func TestSoftLimitKeepsViews(t *testing.T) {
	a, s := openAlias(t, Options{SoftLimit: 2 * mib})
	stitchOne(t, a, s).Free()
	for range 3 {
		mustAlloc(t, a, 2*mib-512, s).Free()
		if err := a.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if st := a.Stats(); st.ViewUnmaps != 0 || st.Reuses != 3 {
		t.Errorf("%d pages of views were unmapped, %d reuses", st.ViewUnmaps, st.Reuses)
	}
}

// TestImpossibleRequest: what no memory holds evicts nothing and leaves the plan.
func TestImpossibleRequest(t *testing.T) {
	a, s := openAlias(t, Options{})
	plan, err := MakePlan(context.Background(), []Lifetime{{Size: mib, Start: 0, End: 1}}, a.page)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Follow(plan); err != nil {
		t.Fatal(err)
	}
	a.OnShortage(func(uint64) bool { t.Error("an evictor was asked"); return false })
	if _, err := a.Alloc(1<<40, trace.Other, s); !errors.Is(err, device.ErrOutOfMemory) || a.planned == nil {
		t.Errorf("1 TiB of 128 MiB: %v, the plan is there: %v", err, a.planned != nil)
	}
}

// TestOddLimit: a limit counts in whole pages.
func TestOddLimit(t *testing.T) {
	a, s := openAlias(t, Options{Limit: 3 * mib})
	mustAlloc(t, a, 2*mib, s)
	var oom *OutOfMemoryError
	if _, err := a.Alloc(mib/2, trace.Other, s); !errors.As(err, &oom) || oom.Limit != 2*mib {
		t.Errorf("%v", err)
	}
	for _, f := range []float64{-1, 2, math.NaN()} {
		if _, err := New(a.Device(), Options{LimitFraction: f}); err == nil {
			t.Errorf("no error for a limit fraction of %g", f)
		}
	}
	if err := a.Reserve(math.MaxUint64); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("Reserve of all numbers: %v", err)
	}
}

// TestAfterClose: what comes too late fails, and the figures are those of an
// empty allocator.
func TestAfterClose(t *testing.T) {
	a, s := openAlias(t, Options{PlanSteps: true})
	b := mustAlloc(t, a, mib, s)
	if err := a.Close(); err == nil {
		t.Error("a live block is no error")
	}
	if st := a.Stats(); st.Live != 0 || st.Cached != 0 || st.Blocks != 0 {
		t.Errorf("figures after Close: %+v", st)
	}
	for name, err := range map[string]error{"Reserve": a.Reserve(mib), "Follow": a.Follow(&Plan{page: a.page}), "Step": a.Step()} {
		if !errors.Is(err, errClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	mustPanic(t, "is dead", func() { b.Allocator() })
	if err := a.Device().Close(); err != nil {
		t.Error(err)
	}
}
