package kernel

import (
	"math"
	"testing"
)

// vecCalls lists the vector functions: each reads the operands in and the
// scalars s, writes out, and returns a number or 0. out begins as a copy of in.
var vecCalls = map[string]func(out, in *[4][]float32, s [4]float32) float32{
	"fill":     func(out, in *[4][]float32, s [4]float32) float32 { vecFill(out[0], s[0]); return 0 },
	"add":      func(out, in *[4][]float32, s [4]float32) float32 { vecAdd(out[0], in[0], in[1]); return 0 },
	"sub":      func(out, in *[4][]float32, s [4]float32) float32 { vecSub(out[0], in[0], in[1]); return 0 },
	"mul":      func(out, in *[4][]float32, s [4]float32) float32 { vecMul(out[0], in[0], in[1]); return 0 },
	"div":      func(out, in *[4][]float32, s [4]float32) float32 { vecDiv(out[0], in[0], in[1]); return 0 },
	"scale":    func(out, in *[4][]float32, s [4]float32) float32 { vecScale(out[0], in[0], s[0]); return 0 },
	"axpy":     func(out, in *[4][]float32, s [4]float32) float32 { vecAxpy(out[0], in[1], s[0]); return 0 },
	"relu":     func(out, in *[4][]float32, s [4]float32) float32 { vecRelu(out[0], in[0]); return 0 },
	"reluGrad": func(out, in *[4][]float32, s [4]float32) float32 { vecReluGrad(out[0], in[0], in[1]); return 0 },
	"sqrt":     func(out, in *[4][]float32, s [4]float32) float32 { vecSqrt(out[0], in[0]); return 0 },
	"tanh":     func(out, in *[4][]float32, s [4]float32) float32 { vecTanh(out[0], in[0]); return 0 },
	"tanhGrad": func(out, in *[4][]float32, s [4]float32) float32 { vecTanhGrad(out[0], in[0], in[1]); return 0 },
	"gelu":     func(out, in *[4][]float32, s [4]float32) float32 { vecGelu(out[0], in[0]); return 0 },
	"geluGrad": func(out, in *[4][]float32, s [4]float32) float32 { vecGeluGrad(out[0], in[0], in[1]); return 0 },
	"softmaxGrad": func(out, in *[4][]float32, s [4]float32) float32 {
		vecSoftmaxGrad(out[0], in[0], in[1], s[0])
		return 0
	},
	"norm": func(out, in *[4][]float32, s [4]float32) float32 {
		vecNorm(out[0], in[0], in[1], in[2], s[0], s[1])
		return 0
	},
	"normGrad": func(out, in *[4][]float32, s [4]float32) float32 {
		vecNormGrad(out[0], in[0], in[1], in[2], s[0], s[1], s[2], s[3])
		return 0
	},
	"normParams": func(out, in *[4][]float32, s [4]float32) float32 {
		addNormParams(out[0], out[1], in[2], in[3], s[0], s[1])
		return 0
	},
	"adamW": func(out, in *[4][]float32, s [4]float32) float32 {
		f := adamFactors{s[0], 0.99, 0.9, 0.1, 0.999, 0.001, 0.01, 3, 1e-8}
		for i, v := range out[3] {
			out[3][i] = v * v
		}
		vecAdamW(out[0], in[1], out[2], out[3], &f)
		return 0
	},
	"expShift": func(out, in *[4][]float32, s [4]float32) float32 { return expShift(out[0], in[0], s[0]) },
	"maxOf":    func(out, in *[4][]float32, s [4]float32) float32 { return maxOf(in[0]) },
	"sumOf":    func(out, in *[4][]float32, s [4]float32) float32 { return sumOf(in[0]) },
	"dot":      func(out, in *[4][]float32, s [4]float32) float32 { return dotOf(in[0], in[1]) },
	"squares":  func(out, in *[4][]float32, s [4]float32) float32 { return squaresOf(in[0], s[0]) },
	"normSums": func(out, in *[4][]float32, s [4]float32) float32 {
		g, gx := normSumsOf(in[0], in[1], in[2], s[0], s[1])
		return g + 3*gx
	},
}

// operands4 gives four slices of n elements with guards behind, set to values
// from start on.
func operands4(values *[4][]float32, start, n int) (arrays [4][]float32) {
	for i := range arrays {
		a := make([]float32, n+guardLen)
		for j := range a {
			a[j] = math.Float32frombits(guardBits)
		}
		copy(a, values[i][start:start+n])
		arrays[i] = a[:n]
	}
	return arrays
}

// TestVectorLengths compares every function, at all lengths around those of a
// few vectors, with its form in Go.
func TestVectorLengths(t *testing.T) {
	r := seeded(t)
	const longest = 150
	var values [4][]float32
	for i := range values {
		values[i] = randoms(r, longest)
	}
	s := [4]float32{0.7, 1.3, -0.4, 0.2}
	want := map[string][longest + 1]struct {
		out    [4][]float32
		number float32
	}{}
	eachSIMD(t, func(t *testing.T) {
		for name, call := range vecCalls {
			reference := want[name]
			for n := range longest + 1 {
				in, out := operands4(&values, 0, n), operands4(&values, 0, n)
				number := call(&out, &in, s)
				for i := range out {
					if !sameBits(in[i], values[i][:n]) {
						t.Fatalf("%s of %d elements wrote to operand %d", name, n, i)
					}
					for j, x := range out[i][n : n+guardLen] {
						if math.Float32bits(x) != guardBits {
							t.Fatalf("%s of %d elements wrote to element %d of operand %d", name, n, n+j, i)
						}
					}
				}
				if want[name][longest].out[0] == nil { // the form in Go is the first
					reference[n].out, reference[n].number = out, number
					continue
				}
				w := reference[n]
				if !near(number, w.number, 1e-4) {
					t.Fatalf("%s of %d elements is %v, want %v", name, n, number, w.number)
				}
				for i := range out {
					for j := range out[i] {
						if !near(out[i][j], w.out[i][j], 2e-6) {
							t.Fatalf("%s of %d elements: element %d of operand %d is %v, want %v", name, n, j, i, out[i][j], w.out[i][j])
						}
					}
				}
			}
			if want[name][longest].out[0] == nil {
				want[name] = reference
			}
		}
	})
}

func near(got, want float32, tol float64) bool {
	g, w := float64(got), float64(want)
	return g == w || math.Abs(g-w) <= tol*math.Max(1, math.Abs(w)) || g != g && w != w
}

// TestVectorPlaces checks that an element's result does not depend on where in
// the slice it lies.
func TestVectorPlaces(t *testing.T) {
	r := seeded(t)
	var values [4][]float32
	for i := range values {
		values[i] = randoms(r, 100)
	}
	s := [4]float32{0.7, 1.3, -0.4, 0.2}
	eachSIMD(t, func(t *testing.T) {
		for name, call := range vecCalls {
			whole, in := operands4(&values, 0, 100), operands4(&values, 0, 100)
			call(&whole, &in, s)
			for _, lo := range []int{1, 5, 16, 37, 99} {
				part, in := operands4(&values, lo, 100-lo), operands4(&values, lo, 100-lo)
				call(&part, &in, s)
				for i := range part {
					if !sameBits(part[i], whole[i][lo:]) {
						t.Fatalf("%s of the elements from %d on differs", name, lo)
					}
				}
			}
		}
	})
}

// TestExpAndTanhAccuracy goes through the float32 of all magnitudes.
func TestExpAndTanhAccuracy(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		const step = 104729 // a prime: about 41 thousand arguments
		var src, dst []float32
		for bits := uint64(0); bits < 1<<32; bits += step {
			src = append(src, math.Float32frombits(uint32(bits)))
		}
		for range 20_000 { // where exp is neither 0 nor infinite
			src = append(src, float32(len(src)%20_000)/100-106)
		}
		dst = make([]float32, len(src))
		expShift(dst, src, 0)
		for i, x := range src {
			if want := math.Exp(float64(x)); !(ulps(dst[i], want) <= 1) {
				t.Fatalf("exp(%v) is %v, want %v", x, dst[i], want)
			}
		}
		vecTanh(dst, src)
		for i, x := range src {
			if want := math.Tanh(float64(x)); !(math.Abs(float64(dst[i])-want) <= 4e-7*math.Abs(want)+1e-45) && x == x || math.Abs(want) > 1 {
				t.Fatalf("tanh(%v) is %v, want %v", x, dst[i], want)
			}
		}
	})
}

// ulps is the distance of got from want in units of want's last place; 0 where
// both are NaN.
func ulps(got float32, want float64) float64 {
	nearest := float32(want)
	switch {
	case nearest == got || nearest != nearest && got != got:
		return 0
	case math.IsInf(float64(nearest), 0):
		return math.Inf(1)
	}
	next := math.Nextafter32(nearest, float32(math.Inf(1)))
	return math.Abs(float64(got)-want) / math.Abs(float64(next)-float64(nearest))
}

func TestMaxOfIgnoresNaN(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		for n := 1; n < 80; n++ {
			x := make([]float32, n)
			for i := range x {
				x[i] = nan
			}
			if got := maxOf(x); got != negInf {
				t.Fatalf("greatest of %d NaN is %v", n, got)
			}
			x[n/2] = -3
			if got := maxOf(x); got != -3 {
				t.Fatalf("greatest of −3 and %d NaN is %v", n-1, got)
			}
		}
	})
}
