// Package kernel computes: one table of operations with a host version of
// each (and, later, a CUDA version).
//
// Every function here queues one launch on a stream and returns at once. Data
// are dense in device memory; matrices are row-major; sizes and strides count
// elements. Functions named …Grad take accumulate: when true they add to what
// dst holds, otherwise they overwrite it (whatever it held, NaN included).
//
// # Element types
//
// An operand is an Array: an address with the type of its elements, which
// travels in the launch. Indices, targets and masks are int32. All other
// operands may be float32, bfloat16 or float16, each on its own: every kernel
// reads them as float32, computes in float32 (or more) and rounds what it
// writes, to nearest even. So a result in 16 bits is that of float32 operands,
// rounded once; what is accumulated to is read, added to and rounded again.
// Statistics that one kernel leaves for another (mean, rstd, lse, delta, loss,
// sums and scales of gradients) are always float32, and so is what optimizers
// update.
//
// Results depend on the arguments alone: not on the number of workers nor on
// the order in which they run. Reductions go over chunks of a fixed size.
// Wrong shapes are misuse and panic with the values.
package kernel

import "github.com/headroom-go/headroom/device"

// MaxDims is the greatest number of dimensions of a strided operand.
const MaxDims = 6

// Array is the address of an operand and the type of its elements. One without
// an address stands for no operand.
type Array struct {
	Ptr  device.Ptr
	Type device.DType
}

// From is the array without its first n elements.
func (a Array) From(n int) Array {
	return Array{a.Ptr + device.Ptr(n*a.Type.Size()), a.Type}
}

// given says whether there is an operand.
func (a Array) given() bool { return a.Ptr != 0 }

// bytes is the traffic of n elements.
func (a Array) bytes(n int) uint64 { return uint64(n * a.Type.Size()) }

// View is an operand with a stride for each dimension of the operation's
// shape. A stride of 0 repeats the element along that dimension.
type View struct {
	Ptr     Array
	Strides []int
}

// UnaryOp names an elementwise function of one operand.
type UnaryOp int

const (
	Neg UnaryOp = iota
	Exp
	Log
	Sqrt
	Tanh
	Relu
	GeluTanh // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
	GeluErf  // x·Φ(x)
	Silu     // x/(1 + exp(−x))
	Sigmoid  // 1/(1 + exp(−x))
	Softplus // log(1 + exp(x))
	Abs
	RSqrt // 1/√x

	unaryOps // their number
)

// BinaryOp names an elementwise function of two operands.
type BinaryOp int

const (
	Add BinaryOp = iota
	Sub
	Mul
	Div
)

// Gemm describes C[i] = op(A[i])·op(B[i]) + bias + beta·C[i] for i in [0, Batch).
// op(A) is M×K, op(B) is K×N, C is M×N.
type Gemm struct {
	M, N, K                   int
	A, B, C                   Array
	LDA, LDB, LDC             int // elements from one row to the next, as stored
	TransA, TransB            bool
	Bias                      Array // N elements added to each row, or none
	Accumulate                bool  // beta is 1 instead of 0
	Batch                     int   // 0 is taken as 1
	StrideA, StrideB, StrideC int   // elements from one matrix of the batch to the next; A and B may have 0
}

// Attention describes softmax(scale·Q·Kᵀ + mask)·V for Batch×Heads heads: Q and O are
// [T, D], K and V are [S, D] for each head. Element (b, h, t, d) of Q lies at
// Q + b·QStride[0] + h·QStride[1] + t·QStride[2] + d, the others likewise, so
// that a packed qkv projection is read where it lies. With Causal, query t
// sees keys 0 … t+S−T. The T×S matrix is never stored: LSE, [Batch, Heads, T]
// dense, keeps log Σ exp of each row for the backward pass.
//
// KeyMask, [Batch, S] of int32 or none, hides the keys where it is 0
// from all queries of the batch. Each probability is dropped with probability
// Dropout, and 1/(1−Dropout) times as great otherwise; which ones follows from
// Seed.
type Attention struct {
	Batch, Heads, T, S, D              int
	Causal                             bool
	Scale                              float32
	KeyMask                            Array
	Dropout                            float32
	Seed                               uint64
	Q, K, V, O, LSE                    Array
	QStride, KStride, VStride, OStride [3]int
}

// AttentionGrads are the operands of AttentionGrad beside those of Attention.
// DQ, DK, DV and DO have the strides of Q, K, V and O. Delta is a workspace of
// Batch·Heads·T elements.
type AttentionGrads struct {
	DO, DQ, DK, DV, Delta Array
	Accumulate            bool
}

// AdamWParams are the numbers of one AdamW step t (1 for the first).
type AdamWParams struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Step                               int
}
