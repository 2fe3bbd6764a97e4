package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/device"
)

// halfOp is an operation whose operands may be of any type: free are the sizes
// of those, wide of the ones that are always float32.
type halfOp struct {
	name       string
	free, wide []int
	run        func(s device.Stream, free, wide []Array)
}

// keeper holds memory whose addresses were given away.
type keeper struct{ held []any }

// int32s is an operand of int32.
func (k *keeper) int32s(values ...int32) Array {
	k.held = append(k.held, values)
	return Array{device.Ptr(uintptr(unsafe.Pointer(&values[0]))), device.Int32}
}

// halfOps lists the operations at sizes with tails of all kinds.
func halfOps(mem *keeper) []halfOp {
	const rows, cols = 13, 333
	n := rows * cols
	shape := []int{rows, cols}
	dense, turned, row := []int{cols, 1}, []int{1, rows}, []int{0, 1}
	classes, chosen, some4 := mem.int32s(1, 2, 3, -1, 5, 300, 7, 8, 9, 10, 11, 12, 0), mem.int32s(3, 1, 2, 0), mem.int32s(4, 2, 7, 9)
	p := CrossEntropyParams{Ignore: -1, Smoothing: 0.1}
	conv := Conv{N: 3, C: 4, H: 9, W: 11, M: 6, KH: 3, KW: 3, Groups: 2, Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}}
	strided := conv
	strided.Stride = [2]int{2, 2}
	point := Conv{N: 2, C: 8, H: 24, W: 24, M: 5, KH: 1, KW: 1, Groups: 1, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}}
	pool := Pool{Planes: 5, H: 9, W: 7, OH: 4, OW: 3, Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}}
	norm := BatchNorm{N: 3, C: 5, P: 77}
	ops := []halfOp{
		{"Fill", []int{n}, nil, func(s device.Stream, f, _ []Array) { Fill(s, f[0], n, 1.2345678) }},
		{"Copy", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Copy(s, shape, View{f[0], dense}, View{f[1], dense}, false) }},
		{"Copy turned", []int{n, n}, nil, func(s device.Stream, f, _ []Array) {
			Copy(s, shape, View{f[0], dense}, View{f[1], turned}, false)
		}},
		{"Copy and add", []int{n, n}, nil, func(s device.Stream, f, _ []Array) {
			Copy(s, shape, View{f[0], turned}, View{f[1], dense}, true)
		}},
		{"Copy turned and add", []int{n, n}, nil, func(s device.Stream, f, _ []Array) {
			Copy(s, shape, View{f[0], dense}, View{f[1], turned}, true)
		}},
		{"SumTo columns", []int{cols, n}, nil, func(s device.Stream, f, _ []Array) {
			SumTo(s, shape, View{f[0], row}, View{f[1], dense}, true)
		}},
		{"SumTo rows", []int{rows, n}, nil, func(s device.Stream, f, _ []Array) {
			SumTo(s, shape, View{f[0], []int{1, 0}}, View{f[1], dense}, false)
		}},
		{"SumSquares", []int{n}, []int{1}, func(s device.Stream, f, w []Array) { SumSquares(s, w[0], true, Sized{f[0], n}) }},
		{"Binary", []int{n, n, cols}, nil, func(s device.Stream, f, _ []Array) {
			Binary(s, Mul, shape, f[0], View{f[1], turned}, View{f[2], row})
		}},
		{"Combine", []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) { Combine(s, CombineMean, n, f[0], f[1], f[2]) }},
		{"Dropout", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Dropout(s, 0, n, f[0], f[1], 0.3, 7, true) }},
		{"Softmax", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Softmax(s, rows, cols, f[0], f[1]) }},
		{"LogSoftmax", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { LogSoftmax(s, rows, cols, f[0], f[1]) }},
		{"LayerNorm", []int{n, n, cols, cols}, []int{rows, rows}, func(s device.Stream, f, w []Array) {
			LayerNorm(s, rows, cols, f[0], w[0], w[1], f[1], f[2], f[3], 1e-5)
		}},
		{"AddLayerNorm", []int{n, n, n, cols, cols}, []int{rows, rows, n}, func(s device.Stream, f, w []Array) {
			AddLayerNorm(s, AddNorm{Rows: rows, Cols: cols, Y: f[0], Mean: w[0], RStd: w[1], Sum: w[2], X: f[1], A: f[2], Gamma: f[3], Beta: f[4],
				Eps: 1e-5, Dropout: 0.3, Seed: 7})
		}},
		{"LayerNormApply", []int{n, n, cols, cols}, []int{rows, rows}, func(s device.Stream, f, w []Array) {
			LayerNormApply(s, rows, cols, f[0], f[1], w[0], w[1], f[2], f[3])
		}},
		{"CrossEntropy", []int{n}, []int{1, rows}, func(s device.Stream, f, w []Array) {
			CrossEntropy(s, rows, cols, w[0], w[1], f[0], classes, p)
		}},
		{"CrossEntropyOver", []int{rows * (cols + 3), 1}, []int{1}, func(s device.Stream, f, w []Array) {
			CrossEntropyOver(s, LogitRows{rows, cols, cols + 3, 0, rows, LogitPart{}}, w[0], f[1], f[0], classes, p)
		}},
		{"RowSums", []int{rows * (cols + 3)}, []int{2 * rows}, func(s device.Stream, f, w []Array) {
			RowSums(s, LogitRows{rows, cols, cols + 3, 0, rows, LogitPart{}}, w[0], f[0])
		}},
		{"ScaleBy", []int{n, 1}, nil, func(s device.Stream, f, _ []Array) { ScaleBy(s, n, f[0], f[1]) }},
		{"Embedding", []int{4 * cols, n}, nil, func(s device.Stream, f, _ []Array) { Embedding(s, 4, cols, WholeTable(rows), f[0], f[1], some4) }},
		{"EmbeddingGrad", []int{n, 4 * cols}, nil, func(s device.Stream, f, _ []Array) {
			EmbeddingGrad(s, 4, cols, WholeTable(rows), f[0], f[1], some4)
		}},
		{"Select", []int{4, 4}, nil, func(s device.Stream, f, _ []Array) { Select(s, 4, f[0], chosen, f[1], none, 1.2345678) }},
		{"TopK", []int{rows * 3, n}, []int{rows * 3}, func(s device.Stream, f, w []Array) { TopK(s, rows, cols, 3, f[0], w[0], f[1]) }},
		{"Gather", []int{4, 20}, nil, func(s device.Stream, f, _ []Array) { Gather(s, 2, 10, 2, f[0], f[1], some4) }},
		{"GatherGrad", []int{20, 4}, nil, func(s device.Stream, f, _ []Array) { GatherGrad(s, 2, 10, 2, f[0], f[1], some4) }},
		{"Clamp", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Clamp(s, n, f[0], f[1], -1, 1) }},
		{"AdamW", []int{n}, []int{n, n, n}, func(s device.Stream, f, w []Array) {
			AdamW(s, updates(n, w[0], f[0], w[1], w[2]), none, AdamWParams{LR: 0.1, Beta1: 0.9, Beta2: 0.9, Eps: 1, Step: 1})
		}},
		{"Update", []int{n}, []int{n, n}, func(s device.Stream, f, w []Array) {
			Update(s, UpdateMomentum, updates(n, w[0], f[0], w[1]), none, UpdateParams{LR: 0.1, Beta1: 0.9, Step: 1})
		}},
		{"BatchNormStats", []int{1155}, []int{5, 5}, func(s device.Stream, f, w []Array) {
			b := norm
			b.X, b.Mean, b.RStd = f[0], w[0], w[1]
			BatchNormStats(s, b, none, none, 0.1, 1e-5)
		}},
		{"BatchNormApply", []int{1155, 1155, 5, 5}, []int{5, 5}, func(s device.Stream, f, w []Array) {
			b := norm
			b.X, b.Gamma, b.Beta, b.Mean, b.RStd = f[1], f[2], f[3], w[0], w[1]
			BatchNormApply(s, b, f[0])
		}},
		{"BatchNormApply with ReLU", []int{1155, 1155, 5, 5, 1155}, []int{5, 5}, func(s device.Stream, f, w []Array) {
			b := norm
			b.X, b.Gamma, b.Beta, b.Residual, b.Mean, b.RStd, b.Relu = f[1], f[2], f[3], f[4], w[0], w[1], true
			BatchNormApply(s, b, f[0])
		}},
	}
	for op := Neg; op < unaryOps; op++ {
		ops = append(ops, halfOp{fmt.Sprint("Unary ", op), []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Unary(s, op, n, f[0], f[1]) }})
	}
	for _, acc := range []bool{false, true} {
		ops = append(ops, []halfOp{
			{"Scale", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { Scale(s, n, f[0], f[1], 0.7, acc) }},
			{"UnaryGrad", []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) { UnaryGrad(s, GeluTanh, n, f[0], f[1], f[2], acc) }},
			{"ClampGrad", []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) { ClampGrad(s, n, f[0], f[1], f[2], -1, 1, acc) }},
			{"SoftmaxGrad", []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) { SoftmaxGrad(s, rows, cols, f[0], f[1], f[2], acc) }},
			{"LogSoftmaxGrad", []int{n, n, n}, nil, func(s device.Stream, f, _ []Array) { LogSoftmaxGrad(s, rows, cols, f[0], f[1], f[2], acc) }},
			{"LayerNormGrad", []int{n, cols, cols, n, n, cols}, []int{rows, rows}, func(s device.Stream, f, w []Array) {
				LayerNormGrad(s, rows, cols, f[0], f[1], f[2], f[3], f[4], w[0], w[1], f[5], acc, acc, acc)
			}},
			{"CrossEntropyGrad", []int{n, n}, []int{1, rows}, func(s device.Stream, f, w []Array) {
				CrossEntropyGrad(s, rows, cols, f[0], w[0], f[1], w[1], classes, p, acc)
			}},
			{"CumSum", []int{n, n}, nil, func(s device.Stream, f, _ []Array) { CumSum(s, rows, cols, f[0], f[1], acc, acc) }},
			{"BatchNormGrad", []int{1155, 5, 5, 1155, 1155, 5}, []int{5, 5}, func(s device.Stream, f, w []Array) {
				b := norm
				b.X, b.Gamma, b.Mean, b.RStd = f[4], f[5], w[0], w[1]
				BatchNormGrad(s, b, [4]Array{f[0], f[1], f[2]}, [4]bool{acc, acc, acc}, f[3], false)
			}},
			{"BatchNormGrad with ReLU", []int{1155, 1155, 1155, 1155, 5, 5, 1155}, []int{5, 5}, func(s device.Stream, f, w []Array) {
				b := norm
				b.X, b.Residual, b.Gamma, b.Beta, b.Mean, b.RStd, b.Relu = f[2], f[3], f[4], f[5], w[0], w[1], true
				BatchNormGrad(s, b, [4]Array{f[0], none, none, f[1]}, [4]bool{acc, false, false, !acc}, f[6], false)
			}},
			{"MaxPoolGrad", []int{315, 60, 315}, nil, func(s device.Stream, f, _ []Array) {
				b := pool
				b.X = f[2]
				MaxPoolGrad(s, b, f[0], f[1], acc)
			}},
			{"AvgPoolGrad", []int{315, 60}, nil, func(s device.Stream, f, _ []Array) { AvgPoolGrad(s, pool, f[0], f[1], acc) }},
			{"MaxPool or AvgPool", []int{60, 315}, nil, func(s device.Stream, f, _ []Array) {
				b := pool
				b.Y, b.X = f[0], f[1]
				if acc {
					MaxPool(s, b)
				} else {
					AvgPool(s, b)
				}
			}},
			gemmOp(Gemm{M: 45, N: 70, K: 300, Accumulate: acc}), gemmOp(Gemm{M: 45, N: 70, K: 33, TransA: true, Accumulate: acc}),
			gemmOp(Gemm{M: 5, N: 130, K: 65, TransB: true, Accumulate: acc, Batch: 3}),
			gemmOp(Gemm{M: 130, N: 1030, K: 3, TransA: true, TransB: true, Accumulate: acc}), gemmOp(Gemm{M: 3, N: 5, K: 0, Accumulate: acc}),
			attentionOp(Attention{Batch: 2, Heads: 2, T: 40, S: 40, D: 20, Causal: acc, Scale: 0.2, Dropout: 0.1}, acc),
			attentionOp(Attention{Batch: 1, Heads: 2, T: 390, S: 270, D: 8, Scale: 0.3}, acc),
		}...)
		for _, c := range []Conv{conv, strided, point} {
			ops = append(ops, convOps(c, acc)...)
		}
	}
	return ops
}

func gemmOp(g Gemm) halfOp {
	batch := max(1, g.Batch)
	return halfOp{fmt.Sprintf("MatMul %+v", g), []int{batch * g.M * g.N, batch*g.M*g.K + 1, batch*g.K*g.N + 1, g.N}, nil, func(s device.Stream, f, _ []Array) {
		g := g
		g.C, g.A, g.B, g.Bias = f[0], f[1], f[2], f[3]
		_, g.LDA, _, g.LDB = g.stored()
		g.LDC, g.StrideA, g.StrideB, g.StrideC = g.N, g.M*g.K, g.K*g.N, g.M*g.N
		MatMul(s, g)
	}}
}

// attentionOp is both passes.
func attentionOp(a Attention, accumulate bool) halfOp {
	q, k := a.Batch*a.Heads*a.T*a.D, a.Batch*a.Heads*a.S*a.D
	rows := a.Batch * a.Heads * a.T
	return halfOp{"Attention", []int{q, q, k, k, q, q, k, k}, []int{rows, rows, q}, func(s device.Stream, f, w []Array) {
		a := a
		a.O, a.Q, a.K, a.V, a.LSE = f[0], f[1], f[2], f[3], w[0]
		a.QStride = [3]int{a.Heads * a.T * a.D, a.T * a.D, a.D}
		a.OStride = [3]int{a.Heads * a.T * a.D, a.D, a.Heads * a.D}
		a.KStride = [3]int{a.Heads * a.S * a.D, a.S * a.D, a.D}
		a.VStride = a.KStride
		AttentionForward(s, a)
		a.O = w[2] // what backward reads must be the same with all types
		AttentionBackward(s, a, AttentionGrads{DO: f[4], DQ: f[5], DK: f[6], DV: f[7], Delta: w[1], Accumulate: accumulate})
	}}
}

// packedOp is both passes on queries, keys and values side by side, as in
// SelfAttention, with backward reading what forward wrote: a library's attention
// wants all operands to be of one type.
func packedOp(a Attention, accumulate bool) halfOp {
	rows := a.Batch * a.Heads * a.T
	name := fmt.Sprintf("packed Attention %d×%d×%d×%d causal %v dropout %v", a.Batch, a.Heads, a.T, a.D, a.Causal, a.Dropout)
	return halfOp{name, []int{rows * a.D, 3 * rows * a.D, rows * a.D, 3 * rows * a.D}, []int{rows, rows}, func(s device.Stream, f, w []Array) {
		a, row := a, a.Heads*a.D
		a.O, a.LSE = f[0], w[0]
		a.Q, a.K, a.V = f[1], f[1].From(row), f[1].From(2*row)
		a.QStride = [3]int{a.T * 3 * row, a.D, 3 * row}
		a.KStride, a.VStride = a.QStride, a.QStride
		a.OStride = [3]int{a.T * row, a.D, row}
		AttentionForward(s, a)
		AttentionBackward(s, a, AttentionGrads{DO: f[2], DQ: f[3], DK: f[3].From(row), DV: f[3].From(2 * row), Delta: w[1], Accumulate: accumulate})
		Fill(s, w[1], rows, 0) // what is left there is a kernel's own
	}}
}

// floatWeightOp is the gradient of a float32 weight from 16-bit images.
func floatWeightOp(c Conv, acc bool) halfOp {
	x, w, y := c.N*c.C*c.H*c.W, c.M*c.patch(), c.N*c.M*c.OH()*c.OW()
	return halfOp{fmt.Sprintf("ConvGradWeight to float32 %+v", c), []int{x, y}, []int{w}, func(s device.Stream, f, wide []Array) {
		c := c
		c.X = f[0]
		ConvGradWeight(s, c, wide[0], f[1], acc)
	}}
}

func convOps(c Conv, acc bool) []halfOp {
	x, w, y := c.N*c.C*c.H*c.W, c.M*c.patch(), c.N*c.M*c.OH()*c.OW()
	name := fmt.Sprintf(" %+v", c)
	return []halfOp{
		{"Convolve" + name, []int{y, x, w, c.M}, nil, func(s device.Stream, f, _ []Array) {
			c := c
			c.Y, c.X, c.Weight, c.Bias = f[0], f[1], f[2], f[3]
			Convolve(s, c)
		}},
		{"ConvGradInput" + name, []int{x, w, y}, nil, func(s device.Stream, f, _ []Array) {
			c := c
			c.Weight = f[1]
			ConvGradInput(s, c, f[0], f[2], acc)
		}},
		{"ConvGradWeight" + name, []int{w, x, y}, nil, func(s device.Stream, f, _ []Array) {
			c := c
			c.X = f[1]
			ConvGradWeight(s, c, f[0], f[2], acc)
		}},
	}
}

// TestHalfOperands runs every operation on operands of random types, and on
// float32 ones with the same values: the results are the same bit for bit once
// those of float32 are rounded to the type of the other.
func TestHalfOperands(t *testing.T) {
	r := seeded(t)
	s := &inline{w: device.NewWorkers(2)}
	defer s.w.Close()
	var tables keeper
	defer runtime.KeepAlive(&tables)
	for _, op := range halfOps(&tables) {
		for range trials(8) + 1 {
			var mem keeper
			types := make([]device.DType, len(op.free))
			values := make([][]float32, len(op.free))
			var mixed, plain []Array
			var halves [][]uint16
			for i, n := range op.free {
				types[i] = []device.DType{device.Float32, device.BFloat16, device.Float16}[r.IntN(3)]
				values[i] = rounded(types[i], randoms(r, n))
				a, h := mem.arrayOf(types[i], values[i])
				mixed, halves = append(mixed, a), append(halves, h)
				b, _ := mem.arrayOf(device.Float32, values[i])
				plain = append(plain, b)
			}
			wide := [2][]Array{}
			for _, n := range op.wide {
				v := positive(r, n)
				for k := range wide {
					a, _ := mem.arrayOf(device.Float32, v)
					wide[k] = append(wide[k], a)
				}
			}
			op.run(s, mixed, wide[0])
			op.run(s, plain, wide[1])
			for i, n := range op.free {
				want := rounded(types[i], device.Float32s(plain[i].Ptr, n))
				got := make([]float32, n)
				if types[i] != device.Float32 {
					widen(types[i], got, halves[i])
				} else {
					copy(got, device.Float32s(mixed[i].Ptr, n))
				}
				compare(t, fmt.Sprintf("%s with %v: operand %d", op.name, types, i), got, want)
			}
			for i, n := range op.wide {
				compare(t, fmt.Sprintf("%s with %v: float32 operand %d", op.name, types, i), device.Float32s(wide[0][i].Ptr, n), device.Float32s(wide[1][i].Ptr, n))
			}
			runtime.KeepAlive(&mem)
		}
	}
}

func compare(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(want), got[i], want[i])
		}
	}
}

// positive gives n numbers from ½ to 1½, as statistics may be.
func positive(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = 0.5 + r.Float32()
	}
	return v
}

// rounded gives values as type t holds them.
func rounded(t device.DType, values []float32) []float32 {
	out := append([]float32(nil), values...)
	if t != device.Float32 {
		h := make([]uint16, len(values))
		narrow(t, h, values)
		widen(t, out, h)
	}
	return out
}

// arrayOf gives a new operand with the values; its bits, if it has 16-bit ones.
func (k *keeper) arrayOf(t device.DType, values []float32) (Array, []uint16) {
	if t == device.Float32 {
		c := append(make([]float32, 0, len(values)+1), values...)
		k.held = append(k.held, c)
		return Array{device.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(c)))), t}, nil
	}
	h := make([]uint16, len(values), len(values)+1)
	narrow(t, h, values)
	k.held = append(k.held, h)
	return Array{device.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(h)))), t}, h
}
