package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// transpose16 writes packer.transpose with AVX-512, for blocks of n ≤ 16 rows and 16
// columns. Unpacking transposes 4×4 within each 128-bit lane, two rounds of
// shuffles then transpose the lanes.
func transpose16(n int) {
	t := startTranspose(avx512, n)
	mask, bits := K(), GP32()
	MOVL(U32(1<<n-1), bits)
	KMOVW(bits, mask)
	t.loop(16, func() {
		var quad [4][4]reg.VecVirtual
		for g := range quad {
			if 4*g < n {
				quad[g] = transposeQuad(t.src, 4*g, ZMM)
			} else {
				quad[g] = quad[g-1]
			}
		}
		var col [16]reg.VecVirtual
		for c := range 4 {
			lanes := transposeLanes(quad[0][c], quad[1][c], quad[2][c], quad[3][c])
			for i, v := range lanes {
				col[4*i+c] = v
			}
		}
		for _, v := range col {
			VMOVUPS(v, mask, Mem{Base: t.dst})
			ADDQ(t.ldd, t.dst)
		}
	})
}

// transposeLanes transposes a 4×4 matrix of lanes.
func transposeLanes(r0, r1, r2, r3 reg.VecVirtual) (col [4]reg.VecVirtual) {
	const first, second, even, odd = 0x44, 0xEE, 0x88, 0xDD
	shuffle := func(pick uint64, x, y reg.VecVirtual) reg.VecVirtual {
		v := ZMM()
		VSHUFF32X4(Imm(pick), y, x, v)
		return v
	}
	for i, pick := range []uint64{first, second} {
		x, y := shuffle(pick, r0, r1), shuffle(pick, r2, r3)
		col[2*i], col[2*i+1] = shuffle(even, x, y), shuffle(odd, x, y)
	}
	return col
}

// transpose8 writes packer.transpose with AVX2, for blocks of 6 or 8 rows and 8
// columns.
func transpose8(n int) {
	t := startTranspose(avx2, n)
	t.loop(8, func() {
		low := transposeQuad(t.src, 0, YMM)
		high := transposeQuad(t.src, 4, YMM)
		for _, lanes := range []uint64{0x20, 0x31} {
			for c := range 4 {
				v := YMM()
				VPERM2F128(Imm(lanes), high[c], low[c], v)
				t.store8(v, n)
				ADDQ(t.ldd, t.dst)
			}
		}
	})
}

// transposer holds the operands of a transpose that is being written.
type transposer struct {
	dst, ldd, blocks reg.Register
	src              rowSet
}

func startTranspose(set isa, n int) transposer {
	start(fmt.Sprintf("transpose%d%s", n, set.name), "packer.transpose",
		"func(dst *float32, ldd int, src *float32, ld, blocks int)")
	return transposer{
		dst:    Load(Param("dst"), GP64()),
		ldd:    bytes("ldd"),
		src:    rowPointers("src", "ld", n),
		blocks: Load(Param("blocks"), GP64()),
	}
}

// loop runs body for each block of width columns.
func (t transposer) loop(width int, body func()) {
	Label("block")
	body()
	for _, p := range t.src.ptr {
		ADDQ(U32(4*width), p)
	}
	DECQ(t.blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

func (t transposer) store8(v reg.VecVirtual, n int) {
	if n == 8 {
		VMOVUPS(v, Mem{Base: t.dst})
		return
	}
	VMOVUPS(v.AsX(), Mem{Base: t.dst})
	upper := XMM()
	VEXTRACTF128(Imm(1), v, upper)
	VMOVSD(upper, Mem{Base: t.dst, Disp: 16})
}

// transposeQuad loads four rows from row on and transposes 4×4 within each
// lane: element c of the result holds columns c, c+4, c+8 …, a lane each. Rows
// past the last repeat it.
func transposeQuad(src rowSet, row int, vec func() reg.VecVirtual) (col [4]reg.VecVirtual) {
	var r, u [4]reg.VecVirtual
	for i := range r {
		r[i], u[i], col[i] = vec(), vec(), vec()
		VMOVUPS(src.row(min(row+i, src.n-1)), r[i])
	}
	VUNPCKLPS(r[1], r[0], u[0])
	VUNPCKHPS(r[1], r[0], u[1])
	VUNPCKLPS(r[3], r[2], u[2])
	VUNPCKHPS(r[3], r[2], u[3])
	VUNPCKLPD(u[2], u[0], col[0])
	VUNPCKHPD(u[2], u[0], col[1])
	VUNPCKLPD(u[3], u[1], col[2])
	VUNPCKHPD(u[3], u[1], col[3])
	return col
}

// copyRows writes packer.copy for strips of width elements.
func copyRows(set isa, width int) {
	start(fmt.Sprintf("copy%d%s", width, set.name), "packer.copy", "func(dst, src *float32, ld, k int)")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	ld, k := bytes("ld"), Load(Param("k"), GP64())
	Label("row")
	move(set, dst, src, width)
	ADDQ(ld, src)
	ADDQ(U32(4*width), dst)
	DECQ(k)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// move copies width elements in pieces whose size divides that of a strip, so
// that none crosses a cache line when the rows are aligned.
func move(set isa, dst, src reg.Register, width int) {
	var v reg.Register
	op := VMOVUPS
	size := min(4*width&-(4*width), set.bytes)
	switch size {
	case 8:
		v, op = XMM(), func(ops ...Op) { VMOVSD(ops...) }
	case 16:
		v = XMM()
	default:
		v = set.vec()
	}
	for disp := 0; disp < 4*width; disp += size {
		op(Mem{Base: src, Disp: disp}, v)
		op(v, Mem{Base: dst, Disp: disp})
	}
}
