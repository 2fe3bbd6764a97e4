package nn

import "github.com/headroom-go/headroom/tensor"

// CausalAttention adds attention to the tokens before to its input, which it
// normalises first.
type CausalAttention struct {
	Norm     *LayerNorm
	QKV, Out *Linear

	heads int  // that this rank has
	line  line // the ranks that have the others, and other tokens
	place
}

// CausalAttention gives a layer whose result is scaled for a model of so many
// layers.
func (b *Builder) CausalAttention(name string, width, heads, layers int) *CausalAttention {
	defer b.byTokens()()
	own, _ := b.heads(heads)
	return &CausalAttention{heads: own, line: b.line(), place: b.place(name),
		Norm: b.LayerNorm(name+".norm", width, 1e-5),
		QKV:  b.linear(name+".qkv", width, 3*width, 0.02, byHeads),
		Out:  b.linear(name+".out", width, width, projectionStd(layers), byInputs)}
}

// Parameters gives the layer's parameters.
func (a *CausalAttention) Parameters() []*Parameter { return parameters(a.Norm, a.QKV, a.Out) }

// Forward keeps the shape of x, [B, T, width], of the tokens that this rank along
// tensor has.
func (a *CausalAttention) Forward(x *tensor.Tensor) *tensor.Tensor { return a.call(a, x, a.forward) }

func (a *CausalAttention) forward(x *tensor.Tensor) *tensor.Tensor {
	qkv := then(then(a.Norm.Low(x), a.line.gather), a.QKV.Forward)
	seen := then(qkv, func(qkv *tensor.Tensor) *tensor.Tensor { return tensor.SelfAttention(qkv, a.heads, true) })
	return add(then(seen, a.Out.Forward), x.Retain())
}
