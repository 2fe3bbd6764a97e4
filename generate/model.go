package generate

import (
	"fmt"

	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// Model is a language model as generation runs it: everything but attention,
// which is the cache's. Its weights are those of training.
type Model interface {
	Shape() Shape

	// Logits runs new tokens, int32 [rows], at their positions in their texts,
	// int32 [rows], and gives the logits, [len(last), vocabulary], after the rows
	// that last names, int32. The rows may be of several texts.
	Logits(tokens, positions, last *tensor.Tensor, attend Attend) *tensor.Tensor
}

// Attend is the causal attention of a layer: it takes the queries, keys and
// values of the rows side by side, [rows, 3·width], and gives [rows, width].
type Attend func(layer int, qkv *tensor.Tensor) *tensor.Tensor

// Shape is what a cache must know of a model.
type Shape struct {
	Layers, Heads int
	D             int // elements of a head
	Vocab         int
	Context       int // the longest text
}

// GPT2 is the model m.
func GPT2(m *nn.GPT2) Model { return gpt2{m} }

type gpt2 struct{ *nn.GPT2 }

func (g gpt2) Shape() Shape {
	c := g.Config
	return Shape{c.Layers, c.Heads, c.Width / c.Heads, c.Vocab, c.Context}
}

func (g gpt2) Logits(tokens, positions, last *tensor.Tensor, attend Attend) *tensor.Tensor {
	x := add(tensor.Embedding(g.WTE.Tensor, tokens), tensor.Embedding(g.WPE.Tensor, positions))
	for i, b := range g.Blocks {
		x = add(x, chain(x, b.LN1.Forward, b.CAttn.Forward, attend.of(i), b.CProj.Forward))
		x = add(x, chain(x, b.LN2.Forward, b.CFC.Forward, tensor.Gelu, b.CProjMLP.Forward))
	}
	defer x.Release()
	return chain(x, rowsAt(last), g.LNF.Forward, func(h *tensor.Tensor) *tensor.Tensor {
		return tensor.Linear(h, g.WTE.Tensor, nil, true)
	})
}

// MoE is the model m. It fails for a model whose experts have a capacity, since
// then what becomes of a token depends on the texts that happen to run beside
// it: make the model with a capacity of 0, which its weights know nothing of.
// It fails for one without attention, too.
func MoE(m *nn.MoE) (Model, error) {
	if m.Config.Capacity != 0 || m.Attentions == nil {
		return nil, fmt.Errorf("generate: a mixture of experts with expert_capacity_factor %g and %d heads: generation needs a factor of 0, and attention", m.Config.Capacity, m.Config.Heads)
	}
	return moe{m}, nil
}

type moe struct{ *nn.MoE }

func (m moe) Shape() Shape {
	c := m.Config
	return Shape{c.Layers, c.Heads, c.Width / c.Heads, c.Vocab, c.Context}
}

func (m moe) Logits(tokens, positions, last *tensor.Tensor, attend Attend) *tensor.Tensor {
	x := add(tensor.Embedding(m.Embed.Tensor, tokens), tensor.Embedding(m.Position.Tensor, positions))
	for i, a := range m.Attentions {
		x = add(x, chain(x, a.Norm.Forward, a.QKV.Forward, attend.of(i), a.Out.Forward))
		x = add(x, chain(x, m.Norms[i].Forward, func(h *tensor.Tensor) *tensor.Tensor {
			y, balance := m.Blocks[i].Forward(h, i, nil)
			balance.Release()
			return y
		}))
	}
	defer x.Release()
	return chain(x, rowsAt(last), m.Head.Forward)
}

// of is the attention of a layer.
func (a Attend) of(layer int) func(*tensor.Tensor) *tensor.Tensor {
	return func(qkv *tensor.Tensor) *tensor.Tensor { return a(layer, qkv) }
}

// rowsAt picks rows.
func rowsAt(index *tensor.Tensor) func(*tensor.Tensor) *tensor.Tensor {
	return func(x *tensor.Tensor) *tensor.Tensor { return tensor.Embedding(x, index) }
}

// chain applies functions one after the other and releases what lies between.
func chain(x *tensor.Tensor, fs ...func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	y := fs[0](x)
	for _, f := range fs[1:] {
		next := f(y)
		y.Release()
		y = next
	}
	return y
}

// add is a + b, both of which it releases.
func add(a, b *tensor.Tensor) *tensor.Tensor {
	defer a.Release()
	defer b.Release()
	return tensor.Add(a, b)
}
