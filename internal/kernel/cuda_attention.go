package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// Attention on 16-bit operands is cuDNN's, but for dropout, with which our own is
// faster. Beside it are two sets of functions: those of cuda/attention.cu take
// all operands; those of cuda/attention_half.cu are for 16-bit ones and use
// tensor cores. Each has shapes, by the greatest length of a head's rows.

func cudaAttention(l *device.Launch, q *device.CUDAQueue) {
	a := loadAttention(l)
	if a.fused(l, q, nil) {
		return
	}
	if s := a.halfShape(q, a.Q, a.K, a.V, a.O); s != nil {
		a.halfByHeads(l, q, false, func(heads int) {
			s.forward.run(l, q, a.T, heads, 1, s.d)
		})
		return
	}
	s := cudaAttentionShape(a.D)
	a.byHeads(l, mostHeads, func(heads int) {
		q.Run(attentionCode, s.forward, s.grid(a.T, heads, 2), l)
	})
}

// cudaAttentionGrad computes scores twice, for the gradients of queries and for
// those of keys, so that no sum belongs to two threads.
func cudaAttentionGrad(l *device.Launch, q *device.CUDAQueue) {
	a, g := loadAttention(l), loadAttentionGrads(l)
	if a.fused(l, q, g) {
		return
	}
	a.byHeads(l, mostHeads, func(heads int) {
		q.Run(attentionCode, "attention_delta", device.Grid{X: blocks(a.T, threads/32), Y: heads, Block: threads}, l)
	})
	if s := a.halfShape(q, a.Q, a.K, a.V, g.DO, g.DQ, g.DK, g.DV); s != nil {
		a.halfByHeads(l, q, true, func(heads int) {
			s.gradQ.run(l, q, a.T, heads, 2, s.d)
			s.gradKV.run(l, q, a.S, heads, 2, s.d)
		})
		return
	}
	s := cudaAttentionShape(a.D)
	a.byHeads(l, mostHeads, func(heads int) {
		q.Run(attentionCode, s.gradQ, s.grid(a.T, heads, 4), l)
		q.Run(attentionCode, s.gradKV, s.grid(a.S, heads, 4), l)
	})
}

// mostHeads is how many a launch can take, a row of blocks each.
const mostHeads = 1<<16 - 1

// byHeads runs f for up to so many heads at a time, from number Int[21] on.
func (a *Attention) byHeads(l *device.Launch, most int, f func(heads int)) {
	all := a.Batch * a.Heads
	for first := 0; first < all; first += most {
		l.Int[21] = first
		f(min(most, all-first))
	}
}

// halfByHeads is byHeads for functions of cuda/attention_half.cu: of as many heads as the
// workspace has room for what dropout keeps of them, which it decides first.
func (a *Attention) halfByHeads(l *device.Launch, q *device.CUDAQueue, grad bool, f func(heads int)) {
	if a.Dropout == 0 {
		a.byHeads(l, mostHeads, f)
		return
	}
	a.byHeads(l, min(mostHeads, q.WorkspaceBytes()/a.keptBytes(grad)), func(heads int) {
		l.Int[22], l.Int[23] = heads, flag(grad)
		l.Ptr[11] = q.Workspace(heads * a.keptBytes(grad))
		tiles := blocks(a.T, 32) * blocks(a.S, 64)
		q.Run(attentionHalfCode, "dropout_bits", device.Grid{X: blocks(tiles, threads/32), Y: heads, Block: threads}, l)
		f(heads)
	})
}

// keptBytes are those of what dropout keeps of a head: a bit for each pair of a
// query and a key, or with grad two.
func (a *Attention) keptBytes(grad bool) int {
	return 8*a.T*blocks(a.S, 64) + 4*flag(grad)*a.S*blocks(a.T, 32)
}

// fusedRows is the least number of queries, and of keys, for which it pays to
// have a plan of cuDNN's.
const fusedRows = 64

// fused queues attention, or with g its gradient, by cuDNN. It says false, and
// does nothing that matters, where that can't or would take longer.
func (a *Attention) fused(l *device.Launch, q *device.CUDAQueue, g *AttentionGrads) bool {
	masked := a.KeyMask.given()
	if a.Dropout != 0 || min(a.T, a.S) < fusedRows || a.Causal && (a.T != a.S || masked) || masked && a.Batch*a.S > maxCastBias ||
		!a.packed(a.Q, a.K, a.V, a.O) || g != nil && (g.Accumulate || !a.packed(g.DO, g.DQ, g.DK, g.DV)) {
		return false
	}
	shape := device.Attention{Batch: a.Batch, Heads: a.Heads, T: a.T, S: a.S, D: a.D, Causal: a.Causal, Masked: masked,
		Scale: a.Scale, Q: a.QStride, K: a.KStride, V: a.VStride, O: a.OStride}
	operands := []device.Ptr{a.Q.Ptr, a.K.Ptr, a.V.Ptr, a.O.Ptr, a.LSE.Ptr}
	run := q.Attention
	if g != nil {
		operands = append(operands, g.DO.Ptr, g.DQ.Ptr, g.DK.Ptr, g.DV.Ptr, g.Delta.Ptr)
		run = q.AttentionGrad
	}
	if !masked {
		return run(shape, a.Q.Type, operands...)
	}
	n := a.Batch * a.S
	bias := *l
	bias.Ptr[0] = q.Aside(4 * n)
	q.Run(attentionCode, "attention_bias", sweep(n), &bias)
	if !run(shape, a.Q.Type, append(operands, bias.Ptr[0])...) {
		return false
	}
	a.byHeads(l, mostHeads, func(heads int) {
		q.Run(attentionCode, "attention_blank", device.Grid{X: 1, Y: heads, Block: threads}, l)
	})
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
// operands, and the greatest length of a head's rows.
type attentionHalfShape struct {
	kind                   device.DType
	d                      int
	forward, gradQ, gradKV halfFunction
}

// halfFunction is one of them: how many rows a block has, and how many of the
// other side it takes at a time.
type halfFunction struct {
	name         string
	rows, others int
}

var attentionHalfShapes = [...]attentionHalfShape{
	{device.BFloat16, 64, halfFunction{"forward_64_bfloat16", 128, 64}, halfFunction{"grad_q_64_bfloat16", 64, 64}, halfFunction{"grad_kv_64_bfloat16", 64, 32}},
	{device.BFloat16, 128, halfFunction{"forward_128_bfloat16", 64, 64}, halfFunction{"grad_q_128_bfloat16", 64, 32}, halfFunction{"grad_kv_128_bfloat16", 64, 32}},
	{device.Float16, 64, halfFunction{"forward_64_float16", 128, 64}, halfFunction{"grad_q_64_float16", 64, 64}, halfFunction{"grad_kv_64_float16", 64, 32}},
	{device.Float16, 128, halfFunction{"forward_128_float16", 64, 64}, halfFunction{"grad_q_128_float16", 64, 32}, halfFunction{"grad_kv_128_float16", 64, 32}},
}

// halfShape gives the functions for 16-bit operands, or nil where these or the
// GPU are not as they need, or the workspace has no room for what dropout keeps.
// The first three operands, and a fourth that is read, are of one type; all lie
// at multiples of 16 bytes.
func (a *Attention) halfShape(q *device.CUDAQueue, operands ...Array) *attentionHalfShape {
	if q.Capability() < tensorCores || a.Dropout != 0 && a.keptBytes(true) > q.WorkspaceBytes() {
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

// run queues it for n rows of each of so many heads. A block has its rows of so
// many operands of d elements, and twice the others of two.
func (f *halfFunction) run(l *device.Launch, q *device.CUDAQueue, n, heads, operands, d int) {
	shared := 2 * (operands*f.rows + 4*f.others) * (d + 8)
	q.Run(attentionHalfCode, f.name, device.Grid{X: blocks(n, f.rows), Y: heads, Block: 128, Shared: shared}, l)
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
