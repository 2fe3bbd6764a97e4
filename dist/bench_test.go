package dist_test

import (
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
)

// BenchmarkAllReduce sums 16 MiB of float32 on two and four ranks.
func BenchmarkAllReduce(b *testing.B) {
	for name, groups := range map[string]func(int) []dist.Group{
		"local": func(n int) []dist.Group { return dist.Local(n, dist.Options{}) },
		"tcp":   func(n int) []dist.Group { return joinAll(b, n, dist.JoinOptions{}) },
	} {
		for _, n := range []int{2, 4} {
			b.Run(name+"/"+string(rune('0'+n)), func(b *testing.B) { benchmarkAllReduce(b, groups(n), 4<<20) })
		}
	}
}

func benchmarkAllReduce(b *testing.B, groups []dist.Group, elements int) {
	var ended sync.WaitGroup
	b.SetBytes(int64(4 * elements))
	for _, g := range groups {
		ended.Go(func() {
			dev, err := device.OpenHost(device.HostOptions{Capacity: 32 << 20, Workers: 1})
			if err != nil {
				b.Error(err)
				return
			}
			s, err := dev.NewStream()
			if err != nil {
				b.Error(err)
				return
			}
			p, err := dev.Alloc(uint64(4 * elements))
			if err != nil {
				b.Error(err)
				return
			}
			for range b.N {
				g.AllReduce(s, dist.Sum, dist.Buf{Ptr: p, Len: elements})
			}
			if err := s.Close(); err != nil {
				b.Error(err)
			}
			dev.Free(p)
			dev.Close()
			g.Close()
		})
	}
	ended.Wait()
}
