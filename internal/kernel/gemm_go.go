package kernel

import "unsafe"

var goKernel = &microKernel{
	name: "Go", panel: defaultPanel,
	a:    packer{width: 4, copy: copy4},
	b:    packer{width: 4, copy: copy4},
	tile: tile4x4,
}

// tile4x4 is microKernel.tile in plain Go: one row of the tile at a time, so
// that its sums stay in registers.
func tile4x4(k int, a *float32, rs, cs int, b *float32, ldb int, c *float32, ldc int, src *float32, lds int) {
	as := unsafe.Slice(a, 3*rs+(k-1)*cs+1)
	bs := unsafe.Slice(b, (k-1)*ldb+4)
	out := unsafe.Slice(c, 3*ldc+4)
	for i := range 4 {
		var s0, s1, s2, s3 float32
		for p := range k {
			x, row := as[i*rs+p*cs], bs[p*ldb:p*ldb+4]
			s0 += x * row[0]
			s1 += x * row[1]
			s2 += x * row[2]
			s3 += x * row[3]
		}
		if src != nil {
			add := unsafe.Slice(src, 3*lds+4)[i*lds:]
			s0, s1, s2, s3 = s0+add[0], s1+add[1], s2+add[2], s3+add[3]
		}
		row := out[i*ldc : i*ldc+4]
		row[0], row[1], row[2], row[3] = s0, s1, s2, s3
	}
}

// copy4 is packer.copy for strips of four.
func copy4(dst, src *float32, ld, k int) {
	d, s := unsafe.Slice(dst, 4*k), unsafe.Slice(src, (k-1)*ld+4)
	for p := range k {
		*(*[4]float32)(d[4*p:]) = *(*[4]float32)(s[p*ld:])
	}
}
