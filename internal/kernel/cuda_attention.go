package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// Attention on 16-bit operands is cuDNN's. Beside it are two
// sets of functions: those of cuda/attention.cu take all operands; those of
// cuda/attention_half.cu are for 16-bit ones and use tensor cores. Each has
// shapes, by the greatest length of a head's rows.

func cudaAttention(l *device.Launch, q *device.CUDAQueue) {
	a := loadAttention(l)
	if a.fused(l, q, nil) {
		return
	}
	heads := a.Batch * a.Heads
	if s := a.halfShape(q, a.Q, a.K, a.V, a.O); s != nil {
		q.Run(attentionHalfCode, s.forward, s.grid(a.T, heads, s.keys, false), l)
		return
	}
	s := cudaAttentionShape(a.D)
	q.Run(attentionCode, s.forward, s.grid(a.T, heads, 2), l)
}

// cudaAttentionGrad computes scores twice, for the gradients of queries and for
// those of keys, so that no sum belongs to two threads.
func cudaAttentionGrad(l *device.Launch, q *device.CUDAQueue) {
	a, g := loadAttention(l), loadAttentionGrads(l)
	if a.fused(l, q, g) {
		return
	}
	heads := a.Batch * a.Heads
	q.Run(attentionCode, "attention_delta", device.Grid{X: blocks(a.T, threads/32), Y: heads, Block: threads}, l)
	if s := a.halfShape(q, a.Q, a.K, a.V, g.DO, g.DQ, g.DK, g.DV); s != nil {
		q.Run(attentionHalfCode, s.gradQ, s.grid(a.T, heads, s.gradKeys, true), l)
		q.Run(attentionHalfCode, s.gradKV, s.grid(a.S, heads, s.gradKeys, true), l)
		return
	}
	s := cudaAttentionShape(a.D)
	q.Run(attentionCode, s.gradQ, s.grid(a.T, heads, 4), l)
	q.Run(attentionCode, s.gradKV, s.grid(a.S, heads, 4), l)
}

// fusedRows is the least number of queries, and of keys, for which it pays to
// have a plan of cuDNN's.
const fusedRows = 64

// fused queues attention, or with g its gradient, by cuDNN. It says false, and
// does nothing that matters, where that can't.
func (a *Attention) fused(l *device.Launch, q *device.CUDAQueue, g *AttentionGrads) bool {
	masked := a.KeyMask.given()
	if a.Dropout != 0 && a.S%8 != 0 || min(a.T, a.S) < fusedRows || a.Causal && (a.T != a.S || masked) || masked && a.Batch*a.S > maxCastBias ||
		!a.packed(a.Q, a.K, a.V, a.O) || g != nil && (g.Accumulate || !a.packed(g.DO, g.DQ, g.DK, g.DV)) {
		return false
	}
	shape := device.Attention{Batch: a.Batch, Heads: a.Heads, T: a.T, S: a.S, D: a.D, Causal: a.Causal, Masked: masked,
		Dropout: a.Dropout, Scale: a.Scale, Q: a.QStride, K: a.KStride, V: a.VStride, O: a.OStride}
	operands := []device.Ptr{a.Q.Ptr, a.K.Ptr, a.V.Ptr, a.O.Ptr, a.LSE.Ptr}
	run := q.Attention
	if g != nil {
		operands = append(operands, g.DO.Ptr, g.DQ.Ptr, g.DK.Ptr, g.DV.Ptr, g.Delta.Ptr)
		run = q.AttentionGrad
	}
	keep := func(at device.Ptr, head, heads int) {
		kept := device.Launch{Kernel: l.Kernel}
		kept.Ptr[0], kept.Type[0] = at, a.Q.Type
		kept.Float[1], kept.Int[18], kept.Int[19] = a.Dropout, l.Int[18], l.Int[19]
		kept.Int[0], kept.Int[1] = heads*a.T*a.S, head*a.T*a.S
		q.Run(attentionCode, "attention_keep", sweep(kept.Int[0]), &kept)
	}
	if !masked {
		return run(shape, a.Q.Type, keep, operands...)
	}
	n := a.Batch * a.S
	bias := *l
	bias.Ptr[0] = q.Aside(4 * n)
	q.Run(attentionCode, "attention_bias", sweep(n), &bias)
	if !run(shape, a.Q.Type, keep, append(operands, bias.Ptr[0])...) {
		return false
	}
	q.Run(attentionCode, "attention_blank", device.Grid{X: 1, Y: a.Batch * a.Heads, Block: threads}, l)
	return true
}

// packed says whether the operands are of one 16-bit type and their rows lie
// at multiples of 16 bytes.
func (a *Attention) packed(operands ...Array) bool {
	n := a.D
	for _, s := range [...]*[3]int{&a.QStride, &a.KStride, &a.VStride, &a.OStride} {
		n |= s[0] | s[1] | s[2]
	}
	for _, x := range operands {
		if x.Type != a.Q.Type || x.Type == device.Float32 || x.Ptr%16 != 0 {
			return false
		}
	}
	return n%8 == 0
}

// attentionShape are functions of cuda/attention.cu: the rows of their tiles,
// and the greatest length of a head's rows.
type attentionShape struct {
	rows, d                int
	forward, gradQ, gradKV string
}

var attentionShapes = [...]attentionShape{
	{64, 64, "attention_64", "attention_grad_q_64", "attention_grad_kv_64"},
	{32, 128, "attention_128", "attention_grad_q_128", "attention_grad_kv_128"},
	{16, 256, "attention_256", "attention_grad_q_256", "attention_grad_kv_256"},
}

func cudaAttentionShape(d int) *attentionShape {
	for i := range attentionShapes {
		if s := &attentionShapes[i]; d <= s.d {
			return s
		}
	}
	panic(fmt.Sprintf("kernel.Attention: heads of %d elements; CUDA devices take up to 256", d))
}

// grid is that of n rows of each head, with so many tiles of operands and one
// of scores in shared memory.
func (s *attentionShape) grid(n, heads, tiles int) device.Grid {
	return device.Grid{X: blocks(n, s.rows), Y: heads, Block: threads, Shared: 4 * s.rows * (tiles*(s.d+4) + s.rows + 4)}
}

// attentionHalfShape are functions of cuda/attention_half.cu: the type of the
// operands, the greatest length of a head's rows, and how many rows of the
// other side are taken at a time.
type attentionHalfShape struct {
	kind                   device.DType
	d, keys, gradKeys      int
	forward, gradQ, gradKV string
}

var attentionHalfShapes = [...]attentionHalfShape{
	{device.BFloat16, 64, 64, 64, "forward_64_bfloat16", "grad_q_64_bfloat16", "grad_kv_64_bfloat16"},
	{device.BFloat16, 128, 64, 32, "forward_128_bfloat16", "grad_q_128_bfloat16", "grad_kv_128_bfloat16"},
	{device.Float16, 64, 64, 64, "forward_64_float16", "grad_q_64_float16", "grad_kv_64_float16"},
	{device.Float16, 128, 64, 32, "forward_128_float16", "grad_q_128_float16", "grad_kv_128_float16"},
}

// halfShape gives the functions for 16-bit operands, or nil where these or the
// GPU are not as they need. The first three operands, and a fourth that is
// read, are of one type; all lie at multiples of 16 bytes.
func (a *Attention) halfShape(q *device.CUDAQueue, operands ...Array) *attentionHalfShape {
	if q.Capability() < tensorCores {
		return nil
	}
	strides := uint64(a.D)
	for _, s := range [...]*[3]int{&a.QStride, &a.KStride, &a.VStride, &a.OStride} {
		strides |= uint64(s[0] | s[1] | s[2])
	}
	for i, x := range operands {
		if x.Ptr%16 != 0 || i < 3 && x.Type != a.Q.Type || len(operands) > 4 && i == 3 && x.Type != a.Q.Type {
			return nil
		}
	}
	for i := range attentionHalfShapes {
		if s := &attentionHalfShapes[i]; s.kind == a.Q.Type && a.D <= s.d && strides%8 == 0 {
			return s
		}
	}
	return nil
}

// grid is that of n rows of each head: a block has 64 rows of one operand or,
// for gradients, of two, and n rows of two others.
func (s *attentionHalfShape) grid(n, heads, keys int, grad bool) device.Grid {
	const rows = 64
	mine := rows * (1 + flag(grad))
	return device.Grid{X: blocks(n, rows), Y: heads, Block: 128, Shared: 2 * (mine + 2*keys) * (s.d + 8)}
}

func cudaPagedWrite(l *device.Launch, q *device.CUDAQueue) {
	q.Run(pagedCode, "paged_write", device.Grid{X: l.Int[1], Block: threads}, l)
}

func cudaPagedAttention(l *device.Launch, q *device.CUDAQueue) {
	if p := loadPaged(l); p.D > 256 {
		panic(fmt.Sprintf("kernel.PagedAttention: heads of %d elements; CUDA devices take up to 256", p.D))
	}
	q.Run(pagedCode, "paged_attention", warps(l.Int[1]*l.Int[2]), l)
}
