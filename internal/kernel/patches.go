package kernel

// patches is a matrix that is never stored: row r is an element of the patches
// of an image (channel, then place in the kernel), column q is a pixel of the
// result (image, then place in it), and an element outside of the image is 0.
// With a kernel of 1×1 it is the images themselves, with a row for each channel.
type patches struct {
	x                     numbers // from the first channel of the first image on
	image                 int     // elements from one image to the next
	h, w, kh, kw, oh, ow  int
	stride, pad, dilation [2]int
}

// planes is the matrix of images of p pixels in so many channels.
func planes(x numbers, channels, p int) *patches {
	one := [2]int{1, 1}
	return &patches{x: x, image: channels * p, h: 1, w: p, kh: 1, kw: 1, oh: 1, ow: p, stride: one, dilation: one}
}

// run is a part of a row of patches that lies in one row of an image, or that
// is padding.
type run struct {
	to, n int // the columns
	at    int // the first element's place in x, but for its channel; −1 for padding
}

// runLimit is the greatest number of columns whose runs are found at once.
const runLimit = 64

// runs gives the runs of at most runLimit columns, from q on, of the rows for
// one place in the kernel. They are the same for all channels, up to the place
// of the channel.
func (p *patches) runs(tap, q, n int, buf *[runLimit]run) []run {
	out := buf[:0]
	dy, dx := tap/p.kw*p.dilation[0]-p.pad[0], tap%p.kw*p.dilation[1]-p.pad[1]
	image, pixel := q/(p.oh*p.ow), q%(p.oh*p.ow)
	oy, ox := pixel/p.ow, pixel%p.ow
	for to := 0; to < n; {
		count := min(n-to, p.ow-ox)
		y, x := oy*p.stride[0]+dy, ox*p.stride[1]+dx
		first, end := count, count
		if y >= 0 && y < p.h {
			first, end = inside(x, count, p.stride[1], p.w)
		}
		at := image*p.image + y*p.w + x + first*p.stride[1]
		out = p.join(out, run{to, first, -1})
		out = p.join(out, run{to + first, end - first, at})
		out = p.join(out, run{to + end, count - end, -1})
		to += count
		if ox += count; ox == p.ow {
			ox = 0
			if oy++; oy == p.oh {
				oy = 0
				image++
			}
		}
	}
	return out
}

// join appends u to runs, or makes the last one longer where u carries it on:
// padding does, and the next row of an image does where both are whole.
func (p *patches) join(runs []run, u run) []run {
	if u.n == 0 {
		return runs
	}
	if len(runs) > 0 {
		last := &runs[len(runs)-1]
		if last.at < 0 && u.at < 0 || last.at >= 0 && p.stride[1] == 1 && u.at == last.at+last.n {
			last.n += u.n
			return runs
		}
	}
	return append(runs, u)
}

// inside gives the range of i below n for which x + i·step is in [0, size).
func inside(x, n, step, size int) (first, end int) {
	first, end = max(0, -x), size-x
	if step > 1 {
		first, end = ceilDiv(first, step), (end+step-1)/step
	}
	first = min(first, n)
	return first, max(first, min(end, n))
}

// fill writes k rows of n columns, from a row and a column on, to dst, whose
// rows are ld elements apart. n is at most runLimit.
func (p *patches) fill(dst []float32, ld, row, column, k, n int) {
	var buf [runLimit]run
	taps, step := p.kh*p.kw, p.stride[1]
	for i := range min(taps, k) {
		runs := p.runs((row+i)%taps, column, n, &buf)
		channel := (row + i) / taps * p.h * p.w
		for r := i; r < k; r += taps {
			to := dst[r*ld:]
			for j := range runs {
				u := &runs[j]
				u.copy(to[u.to:], &p.x, channel, step)
			}
			channel += p.h * p.w
		}
	}
}

// copy sets dst to the elements of a run, in a channel that begins at an
// element of images.
func (u *run) copy(dst []float32, images *numbers, channel, step int) {
	dst = dst[:u.n]
	if u.at >= 0 && images.half() {
		images.read(dst, channel+u.at, step)
		return
	}
	switch {
	case u.at < 0 && u.n >= 16:
		clear(dst)
	case u.at < 0:
		for i := range dst {
			dst[i] = 0
		}
	case step == 1 && u.n >= 8:
		copy(dst, images.f[channel+u.at:])
	default:
		x := images.f[channel+u.at : channel+u.at+(u.n-1)*step+1]
		for i := range dst {
			dst[i] = x[i*step]
		}
	}
}

// add adds k rows of n columns, from a row and a column on, of src, whose rows
// are ld elements apart, to the elements that they stand for, of float32.
func (p *patches) add(src []float32, ld, row, column, k, n int) {
	var buf [runLimit]run
	taps, step := p.kh*p.kw, p.stride[1]
	for q := 0; q < n; q += runLimit {
		for i := range min(taps, k) {
			runs := p.runs((row+i)%taps, column+q, min(runLimit, n-q), &buf)
			for r := i; r < k; r += taps {
				x, from := p.x.f[(row+r)/taps*p.h*p.w:], src[r*ld+q:]
				for _, u := range runs {
					u.add(x, from[u.to:], step)
				}
			}
		}
	}
}

// add adds src to the elements of a run.
func (u *run) add(x, src []float32, step int) {
	if u.at < 0 {
		return
	}
	src, x = src[:u.n], x[u.at:u.at+(u.n-1)*step+1]
	if step == 1 && u.n >= 8 {
		vecAdd(x, x, src)
		return
	}
	for i, v := range src {
		x[i*step] += v
	}
}

// byColumn takes the columns as rows of op(A), or as columns of op(B).
func (p *patches) byColumn() operand { return operand{outer: 1, patches: p} }

// byRow takes the rows as rows of op(A), or as columns of op(B).
func (p *patches) byRow() operand { return operand{inner: 1, patches: p} }

// packPatches is pack for an operand that is a matrix of patches, of at most
// packGroup strips.
func (p *packer) packPatches(dst []float32, src operand, n, k int) {
	if src.outer != 1 {
		p.packRows(dst, src, n, k)
		return
	}
	for i := 0; i < n; i += p.width {
		src.patches.fill(dst[i*k:], p.width, src.row, src.column+i, k, min(p.width, n-i))
	}
}

// packRows packs n rows, runLimit columns at a time by way of a buffer.
func (p *packer) packRows(dst []float32, src operand, n, k int) {
	var buf [packGroup * maxWidth * runLimit]float32
	for q := 0; q < k; q += runLimit {
		columns := min(runLimit, k-q)
		src.patches.fill(buf[:], runLimit, src.row, src.column+q, n, columns)
		for i := 0; i < n; i += p.width {
			rows := operand{data: floats(buf[i*runLimit:]), outer: runLimit, inner: 1}
			p.packBlock(dst[i*k+q*p.width:], rows, min(p.width, n-i), columns)
		}
	}
}
