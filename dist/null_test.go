package dist_test

import (
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
)

// TestNullLink counts what collectives of four ranks send, of 1024 bytes on each.
func TestNullLink(t *testing.T) {
	var got []uint64
	dev, err := device.OpenNullLike(device.Info{Granularity: 2 << 20}, 1<<20, func(l *device.Launch) { got = append(got, l.Link) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at, err := dev.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Free(at)
	x, y := dist.Buf{Ptr: at, Len: 256}, dist.Buf{Ptr: at + 2048, Len: 256}
	g, mine := dist.Null(0, 4), func(b dist.Buf) []dist.Buf { return []dist.Buf{b.Part(4, 0)} }
	g.AllReduce(s, dist.Sum, x)
	g.ReduceScatter(s, dist.Sum, mine(x), []dist.Buf{x})
	g.AllGather(s, []dist.Buf{x}, mine(x))
	g.Broadcast(s, 0, x)
	g.Broadcast(s, 1, x)
	dist.Send(g, s, 2, x)
	parts := func(b dist.Buf) (all []dist.Buf) {
		for r := range 4 {
			all = append(all, b.Part(4, r))
		}
		return all
	}
	dist.AllToAll(g, s, parts(y), parts(x)) // what it keeps itself does not count, nor what comes at the same time
	dist.Null(0, 1).AllReduce(s, dist.Sum, x)
	want := []uint64{2 * 768, 768, 768, 3 * 1024, 1024, 1024, 768, 0}
	for i, n := range want {
		if i >= len(got) || got[i] != n {
			t.Fatalf("links carry %d bytes, want %d", got, want)
		}
	}
}
