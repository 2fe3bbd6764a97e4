package alloc

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// benchAllocator opens an allocator of a large null device with streams.
func benchAllocator(b *testing.B, streams int) (*Allocator, []device.Stream) {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 80 << 30, Virtual: true})
	if err != nil {
		b.Fatal(err)
	}
	a, err := New(dev, Options{})
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
			a, s := benchAllocator(b, 1)
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
			a, s := benchAllocator(b, c.streams)
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
