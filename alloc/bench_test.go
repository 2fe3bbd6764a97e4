package alloc

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// benchAllocator opens an allocator of a large null device with streams.
func benchAllocator(b *testing.B, streams int, o Options) (*Allocator, []device.Stream) {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 80 << 30, Virtual: true, Alias: true})
	if err != nil {
		b.Fatal(err)
	}
	a, err := New(dev, o)
	if err != nil {
		b.Fatal(err)
	}
	list := make([]device.Stream, streams)
	for i := range list {
		if list[i], err = dev.NewStream(); err != nil {
			b.Fatal(err)
		}
	}
	return a, list
}

func mustAlloc(b testing.TB, a *Allocator, n uint64, s device.Stream) *Block {
	block, err := a.Alloc(n, trace.Activation, s)
	if err != nil {
		b.Fatal(err)
	}
	return block
}

// BenchmarkReuse allocates and frees one size over and over.
func BenchmarkReuse(b *testing.B) {
	for _, n := range []uint64{512, 64 << 10, 1 << 20, 4 << 20, 64 << 20} {
		b.Run(size.Exact(n), func(b *testing.B) {
			a, s := benchAllocator(b, 1, Options{})
			mustAlloc(b, a, n, s[0]).Free()
			b.ReportAllocs()
			for b.Loop() {
				mustAlloc(b, a, n, s[0]).Free()
			}
		})
	}
}

// BenchmarkRandom replaces a random one of some live blocks by one of random
// size, and reports the peaks' ratio.
func BenchmarkRandom(b *testing.B) {
	for _, c := range []struct {
		blocks  int
		most    uint64
		streams int
	}{{64, 2 << 20, 1}, {1000, 8 << 20, 1}, {4000, 8 << 20, 1}, {1000, 128 << 20, 1}, {1000, 8 << 20, 2}} {
		b.Run(fmt.Sprintf("blocks=%d/upto=%s/streams=%d", c.blocks, size.Exact(c.most), c.streams), func(b *testing.B) {
			a, s := benchAllocator(b, c.streams, Options{})
			r := rand.New(rand.NewPCG(1, 2))
			blocks := make([]*Block, c.blocks)
			next := func() *Block { return mustAlloc(b, a, 1+r.Uint64N(c.most), s[r.IntN(len(s))]) }
			for i := range blocks {
				blocks[i] = next()
			}
			for range 20 * len(blocks) { // until it grows no more
				i := r.IntN(len(blocks))
				blocks[i].Free()
				blocks[i] = next()
			}
			b.ReportAllocs()
			for b.Loop() {
				i := r.IntN(len(blocks))
				blocks[i].Free()
				blocks[i] = next()
			}
			st := a.Stats()
			b.ReportMetric(float64(st.PeakReserved)/float64(st.PeakLive), "reserved/live")
			b.ReportMetric(float64(st.Maps)/float64(st.Allocs), "maps/alloc")
		})
	}
}

// BenchmarkStep plays a training step over and over, and reports the time of an
// allocation and a free in it, with what the loop costs.
func BenchmarkStep(b *testing.B) {
	a, s := benchAllocator(b, 1, Options{})
	program := trainingStep(rand.New(rand.NewPCG(1, 3)))
	order, live := moments(program, false), make([]*Block, len(program))
	step := func() {
		if err := a.Step(); err != nil {
			b.Fatal(err)
		}
		for _, m := range order {
			if m.start {
				live[m.block] = mustAlloc(b, a, program[m.block].Size, s[0])
			} else {
				live[m.block].Free()
			}
		}
	}
	for range 4 {
		step()
	}
	before := a.Stats().ViewMaps
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(program)), "ns/alloc")
	b.ReportMetric(float64(a.Stats().ViewMaps-before)/float64(b.N), "maps/step")
}

// BenchmarkEvents is BenchmarkReuse of 4 MiB with history: events are kept in a
// ring, the second time with stacks.
func BenchmarkEvents(b *testing.B) {
	for _, depth := range []int{0, 16} {
		b.Run(fmt.Sprintf("stacks=%d", depth), func(b *testing.B) {
			a, s := benchAllocator(b, 1, Options{Sink: trace.NewRecorder(100_000), StackDepth: depth})
			for range 50_000 { // until the ring is full
				mustAlloc(b, a, 4<<20, s[0]).Free()
			}
			b.ReportAllocs()
			for b.Loop() {
				mustAlloc(b, a, 4<<20, s[0]).Free()
			}
		})
	}
}

// BenchmarkGoroutines lets goroutines with streams and blocks of their own
// share an allocator. An operation is one of any of them.
func BenchmarkGoroutines(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, streams := benchAllocator(b, n, Options{})
			work := func(s device.Stream, times int) {
				r := rand.New(rand.NewPCG(1, uint64(s.ID())))
				blocks := make([]*Block, 64)
				for i := range times {
					j := i % len(blocks)
					if blocks[j] != nil {
						blocks[j].Free()
					}
					blocks[j] = mustAlloc(b, a, 1+r.Uint64N(2<<20), s)
				}
				for _, block := range blocks {
					if block != nil {
						block.Free()
					}
				}
			}
			for _, s := range streams { // until it grows no more
				work(s, 5000)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for _, s := range streams {
				wg.Go(func() { work(s, b.N/n) })
			}
			wg.Wait()
		})
	}
}

// BenchmarkStitched frees a stitched block and takes it again.
func BenchmarkStitched(b *testing.B) {
	for _, holes := range []int{2, 64} {
		b.Run(fmt.Sprintf("holes=%d", holes), func(b *testing.B) {
			a, s := benchAllocator(b, 1, Options{})
			list := make([]*Block, holes)
			for i := range list {
				list[i] = mustAlloc(b, a, 2<<20, s[0])
				mustAlloc(b, a, 2<<20, s[0])
			}
			for _, hole := range list {
				hole.Free()
			}
			n := uint64(holes) * 2 << 20
			mustAlloc(b, a, n, s[0]).Free()
			b.ReportAllocs()
			for b.Loop() {
				mustAlloc(b, a, n, s[0]).Free()
			}
			if st := a.Stats(); st.Stitches != 1 || st.Reuses < uint64(b.N) {
				b.Errorf("figures %+v", st)
			}
		})
	}
}
