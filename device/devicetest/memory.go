package devicetest

import (
	"math"
	"strings"

	"github.com/headroom-go/headroom/device"
)

func testInfo(b *bench) {
	again := b.Info()
	switch {
	case again != b.info:
		b.Fatalf("Info changed from %+v to %+v", b.info, again)
	case b.info.Name == "":
		b.Fatal("no name")
	case b.info.Granularity < 512 || b.info.Granularity&(b.info.Granularity-1) != 0:
		b.Fatalf("granularity %d is no power of two of 512 or more", b.info.Granularity)
	case b.info.Capacity < b.granules(8) || b.info.Capacity > 1<<30:
		b.Fatalf("the suite needs a capacity from 8 granules to 1 GiB, not %d", b.info.Capacity)
	case b.info.Alias && !b.info.Virtual:
		b.Fatal("aliases without virtual memory")
	case b.info.Kind == device.Host && b.info.Workers < 1:
		b.Fatalf("%d workers", b.info.Workers)
	}
}

func testPlainStates(b *bench) {
	_, err := b.Alloc(0)
	b.refuse(err, "0 bytes")
	b.refuse(b.Free(0), "no allocation")
	p, q := b.mustAlloc(1000), b.mustAlloc(1000)
	if p == 0 || q == 0 || p == q {
		b.Fatalf("two allocations at %#x and %#x", p, q)
	}
	b.refuse(b.Free(p+512), "no allocation")
	b.must(b.Free(p))
	b.refuse(b.Free(p), "no allocation")
	b.must(b.Free(q))
}

// testPlainCapacity fills a device to the last byte.
func testPlainCapacity(b *bench) {
	for _, size := range []uint64{b.info.Capacity + 1, math.MaxUint64, math.MaxUint64 - 511, 1 << 63} {
		_, err := b.Alloc(size)
		b.full(err)
	}
	p := b.mustAlloc(b.info.Capacity - 512)
	q := b.mustAlloc(512)
	for _, size := range []uint64{1, 512, b.info.Capacity} {
		_, err := b.Alloc(size)
		b.full(err)
	}
	b.must(b.Free(q))
	q = b.mustAlloc(1)
	_, err := b.Alloc(1)
	b.full(err)
	b.must(b.Free(p))
	b.must(b.Free(q))
	b.must(b.Free(b.mustAlloc(b.info.Capacity)))
}

func testPlainAlignment(b *bench) {
	type piece struct {
		p    device.Ptr
		size uint64
	}
	var pieces []piece
	for _, size := range []uint64{1, 511, 512, 513, 4096, 100_000, b.info.Granularity, b.info.Granularity + 1} {
		p := b.mustAlloc(size)
		if p%512 != 0 {
			b.Fatalf("%d bytes at %#x, not aligned to 512", size, p)
		}
		for _, other := range pieces {
			if p < other.p+device.Ptr(other.size) && other.p < p+device.Ptr(size) {
				b.Fatalf("%d bytes at %#x overlap %d bytes at %#x", size, p, other.size, other.p)
			}
		}
		pieces = append(pieces, piece{p, size})
	}
	for _, piece := range pieces {
		b.must(b.Free(piece.p))
	}
}

func testPlainData(b *bench) {
	b.needData()
	s := b.mustStream()
	p, q := b.mustAlloc(3000), b.mustAlloc(3000)
	b.write(s, p, pattern(3000, 1))
	b.write(s, q, pattern(3000, 2))
	b.expect(s, p, pattern(3000, 1))
	s.Copy(p+100, q, 1000)
	b.expect(s, p, append(append(pattern(100, 1), pattern(1000, 2)...), pattern(3000, 1)[1100:]...))
	s.Copy(p, q, 0)
	s.Upload(p, nil)
	s.Download(nil, p)
	b.must(s.Sync())
}

func testNoVirtual(b *bench) {
	if b.info.Virtual {
		b.Skip("has virtual memory")
	}
	_, err := b.Reserve(b.info.Granularity)
	b.refuse(err, "no virtual memory")
	_, err = b.Create()
	b.refuse(err, "no virtual memory")
	p := b.mustAlloc(b.info.Granularity)
	for _, err := range []error{b.Release(p), b.Destroy(1), b.Map(p, []device.Handle{1}), b.Unmap(p, 1)} {
		b.refuse(err, b.info.Name)
	}
	b.must(b.Free(p))
	b.must(b.Close())
}

func testRangeMisuse(b *bench) {
	b.needVirtual()
	for _, size := range []uint64{0, 1, b.info.Granularity * 3 / 2, b.info.Granularity / 2, math.MaxUint64} {
		_, err := b.Reserve(size)
		b.refuse(err, "granularity")
	}
	_, err := b.Reserve(math.MaxUint64 &^ (b.info.Granularity - 1))
	b.refuse(err, "reservation")
	p := b.mustReserve(4)
	if p == 0 || uint64(p)%b.info.Granularity != 0 {
		b.Fatalf("range at %#x, granularity %#x", p, b.info.Granularity)
	}
	b.refuse(b.Release(0), "no reserved range starts")
	b.refuse(b.Release(b.at(p, 1)), "no reserved range starts")
	b.refuse(b.Free(p), "no allocation")
	handles := b.mustCreate(1)
	b.must(b.Map(b.at(p, 3), handles))
	b.refuse(b.Release(p), "1 granules are mapped")
	b.must(b.Unmap(b.at(p, 3), 1))
	b.must(b.Release(p))
	b.refuse(b.Release(p), "no reserved range starts")
	b.must(b.Destroy(handles[0]))
}

func testHandleMisuse(b *bench) {
	b.needVirtual()
	b.refuse(b.Destroy(0), "does not exist")
	handles := b.mustCreate(2)
	if handles[0] == 0 || handles[0] == handles[1] {
		b.Fatalf("handles %v", handles)
	}
	b.refuse(b.Destroy(handles[0]+1000), "does not exist")
	p := b.mustReserve(2)
	b.must(b.Map(p, handles))
	b.refuse(b.Destroy(handles[1]), "is mapped at")
	b.must(b.Unmap(p, 2))
	b.must(b.Destroy(handles[1]))
	b.refuse(b.Destroy(handles[1]), "does not exist")
	b.must(b.Destroy(handles[0]))
	b.must(b.Release(p))
}

// testMapMisuse checks after each refused call that all handles are still
// free: they can all be mapped, and unmapped.
func testMapMisuse(b *bench) {
	b.needVirtual()
	p, q := b.mustReserve(4), b.mustReserve(4)
	h := b.mustCreate(3)
	g := b.mustCreate(1)
	b.must(b.Map(b.at(q, 2), g))
	for _, c := range []struct {
		p       device.Ptr
		handles []device.Handle
		words   string
	}{
		{p, nil, "span of 0"},
		{0, h, "not reserved"},
		{b.mustAlloc(b.info.Granularity), h, "not reserved"},
		{p + device.Ptr(b.info.Granularity/2), h[:1], "no multiple of the granularity"},
		{b.at(p, 2), h, "pass the end"},
		{q, h, "mapped already"},
		{p, []device.Handle{h[0], h[1], h[2] + 1000}, "does not exist"},
		{p, []device.Handle{h[0], 0}, "does not exist"},
	} {
		b.refuse(b.Map(c.p, c.handles), c.words)
		b.must(b.Map(p, h))
		b.must(b.Unmap(p, 3))
	}
}

func testUnmapMisuse(b *bench) {
	b.needVirtual()
	p := b.mustReserve(4)
	h := b.mustCreate(3)
	b.must(b.Map(p, h[:2]))
	b.must(b.Map(b.at(p, 3), h[2:]))
	b.refuse(b.Unmap(p, 0), "span of 0")
	b.refuse(b.Unmap(p, -1), "span of -1")
	b.refuse(b.Unmap(p, 3), "not mapped")
	b.refuse(b.Unmap(b.at(p, 3), 2), "pass the end")
	b.refuse(b.Unmap(b.at(p, 2), 1), "not mapped")
	b.refuse(b.Unmap(0, 1), "not reserved")
	b.must(b.Unmap(b.at(p, 1), 1)) // a part of what was mapped at once
	b.must(b.Map(b.at(p, 1), h[1:2]))
	b.must(b.Unmap(p, 2))
	b.must(b.Unmap(b.at(p, 3), 1))
	b.refuse(b.Unmap(p, 1), "not mapped")
}

// testMixedCapacity fills a device with handles and allocations together.
// Addresses cost no capacity.
func testMixedCapacity(b *bench) {
	b.needVirtual()
	p := b.mustReserve(int(b.info.Capacity/b.info.Granularity) * 4)
	n := int(b.info.Capacity/b.info.Granularity) - 1
	handles := b.mustCreate(n)
	q := b.mustAlloc(b.info.Capacity - b.granules(n))
	_, err := b.Create()
	b.full(err)
	_, err = b.Alloc(1)
	b.full(err)
	b.must(b.Map(p, handles))
	_, err = b.Create()
	b.full(err)
	b.must(b.Unmap(p, n))
	_, err = b.Create()
	b.full(err)
	b.must(b.Free(q))
	h := b.mustCreate(1)[0]
	for _, h := range append(handles, h) {
		b.must(b.Destroy(h))
	}
	b.must(b.Free(b.mustAlloc(b.info.Capacity)))
	b.must(b.Release(p))
	b.must(b.Close())
}

// testContentMoves maps one handle to one address after the other.
func testContentMoves(b *bench) {
	b.needVirtual()
	b.needData()
	s := b.mustStream()
	p, q := b.mustReserve(3), b.mustReserve(3)
	h := b.mustCreate(2)
	data, other := pattern(int(b.info.Granularity), 3), pattern(int(b.info.Granularity), 4)
	b.must(b.Map(p, h))
	b.write(s, p, append(data, other...))
	b.must(b.Unmap(p, 2))
	for _, place := range []device.Ptr{q, b.at(q, 2), b.at(p, 1), p} {
		b.must(b.Map(place, h[:1]))
		b.expect(s, place, data)
		b.must(b.Unmap(place, 1))
	}
	b.must(b.Map(p, []device.Handle{h[1], h[0]}))
	b.expect(s, p, append(other, data...))
	b.must(b.Unmap(p, 1))
	b.expect(s, b.at(p, 1), data)
}

// testShuffledGranules maps handles in another order than that of their
// creation, with holes, and copies across the borders between granules.
func testShuffledGranules(b *bench) {
	b.needVirtual()
	b.needData()
	s := b.mustStream()
	h := b.mustCreate(6)
	p := b.mustReserve(8)
	order := []int{4, 0, 5, 2}
	for i, j := range order {
		b.must(b.Map(b.at(p, i), h[j:j+1]))
	}
	b.must(b.Map(b.at(p, 6), []device.Handle{h[3], h[1]}))
	data := pattern(int(b.granules(4)), 9)
	b.write(s, p, data)
	s.Copy(b.at(p, 6), b.at(p, 1)+100, b.granules(1)+200)
	b.expect(s, b.at(p, 6), data[b.granules(1)+100:][:b.granules(1)+200])
	b.must(b.Unmap(p, 4))
	b.must(b.Map(p, []device.Handle{h[2], h[5]}))
	b.expect(s, p, append(data[b.granules(3):], data[b.granules(2):b.granules(3)]...))
}

func testCloseEmpty(b *bench) {
	s := b.mustStream()
	b.must(b.Free(b.mustAlloc(100)))
	b.must(s.Close())
	b.mustStream()
	b.must(b.Close())
	b.refuse(b.Close(), "closed")
	_, err := b.Alloc(1)
	b.refuse(err, "closed")
	_, err = b.NewStream()
	b.refuse(err, "closed")
}

func testCloseLeaks(b *bench) {
	b.mustAlloc(1024)
	words := []string{b.info.Name, "1 allocations (1KiB)"}
	if b.info.Virtual {
		b.must(b.Map(b.mustReserve(4), b.mustCreate(2)))
		b.mustCreate(1)
		words = append(words, "1 reserved ranges", "3 handles", "2 mapped granules")
	}
	err := b.Close()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			b.Fatalf("Close returned %v, want an error with %q", err, w)
		}
	}
	_, err = b.Reserve(b.info.Granularity)
	b.refuse(err, "closed")
}
