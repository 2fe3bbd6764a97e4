package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// transpose16 writes the AVX-512 transpose of blocks of n ≤ 16 rows and 16
// columns. Unpacking transposes 4×4 within each 128-bit lane, two rounds of
// shuffles then transpose the lanes.
func transpose16(size string, n int) {
	t := startTranspose("transpose"+size+"AVX512", n)
	mask := K()
	if n < 16 {
		m := GP32()
		MOVL(U32(1<<n-1), m)
		KMOVW(m, mask)
	}
	t.loop(16, func() {
		quad := make([][4]reg.VecVirtual, n/4)
		for g := range quad {
			quad[g] = quadTranspose(t.src, 4*g, ZMM)
		}
		last := len(quad) - 1
		var col [16]reg.VecVirtual
		for c := range 4 {
			half := [4]reg.VecVirtual{ZMM(), ZMM(), ZMM(), ZMM()}
			VSHUFF32X4(Imm(0x44), quad[1][c], quad[0][c], half[0])
			VSHUFF32X4(Imm(0xEE), quad[1][c], quad[0][c], half[1])
			VSHUFF32X4(Imm(0x44), quad[last][c], quad[2][c], half[2])
			VSHUFF32X4(Imm(0xEE), quad[last][c], quad[2][c], half[3])
			for lane := range 4 {
				v := ZMM()
				VSHUFF32X4(Imm([2]uint64{0x88, 0xDD}[lane%2]), half[2+lane/2], half[lane/2], v)
				col[4*lane+c] = v
			}
		}
		for _, v := range col {
			if n < 16 {
				VMOVUPS(v, mask, Mem{Base: t.dst})
			} else {
				VMOVUPS(v, Mem{Base: t.dst})
			}
			ADDQ(t.ldd, t.dst)
		}
	})
}

// transpose8 writes the AVX2 transpose of blocks of 6 or 8 rows and 8 columns.
func transpose8(size string, n int) {
	t := startTranspose("transpose"+size+"AVX2", n)
	t.loop(8, func() {
		low := quadTranspose(t.src, 0, YMM)
		high := quadTranspose(t.src, 4, YMM)
		for half, lanes := range []uint64{0x20, 0x31} {
			_ = half
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

func startTranspose(name string, n int) transposer {
	TEXT(name, attr.NOSPLIT, "func(dst *float32, ldd int, src *float32, ld int, blocks int)")
	Doc(name + " packs rows of src as columns of dst. See microKernel.packA.")
	Pragma("noescape")
	return transposer{
		dst:    Load(Param("dst"), GP64()),
		ldd:    bytes("ldd"),
		src:    rowPointersOf("src", "ld", n),
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

// quadTranspose loads four rows from row on and transposes 4×4 within each
// lane: element c of the result holds columns c, c+4, c+8 …, a lane each. Rows
// past the last repeat it.
func quadTranspose(src rowSet, row int, vec func() reg.VecVirtual) (col [4]reg.VecVirtual) {
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

// copyRows writes the copy of rows of width elements.
func copyRows(set isa, width int) {
	name := fmt.Sprintf("copy%d%s", width, set.suffix)
	TEXT(name, attr.NOSPLIT, "func(dst, src *float32, ld, k int)")
	Doc(name + " packs a strip whose rows are dense. See packer.copy.")
	Pragma("noescape")
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
