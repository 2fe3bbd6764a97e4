package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// reductions writes the functions that return numbers.
func reductions(set isa) {
	f := begin(set, "maxOf", "src []float32", "float32")
	acc := f.accumulators(4, math.Inf(-1))
	f.loop(4, func(b *block) {
		x, a := b.load("src"), acc[b.n]
		if b.masked {
			x = f.orElse(x, math.Inf(-1))
		}
		VMAXPS(a, x, a) // a when x is NaN
	})
	f.result(0, acc, VMAXPS)
	f.end()

	f = begin(set, "sumOf", "src []float32", "float32")
	acc = f.accumulators(4, 0)
	f.loop(4, func(b *block) { VADDPS(b.load("src"), acc[b.n], acc[b.n]) })
	f.result(0, acc, VADDPS)
	f.end()

	f = begin(set, "dot", "a, b []float32", "float32")
	acc = f.accumulators(4, 0)
	f.loop(4, func(b *block) { VFMADD231PS(b.load("a"), b.load("b"), acc[b.n]) })
	f.result(0, acc, VADDPS)
	f.end()

	f = begin(set, "squares", "src []float32, center float32", "float32")
	center := f.scalar("center")
	acc = f.accumulators(4, 0)
	f.loop(4, func(b *block) {
		x := b.load("src")
		VSUBPS(center, x, x)
		if b.masked {
			x = f.orElse(x, 0)
		}
		VFMADD231PS(x, x, acc[b.n])
	})
	f.result(0, acc, VADDPS)
	f.end()

	rowReductions(set)
}

// rowReductions writes those that do more than reduce.
func rowReductions(set isa) {
	f := begin(set, "expShift", "dst, src []float32, shift float32", "float32")
	shift := f.scalar("shift")
	acc := f.accumulators(2, 0)
	f.loop(2, func(b *block) {
		x := b.load("src")
		VSUBPS(shift, x, x)
		e := f.exp(x)
		b.store("dst", e)
		if b.masked {
			e = f.orElse(e, 0)
		}
		VADDPS(e, acc[b.n], acc[b.n])
	})
	f.result(0, acc, VADDPS)
	f.end()

	f = begin(set, "normSums", "dy, x, gamma []float32, mean, rstd float32", "(sumG, sumGX float32)")
	mean, rstd := f.scalar("mean"), f.scalar("rstd")
	sumG, sumGX := f.accumulators(2, 0), f.accumulators(2, 0)
	f.loop(2, func(b *block) {
		g, x := b.load("dy"), b.load("x")
		VMULPS(b.load("gamma"), g, g) // 0 in masked lanes
		VSUBPS(mean, x, x)
		VMULPS(rstd, x, x)
		if b.masked {
			x = f.orElse(x, 0)
		}
		VADDPS(g, sumG[b.n], sumG[b.n])
		VFMADD231PS(g, x, sumGX[b.n])
	})
	f.result(0, sumG, VADDPS)
	f.result(1, sumGX, VADDPS)
	f.end()
}

// accumulators gives n vectors with c in all lanes.
func (f *function) accumulators(n int, c float64) []vector {
	acc := make([]vector, n)
	for i := range acc {
		if c == 0 {
			acc[i] = f.zero()
		} else {
			acc[i] = f.broadcast(c)
		}
	}
	return acc
}

// orElse gives x with c in the lanes that are masked in the last block.
func (f *function) orElse(x vector, c float64) vector {
	r := f.broadcast(c)
	if f.wide() {
		VMOVAPS(x, f.tail, r)
		return r
	}
	VBLENDVPS(f.tail, x, r, r)
	return r
}

// result returns what op makes of all lanes of the accumulators.
func (f *function) result(i int, acc []vector, op func(...Op)) {
	for n := len(acc) / 2; n > 0; n /= 2 {
		for j := range n {
			op(acc[j+n], acc[j], acc[j])
		}
	}
	y, x, t := acc[0].AsY(), acc[0].AsX(), XMM()
	if f.wide() {
		upper := YMM()
		VEXTRACTF64X4(Imm(1), acc[0], upper)
		op(upper, y, y)
	}
	VEXTRACTF128(Imm(1), y, t)
	op(t, x, x)
	for _, lanes := range []uint64{0x0e, 0x01} { // the upper two, then the second
		VPERMILPS(Imm(lanes), x, t)
		op(t, x, x)
	}
	Store(x, ReturnIndex(i))
}
