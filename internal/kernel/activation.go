package kernel

import "math"

// shortLen is the length of the pieces that the functions here work on: with
// a few buffers they stay in the first-level cache.
const shortLen = 512

// short is f in short pieces.
func short(f func(y, x []float32)) func(y, x []float32) {
	return func(y, x []float32) {
		for lo := 0; lo < len(y); lo += shortLen {
			hi := min(len(y), lo+shortLen)
			f(y[lo:hi], x[lo:hi])
		}
	}
}

// shortGrad is grad in short pieces.
func shortGrad(grad func(dx, dy, x []float32)) func(dx, dy, x []float32) {
	return func(dx, dy, x []float32) {
		for lo := 0; lo < len(dx); lo += shortLen {
			hi := min(len(dx), lo+shortLen)
			grad(dx[lo:hi], dy[lo:hi], x[lo:hi])
		}
	}
}

func negate(y, x []float32) { vecScale(y, x, -1) }

func exp(y, x []float32) { expShift(y, x, 0) }

func expGrad(dx, dy, x []float32) {
	var buf [pieceLen]float32
	y := buf[:len(x)]
	exp(y, x)
	vecMul(dx, dy, y)
}

func log(y, x []float32) {
	for i, v := range x {
		y[i] = float32(math.Log(float64(v)))
	}
}

// sqrtGrad: the derivative is 1/(2·√x).
func sqrtGrad(dx, dy, x []float32) {
	var buf [pieceLen]float32
	root := buf[:len(x)]
	vecSqrt(root, x)
	vecAdd(root, root, root)
	vecDiv(dx, dy, root)
}

// sigmoidOf sets dst = 1/(1 + exp(−x)).
func sigmoidOf(dst, x []float32) {
	vecScale(dst, x, -1)
	expShift(dst, dst, 0)
	for i, e := range dst {
		dst[i] = 1 / (1 + e)
	}
}

func sigmoid(y, x []float32) { sigmoidOf(y, x) }

func sigmoidGrad(dx, dy, x []float32) {
	var s [shortLen]float32
	sigmoidOf(s[:len(x)], x)
	for i, g := range dy {
		dx[i] = g * (s[i] * (1 - s[i]))
	}
}

func silu(y, x []float32) {
	var s [shortLen]float32
	sigmoidOf(s[:len(x)], x)
	vecMul(y, x, s[:len(x)])
}

func siluGrad(dx, dy, x []float32) {
	var s [shortLen]float32
	sigmoidOf(s[:len(x)], x)
	for i, g := range dy {
		dx[i] = g * (s[i] + x[i]*s[i]*(1-s[i]))
	}
}

func softplus(y, x []float32) {
	for i, v := range x {
		v := float64(v)
		y[i] = float32(max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))))
	}
}

func softplusGrad(dx, dy, x []float32) {
	var s [shortLen]float32
	sigmoidOf(s[:len(x)], x)
	vecMul(dx, dy, s[:len(x)])
}

// erfcTerms are the coefficients of erfc(z) ≈ t·exp(−z² + Σ cᵢ·tⁱ) with
// t = 1/(1 + z/2), the highest first (Press et al., "Numerical Recipes",
// erfcc): good to 1.2e−7 of the value for all z ≥ 0.
var erfcTerms = [...]float32{0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807,
	-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223}

// normalOf sets dst to the distribution function of the normal distribution at
// x, at most shortLen elements. It takes a step of Horner's scheme for all of
// them at a time.
func normalOf(dst, x []float32) {
	var bufT, bufP, bufOne [shortLen]float32
	t, p, one := bufT[:len(x)], bufP[:len(x)], bufOne[:len(x)]
	for i, v := range x {
		z := math.Float32frombits(math.Float32bits(v)&^signBit) * (1 / math.Sqrt2)
		t[i], dst[i] = 1+z/2, -z*z
	}
	vecFill(one, 1)
	vecDiv(t, one, t)
	for _, c := range erfcTerms {
		vecMul(p, p, t)
		vecAxpy(p, one, c)
	}
	vecAdd(p, p, dst)
	expShift(p, p, 0)
	vecMul(p, p, t)
	for i, v := range x {
		half := math.Float32bits(0.5 - p[i]/2) // what lies between 0 and |x|
		dst[i] = 0.5 + math.Float32frombits(half^math.Float32bits(v)&signBit)
	}
}

const signBit = 1 << 31

func geluErf(y, x []float32) {
	var buf [shortLen]float32
	normal := buf[:len(x)]
	normalOf(normal, x)
	vecMul(y, x, normal)
}

// geluErfGrad: the derivative is Φ(x) + x·exp(−x²/2)/√(2π).
func geluErfGrad(dx, dy, x []float32) {
	var bufN, bufD [shortLen]float32
	normal, density := bufN[:len(x)], bufD[:len(x)]
	normalOf(normal, x)
	vecMul(density, x, x)
	vecScale(density, density, -0.5)
	expShift(density, density, 0)
	vecMul(density, density, x)
	vecAxpy(normal, density, float32(1/math.Sqrt(2*math.Pi)))
	vecMul(dx, dy, normal)
}

func abs(y, x []float32) {
	for i, v := range x {
		y[i] = float32(math.Abs(float64(v)))
	}
}

func absGrad(dx, dy, x []float32) {
	for i, v := range x {
		switch g := dy[i]; {
		case v > 0:
			dx[i] = g
		case v < 0:
			dx[i] = -g
		default:
			dx[i] = g * v // 0, or NaN
		}
	}
}

func rsqrt(y, x []float32) {
	vecSqrt(y, x)
	for i, v := range y {
		y[i] = 1 / v
	}
}

// rsqrtGrad: the derivative is −1/(2·x·√x).
func rsqrtGrad(dx, dy, x []float32) {
	var buf [pieceLen]float32
	root := buf[:len(x)]
	vecSqrt(root, x)
	vecMul(root, root, x)
	vecDiv(dx, dy, root)
	vecScale(dx, dx, -0.5)
}
