package devicetest

import "github.com/headroom-go/headroom/device"

// testNoAlias checks after each refused call that no handle was mapped.
func testNoAlias(b *bench) {
	b.needVirtual()
	if b.info.Alias {
		b.Skip("has aliases")
	}
	p, q := b.mustReserve(4), b.mustReserve(4)
	h := b.mustCreate(3)
	g := b.mustCreate(1)
	b.must(b.Map(b.at(q, 2), g))
	for _, c := range []struct {
		handles []device.Handle
		words   string
	}{
		{[]device.Handle{h[0], h[1], g[0]}, "mapped already"},
		{[]device.Handle{h[0], h[1], h[0]}, "given twice"},
	} {
		b.refuse(b.Map(p, c.handles), c.words)
		b.must(b.Map(p, h))
		b.must(b.Unmap(p, 3))
	}
}

// testAliasStates maps two handles at several places, in one call and in
// many. A handle can be destroyed when its last place is gone, not before, and
// a refused call maps nothing.
func testAliasStates(b *bench) {
	b.needAlias()
	p, q := b.mustReserve(4), b.mustReserve(2)
	h := b.mustCreate(2)
	b.must(b.Map(p, []device.Handle{h[0], h[1], h[0]}))
	b.refuse(b.Map(q, []device.Handle{h[0], h[1] + 1000}), "does not exist")
	b.must(b.Map(q, h))
	b.refuse(b.Map(q, h), "mapped already")
	b.refuse(b.Map(b.at(p, 3), h), "pass the end")
	for _, place := range []device.Ptr{b.at(p, 2), q, p} {
		b.refuse(b.Destroy(h[0]), "is mapped at")
		b.must(b.Unmap(place, 1))
		b.refuse(b.Unmap(place, 1), "not mapped")
	}
	b.must(b.Destroy(h[0]))
	b.refuse(b.Map(p, h), "does not exist")
	b.refuse(b.Release(p), "1 granules are mapped")
	b.must(b.Unmap(b.at(p, 1), 1))
	b.must(b.Release(p))
	b.refuse(b.Destroy(h[1]), "is mapped at")
	b.must(b.Unmap(b.at(q, 1), 1))
	b.must(b.Destroy(h[1]))
	b.must(b.Release(q))
	b.must(b.Close())
}

// testAliasCapacity maps one handle many times: capacity counts it once.
func testAliasCapacity(b *bench) {
	b.needAlias()
	n := int(b.info.Capacity / b.info.Granularity)
	p := b.mustReserve(2 * n)
	h := b.mustCreate(1)
	many := make([]device.Handle, 2*n)
	for i := range many {
		many[i] = h[0]
	}
	b.must(b.Map(p, many))
	b.mustCreate(n - 1)
	_, err := b.Create()
	b.full(err)
	b.must(b.Unmap(p, 2*n))
	b.must(b.Destroy(h[0]))
	b.mustCreate(1)
}

// testAliasContent writes through one place and reads through the others,
// also after the place that was written through is gone, and with copies
// across the borders between granules.
func testAliasContent(b *bench) {
	b.needAlias()
	b.needData()
	s := b.mustStream()
	p, q := b.mustReserve(3), b.mustReserve(2)
	h := b.mustCreate(2)
	g := int(b.info.Granularity)
	b.must(b.Map(p, []device.Handle{h[0], h[1], h[0]}))
	b.must(b.Map(q, []device.Handle{h[1], h[0]}))
	data := pattern(2*g, 5)
	b.write(s, p, data)
	b.expect(s, q, append(append([]byte{}, data[g:]...), data[:g]...))
	b.expect(s, b.at(p, 1), append(append([]byte{}, data[g:]...), data[:g]...))
	b.must(b.Unmap(p, 2))
	change := pattern(1000, 6)
	b.write(s, b.at(q, 1)-500, change) // the end of h[1] and the start of h[0]
	b.expect(s, b.at(p, 2), append(change[500:], data[500:g]...))
	b.must(b.Unmap(q, 2))
	b.must(b.Map(p, h[1:]))
	b.expect(s, p, append(data[g:2*g-500], change[:500]...))
}
