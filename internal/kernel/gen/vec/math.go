package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// Numbers of exp. With n = round(x/ln 2) and r = x − n·ln 2,
//
//	exp(x) = 2ⁿ·exp(r),  exp(r) ≈ 1 + r + r²·(c₀ + c₁r + … + c₄r⁴)
//
// The coefficients are minimax for the relative error on |r| ≤ ln(2)/2, which
// is 3.1e−9, by Lawson's iteration. expLow is below the logarithm of half the
// least float32, expHigh above that of the greatest.
const (
	expLow  = -104
	expHigh = 88.8
	ln2High = 0.693147182464599609375 // float32(ln 2)
	ln2Low  = math.Ln2 - ln2High
)

var expCoeffs = []float64{
	0.4999999403953552, 0.1666652113199234, 0.04166826233267784,
	0.008368670009076595, 0.0013820987660437822,
}

const (
	nearest  = 8    // rounding: to nearest, no exception
	notLess  = 0x15 // comparison: unordered, quiet
	floatOne = 127  // exponent of 1
	mantissa = 23   // bits
)

// exp gives exp(x). Below expLow it is 0, also where results that are not
// normal are slow to compute.
func (f *function) exp(x vector) vector {
	n, p := f.vec(), f.vec()
	high := f.broadcast(expHigh)
	VMINPS(x, high, high) // x when it is NaN
	x = high
	if !f.wide() {
		return f.expNarrow(x)
	}
	k := K()
	VCMPPS_BCST(Imm(notLess), constant(math.Float32bits(expLow)), x, k)
	f.with(mulC, 1/math.Ln2, x, n)
	VRNDSCALEPS(Imm(nearest), n, n)
	f.expPolynomial(x, n, p)
	VSCALEFPS_Z(n, p, k, p)
	return p
}

// expNarrow is the rest of exp without the instruction that scales by a power
// of two: it is done in two halves, since 2ⁿ may not be a number.
func (f *function) expNarrow(x vector) vector {
	n, p, mask := f.vec(), f.vec(), f.vec()
	VCMPPS(Imm(notLess), constant(math.Float32bits(expLow)), x, mask)
	low := f.broadcast(expLow)
	VMAXPS(x, low, low)
	f.with(mulC, 1/math.Ln2, low, n)
	VROUNDPS(Imm(nearest), n, n)
	f.expPolynomial(low, n, p)
	VANDPS(mask, p, p)
	half, rest := f.vec(), f.vec()
	VCVTPS2DQ(n, rest)
	VPSRAD(Imm(1), rest, half)
	VPSUBD(half, rest, rest)
	for _, e := range []vector{half, rest} {
		f.withBits(paddC, floatOne, e, e)
		VPSLLD(Imm(mantissa), e, e)
		VMULPS(e, p, p)
	}
	return p
}

// expPolynomial sets p to exp(x − n·ln 2). x is overwritten.
func (f *function) expPolynomial(x, n, p vector) {
	f.with(fnma231C, ln2High, n, x)
	f.with(fnma231C, ln2Low, n, x)
	f.horner(p, x, append([]float64{1, 1}, expCoeffs...))
}

// horner sets p to the polynomial in x with the coefficients c, lowest first.
func (f *function) horner(p, x vector, c []float64) {
	last := len(c) - 1
	VBROADCASTSS(constant(math.Float32bits(float32(c[last]))), p)
	for i := last - 1; i >= 0; i-- {
		f.with(fma213C, c[i], x, p)
	}
}

// tanh(x) ≈ x·P(x²)/Q(x²), minimax for the relative error on |x| ≤ tanhLimit,
// which is 2.2e−8; beyond, float32 rounds tanh to ±1. All coefficients are
// positive, so that rounding errors stay small.
const tanhLimit = 9.02

var (
	tanhP = []float64{1, 0.13379676640033722, 0.0034939853940159082, 2.0582665456458926e-05, 1.3317953850844333e-08}
	tanhQ = []float64{1, 0.4671299159526825, 0.02587088756263256, 0.00032830119016580284, 7.761558435959159e-07}
)

func (f *function) tanh(x vector) vector {
	x = f.clamp(x, tanhLimit)
	z, p, q := f.vec(), f.vec(), f.vec()
	VMULPS(x, x, z)
	f.horner(p, z, tanhP)
	f.horner(q, z, tanhQ)
	VMULPS(x, p, p)
	VDIVPS(q, p, p)
	return f.clamp(p, 1)
}

// clamp gives x brought into [−limit, limit].
func (f *function) clamp(x vector, limit float64) vector {
	low, high := f.broadcast(-limit), f.broadcast(limit)
	VMAXPS(x, low, low) // x when it is NaN
	VMINPS(low, high, high)
	return high
}

// tanhGrad gives 1 − tanh²(x).
func (f *function) tanhGrad(x vector) vector {
	t, d := f.tanh(x), f.broadcast(1)
	VFNMADD231PS(t, t, d)
	return d
}

// Numbers of GELU: see vec.go.
const (
	geluScale = 2 * 0.7978845608028653558798921198687637
	geluCubic = 0.044715
)

// sigmoid gives s = 1/(1 + e) with e = exp(−2u), and x².
func (f *function) sigmoid(x vector) (s, e, square vector) {
	square, t := f.vec(), f.vec()
	VMULPS(x, x, square)
	f.horner(t, square, []float64{-geluScale, -geluScale * geluCubic})
	VMULPS(x, t, t)
	e, s = f.exp(t), f.broadcast(1)
	sum := f.vec()
	VADDPS(s, e, sum)
	VDIVPS(sum, s, s)
	return s, e, square
}

func (f *function) gelu(x vector) vector {
	s, _, _ := f.sigmoid(x)
	VMULPS(x, s, s)
	return s
}

// geluGrad gives s + x·(2u)′·s·(1−s), where 1−s is e·s without the loss of
// digits, or 1 where e is infinite.
func (f *function) geluGrad(x vector) vector {
	s, e, square := f.sigmoid(x)
	d, one := f.vec(), f.broadcast(1)
	f.horner(d, square, []float64{geluScale, 3 * geluScale * geluCubic})
	VMULPS(x, d, d)
	VMULPS(s, e, e)
	VMINPS(one, e, e) // 1 when it is NaN
	VMULPS(s, e, e)
	VFMADD231PS(e, d, s)
	return s
}
