package kernel

// operand is op(A) or op(B) where it lies. Its outer index is the row of op(A)
// or the column of op(B), its inner index is k.
type operand struct {
	data         numbers
	outer, inner int // strides; one of them is 1

	patches     *patches // instead of data, from a row and column on
	row, column int      // columns are outer indices where outer is 1
}

// from is the operand without its first i outer and first k inner indices.
func (o operand) from(i, k int) operand {
	if o.patches != nil {
		o.row += i*o.inner + k*o.outer
		o.column += i*o.outer + k*o.inner
		return o
	}
	o.data = o.data.from(i*o.outer + k*o.inner)
	return o
}

// stays says whether tiles can read the operand where it lies.
func (o *operand) stays() bool { return o.patches == nil && !o.data.half() }

// packer cuts an operand into strips of width outer indices and writes each
// strip dense, k after k. Where the last strip is not whole it leaves in place
// what was there: whatever that is, it only gets into parts of a tile that are
// thrown away.
type packer struct {
	width int
	// copy sets dst[p·width+i] = src[p·ld+i] for p < k and i < width.
	copy func(dst, src *float32, ld, k int)
	// transpose sets dst[p·ldd+i] = src[i·ld+p] for i < lanes and
	// p < blocks·block. It is nil where only plain Go is at hand.
	transpose    func(dst *float32, ldd int, src *float32, ld, blocks int)
	lanes, block int
}

// strips is the number of strips that cover n outer indices.
func (p *packer) strips(n int) int { return ceilDiv(n, p.width) }

// pack writes n outer and k inner indices to dst, strip after strip.
func (p *packer) pack(dst []float32, src operand, n, k int) {
	if src.patches != nil {
		p.packPatches(dst, src, n, k)
		return
	}
	if src.data.half() {
		p.packHalf(dst, src, n, k)
		return
	}
	whole := n / p.width
	if src.outer == 1 {
		p.copyStrips(dst, src, whole, k)
	} else {
		for s := range whole {
			p.transposeStrip(dst[s*p.width*k:], src.from(s*p.width, 0), k)
		}
	}
	if i := whole * p.width; i < n {
		p.packPart(dst[i*k:], src.from(i, 0), n-i, 0, k)
	}
}

// copyStrips goes down all strips together, a few rows of each at a time: a
// cache line of the source may hold parts of two strips.
func (p *packer) copyStrips(dst []float32, src operand, strips, k int) {
	const rows = 16
	for q := 0; q < k; q += rows {
		for s := range strips {
			p.copy(&dst[(s*k+q)*p.width], &src.data.f[s*p.width+q*src.inner], src.inner, min(rows, k-q))
		}
	}
}

// transposeStrip packs one whole strip: blocks, then what is left of k.
func (p *packer) transposeStrip(dst []float32, src operand, k int) {
	done := 0
	if p.transpose != nil && k >= p.block {
		done = k - k%p.block
		for i := 0; i < p.width; i += p.lanes {
			p.transpose(&dst[i], p.width, &src.data.f[i*src.outer], src.outer, k/p.block)
		}
	}
	p.packPart(dst, src, p.width, done, k)
}

// packPart packs inner indices [from, to) of n outer ones, element by element.
func (p *packer) packPart(dst []float32, src operand, n, from, to int) {
	for i := range n {
		for q := from; q < to; q++ {
			dst[q*p.width+i] = src.data.f[i*src.outer+q*src.inner]
		}
	}
}

// packHalf is pack for an operand of 16 bits, of at most packGroup strips: by
// way of a buffer of float32, runLimit inner indices at a time.
func (p *packer) packHalf(dst []float32, src operand, n, k int) {
	var buf [packGroup * maxWidth * runLimit]float32
	for q := 0; q < k; q += runLimit {
		inner := min(runLimit, k-q)
		part := operand{data: floats(buf[:]), outer: runLimit, inner: 1}
		if src.outer == 1 {
			part.outer, part.inner = 1, n
			for i := range inner {
				src.data.read(buf[i*n:][:n], (q+i)*src.inner, 1)
			}
		} else {
			for i := range n {
				src.data.read(buf[i*runLimit:][:inner], i*src.outer+q, 1)
			}
		}
		for i := 0; i < n; i += p.width {
			p.packBlock(dst[i*k+q*p.width:], part.from(i, 0), min(p.width, n-i), inner)
		}
	}
}

// packBlock packs k inner indices of n outer ones, a strip or a part of one.
func (p *packer) packBlock(dst []float32, src operand, n, k int) {
	switch {
	case n < p.width:
		p.packPart(dst, src, n, 0, k)
	case src.outer == 1:
		p.copy(&dst[0], &src.data.f[0], src.inner, k)
	default:
		p.transposeStrip(dst, src, k)
	}
}
