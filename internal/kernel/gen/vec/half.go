package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// halves writes the conversions of 16-bit numbers. They take whole blocks of a
// vector's lanes; what is left over is the caller's. AVX2 has those of bfloat16
// alone: those of float16 are an extension of their own there (F16C).
func halves(set isa) {
	from := func(b *halfBlock) {
		x := b.f.vec()
		VPMOVZXWD(b.src(2), x)
		VPSLLD(Imm(16), x, x)
		VMOVUPS(x, b.dst(4))
	}
	blocks(set, "fromBFloat16", "dst []float32, src []uint16", from)
	blocks(set, "toBFloat16", "dst []uint16, src []float32", toBFloat16)
	if !set.wide() {
		return
	}
	blocks(set, "fromFloat16", "dst []float32, src []uint16", func(b *halfBlock) {
		x := b.f.vec()
		VCVTPH2PS(b.src(2), x)
		VMOVUPS(x, b.dst(4))
	})
	blocks(set, "toFloat16", "dst []uint16, src []float32", func(b *halfBlock) {
		x := b.f.vec()
		VMOVUPS(b.src(4), x)
		VCVTPS2PH(Imm(0), x, b.dst(2)) // 0: to nearest, ties to even
	})
}

// halfBlock is a vector's worth of elements of two slices.
type halfBlock struct {
	f          *function
	to, at     reg.Register // of the slices
	index      reg.Register // in elements
	signalling vector       // of toBFloat16: the quiet bit of NaN in all lanes
	half, one  vector       // 0x7fff and 1 in all lanes
}

func (b *halfBlock) dst(size uint8) Mem { return Mem{Base: b.to, Index: b.index, Scale: size} }
func (b *halfBlock) src(size uint8) Mem { return Mem{Base: b.at, Index: b.index, Scale: size} }

// blocks writes a function that runs body for the whole blocks of dst.
func blocks(set isa, name, params string, body func(b *halfBlock)) {
	TEXT(name+set.suffix, attr.NOSPLIT, "func("+params+")")
	Doc(name + set.suffix + " is " + name + "Go with " + set.suffix + " for the whole blocks of dst.")
	Pragma("noescape")
	f := &function{isa: set, name: name}
	b := &halfBlock{f: f, to: Load(Param("dst").Base(), GP64()), at: Load(Param("src").Base(), GP64()), index: GP64()}
	left := Load(Param("dst").Len(), GP64())
	if name == "toBFloat16" {
		b.constants()
	}
	XORQ(b.index, b.index)
	lanes := uint32(set.bytes / 4)
	Label("blocks")
	CMPQ(left, U32(lanes))
	JL(LabelRef("done"))
	body(b)
	ADDQ(U32(lanes), b.index)
	SUBQ(U32(lanes), left)
	JMP(LabelRef("blocks"))
	Label("done")
	f.end()
}

func (b *halfBlock) constants() {
	for _, c := range []struct {
		v    *vector
		bits uint32
	}{{&b.half, 0x7fff}, {&b.one, 1}, {&b.signalling, 0x400000}} {
		*c.v = b.f.vec()
		VBROADCASTSS(constant(c.bits), *c.v)
	}
}

// toBFloat16 adds just under half of the last place, and the last place's bit,
// and cuts off; NaN becomes quiet instead.
func toBFloat16(b *halfBlock) {
	const unordered = 3
	x, sum, nan := b.f.vec(), b.f.vec(), b.f.vec()
	VMOVUPS(b.src(4), x)
	VPSRLD(Imm(16), x, sum)
	if b.f.wide() {
		VPANDD(b.one, sum, sum)
		VPADDD(b.half, sum, sum)
		VPADDD(x, sum, sum)
		k := K()
		VCMPPS(Imm(unordered), x, x, k)
		VPORD(b.signalling, x, k, sum)
		VPSRLD(Imm(16), sum, sum)
		VPMOVDW(sum, b.dst(2))
		return
	}
	VPAND(b.one, sum, sum)
	VPADDD(b.half, sum, sum)
	VPADDD(x, sum, sum)
	VCMPPS(Imm(unordered), x, x, nan)
	VPOR(b.signalling, x, x)
	VBLENDVPS(nan, x, sum, sum)
	VPSRLD(Imm(16), sum, sum)
	VPACKUSDW(sum, sum, sum)
	VPERMQ(Imm(0x08), sum, sum)
	VMOVDQU(sum.AsX(), b.dst(2))
}
