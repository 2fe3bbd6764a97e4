package alloc

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/trace"
)

// open gives an allocator of a null device and a stream.
func open(t testing.TB, capacity uint64, o Options) (*Allocator, device.Stream) {
	t.Helper()
	return openNull(t, device.NullOptions{Capacity: capacity, Virtual: true}, o)
}

// openNull gives an allocator of any null device and a stream.
func openNull(t testing.TB, null device.NullOptions, o Options) (*Allocator, device.Stream) {
	t.Helper()
	dev, err := device.OpenNull(null)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(dev, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return a, s
}

// mustPanic fails the test unless f panics with a message that holds want.
func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), want) {
			t.Errorf("panic is %v, want it to say %q", r, want)
		}
	}()
	f()
}

// TestDeterminism checks that addresses and peaks of a one-stream program do
// not depend on how far the device has come.
func TestDeterminism(t *testing.T) {
	for _, alias := range []bool{false, true} {
		t.Run(fmt.Sprintf("alias=%v", alias), func(t *testing.T) { determinism(t, alias) })
	}
}

func determinism(t *testing.T, alias bool) {
	run := func(pace uint64) (addresses []uint64, peak Stats) {
		dev := newLagging(t, device.NullOptions{Capacity: 96 << 20, Virtual: true, Alias: alias})
		a, err := New(dev, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ds, _ := dev.NewStream()
		s := ds.(*lagStream)
		r, progress := rand.New(rand.NewPCG(5, 5)), rand.New(rand.NewPCG(pace, 0))
		var live []*Block
		for range 3000 {
			if len(live) > 0 && r.IntN(100) < 48 {
				i := r.IntN(len(live))
				live[i].Free()
				live = slices.Delete(live, i, i+1)
			} else if b, err := a.Alloc(randomSize(r), trace.Other, s); err == nil {
				live = append(live, b)
				addresses = append(addresses, b.addr)
				dev.touch(s, b.addr, b.end())
			}
			if pace > 0 {
				s.advance(progress.IntN(5))
			}
		}
		if dev.err != nil {
			t.Fatal(dev.err)
		}
		peak = a.Stats()
		peak.Syncs = 0
		return addresses, peak
	}
	addresses, stats := run(0)
	if stats.Unmaps == 0 || stats.OOMs == 0 || alias != (stats.Stitches > 0 && stats.Reuses > 0) {
		t.Fatalf("the program moves no pages, fits, or stitches nothing: %+v", stats)
	}
	for pace := range uint64(4) {
		gotAddresses, gotStats := run(pace)
		if !slices.Equal(gotAddresses, addresses) || gotStats != stats {
			t.Errorf("pace %d: figures %+v, first run %+v; addresses equal: %v", pace, gotStats, stats, slices.Equal(gotAddresses, addresses))
		}
	}
}

// randomSize gives sizes of up to 8 MiB, some again and again.
func randomSize(r *rand.Rand) uint64 {
	if r.IntN(4) == 0 {
		return 5 << 20 >> r.IntN(2)
	}
	return 1 + r.Uint64N(8<<20>>r.IntN(16))
}

// TestHotPathAllocatesNothing counts allocations of Go memory per operation
// when free blocks are reused, alone and among other blocks.
func TestHotPathAllocatesNothing(t *testing.T) {
	if invariant.Slow {
		t.Skip("the checks of this build allocate")
	}
	a, s := open(t, 1<<30, Options{})
	for range 100 {
		mustAlloc(t, a, 3<<20, s)
		mustAlloc(t, a, 2<<20, s).Free()
	}
	live := mustAlloc(t, a, 1<<20, s)
	for name, f := range map[string]func(){
		"whole": func() { mustAlloc(t, a, 2<<20, s).Free() },
		"split": func() { mustAlloc(t, a, 100<<10, s).Free() },
		"small": func() { mustAlloc(t, a, 512, s).Free() },
		"chain": func() { live.Free(); live = mustAlloc(t, a, 1<<20, s) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations per operation", name, n)
		}
	}
	view, s2, x := stitched(t, Options{})
	if n := testing.AllocsPerRun(1000, func() { x.Free(); x = mustAlloc(t, view, 2*mib, s2) }); n != 0 || view.Stats().Reuses < 1000 {
		t.Errorf("stitched: %v allocations per operation", n)
	}
	second, _ := a.Device().NewStream()
	if n := testing.AllocsPerRun(1000, func() { b := mustAlloc(t, a, 2<<20, s); b.Use(second); b.Free() }); n != 0 {
		t.Errorf("with two streams: %v allocations per operation", n)
	}
}

// TestMarksAreForgotten checks that events which were passed are dropped.
func TestMarksAreForgotten(t *testing.T) {
	a, s := open(t, 64<<20, Options{})
	second, _ := a.Device().NewStream()
	mustAlloc(t, a, 512, s) // so that the pools don't take each other's page
	mustAlloc(t, a, 1<<19, second)
	for range 10_000 {
		mustAlloc(t, a, 512, s).Free()
		mustAlloc(t, a, 1<<20, second).Free()
	}
	for _, st := range a.streams {
		if len(st.marks) > 200 || st.tick != 10_000 {
			t.Errorf("stream %d keeps %d marks after %d frees", st.id, len(st.marks), st.tick)
		}
	}
}

// TestConcurrent lets goroutines with their own streams use one allocator. The
// device is the host, so that the race detector sees the work as well.
func TestConcurrent(t *testing.T) {
	for _, spec := range []string{"null:64MiB", "host:64MiB"} {
		t.Run(spec, func(t *testing.T) {
			dev, err := device.Open(spec)
			if err != nil {
				t.Fatal(err)
			}
			a, err := New(dev, Options{Sink: trace.NewRecorder(100), StackDepth: 4})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 4 {
				s, err := dev.NewStream()
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() { hammer(t, a, s) })
			}
			wg.Wait()
			if st := a.Stats(); st.Live != 0 || st.Allocs != st.Frees {
				t.Errorf("at the end %+v", st)
			}
			if err := errors.Join(a.Check(), a.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// hammer writes a pattern of its own into blocks, reads it back and frees them.
func hammer(t *testing.T, a *Allocator, s device.Stream) {
	r := rand.New(rand.NewPCG(uint64(s.ID()), 0))
	pattern := []byte{1, byte(s.ID()), 3, 4}
	var live []*Block
	for range 150 {
		if len(live) < 4 || r.IntN(2) == 0 {
			b, err := a.Alloc(4+r.Uint64N(4<<20>>r.IntN(12)), trace.Input, s)
			if errors.Is(err, device.ErrOutOfMemory) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			s.Upload(b.Ptr(), pattern)
			live = append(live, b)
			continue
		}
		i := r.IntN(len(live))
		got := make([]byte, 4)
		s.Download(got, live[i].Ptr())
		if err := s.Sync(); err != nil {
			t.Error(err)
			return
		}
		if a.Device().Info().Kind == device.Host && !slices.Equal(got, pattern) {
			t.Errorf("stream %d reads %v, wrote %v: the block was another one's as well", s.ID(), got, pattern)
		}
		live[i].Free()
		live = slices.Delete(live, i, i+1)
		if r.IntN(20) == 0 {
			if _, err := a.Trim(0); err != nil {
				t.Error(err)
			}
		}
	}
	for _, b := range live {
		b.Free()
	}
}

// TestEventsTellTheStory rebuilds live and reserved bytes from the events alone.
func TestEventsTellTheStory(t *testing.T) {
	for _, kind := range []string{"alias", "virtual", "plain"} {
		rec := trace.NewRecorder(0)
		o := Options{NoVirtual: kind == "plain", Sink: rec, StackDepth: 8}
		a, s := open(t, 64<<20, o)
		if kind == "alias" {
			a, s = aliased(t, o)
		}
		r := rand.New(rand.NewPCG(9, 9))
		var blocks []*Block
		for range 2000 {
			if len(blocks) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(blocks))
				blocks[i].Free()
				blocks = slices.Delete(blocks, i, i+1)
			} else if b, err := a.Alloc(randomSize(r), trace.Purpose(r.IntN(trace.NumPurposes)), s); err == nil {
				blocks = append(blocks, b)
			}
		}
		if _, err := a.Trim(0); err != nil {
			t.Fatal(err)
		}
		told := map[trace.Action]uint64{}
		requested, reserved := uint64(0), uint64(0)
		live := map[uint64]trace.Entry{}
		for _, e := range rec.Trace().All() {
			told[e.Action]++
			switch e.Action {
			case trace.Alloc:
				requested += e.Size
				live[e.Addr] = e
			case trace.FreeRequested:
				requested -= e.Size
				if was := live[e.Addr]; was.Size != e.Size || was.Purpose != e.Purpose {
					t.Fatalf("freed %+v, allocated %+v", e, was)
				}
				delete(live, e.Addr)
			case trace.SegmentAlloc, trace.SegmentMap:
				reserved += e.Size
			case trace.SegmentFree, trace.SegmentUnmap:
				reserved -= e.Size
			}
		}
		st := a.Stats()
		if requested != st.Requested || reserved != st.Reserved || told[trace.Alloc] != st.Allocs || told[trace.FreeCompleted] != st.Frees || told[trace.OOM] != st.OOMs || st.OOMs == 0 {
			t.Errorf("events give requested %d, reserved %d, %v; figures %+v", requested, reserved, told, st)
		}
		sameAsSegments(t, a.Segments(), live, st, kind == "plain")
		if kind == "alias" && (st.Stitches == 0 || st.Reuses == 0) {
			t.Errorf("nothing was stitched and used again: %+v", st)
		}
	}
}

// sameAsSegments compares segments with the live blocks that events tell of.
func sameAsSegments(t *testing.T, segments []trace.Segment, live map[uint64]trace.Entry, st Stats, plain bool) {
	var reserved uint64
	n := 0
	for _, seg := range segments {
		reserved += seg.Size
		at := seg.Addr
		if seg.Expandable == plain {
			t.Errorf("segment %#x: expandable is %v", seg.Addr, seg.Expandable)
		}
		for _, b := range seg.Blocks {
			if b.Addr != at {
				t.Fatalf("block at %#x, the one before ends at %#x", b.Addr, at)
			}
			at += b.Size
			if b.State != trace.Live {
				continue
			}
			n++
			e := live[b.Addr]
			if b.Requested != e.Size || b.Purpose != e.Purpose || b.Size != roundUp(e.Size, unit) || b.Stack == nil ||
				!reflect.DeepEqual(b.Stack.Frames(), e.Stack.Frames()) || !strings.HasSuffix(b.Stack.Frames()[0].Func, "TestEventsTellTheStory") {
				t.Fatalf("block %+v, event %+v", b, e)
			}
		}
		if at != seg.Addr+seg.Size {
			t.Fatalf("blocks end at %#x, the segment at %#x", at, seg.Addr+seg.Size)
		}
	}
	if reserved != st.Reserved || n != len(live) {
		t.Errorf("segments hold %d bytes and %d live blocks, want %d and %d", reserved, n, st.Reserved, len(live))
	}
}

func TestStacksBelongToTheCaller(t *testing.T) {
	rec := trace.NewRecorder(0)
	a, s := open(t, 8<<20, Options{Sink: rec, StackDepth: 2})
	mustAlloc(t, a, 512, s).Free()
	if _, err := a.Alloc(1<<30, trace.Other, s); err == nil {
		t.Fatal("1 GiB of 8 MiB")
	}
	want := map[trace.Action]string{trace.Alloc: "mustAlloc", trace.FreeRequested: "TestStacksBelongToTheCaller", trace.OOM: "TestStacksBelongToTheCaller"}
	for _, e := range rec.Trace().All() {
		f := e.Stack.Frames()
		if name, ok := want[e.Action]; ok && (len(f) != 2 || !strings.HasSuffix(f[0].Func, name)) {
			t.Errorf("%v: stack %v, want it to begin in %s", e.Action, f, name)
		}
	}
	a.SetSink(nil, 0)
	if b := mustAlloc(t, a, 512, s); b.stack != nil {
		t.Error("a stack was recorded after SetSink(nil, 0)")
	}
	if n := rec.Trace().Len(); n != 5 {
		t.Errorf("%d events, want map, alloc, two of free, oom", n)
	}
}

func TestMisusePanics(t *testing.T) {
	a, s := open(t, 64<<20, Options{})
	b := mustAlloc(t, a, 512, s)
	b.Free()
	mustPanic(t, "Free of a block that is free", b.Free)
	mustPanic(t, "Use of a block that is free", func() { b.Use(s) })
	mustPanic(t, "0 bytes", func() { _, _ = a.Alloc(0, trace.Other, s) })
	mustPanic(t, "purpose 7", func() { _, _ = a.Alloc(1, trace.Purpose(trace.NumPurposes), s) })
	p := mustAlloc(t, a, 512, s)
	if err := a.Close(); err == nil {
		t.Error("Close with a live block gives no error")
	}
	mustPanic(t, "allocator closed", p.Free)
	if _, err := a.Alloc(1, trace.Other, s); err == nil {
		t.Error("Alloc after Close gives no error")
	}
	if n, err := a.Trim(0); n != 0 || err != nil {
		t.Errorf("Trim after Close: %d, %v", n, err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestLeakReport(t *testing.T) {
	a, s := open(t, 64<<20, Options{StackDepth: 8})
	mustAlloc(t, a, 512, s).Free()
	for range 3 {
		mustAlloc(t, a, 1<<20, s)
	}
	if _, err := a.Alloc(100, trace.Parameter, s); err != nil {
		t.Fatal(err)
	}
	err := a.Close()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"4 blocks of 3MiB are still live", "parameter 512B", "activation 3MiB", "3 blocks of 3MiB, activation, from", "TestLeakReport", "alloc_test.go:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the report:\n%v", want, err)
		}
	}
	if err := a.Device().Close(); err != nil {
		t.Errorf("left on the device: %v", err)
	}
}

func TestOutOfMemoryAdvice(t *testing.T) {
	const g = 1 << 30
	base := OutOfMemoryError{Device: "d", Purpose: trace.Activation, Limit: 8 * g, Capacity: 10 * g, Live: 5 * g, LiveByPurpose: PurposeBytes{trace.Parameter: 5 * g}, Reserved: 6 * g, Cached: 1 * g, LargestFree: g / 2}
	for _, c := range []struct {
		name   string
		change func(e *OutOfMemoryError)
		want   string
	}{
		{"alone", func(e *OutOfMemoryError) { e.Asked = 12 * g }, "2GiB more than the device has"},
		{"limit", func(e *OutOfMemoryError) { e.Asked = 4 * g }, "limit is too low by 1GiB"},
		{"capacity", func(e *OutOfMemoryError) { e.Asked = 6 * g }, "3GiB are missing"},
		{"pending", func(e *OutOfMemoryError) { e.Asked = 2 * g; e.Pending = 2 * g }, "2GiB pending"},
		{"fragmentation", func(e *OutOfMemoryError) { e.Asked = 2 * g }, "Fragmentation: 3GiB"},
		{"device", func(e *OutOfMemoryError) { e.Asked = g; e.Err = device.ErrOutOfMemory }, "allows 2GiB: another process"},
		{"huge", func(e *OutOfMemoryError) { e.Asked = math.MaxUint64 }, "more than the device has"},
	} {
		e := base
		c.change(&e)
		for _, want := range []string{c.want, "5GiB live (parameter 5GiB)", "for activation", "1GiB cached in pieces of at most 512MiB"} {
			if !strings.Contains(e.Error(), want) {
				t.Errorf("%s: %q is not in %q", c.name, want, e.Error())
			}
		}
		if !errors.Is(&e, device.ErrOutOfMemory) {
			t.Errorf("%s is no device.ErrOutOfMemory", c.name)
		}
	}
}

func TestHugeRequests(t *testing.T) {
	for _, noVirtual := range []bool{false, true} {
		a, s := open(t, 1<<40, Options{NoVirtual: noVirtual})
		for _, n := range []uint64{1<<40 + 1, 1 << 62, math.MaxInt64, 1 << 63, math.MaxUint64 - 511, math.MaxUint64} {
			var oom *OutOfMemoryError
			if _, err := a.Alloc(n, trace.Other, s); !errors.As(err, &oom) || oom.Asked < n || oom.Asked-n > 511 {
				t.Errorf("Alloc(%d): %v", n, err)
			}
		}
	}
}

// TestPlainSharesTheDevice lets somebody else hold memory of the device: the
// allocator gives back what it has cached when the device has no more.
func TestPlainSharesTheDevice(t *testing.T) {
	a, s := open(t, 16<<20, Options{NoVirtual: true})
	if _, err := a.Device().Alloc(8 << 20); err != nil {
		t.Fatal(err)
	}
	mustAlloc(t, a, 6<<20, s).Free()
	b := mustAlloc(t, a, 7<<20, s)
	if st := a.Stats(); st.Destroys != 1 || st.Reserved != 8<<20 {
		t.Errorf("figures %+v", st)
	}
	_, err := a.Alloc(2<<20, trace.Other, s)
	var oom *OutOfMemoryError
	if !errors.As(err, &oom) || oom.Err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("with the device full: %v", err)
	}
	b.Free()
}

// TestPeakByPurpose checks the split of the peak against a list of moments.
func TestPeakByPurpose(t *testing.T) {
	a, s := open(t, 1<<30, Options{})
	var live []*Block
	var best Stats
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 1000 {
		if r.IntN(3) > 0 || len(live) == 0 {
			b, err := a.Alloc(1+r.Uint64N(1<<20), trace.Purpose(r.IntN(trace.NumPurposes)), s)
			if err != nil {
				t.Fatal(err)
			}
			live = append(live, b)
		} else {
			j := r.IntN(len(live))
			live[j].Free()
			live = slices.Delete(live, j, j+1)
		}
		if i == 500 {
			a.ResetPeaks()
			best = Stats{}
		}
		st := a.Stats()
		for p, by := range st.ByPurpose {
			best.ByPurpose[p] = PurposeStats{by.Live, max(best.ByPurpose[p].Peak, by.Live)}
		}
		if st.Live > best.PeakLive {
			best.PeakLive, best.PeakByPurpose = st.Live, st.LiveByPurpose()
		}
		if best.PeakLive != st.PeakLive || best.PeakByPurpose != st.PeakByPurpose || best.ByPurpose != st.ByPurpose {
			t.Fatalf("after %d operations peaks are %+v, want %+v", i, st, best)
		}
	}
}

// TestStatTable sets every field of Stats to a number of its own and looks for
// it in the table, so that no figure is missing or mixed up.
func TestStatTable(t *testing.T) {
	var s Stats
	next := uint64(1)
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		default:
			v.SetUint(next)
			next++
		}
	}
	fill(reflect.ValueOf(&s).Elem())
	seen, names := map[uint64]string{}, map[string]bool{}
	for _, row := range s.Table() {
		if row.Doc == "" || names[row.Name] || seen[row.Value] != "" {
			t.Errorf("row %+v: no text, or its name or value is that of another (%s)", row, seen[row.Value])
		}
		seen[row.Value], names[row.Name] = row.Name, true
	}
	if len(seen) != int(next)-1 {
		t.Errorf("the table has %d of %d figures", len(seen), next-1)
	}
	if seen[s.Live] != "live_bytes" || seen[s.OOMs] != "ooms_total" || seen[s.PeakByPurpose[trace.Input]] != "input_bytes_at_peak" {
		t.Errorf("names are %v", names)
	}
}

// TestCheckFindsFaults breaks each equation by hand.
func TestCheckFindsFaults(t *testing.T) {
	for name, damage := range map[string]func(a *Allocator, live *Block){
		"live":      func(a *Allocator, _ *Block) { a.stats.Live++ },
		"purpose":   func(a *Allocator, _ *Block) { a.stats.ByPurpose[0].Live++ },
		"requested": func(a *Allocator, _ *Block) { a.stats.Requested-- },
		"pending":   func(a *Allocator, _ *Block) { a.stats.Pending = 512 },
		"reserved":  func(a *Allocator, _ *Block) { a.stats.Reserved += 2 << 20 },
		"blocks":    func(a *Allocator, _ *Block) { a.stats.Blocks++ },
		"state":     func(_ *Allocator, b *Block) { b.state = pending },
		"size":      func(_ *Allocator, b *Block) { b.size -= 512 },
		"link":      func(_ *Allocator, b *Block) { b.next.prev = nil },
		"neighbour": func(a *Allocator, b *Block) { a.split(b.next, b.next.addr+512) },
		"tree":      func(_ *Allocator, b *Block) { b.next.tree.remove(b.next) },
		"class":     func(_ *Allocator, b *Block) { b.next.uses = append(b.next.uses, use{0, 9}) },
		"page":      func(_ *Allocator, b *Block) { b.seg.pages[0] = nil },
		"end":       func(_ *Allocator, b *Block) { b.seg.size += 512 },
		"list":      func(a *Allocator, b *Block) { a.pending = append(a.pending, b) },
	} {
		a, s := open(t, 64<<20, Options{})
		b := mustAlloc(t, a, 100<<10, s)
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		damage(a, b)
		if a.Check() == nil {
			t.Errorf("%s: Check finds nothing wrong", name)
		}
	}
}

func TestNewRefusesOddGranularity(t *testing.T) {
	dev := newLagging(t, device.NullOptions{Capacity: 1 << 20, Virtual: true})
	if _, err := New(oddDevice{dev}, Options{}); err == nil {
		t.Error("no error for a granularity of 1000")
	}
	if _, err := New(oddDevice{dev}, Options{NoVirtual: true}); err != nil {
		t.Errorf("without virtual memory: %v", err)
	}
}

type oddDevice struct{ device.Device }

func (d oddDevice) Info() device.Info {
	i := d.Device.Info()
	i.Granularity = 1000
	return i
}

// TestTreeAgainstList compares a tree with a sorted list.
func TestTreeAgainstList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var tr tree
	var list []*Block
	for i := range 5000 {
		if r.IntN(5) < 3 {
			b := &Block{addr: uint64(i) << 9, size: (1 + r.Uint64N(40)) << (9 + 5*r.IntN(3))}
			tr.insert(b)
			list = append(list, b)
		} else if len(list) > 0 {
			j := r.IntN(len(list))
			tr.remove(list[j])
			list = slices.Delete(list, j, j+1)
		}
		q := &request{size: (1 + r.Uint64N(45)) << (9 + 5*r.IntN(3)), align: 512 << r.IntN(5)}
		var want *Block
		for _, b := range list {
			if _, ok := q.start(b); ok && (want == nil || less(b, want)) {
				want = b
			}
		}
		if got := tr.fit(q); got != want {
			t.Fatalf("fit of %+v is %+v, want %+v", q, got, want)
		}
	}
	slices.SortFunc(list, func(x, y *Block) int {
		if less(x, y) {
			return -1
		}
		return 1
	})
	if !slices.Equal(tr.collect(nil, 0), list) || tr.last() != list[len(list)-1] {
		t.Error("the tree does not list its blocks in order")
	}
	for i := tr.next(0); i >= 0; i = tr.next(i + 1) {
		if depth := height(*tr.root(i)); depth > 40 {
			t.Errorf("%d blocks are %d deep", len(list), depth)
		}
	}
}

func height(b *Block) int {
	if b == nil {
		return 0
	}
	return 1 + max(height(b.left), height(b.right))
}
