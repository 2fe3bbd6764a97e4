package alloc

import (
	"errors"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// stitched gives an allocator of pages of 1 MiB with a stitched block of a
// head, a whole page and a tail, between two walls.
func stitched(t *testing.T, o Options) (*Allocator, device.Stream, *Block) {
	a, s := aliased(t, o)
	tail := mustAlloc(t, a, mib/2, s)
	mustAlloc(t, a, mib/2, s)
	mustAlloc(t, a, mib/2, s)
	head := mustAlloc(t, a, mib/2, s)
	whole := mustAlloc(t, a, mib, s)
	mustAlloc(t, a, mib, s)
	tail.Free()
	head.Free()
	whole.Free()
	x := mustAlloc(t, a, 2*mib, s)
	if x.view == nil || len(x.view.pages) != 3 {
		t.Fatalf("the block is no stitch of three pages: %+v", x)
	}
	return a, s, x
}

// TestKeptMemoryIsNotLent lets a page that an idle view shows move to a pool
// which keeps it: the view is not used again.
func TestKeptMemoryIsNotLent(t *testing.T) {
	a, s, x := stitched(t, Options{Limit: 4 * mib})
	x.Free()
	p := a.NewPool(PoolOptions{Keep: true})
	b, err := p.Alloc(mib, trace.Other, s)
	if err != nil || b.seg.pages[0].views != 1 {
		t.Fatalf("the pool has no page of the view: %+v, %v", b, err)
	}
	b.Free()
	if b, err := a.Alloc(2*mib, trace.Other, s); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("block %+v, %v: only the pool has a whole page", b, err)
	}
	p.Destroy()
	if b, err := a.Alloc(2*mib, trace.Other, s); err != nil || b != x || a.Stats().Reuses != 1 {
		t.Errorf("after the pool's end: %+v, %v", b, err)
	}
}

// TestKeepingPoolTakesFreePages lets a pool that keeps memory grow beside a
// free page of its own: the other page comes from elsewhere.
func TestKeepingPoolTakesFreePages(t *testing.T) {
	a, s := aliased(t, Options{Limit: 2 * mib})
	p := a.NewPool(PoolOptions{Keep: true})
	b, err := p.Alloc(mib, trace.Other, s)
	if err != nil {
		t.Fatal(err)
	}
	b.Free()
	mustAlloc(t, a, mib, s).Free()
	if _, err := p.Alloc(2*mib, trace.Other, s); err != nil || a.Stats().Creates != 2 {
		t.Errorf("with one page of its own and one free elsewhere: %v; figures %+v", err, a.Stats())
	}
}

// TestViewsAreBounded makes more views than may be mapped. Those that were not
// taken for longest go.
func TestViewsAreBounded(t *testing.T) {
	dev, most := &bounded{most: 1 << 30}, 0
	makeManyViews(t, dev, func(a *Allocator) {
		most = 1<<15 + a.source.(*virtual).homes()
		a.views.most = most
	})
	if dev.peak > most || dev.peak < most*3/4 {
		t.Errorf("%d pages were mapped, want nearly %d", dev.peak, most)
	}
}

// TestMappingsRefused makes more views than the device maps, of which it tells nothing
// before. Those that were not taken for longest go, and no further mapping is refused,
// until the device maps fewer.
func TestMappingsRefused(t *testing.T) {
	dev := &bounded{most: 40_000}
	makeManyViews(t, dev, func(*Allocator) {})
	if dev.refused < 2 {
		t.Errorf("%d mappings were refused, want some before the device maps fewer and after", dev.refused)
	}
}

// bounded is a device that maps so many pages at a time.
type bounded struct {
	device.Device
	most, mapped, peak, refused int
}

func (b *bounded) Map(p device.Ptr, handles []device.Handle) error {
	if b.mapped+len(handles) > b.most {
		b.refused++
		return errors.New("too many mappings")
	}
	b.mapped += len(handles)
	b.peak = max(b.peak, b.mapped)
	return b.Device.Map(p, handles)
}

func (b *bounded) Unmap(p device.Ptr, n int) error {
	b.mapped -= n
	return b.Device.Unmap(p, n)
}

// makeManyViews makes views of 30 sizes on dev, of which one is used over and over, and
// checks that this one stays and others go; then it asks for memory whose pages the
// device may have too few mappings for. It calls begin before the first.
func makeManyViews(t *testing.T, dev *bounded, begin func(a *Allocator)) {
	null, err := device.OpenNull(device.NullOptions{Capacity: 16 * mib, Virtual: true, Alias: true, Granularity: 512})
	if err != nil {
		t.Fatal(err)
	}
	dev.Device = null
	a, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := dev.NewStream()
	var holes []*Block
	for range 12 {
		holes = append(holes, mustAlloc(t, a, 128<<10, s))
		mustAlloc(t, a, 66<<10, s)
	}
	for _, b := range holes {
		b.Free()
	}
	a.limit = a.stats.Reserved
	begin(a)
	use := func(i int) *Block { // about 1800 pages of the holes
		b := mustAlloc(t, a, 900<<10+uint64(i)*unit, s)
		b.Free()
		return b
	}
	const views = 30
	first, second := use(0), use(1)
	for i := 2; i < views; i++ {
		if use(i).view == nil || use(0) != first {
			t.Fatalf("after %d views: figures %+v, %d pages mapped", i, a.Stats(), a.views.pages)
		}
	}
	if st := a.Stats(); st.ViewUnmaps == 0 || st.Reuses != views-2 {
		t.Errorf("figures %+v, want that views were unmapped, but not the first", st)
	}
	if use(1) == second {
		t.Error("the view that was not used for longest is still there")
	}
	if dev.refused > 1 {
		t.Errorf("%d mappings were refused, want that one tells", dev.refused)
	}
	a.limit, dev.most = 16*mib, dev.most*8/10
	mustAlloc(t, a, 8*mib, s)
	if err := errors.Join(a.Check(), a.source.close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// TestCheckFindsFaultsOfViews breaks each equation of views by hand.
func TestCheckFindsFaultsOfViews(t *testing.T) {
	for name, damage := range map[string]func(a *Allocator, w *view){
		"pages":     func(a *Allocator, _ *view) { a.views.pages++ },
		"shown":     func(_ *Allocator, w *view) { w.pages[1].views = 0 },
		"lent list": func(_ *Allocator, w *view) { w.lent = w.lent[:1] },
		"lent more": func(_ *Allocator, w *view) { w.lent = append(w.lent, w.lent[0]) },
		"idle":      func(_ *Allocator, w *view) { w.block.state = free },
		"piece":     func(_ *Allocator, w *view) { w.lent[0].state = live },
		"home":      func(_ *Allocator, w *view) { w.pages[1].addr += mib },
		"short":     func(_ *Allocator, w *view) { w.pages = w.pages[:2] },
		"offset":    func(_ *Allocator, w *view) { w.block.addr += 512 },
		"bytes": func(a *Allocator, w *view) {
			w.block.size += 512
			a.stats.Live += 512
			a.stats.ByPurpose[trace.Activation].Live += 512
		},
		"stats": func(a *Allocator, _ *view) { a.stats.Live -= 512 },
	} {
		a, _, x := stitched(t, Options{})
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		damage(a, x.view)
		if a.Check() == nil {
			t.Errorf("%s: Check finds nothing wrong", name)
		}
	}
}
