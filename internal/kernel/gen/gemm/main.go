// Command gemm writes the assembly of the matrix products: the tiles, which
// multiply a strip of rows of A by a strip of columns of B, and what packs such
// strips. See gemm.go of the package for their use.
package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: the width of its vectors in bytes and their number.
type isa struct {
	name  string
	bytes int
	regs  int
	vec   func() reg.VecVirtual
}

var (
	avx512 = isa{"AVX512", 64, 32, ZMM}
	avx2   = isa{"AVX2", 32, 16, YMM}
)

func main() {
	ConstraintExpr("amd64")
	tile(avx512, 12)
	tile(avx2, 6)
	transpose16(12)
	transpose16(16)
	transpose8(6)
	transpose8(8)
	copyRows(avx512, 12)
	copyRows(avx512, 32)
	copyRows(avx2, 6)
	copyRows(avx2, 16)
	Generate()
}

// start begins a function. What it does is documented at a field of a type.
func start(name, field, signature string) {
	TEXT(name, attr.NOSPLIT, signature)
	Doc(name + " is a " + field + ".")
	Pragma("noescape")
}

// tile writes microKernel.tile for mr rows and two vectors of columns. The sums
// fill the registers but for one row of B and a few elements of A, so that each
// step of k takes 2·mr multiply-adds and mr+2 loads.
func tile(set isa, mr int) {
	start(fmt.Sprintf("tile%dx%d%s", mr, set.bytes/2, set.name), "microKernel.tile",
		"func(k int, a *float32, rs, cs int, b *float32, ldb int, c *float32, ldc int, src *float32, lds int)")
	k := Load(Param("k"), GP64())
	rows := rowPointers("a", "rs", mr)
	cs := bytes("cs")
	b, ldb := Load(Param("b"), GP64()), bytes("ldb")
	c, ldc := Load(Param("c"), GP64()), bytes("ldc")

	sum := make([][2]reg.VecVirtual, mr)
	for i := range sum {
		for j := range sum[i] {
			sum[i][j] = set.vec()
			zero(set, sum[i][j])
		}
	}
	step := stepper(set, rows, cs, b, ldb, sum)

	loop(k, c, ldc, mr, 2*set.bytes, step)
	addSource(set, sum)
	store(set, c, ldc, sum)
	VZEROUPPER()
	RET()
}

// loop does step k times, in rounds. The first rounds each ask for a row of C,
// which is read or written at the end: asking for all at once is more than the
// processor keeps track of.
func loop(k, c, ldc reg.Register, rows, width int, step func()) {
	const unroll = 4
	round := func() {
		for range unroll {
			step()
		}
	}
	next, left := GP64(), GP64()
	MOVQ(c, next)
	MOVQ(U32(rows), left)

	Label("early")
	SUBQ(Imm(unroll), k)
	JL(LabelRef("rest"))
	PREFETCHT1(Mem{Base: next})
	PREFETCHT1(Mem{Base: next, Disp: width - 4})
	ADDQ(ldc, next)
	round()
	DECQ(left)
	JNZ(LabelRef("early"))

	Label("main")
	SUBQ(Imm(unroll), k)
	JL(LabelRef("rest"))
	round()
	JMP(LabelRef("main"))

	Label("rest")
	ADDQ(Imm(unroll), k)
	JZ(LabelRef("done"))
	Label("one")
	step()
	DECQ(k)
	JNZ(LabelRef("one"))
	Label("done")
}

// bytes loads a stride, which counts elements, as a number of bytes.
func bytes(param string) reg.Register {
	r := Load(Param(param), GP64())
	SHLQ(Imm(2), r)
	return r
}

func zero(set isa, v reg.VecVirtual) {
	if set.bytes == 64 {
		VPXORD(v, v, v)
		return
	}
	VXORPS(v, v, v)
}

// rowSet addresses n rows by one pointer for three rows.
type rowSet struct {
	n      int
	stride reg.Register
	ptr    []reg.Register
}

// rowPointers loads the parameters that hold the first row and the stride.
func rowPointers(base, stride string, n int) rowSet {
	r := rowSet{n: n, stride: bytes(stride)}
	r.ptr = append(r.ptr, Load(Param(base), GP64()))
	for i := 3; i < n; i += 3 {
		p := GP64()
		LEAQ(Mem{Base: r.ptr[len(r.ptr)-1], Index: r.stride, Scale: 2}, p)
		ADDQ(r.stride, p)
		r.ptr = append(r.ptr, p)
	}
	return r
}

func (r rowSet) row(i int) Mem {
	m := Mem{Base: r.ptr[i/3]}
	if i%3 > 0 {
		m.Index, m.Scale = r.stride, uint8(i%3)
	}
	return m
}

// stepper gives the code for one value of k.
func stepper(set isa, rows rowSet, cs, b, ldb reg.Register, sum [][2]reg.VecVirtual) func() {
	col := [2]reg.VecVirtual{set.vec(), set.vec()}
	elem := make([]reg.VecVirtual, min(4, set.regs-2*rows.n-2))
	for i := range elem {
		elem[i] = set.vec()
	}
	return func() {
		for j := range col {
			VMOVUPS(Mem{Base: b, Disp: j * set.bytes}, col[j])
		}
		ADDQ(ldb, b)
		for i := range rows.n {
			x := elem[i%len(elem)]
			VBROADCASTSS(rows.row(i), x)
			for j := range col {
				VFMADD231PS(x, col[j], sum[i][j])
			}
			if i%3 == 2 {
				ADDQ(cs, rows.ptr[i/3])
			}
		}
	}
}

// addSource adds the tile at src, if there is one, to the sums.
func addSource(set isa, sum [][2]reg.VecVirtual) {
	src, lds := Load(Param("src"), GP64()), bytes("lds")
	TESTQ(src, src)
	JZ(LabelRef("write"))
	for i := range sum {
		for j := range sum[i] {
			VADDPS(Mem{Base: src, Disp: j * set.bytes}, sum[i][j], sum[i][j])
		}
		ADDQ(lds, src)
	}
	Label("write")
}

func store(set isa, c, ldc reg.Register, sum [][2]reg.VecVirtual) {
	for i := range sum {
		for j := range sum[i] {
			VMOVUPS(sum[i][j], Mem{Base: c, Disp: j * set.bytes})
		}
		ADDQ(ldc, c)
	}
}
