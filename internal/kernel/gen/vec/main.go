// Command vec writes the assembly of the vector layer: each function once for
// AVX-512 and once for AVX2 with FMA. See ../../vec.go for what they do.
//
// loop.go holds the loops over slices, math.go the transcendental functions,
// reduce.go what ends in a number. Here are the bodies of the loops.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64")
	for _, set := range []isa{avx512, avx2} {
		elementwise(set)
		activations(set)
		reductions(set)
		norms(set)
		optimizers(set)
		halves(set)
	}
	writeConstants()
	Generate()
}

type vector = reg.VecVirtual

// elementwise writes the functions that are one or two instructions.
func elementwise(set isa) {
	f := begin(set, "fill", "dst []float32, value float32")
	v := f.scalar("value")
	f.loop(4, func(b *block) { b.store("dst", v) })
	f.end()

	for _, op := range []struct {
		name string
		do   func(...operand.Op)
	}{{"add", VADDPS}, {"sub", VSUBPS}, {"mul", VMULPS}, {"div", VDIVPS}} {
		f := begin(set, op.name, "dst, a, b []float32")
		f.loop(4, func(b *block) {
			x, y := b.load("a"), b.load("b")
			op.do(y, x, x)
			b.store("dst", x)
		})
		f.end()
	}

	f = begin(set, "scale", "dst, src []float32, factor float32")
	factor := f.scalar("factor")
	f.loop(4, func(b *block) {
		x := b.load("src")
		VMULPS(factor, x, x)
		b.store("dst", x)
	})
	f.end()

	f = begin(set, "axpy", "dst, src []float32, factor float32")
	factor = f.scalar("factor")
	f.loop(4, func(b *block) {
		x, y := b.load("src"), b.load("dst")
		VFMADD231PS(factor, x, y)
		b.store("dst", y)
	})
	f.end()

	f = begin(set, "softmaxGrad", "dst, dy, y []float32, dot float32")
	dot := f.scalar("dot")
	f.loop(4, func(b *block) {
		dy, y := b.load("dy"), b.load("y")
		VSUBPS(dot, dy, dy)
		VMULPS(y, dy, dy)
		b.store("dst", dy)
	})
	f.end()
}

// activations writes the activation functions and their gradients.
func activations(set isa) {
	f := begin(set, "relu", "dst, src []float32")
	zero := f.zero()
	f.loop(4, func(b *block) {
		x := b.load("src")
		VMAXPS(x, zero, x) // x when it is NaN
		b.store("dst", x)
	})
	f.end()

	f = begin(set, "sqrt", "dst, src []float32")
	f.loop(4, func(b *block) {
		x := b.load("src")
		VSQRTPS(x, x)
		b.store("dst", x)
	})
	f.end()

	f = begin(set, "reluGrad", "dst, dy, x []float32")
	zero = f.zero()
	f.loop(4, func(b *block) {
		x, dy := b.load("x"), b.load("dy")
		b.store("dst", f.whereGreater(x, zero, dy))
	})
	f.end()

	for _, act := range []struct {
		name     string
		do, grad func(f *function, x vector) vector
	}{{"tanh", (*function).tanh, (*function).tanhGrad}, {"gelu", (*function).gelu, (*function).geluGrad}} {
		f := begin(set, act.name, "dst, src []float32")
		f.loop(1, func(b *block) { b.store("dst", act.do(f, b.load("src"))) })
		f.end()

		f = begin(set, act.name+"Grad", "dst, dy, x []float32")
		f.loop(1, func(b *block) {
			d := act.grad(f, b.load("x"))
			VMULPS(b.load("dy"), d, d)
			b.store("dst", d)
		})
		f.end()
	}
}

// norms writes the inner loops of layer normalisation.
func norms(set isa) {
	f := begin(set, "norm", "dst, x, gamma, beta []float32, mean, rstd float32")
	mean, rstd := f.scalar("mean"), f.scalar("rstd")
	f.loop(2, func(b *block) {
		x, gamma, beta := b.load("x"), b.load("gamma"), b.load("beta")
		VSUBPS(mean, x, x)
		VMULPS(rstd, x, x)
		VFMADD213PS(beta, gamma, x)
		b.store("dst", x)
	})
	f.end()

	f = begin(set, "normGrad", "dst, dy, x, gamma []float32, mean, rstd, meanG, meanGX float32")
	mean, rstd = f.scalar("mean"), f.scalar("rstd")
	meanG, meanGX := f.scalar("meanG"), f.scalar("meanGX")
	f.loop(2, func(b *block) {
		dy, x, gamma := b.load("dy"), b.load("x"), b.load("gamma")
		VSUBPS(mean, x, x)
		VMULPS(rstd, x, x)
		VFMSUB213PS(meanG, gamma, dy)
		VFNMADD231PS(meanGX, x, dy)
		VMULPS(rstd, dy, dy)
		b.store("dst", dy)
	})
	f.end()

	f = begin(set, "normParams", "dgamma, dbeta, dy, x []float32, mean, rstd float32")
	mean, rstd = f.scalar("mean"), f.scalar("rstd")
	f.loop(2, func(b *block) {
		dy, x := b.load("dy"), b.load("x")
		dgamma, dbeta := b.load("dgamma"), b.load("dbeta")
		VSUBPS(mean, x, x)
		VMULPS(rstd, x, x)
		VFMADD231PS(dy, x, dgamma)
		VADDPS(dy, dbeta, dbeta)
		b.store("dgamma", dgamma)
		b.store("dbeta", dbeta)
	})
	f.end()
}

// optimizers writes the step of AdamW.
func optimizers(set isa) {
	f := begin(set, "adamW", "w, g, m, v []float32, f *float32")
	at := f.fields("f", 9)
	grad, decay := at[0], at[1]
	beta1, gain1, beta2, gain2 := at[2], at[3], at[4], at[5]
	step, correct, eps := at[6], at[7], at[8]
	f.loop(1, func(b *block) {
		g, m, v, w := b.load("g"), b.load("m"), b.load("v"), b.load("w")
		VMULPS(grad, g, g)
		VMULPS(beta1, m, m)
		VFMADD231PS(gain1, g, m)
		b.store("m", m)
		VMULPS(g, g, g)
		VMULPS(beta2, v, v)
		VFMADD231PS(gain2, g, v)
		b.store("v", v)
		VSQRTPS(v, v)
		VFMADD213PS(eps, correct, v)
		VMULPS(step, m, m)
		VDIVPS(v, m, m)
		VFMSUB213PS(m, decay, w)
		b.store("w", w)
	})
	f.end()
}
