package tensor

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// Attention is softmax(q·kᵀ/√D + mask)·v for q [B, H, T, D] and k, v
// [B, H, S, D], giving [B, H, T, D]; with causal, query t sees keys
// 0 … t+S−T. The T×S matrix is never held. It saves q, k, v, its result and
// one number a query.
func Attention(q, k, v *Tensor, causal bool) *Tensor {
	return AttentionWith(q, k, v, AttentionOptions{Causal: causal})
}

// AttentionOptions say which keys a query sees.
type AttentionOptions struct {
	Causal  bool    // query t sees keys 0 … t+S−T
	KeyMask *Tensor // int32 [B, S]: nobody sees the keys where it is 0; nil for none
	Dropout float32 // the probability with which each weight is dropped
	Part    int     // of the heads, that several devices share out: parts drop other weights
}

// masked is o with another mask.
func (o AttentionOptions) masked(m *Tensor) AttentionOptions {
	o.KeyMask = m
	return o
}

// AttentionWith is Attention with a mask for padding and with dropout, whose
// choices are made again in backward, not saved. A query that sees no key
// gives zeros.
func AttentionWith(q, k, v *Tensor, o AttentionOptions) *Tensor {
	if len(q.shape) != 4 || len(k.shape) != 4 || !slices.Equal(k.shape, v.shape) ||
		!slices.Equal(q.shape[:2], k.shape[:2]) || q.shape[3] != k.shape[3] {
		fail("Attention of q %v, k %v, v %v", q, k, v)
	}
	rt := q.rt
	defer rt.lower(&q, &k, &v)()
	n := rt.node("attention", q, k, v)
	n.remake(func(in []*Tensor) *Tensor {
		return AttentionWith(in[0], in[1], in[2], o.masked(in[3]))
	}, q, k, v, o.KeyMask)
	var saves [3]*saved
	if n != nil {
		saves = [3]*saved{n.save(q), n.save(k), n.save(v)}
	}
	y := rt.Empty(promote(q, k, v), trace.Activation, q.shape...)
	in := [3]*Tensor{q.contiguous(), k.contiguous(), v.contiguous()}
	defer releaseAll(in[:]...)
	a := rt.attention(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], o)
	a.Q, a.K, a.V, a.O = in[0].ptr(), in[1].ptr(), in[2].ptr(), y.ptr()
	a.QStride, a.OStride = headStrides(a.Heads, a.T, a.D), headStrides(a.Heads, a.T, a.D)
	a.KStride, a.VStride = headStrides(a.Heads, a.S, a.D), headStrides(a.Heads, a.S, a.D)
	r := attend(n, y, a, o.KeyMask)
	return n.bind(y, func(g *Tensor) {
		var in, to [3]*Tensor
		for i, s := range saves {
			t := s.take()
			in[i], to[i] = t.contiguous(), rt.Empty(t.dtype, trace.Activation, t.shape...)
			t.Release()
		}
		r.a.Q, r.a.K, r.a.V = in[0].ptr(), in[1].ptr(), in[2].ptr()
		r.backward(g, to[0].ptr(), to[1].ptr(), to[2].ptr(), false)
		for i, d := range to {
			n.pass(i, d)
		}
		releaseAll(in[:]...)
		releaseAll(to[:]...)
	})
}

// SelfAttention is Attention of the queries, keys and values that lie side by
// side in qkv, [B, T, 3·heads·D], read and written where they lie; its result
// is [B, T, heads·D]. It saves qkv, its result and one number a query.
func SelfAttention(qkv *Tensor, heads int, causal bool) *Tensor {
	return SelfAttentionWith(qkv, heads, AttentionOptions{Causal: causal})
}

// SelfAttentionWith is SelfAttention with a mask for padding and with dropout,
// as in AttentionWith.
func SelfAttentionWith(qkv *Tensor, heads int, o AttentionOptions) *Tensor {
	if len(qkv.shape) != 3 || heads < 1 || qkv.shape[2]%(3*heads) != 0 || !qkv.dense() {
		fail("SelfAttention of qkv %v with %d heads", qkv, heads)
	}
	rt, B, T, C := qkv.rt, qkv.shape[0], qkv.shape[1], qkv.shape[2]/3
	defer rt.lower(&qkv)()
	n := rt.node("self_attention", qkv)
	n.remake(func(in []*Tensor) *Tensor {
		return SelfAttentionWith(in[0], heads, o.masked(in[1]))
	}, qkv, o.KeyMask)
	var sq *saved
	if n != nil {
		sq = n.save(qkv)
	}
	y := rt.Empty(qkv.dtype, trace.Activation, B, T, C)
	a := rt.attention(B, heads, T, T, C/heads, o)
	a.QStride = [3]int{T * 3 * C, a.D, 3 * C}
	a.KStride, a.VStride = a.QStride, a.QStride
	a.O, a.OStride = y.ptr(), [3]int{T * C, a.D, C}
	a.Q, a.K, a.V = packed(qkv)
	r := attend(n, y, a, o.KeyMask)
	return n.bind(y, func(g *Tensor) {
		qkv := sq.take()
		defer qkv.Release()
		r.a.Q, r.a.K, r.a.V = packed(qkv)
		dst, acc := n.into(0)
		dq, dk, dv := packed(dst)
		r.backward(g, dq, dk, dv, acc)
	})
}

// packed is where the queries, keys and values of qkv begin.
func packed(qkv *Tensor) (q, k, v kernel.Array) {
	step := qkv.shape[2] / 3
	q = qkv.ptr()
	return q, q.From(step), q.From(2 * step)
}

// attention describes one but for the operands.
func (rt *Runtime) attention(b, h, t, s, d int, o AttentionOptions) kernel.Attention {
	if m := o.KeyMask; m != nil && (m.dtype != Int32 || !m.dense() || !slices.Equal(m.shape, []int{b, s})) {
		fail("attention of %d sequences of %d keys with key mask %v", b, s, m)
	}
	if !(o.Dropout >= 0 && o.Dropout < 1) {
		fail("attention with dropout %v: want a probability below 1", o.Dropout)
	}
	a := kernel.Attention{Batch: b, Heads: h, T: t, S: s, D: d, Causal: o.Causal, Scale: float32(1 / math.Sqrt(float64(d)))}
	if o.Dropout > 0 {
		a.Dropout, a.Seed = o.Dropout, rt.draw()
		if o.Part > 0 {
			a.Seed = rand.NewPCG(a.Seed, uint64(o.Part)).Uint64()
		}
	}
	return a
}

// headStrides is the strides of a dense [B, H, T, D].
func headStrides(h, t, d int) [3]int { return [3]int{h * t * d, t * d, d} }

// attended is an attention that ran, with what its backward needs beside the operands.
type attended struct {
	rt             *Runtime
	a              kernel.Attention
	out, lse, mask *saved
}

// attend runs a into y and saves y and the row sums for n.
func attend(n *node, y *Tensor, a kernel.Attention, mask *Tensor) *attended {
	rt := y.rt
	lse := rt.Empty(Float32, trace.Activation, a.Batch, a.Heads, a.T)
	defer lse.Release()
	a.LSE, a.KeyMask = lse.ptr(), address(mask)
	kernel.AttentionForward(rt.stream, a)
	r := &attended{rt: rt, a: a}
	if n != nil {
		r.out, r.lse = n.saveResult(y), n.save(lse)
		if mask != nil {
			r.mask = n.save(mask)
		}
	}
	return r
}

func (r *attended) backward(g *Tensor, dq, dk, dv kernel.Array, accumulate bool) {
	out, lse := r.out.take(), r.lse.take()
	delta := r.rt.Empty(Float32, trace.Workspace, lse.shape...)
	defer releaseAll(out, lse, delta)
	r.a.O, r.a.LSE = out.ptr(), lse.ptr()
	if r.mask != nil {
		mask := r.mask.take()
		defer mask.Release()
		r.a.KeyMask = mask.ptr()
	}
	kernel.AttentionBackward(r.rt.stream, r.a, kernel.AttentionGrads{DO: g.ptr(), DQ: dq, DK: dk, DV: dv, Delta: delta.ptr(), Accumulate: accumulate})
}
