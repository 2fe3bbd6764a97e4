package nn

import (
	"slices"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
)

// Split is which part of a model a rank has of several that compute it together.
// The zero Split is all of it. A group that is nil stands for one rank.
type Split struct {
	Tensor dist.Group // ranks that have other boxes of the same layers, and the same samples
	Expert dist.Group // ranks that have other experts, and other samples

	// Stage is which of so many stages of a pipeline the model is (stage.go). There
	// must be as many blocks as stages. 0 Stages stand for one.
	Stage, Stages int
}

// byTokens has what is made until end is called read the tokens that its rank along
// tensor has: dropout drops what it would drop in the whole, and parameters that are
// not cut have a gradient of these tokens.
func (b *Builder) byTokens() (end func()) {
	b.ofTokens = true
	return func() { b.ofTokens = false }
}

// own is which of n things in a row this rank has along tensor: as many as the
// others or, where that can't be, one more or less; the first has the most.
func (b *Builder) own(n int) (lo, hi int) {
	g := b.Split.Tensor
	if g == nil {
		return 0, n
	}
	left := g.Size() - g.Rank() // ranks from this one on
	return n - n*left/g.Size(), n - n*(left-1)/g.Size()
}

// heads is how many of so many heads this rank has, and which part of them it is.
func (b *Builder) heads(n int) (heads, part int) {
	lo, hi := b.own(n)
	if b.Split.Tensor != nil {
		part = b.Split.Tensor.Rank()
	}
	return hi - lo, part
}

// share is the dimension of an array of which each rank has its own part, and how
// many arrays lie side by side in it. The zero share is all of the array.
type share struct{ dim, parts int }

// empty makes a parameter that is this rank's share of an array.
func (b *Builder) empty(name string, s share, shape []int) *Parameter {
	if b.Split.Tensor == nil || s.parts == 0 {
		return &Parameter{Name: name, Tensor: b.rt.Parameter(shape...), Expert: b.expert, Partial: b.ofTokens && b.Split.Tensor != nil}
	}
	lo, hi := b.own(shape[s.dim] / s.parts)
	at, box := make([]int, len(shape)), slices.Clone(shape)
	at[s.dim], box[s.dim] = lo, s.parts*(hi-lo)
	return &Parameter{Name: name, Tensor: b.rt.Parameter(box...), Whole: shape, At: at, Parts: s.parts, Expert: b.expert}
}

// cutting is how a linear layer is cut.
type cutting struct {
	outputs int  // so many arrays lie side by side in them, of each of which a rank has its part; 0: all
	inputs  bool // each rank has a part
}

var (
	whole     = cutting{}
	byOutputs = cutting{outputs: 1}
	byHeads   = cutting{outputs: 3} // queries, keys and values
	byInputs  = cutting{inputs: true}
)

// linear gives a layer with weights [out, in].
func (b *Builder) linear(name string, in, out int, std float64, c cutting) *Linear {
	l := b.cut(name, out, c)
	l.Weight, l.transposed = b.normal(name+".weight", std, c.weight(0, 1), out, in), true
	return l
}

// conv1D gives a layer with weights [in, out].
func (b *Builder) conv1D(name string, in, out int, std float64, c cutting) *Linear {
	l := b.cut(name, out, c)
	l.Weight = b.normal(name+".weight", std, c.weight(1, 0), in, out)
	return l
}

// cut gives a layer without its weights.
func (b *Builder) cut(name string, out int, c cutting) *Linear {
	l := &Linear{Bias: b.constant(name+".bias", 0, share{0, c.outputs}, out), place: b.place(name)}
	if c.inputs {
		l.line = b.line()
	}
	return l
}

// weight is a rank's share of weights with those dimensions.
func (c cutting) weight(outputs, inputs int) share {
	if c.inputs {
		return share{inputs, 1}
	}
	return share{outputs, c.outputs}
}

// vocabulary is the words of a model, or those that this rank along tensor has.
type vocabulary struct {
	part tensor.Part
	line line
}

func (b *Builder) vocabulary(words int) vocabulary {
	lo, _ := b.own(words)
	return vocabulary{tensor.Part{First: lo, All: words}, b.line()}
}

// embed looks tokens, [batch, tokens], up in w, [words, width], for those tokens that
// this rank has.
func (v vocabulary) embed(w *Parameter, tokens *tensor.Tensor) *tensor.Tensor {
	return then(tensor.EmbeddingPart(w.Tensor, tokens, v.part), v.line.scatter)
}

// logits are those of the words that this rank has, for h, [..., width] of all tokens,
// as gather and parts of a line give it. bias may be nil.
func (v vocabulary) logits(h *tensor.Tensor, w, bias *Parameter) *tensor.Tensor {
	return tensor.Linear(h, w.Tensor, bias.tensor(), true)
}

// loss is the mean cross-entropy of targets, int32 [...], among all words, for such
// an h.
func (v vocabulary) loss(h *tensor.Tensor, w, bias *Parameter, targets *tensor.Tensor) *tensor.Tensor {
	return tensor.LinearCrossEntropyAcross(h, w.Tensor, bias.tensor(), targets, tensor.CrossEntropyParams{Ignore: IgnoreTarget}, v.part, v.line.across())
}

// tensor is p's; nil for none.
func (p *Parameter) tensor() *tensor.Tensor {
	if p == nil {
		return nil
	}
	return p.Tensor
}
