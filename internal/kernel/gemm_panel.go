package kernel

// panel is a block of an operand in strips, as the tiles read it: packed, or
// where it lies but for a last strip that is not whole.
type panel struct {
	*packer
	src     operand // the block where it lies
	n, k    int     // its size
	buf     []float32
	pending int // groups of strips that are not packed yet

	whole        int // strips in data
	data         []float32
	step         int // from one strip to the next
	outer, inner int // strides within a strip
}

// packed is a panel whose strips will lie in buf, once all groups are packed.
func (p *packer) packed(src operand, n, k int, buf []float32) panel {
	count := p.strips(n)
	return panel{packer: p, src: src, n: n, k: k, buf: buf, pending: ceilDiv(count, packGroup),
		whole: count, data: buf, step: p.width * k, outer: 1, inner: p.width}
}

// inPlace is a panel whose whole strips stay where they are. What is left over
// is packed to buf.
func (p *packer) inPlace(src operand, n, k int, buf []float32) panel {
	whole := n / p.width
	if i := whole * p.width; i < n {
		p.pack(buf, src.from(i, 0), n-i, k)
	}
	return panel{packer: p, src: src, n: n, k: k, buf: buf,
		whole: whole, data: src.data.f, step: p.width * src.outer, outer: src.outer, inner: src.inner}
}

// packGroup packs group g of strips.
func (p *panel) packGroup(g int) {
	i := g * packGroup * p.width
	p.pack(p.buf[i*p.k:], p.src.from(i, 0), min(packGroup*p.width, p.n-i), p.k)
}

// at is the address of inner index k of strip s, with the strides there.
func (p *panel) at(s, k int) (addr *float32, outer, inner int) {
	if s < p.whole {
		return &p.data[s*p.step+k*p.inner], p.outer, p.inner
	}
	return &p.buf[k*p.width], 1, p.width
}
