package main

import (
	"math"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: the suffix of its functions and the bytes of its
// vectors.
type isa struct {
	suffix string
	bytes  int
	vec    func() reg.VecVirtual
}

var (
	avx512 = isa{"AVX512", 64, ZMM}
	avx2   = isa{"AVX2", 32, YMM}
)

func (s isa) wide() bool { return s.bytes == 64 }

// function is a function that is being written. Its parameters are slices,
// which are walked together, and numbers.
type function struct {
	isa
	name  string
	base  map[string]reg.Register // of each slice
	index reg.Register            // in bytes, of the block at hand
	left  reg.Register            // elements from index on
	tail  reg.Register            // mask of the last block's lanes
}

// begin starts a function that takes params and returns results, if any.
func begin(set isa, name, params string, results ...string) *function {
	TEXT(name+set.suffix, attr.NOSPLIT, "func("+params+") "+strings.Join(results, ""))
	Doc(name + set.suffix + " is " + name + "Go with " + set.suffix + ".")
	Pragma("noescape")
	f := &function{isa: set, name: name, base: map[string]reg.Register{}}
	names, _, _ := strings.Cut(params, " []float32")
	for i, s := range strings.Split(names, ", ") {
		f.base[s] = Load(Param(s).Base(), GP64())
		if i == 0 {
			f.left = Load(Param(s).Len(), GP64())
		}
	}
	f.index = GP64()
	XORQ(f.index, f.index)
	return f
}

func (f *function) end() {
	VZEROUPPER()
	RET()
}

// block is one vector's worth of the slices.
type block struct {
	f      *function
	n      int // number within the iteration
	masked bool
}

// loop runs body over the slices: unroll blocks in an iteration, then one,
// then a last one with those lanes masked that lie behind the end.
func (f *function) loop(unroll int, body func(b *block)) {
	lanes := f.bytes / 4
	if unroll > 1 {
		f.while("many", "one", unroll*lanes, func() {
			for i := range unroll {
				body(&block{f: f, n: i})
			}
		})
	}
	f.while("one", "tail", lanes, func() { body(&block{f: f}) })
	Label("tail")
	TESTQ(f.left, f.left)
	JZ(LabelRef("done"))
	f.maskTail()
	body(&block{f: f, masked: true})
	Label("done")
}

// while repeats body as long as n elements are left, which it uses up.
func (f *function) while(label, next string, n int, body func()) {
	Label(label)
	CMPQ(f.left, U32(n))
	JL(LabelRef(next))
	body()
	ADDQ(U32(4*n), f.index)
	SUBQ(U32(n), f.left)
	JMP(LabelRef(label))
}

// maskTail sets the mask of the elements that are left, fewer than a vector.
func (f *function) maskTail() {
	if f.wide() {
		bits, k := GP64(), K()
		MOVQ(U32(1), bits)
		SHLXQ(f.left, bits, bits)
		DECQ(bits)
		KMOVW(bits.As32(), k)
		f.tail = k
		return
	}
	table, v := GP64(), YMM()
	LEAQ(NewDataAddr(NewStaticSymbol("tailMasks"), 0), table)
	NEGQ(f.left)
	VMOVUPS(Mem{Base: table, Index: f.left, Scale: 4, Disp: 32}, v)
	f.tail = v
}

func (b *block) mem(slice string) Mem {
	return Mem{Base: b.f.base[slice], Index: b.f.index, Scale: 1, Disp: b.n * b.f.bytes}
}

// load loads the block of a slice, with 0 in masked lanes.
func (b *block) load(slice string) vector {
	v := b.f.vec()
	switch {
	case !b.masked:
		VMOVUPS(b.mem(slice), v)
	case b.f.wide():
		VMOVUPS_Z(b.mem(slice), b.f.tail, v)
	default:
		VMASKMOVPS(b.mem(slice), b.f.tail, v)
	}
	return v
}

// store stores the block of a slice, leaving masked lanes alone.
func (b *block) store(slice string, v vector) {
	switch {
	case !b.masked:
		VMOVUPS(v, b.mem(slice))
	case b.f.wide():
		VMOVUPS(v, b.f.tail, b.mem(slice))
	default:
		VMASKMOVPS(v, b.f.tail, b.mem(slice))
	}
}

// scalar loads a number into all lanes.
func (f *function) scalar(param string) vector {
	v := f.vec()
	addr, err := Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(addr.Addr, v)
	return v
}

// fields loads the first n numbers of a struct into all lanes of a vector each.
func (f *function) fields(param string, n int) []vector {
	base := Load(Param(param), GP64())
	v := make([]vector, n)
	for i := range v {
		v[i] = f.vec()
		VBROADCASTSS(Mem{Base: base, Disp: 4 * i}, v[i])
	}
	return v
}

func (f *function) zero() vector {
	v := f.vec()
	if f.wide() {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
	return v
}

// whereGreater gives v where x > y and 0 elsewhere.
func (f *function) whereGreater(x, y, v vector) vector {
	const greater = 0x1e // ordered, quiet
	r := f.vec()
	if f.wide() {
		k := K()
		VCMPPS(Imm(greater), y, x, k)
		VMOVAPS_Z(v, k, r)
		return r
	}
	VCMPPS(Imm(greater), y, x, r)
	VANDPS(v, r, r)
	return r
}

// constants lists the constants in use, each of which lies in memory once per
// lane of an AVX2 vector.
var constants []uint32

// An op is an instruction on vectors whose first operand may lie in memory: a
// vector of AVX2 as a whole, one of AVX-512 as a number for all lanes.
type op struct{ plain, wide func(...Op) }

var (
	mulC     = op{VMULPS, VMULPS_BCST}
	fma213C  = op{VFMADD213PS, VFMADD213PS_BCST}
	fnma231C = op{VFNMADD231PS, VFNMADD231PS_BCST}
	paddC    = op{VPADDD, VPADDD_BCST}
)

// with emits o with the constant c as its memory operand.
func (f *function) with(o op, c float64, x, dst vector) {
	f.withBits(o, math.Float32bits(float32(c)), x, dst)
}

func (f *function) withBits(o op, bits uint32, x, dst vector) {
	if f.wide() {
		o.wide(constant(bits), x, dst)
		return
	}
	o.plain(constant(bits), x, dst)
}

// broadcast gives a constant in all lanes of a register.
func (f *function) broadcast(c float64) vector {
	v := f.vec()
	VBROADCASTSS(constant(math.Float32bits(float32(c))), v)
	return v
}

// constant is where a constant lies.
func constant(bits uint32) Mem {
	i := slices.Index(constants, bits)
	if i < 0 {
		i = len(constants)
		constants = append(constants, bits)
	}
	return NewDataAddr(NewStaticSymbol("constants"), 32*i)
}

// writeConstants writes the tables that the functions refer to.
func writeConstants() {
	GLOBL("tailMasks", attr.RODATA|attr.NOPTR)
	for i := range 16 {
		mask := uint32(0)
		if i < 8 {
			mask = math.MaxUint32
		}
		DATA(4*i, U32(mask))
	}
	GLOBL("constants", attr.RODATA|attr.NOPTR)
	for i, c := range constants {
		for j := range 8 {
			DATA(32*i+4*j, U32(c))
		}
	}
}
