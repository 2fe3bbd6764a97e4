package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

func TestFill(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		for _, n := range lengths(seeded(t)) {
			c := &testCase{t: t}
			y := c.output(n)
			c.run(func(s device.Stream) { Fill(s, y.ptr(), n, 2.5) })
			c.equal("dst", y, 0, func(int) float64 { return 2.5 })
			c.cost(n, 0)
		}
	})
}

func TestScale(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i, n := range lengths(r) {
			accumulate, factor := i%2 == 0, float32(r.NormFloat64())
			c := &testCase{t: t}
			x, y := c.input(randoms(r, n)), c.dst(r, n, accumulate)
			c.run(func(s device.Stream) { Scale(s, n, y.ptr(), x.ptr(), factor, accumulate) })
			product := largest(x) * math.Abs(float64(factor)) // may be greater than the sum
			c.near("y", y, 1.2e-7, product, func(i int) float64 {
				w := x.start(i) * float64(factor)
				if accumulate {
					w += y.start(i)
				}
				return w
			})
			c.cost(n*(2+flag(accumulate)), n*(1+flag(accumulate)))

			c = &testCase{t: t}
			y = c.inout(randoms(r, n))
			c.run(func(s device.Stream) { Scale(s, n, y.ptr(), y.ptr(), factor, false) })
			c.equal("y in place", y, 1e-7, func(i int) float64 { return y.start(i) * float64(factor) })
		}
	})
}

// largest is the greatest magnitude in an array before the launch.
func largest(a *array) float64 {
	m := 0.0
	for i := range a.before {
		m = max(m, math.Abs(a.start(i)))
	}
	return m
}

// unaryOracle lists the functions with their derivatives.
var unaryOracle = map[UnaryOp]struct{ f, grad func(x float64) float64 }{
	Neg:  {func(x float64) float64 { return -x }, func(float64) float64 { return -1 }},
	Exp:  {math.Exp, math.Exp},
	Log:  {math.Log, func(x float64) float64 { return 1 / x }},
	Sqrt: {math.Sqrt, func(x float64) float64 { return 0.5 / math.Sqrt(x) }},
	Tanh: {math.Tanh, func(x float64) float64 { return 1 / math.Pow(math.Cosh(x), 2) }},
	Relu: {func(x float64) float64 { return math.Max(x, 0) }, func(x float64) float64 { return (1 + math.Copysign(1, x)) / 2 }},
	GeluTanh: {
		func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		},
		func(x float64) float64 {
			k := math.Sqrt(2 / math.Pi)
			u := k * (x + 0.044715*x*x*x)
			return 0.5*(1+math.Tanh(u)) + 0.5*x/math.Pow(math.Cosh(u), 2)*k*(1+3*0.044715*x*x)
		},
	},
	GeluErf: {
		func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 },
		func(x float64) float64 {
			return math.Erfc(-x/math.Sqrt2)/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
		},
	},
	Silu:     {func(x float64) float64 { return x * logistic(x) }, func(x float64) float64 { return logistic(x) * (1 + x*logistic(-x)) }},
	Sigmoid:  {logistic, func(x float64) float64 { return logistic(x) * logistic(-x) }},
	Softplus: {func(x float64) float64 { return math.Log1p(math.Exp(x)) }, logistic},
	Abs:      {math.Abs, func(x float64) float64 { return math.Copysign(1, x) }},
	RSqrt:    {func(x float64) float64 { return 1 / math.Sqrt(x) }, func(x float64) float64 { return -0.5 / math.Pow(x, 1.5) }},
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// arguments gives n numbers at which op is defined, none of them so near 0
// that a difference quotient would reach over a kink or pole.
func arguments(r *rand.Rand, op UnaryOp, n int) []float32 {
	x := randoms(r, n)
	for i := range x {
		x[i] *= 3
		if op == Log || op == Sqrt || op == RSqrt {
			x[i] = float32(math.Abs(float64(x[i])))
		}
		if math.Abs(float64(x[i])) < 0.01 {
			x[i] = 0.25
		}
	}
	return x
}

func TestUnaryOracleGradients(t *testing.T) {
	r := seeded(t)
	for op, oracle := range unaryOracle {
		for _, x := range wide(arguments(r, op, 100)) {
			got := oracle.grad(x)
			want := numericGrad(func(x []float64) float64 { return oracle.f(x[0]) }, []float64{x})[0]
			if math.Abs(got-want) > 1e-6*math.Max(1, math.Abs(want)) {
				t.Fatalf("operation %d at %v: derivative %v, by differences %v", op, x, got, want)
			}
		}
	}
}

func TestUnary(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for op, oracle := range unaryOracle {
			for _, n := range lengths(r) {
				c := &testCase{t: t}
				x, y := c.input(arguments(r, op, n)), c.output(n)
				c.run(func(s device.Stream) { Unary(s, op, n, y.ptr(), x.ptr()) })
				c.near("y", y, 4e-7, 1, func(i int) float64 { return oracle.f(x.start(i)) })
				c.cost(2*n, n*op.flops())
			}
			c := &testCase{t: t}
			y := c.inout(arguments(r, op, 1000))
			c.run(func(s device.Stream) { Unary(s, op, 1000, y.ptr(), y.ptr()) })
			c.equal("y in place", y, 4e-7, func(i int) float64 { return oracle.f(y.start(i)) })
		}
	})
}

func TestUnaryGrad(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for op, oracle := range unaryOracle {
			for i, n := range lengths(r) {
				accumulate := i%2 == 0
				c := &testCase{t: t}
				x, dy, dx := c.input(arguments(r, op, n)), c.input(randoms(r, n)), c.dst(r, n, accumulate)
				c.run(func(s device.Stream) { UnaryGrad(s, op, n, dx.ptr(), dy.ptr(), x.ptr(), accumulate) })
				c.near("dx", dx, 1e-6, 1, func(i int) float64 {
					w := dy.start(i) * oracle.grad(x.start(i))
					if accumulate {
						w += dx.start(i)
					}
					return w
				})
				c.cost(n*(3+flag(accumulate)), n*(2*op.flops()+flag(accumulate)))
			}
			c := &testCase{t: t}
			x, dx := c.input(arguments(r, op, 5000)), c.inout(randoms(r, 5000))
			c.run(func(s device.Stream) { UnaryGrad(s, op, 5000, dx.ptr(), dx.ptr(), x.ptr(), false) })
			c.equal("dx in place", dx, 1e-6, func(i int) float64 { return dx.start(i) * oracle.grad(x.start(i)) })
		}
	})
}

func TestSpecialValues(t *testing.T) {
	inf := float32(math.Inf(1))
	special := []struct {
		op   UnaryOp
		x, y float32
	}{
		{Exp, negInf, 0}, {Exp, inf, inf}, {Exp, nan, nan}, {Exp, 0, 1}, {Exp, 89, inf}, {Exp, -104, 0}, {Exp, -3e38, 0}, {Exp, 3e38, inf},
		{Exp, -100, float32(math.Exp(-100))}, {Exp, 88.7, float32(math.Exp(float64(float32(88.7))))},
		{Tanh, negInf, -1}, {Tanh, inf, 1}, {Tanh, nan, nan}, {Tanh, 0, 0}, {Tanh, 1e-40, 1e-40}, {Tanh, 3e38, 1}, {Tanh, -50, -1},
		{Relu, negInf, 0}, {Relu, inf, inf}, {Relu, nan, nan},
		{GeluTanh, inf, inf}, {GeluTanh, nan, nan}, {GeluTanh, 0, 0}, {GeluTanh, -1000, 0}, {GeluTanh, 1000, 1000},
		{GeluErf, inf, inf}, {GeluErf, nan, nan}, {GeluErf, 0, 0}, {GeluErf, -20, 0}, {GeluErf, 20, 20},
		{Silu, inf, inf}, {Silu, nan, nan}, {Silu, -200, 0}, {Sigmoid, negInf, 0}, {Sigmoid, inf, 1}, {Sigmoid, nan, nan},
		{Softplus, negInf, 0}, {Softplus, inf, inf}, {Softplus, 1000, 1000}, {Softplus, nan, nan},
		{Abs, negInf, inf}, {Abs, nan, nan}, {RSqrt, 0, inf}, {RSqrt, -1, nan}, {RSqrt, inf, 0},
		{Log, 0, negInf}, {Log, -1, nan}, {Log, inf, inf}, {Sqrt, -1, nan}, {Sqrt, inf, inf}, {Neg, inf, negInf},
	}
	eachSIMD(t, func(t *testing.T) {
		for _, s := range special {
			for _, n := range []int{1, 37} { // in a tail, and in whole vectors too
				x, y := make([]float32, n), make([]float32, n)
				for i := range x {
					x[i] = s.x
				}
				unaryTable[s.op].f(y, x)
				for i := range y {
					if math.Abs(float64(y[i]-s.y)) > 1e-6*math.Abs(float64(s.y)) || y[i] != y[i] != (s.y != s.y) {
						t.Errorf("operation %d of %v is %v, want %v", s.op, s.x, y[i], s.y)
					}
				}
			}
		}
	})
}

var binaryOracle = map[BinaryOp]func(a, b float64) float64{
	Add: func(a, b float64) float64 { return a + b },
	Sub: func(a, b float64) float64 { return a - b },
	Mul: func(a, b float64) float64 { return a * b },
	Div: func(a, b float64) float64 { return a / b },
}

func TestBinary(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for i := range trials(300) {
			op, shape := BinaryOp(i%4), randomShape(r, i)
			checkBinary(t, r, op, shape, randomStrides(r, shape, true), randomStrides(r, shape, true))
		}
		checkBinary(t, r, Add, []int{20, 3000}, []int{3000, 1}, []int{0, 1})
		checkBinary(t, r, Sub, []int{60, 768}, []int{768, 1}, []int{1, 0})
		checkBinary(t, r, Mul, []int{11, 5000}, []int{5000, 1}, []int{1, 11})
		checkBinary(t, r, Div, []int{chunk + 1}, []int{1}, []int{0})
	})
}

func checkBinary(t *testing.T, r *rand.Rand, op BinaryOp, shape, stridesA, stridesB []int) {
	t.Helper()
	n := count(shape)
	c := &testCase{t: t}
	a, b, y := c.input(randoms(r, extent(shape, stridesA))), c.input(randoms(r, extent(shape, stridesB))), c.output(n)
	c.run(func(s device.Stream) {
		Binary(s, op, shape, y.ptr(), View{a.ptr(), stridesA}, View{b.ptr(), stridesB})
	})
	c.equal("y", y, 1e-7, func(i int) float64 {
		return binaryOracle[op](a.start(offset(i, shape, stridesA)), b.start(offset(i, shape, stridesB)))
	})
	c.cost(n+distinct(shape, stridesA)+distinct(shape, stridesB), n)
}

func TestBinaryInPlace(t *testing.T) {
	eachSIMD(t, func(t *testing.T) {
		r := seeded(t)
		for op, oracle := range binaryOracle {
			c := &testCase{t: t}
			shape, n := []int{5, 1000}, 5000
			a, b := c.inout(randoms(r, n)), c.input(randoms(r, 1000))
			c.run(func(s device.Stream) {
				Binary(s, op, shape, a.ptr(), View{a.ptr(), []int{1000, 1}}, View{b.ptr(), []int{0, 1}})
			})
			c.equal("a", a, 1e-7, func(i int) float64 { return oracle(a.start(i), b.start(i%1000)) })

			c = &testCase{t: t}
			a, b = c.input(randoms(r, 1)), c.inout(randoms(r, n))
			c.run(func(s device.Stream) {
				Binary(s, op, shape, b.ptr(), View{a.ptr(), []int{0, 0}}, View{b.ptr(), []int{1000, 1}})
			})
			c.equal("b", b, 1e-7, func(i int) float64 { return oracle(a.start(0), b.start(i)) })
		}
	})
}

func TestScaleBy(t *testing.T) {
	r := seeded(t)
	for _, n := range lengths(r) {
		for _, factor := range []float32{1, -0.75} {
			c := &testCase{t: t}
			y, by := c.inout(randoms(r, n)), c.input([]float32{factor})
			c.run(func(s device.Stream) { ScaleBy(s, n, y.ptr(), by.ptr()) })
			c.equal("y", y, 0, func(i int) float64 { return float64(factor * y.before[i]) })
			c.cost(2*n+1, n)
		}
	}
}
