package nn

import (
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
)

// Layers between ranks along tensor.
//
// A pair of linear layers is cut where its middle is: the first by its outputs, so
// that each rank has some of the middle's columns, the second by its inputs, so
// that each multiplies its columns, and the sum over the ranks is the result
// (Shoeybi et al., "Megatron-LM", 2019). The middle is heads of attention or the
// wide part of a feed-forward network, which need nothing of other ranks.
//
// Between the pairs, where normalisation, dropout and the residual stream need
// nothing of other tokens, each rank has its own tokens of every sequence alone
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
// Models", 2022). So before a pair all tokens are gathered, and after it the sum is
// scattered; backward does the reverse. What was gathered is not kept, but gathered
// again for the gradient of the weights:
//
//	own tokens    normalise ─ gather ┐                   ┌ scatter ─ bias ─ add
//	all tokens                       └ by outputs ─ … ─ by inputs
//
// What is not cut and reads a rank's own tokens has a gradient of these
// (Parameter.Partial). Where layers need other tokens and are not cut, as routers and
// heads, each rank computes them with all tokens.

// line is the ranks along tensor, or one rank, which has all tokens. What goes from a
// rank's tokens to all or back is [batch, tokens, width].
type line struct{ dist.Group }

// line is that of the model.
func (b *Builder) line() line { return line{b.Split.Tensor} }

// gather gives all tokens, of those of each rank, for products of which each rank has
// a part.
func (l line) gather(x *tensor.Tensor) *tensor.Tensor {
	return l.toAll(x, tensor.Collective{Name: "all_gather", Forward: l.join, Backward: l.sum, Again: true})
}

// scatter gives this rank's tokens of the sum of x over the ranks.
func (l line) scatter(x *tensor.Tensor) *tensor.Tensor {
	return l.toOwn(x, tensor.Collective{Name: "reduce_scatter", Forward: l.sum, Backward: l.join})
}

// whole gives all tokens, with which each rank then does the same.
func (l line) whole(x *tensor.Tensor) *tensor.Tensor {
	return l.toAll(x, tensor.Collective{Name: "all_gather", Forward: l.join, Backward: l.pick})
}

// own gives this rank's tokens of x, which each rank has.
func (l line) own(x *tensor.Tensor) *tensor.Tensor {
	return l.toOwn(x, tensor.Collective{Name: "own_tokens", Forward: l.pick, Backward: l.join})
}

// parts gives x, which each rank has, for products of which each rank has a part.
func (l line) parts(x *tensor.Tensor) *tensor.Tensor {
	if l.Group == nil {
		return x.Retain()
	}
	return tensor.Together(x, tensor.Collective{Name: "all_reduce_gradient", Backward: l.total}, x.Shape()...)
}

func (l line) toAll(x *tensor.Tensor, c tensor.Collective) *tensor.Tensor {
	if l.Group == nil {
		return x.Retain()
	}
	return tensor.Together(x, c, x.Dim(0), x.Dim(1)*l.Size(), x.Dim(2))
}

func (l line) toOwn(x *tensor.Tensor, c tensor.Collective) *tensor.Tensor {
	if l.Group == nil {
		return x.Retain()
	}
	lo, hi := l.tokens(x.Dim(1))
	return tensor.Together(x, c, x.Dim(0), hi-lo, x.Dim(2))
}

// tokens is which of so many tokens of a sequence are this rank's. Their number is a
// multiple of the ranks'.
func (l line) tokens(all int) (lo, hi int) {
	if l.Group == nil {
		return 0, all
	}
	n := all / l.Size()
	return l.Rank() * n, (l.Rank() + 1) * n
}

// part is which of all tokens x, this rank's, are.
func (l line) part(x *tensor.Tensor) tensor.Part {
	if l.Group == nil {
		return tensor.Part{}
	}
	return tensor.Part{First: l.Rank() * x.Dim(1), All: l.Size() * x.Dim(1)}
}

// join fills dst with the tokens of all ranks.
func (l line) join(dst, src *tensor.Tensor) {
	l.AllGather(dst.Runtime().Stream(), sequences(dst), sequences(src))
}

// sum fills dst with this rank's tokens of the sum of src over the ranks.
func (l line) sum(dst, src *tensor.Tensor) {
	l.ReduceScatter(dst.Runtime().Stream(), dist.Sum, sequences(dst), sequences(src))
}

// pick fills dst with this rank's tokens of src.
func (l line) pick(dst, src *tensor.Tensor) {
	from := sequences(src)
	for i, to := range sequences(dst) {
		dst.Runtime().Stream().Copy(to.Ptr, from[i].Part(l.Size(), l.Rank()).Ptr, uint64(to.Bytes()))
	}
}

// total fills dst with the sum of src over the ranks.
func (l line) total(dst, src *tensor.Tensor) {
	dst.Runtime().Stream().Copy(dst.Ptr(), src.Ptr(), dst.Bytes())
	l.Sum(dst)
}

// Sum implements tensor.Across.
func (l line) Sum(t *tensor.Tensor) { l.AllReduce(t.Runtime().Stream(), dist.Sum, buf(t)) }

// Max implements tensor.Across.
func (l line) Max(t *tensor.Tensor) { l.AllReduce(t.Runtime().Stream(), dist.Max, buf(t)) }

// across are the ranks as a loss takes them.
func (l line) across() tensor.Across {
	if l.Group == nil {
		return nil
	}
	return l
}

// sequences are those of x, each of which is cut evenly.
func sequences(x *tensor.Tensor) []dist.Buf {
	all := buf(x)
	all.Unit = 1
	n := all.Len / x.Dim(0)
	bufs := make([]dist.Buf, x.Dim(0))
	for i := range bufs {
		bufs[i] = all.Range(i*n, (i+1)*n)
	}
	return bufs
}
