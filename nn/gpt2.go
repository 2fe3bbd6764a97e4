package nn

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/tensor"
)

// GPT2Config is the shape of a GPT-2 model; the JSON names are those of
// Hugging Face's config.json.
type GPT2Config struct {
	Vocab   int `json:"vocab_size"`
	Context int `json:"n_positions"`
	Width   int `json:"n_embd"`
	Layers  int `json:"n_layer"`
	Heads   int `json:"n_head"`
}

// gpt2Configs are the models known by name. Those with a vocabulary of 256
// read bytes, the others GPT-2's byte pairs.
var gpt2Configs = map[string]GPT2Config{
	"gpt2-nano":   {256, 128, 128, 4, 4},
	"gpt2-mini":   {256, 256, 256, 6, 8},
	"gpt2":        {50257, 1024, 768, 12, 12},
	"gpt2-medium": {50257, 1024, 1024, 24, 16},
	"gpt2-large":  {50257, 1024, 1280, 36, 20},
	"gpt2-xl":     {50257, 1024, 1600, 48, 25},
}

// LookupGPT2 gives the configuration of a model known by name.
func LookupGPT2(name string) (GPT2Config, error) {
	if c, ok := gpt2Configs[name]; ok {
		return c, nil
	}
	return GPT2Config{}, fmt.Errorf("unknown model %q: the models are %s", name, strings.Join(GPT2Names(), ", "))
}

// GPT2Names lists the models known by name, the smallest first.
func GPT2Names() []string {
	return slices.SortedFunc(maps.Keys(gpt2Configs), func(a, b string) int {
		return gpt2Configs[a].Parameters() - gpt2Configs[b].Parameters()
	})
}

// Parameters is the number of the model's parameters.
func (c GPT2Config) Parameters() int {
	return (c.Vocab+c.Context)*c.Width + c.Layers*c.block() + 2*c.Width
}

// block is the number of a block's parameters.
func (c GPT2Config) block() int { return 12*c.Width*c.Width + 13*c.Width }

// Validate says what is wrong with c, if anything.
func (c GPT2Config) Validate() error {
	if err := sizes(size{"vocab_size", c.Vocab}, size{"n_positions", c.Context}, size{"n_embd", c.Width},
		size{"n_layer", c.Layers}, size{"n_head", c.Heads}); err != nil {
		return err
	}
	if c.Width%c.Heads != 0 {
		return fmt.Errorf("n_embd %d is no multiple of n_head %d", c.Width, c.Heads)
	}
	return nil
}

// GPT2 is the language model of Radford et al., "Language Models are
// Unsupervised Multitask Learners" (2019): learned positions, layer
// normalisation before each part, GELU with tanh, the output layer tied to the
// token embedding. A stage of a pipeline lacks what the others have; where tokens
// are asked for, one behind the first takes what Through of the one before gave.
type GPT2 struct {
	Config GPT2Config
	WTE    *Parameter // [vocabulary, width]; of ranks along tensor each has some of the words
	WPE    *Parameter // [context, width]
	Blocks []*GPT2Block
	LNF    *LayerNorm
	Hooks  *Hooks

	// Around, if set, runs each block in place of a plain call: the place for
	// recompute and whatever else goes by the block.
	Around Around

	words vocabulary
}

// GPT2Block is one transformer block.
type GPT2Block struct {
	heads         int  // that this rank has
	line          line // the ranks that have the others, and other tokens
	LN1, LN2      *LayerNorm
	CAttn, CProj  *Linear // attention: qkv, output
	CFC, CProjMLP *Linear // feed-forward: up, down

	place
}

// NewGPT2 makes a model with initial weights drawn from the seed.
func NewGPT2(rt *tensor.Runtime, c GPT2Config, seed uint64) *GPT2 {
	return NewBuilder(rt, seed).GPT2(c)
}

// GPT2 makes a model.
func (m *Builder) GPT2(c GPT2Config) *GPT2 {
	defer m.byTokens()()
	s := m.stage(c.Layers, c.block(), (c.Vocab+c.Context)*c.Width, c.Vocab*c.Width)
	g := &GPT2{Config: c, Hooks: m.Hooks, words: m.vocabulary(c.Vocab)}
	g.WTE = s.tied(func() *Parameter {
		return m.normal("transformer.wte.weight", 0.02, share{0, 1}, c.Vocab, c.Width)
	})
	if s.first {
		g.WPE = m.Normal("transformer.wpe.weight", 0.02, c.Context, c.Width)
	}
	for i := s.from; i < s.to; i++ {
		g.Blocks = append(g.Blocks, m.gpt2Block(fmt.Sprintf("transformer.h.%d", i), c))
	}
	if s.last {
		g.LNF = m.LayerNorm("transformer.ln_f", c.Width, 1e-5)
	}
	return g
}

func (m *Builder) gpt2Block(name string, c GPT2Config) *GPT2Block {
	w, proj := c.Width, projectionStd(c.Layers)
	heads, _ := m.heads(c.Heads)
	return &GPT2Block{heads: heads, line: m.line(), place: m.place(name),
		LN1:      m.LayerNorm(name+".ln_1", w, 1e-5),
		CAttn:    m.conv1D(name+".attn.c_attn", w, 3*w, 0.02, byHeads),
		CProj:    m.conv1D(name+".attn.c_proj", w, w, proj, byInputs),
		LN2:      m.LayerNorm(name+".ln_2", w, 1e-5),
		CFC:      m.conv1D(name+".mlp.c_fc", w, 4*w, 0.02, byOutputs),
		CProjMLP: m.conv1D(name+".mlp.c_proj", 4*w, w, proj, byInputs),
	}
}

// Parameters gives the model's parameters; the tied output layer is the token
// embedding.
func (g *GPT2) Parameters() []*Parameter {
	ps := present(g.WTE, g.WPE)
	for _, b := range g.Blocks {
		ps = append(ps, b.Parameters()...)
	}
	if g.LNF != nil {
		ps = append(ps, g.LNF.Parameters()...)
	}
	return ps
}

// Parameters gives the block's parameters.
func (b *GPT2Block) Parameters() []*Parameter {
	return parameters(b.LN1, b.CAttn, b.CProj, b.LN2, b.CFC, b.CProjMLP)
}

// Forward gives the logits, [B, T, vocabulary], for tokens, int32 [B, T]; on ranks
// along tensor those of the rank's words.
func (g *GPT2) Forward(tokens *tensor.Tensor) *tensor.Tensor {
	return then(g.hidden(tokens), func(h *tensor.Tensor) *tensor.Tensor { return g.words.logits(h, g.WTE, nil) })
}

// hidden is what the output layer reads, [B, T, width].
func (g *GPT2) hidden(tokens *tensor.Tensor) *tensor.Tensor {
	return then(then(g.Through(tokens), g.LNF.Low), g.words.line.gather)
}

// Through gives what the stage after this one reads, [B, T, width]; of ranks along
// tensor each has its part of the T tokens.
func (g *GPT2) Through(tokens *tensor.Tensor) *tensor.Tensor {
	x := g.embed(tokens)
	for i, b := range g.Blocks {
		y := g.Around.run(i, x, b.Forward)
		x.Release()
		x = y
	}
	return x
}

func (g *GPT2) embed(tokens *tensor.Tensor) *tensor.Tensor {
	if g.WPE == nil { // the stage before did
		return tokens.Retain()
	}
	tok := g.words.embed(g.WTE, tokens)
	lo, hi := g.words.line.tokens(tokens.Dim(1))
	return then(add(tok, tensor.Slice(g.WPE.Tensor, 0, lo, hi, 1)), tensor.Low)
}

// Forward adds attention and the feed-forward part to x, [B, T, width], of the tokens
// that Through says.
func (b *GPT2Block) Forward(x *tensor.Tensor) *tensor.Tensor { return b.call(b, x, b.forward) }

func (b *GPT2Block) forward(x *tensor.Tensor) *tensor.Tensor {
	mid := b.attend(x)
	defer mid.Release()
	h := then(b.LN2.Low(mid), b.line.gather)
	up := b.CFC.Forward(h)
	h.Release()
	act := tensor.Gelu(up)
	up.Release()
	down := b.CProjMLP.Forward(act)
	act.Release()
	defer down.Release()
	return tensor.Add(mid, down)
}

func (b *GPT2Block) attend(x *tensor.Tensor) *tensor.Tensor {
	h := then(b.LN1.Low(x), b.line.gather)
	qkv := b.CAttn.Forward(h)
	h.Release()
	a := tensor.SelfAttention(qkv, b.heads, true)
	qkv.Release()
	out := b.CProj.Forward(a)
	a.Release()
	defer out.Release()
	return tensor.Add(x, out)
}

// Loss is the mean cross-entropy of the targets, int32 [B, T], after tokens.
func (g *GPT2) Loss(tokens, targets *tensor.Tensor) *tensor.Tensor {
	return then(g.hidden(tokens), func(h *tensor.Tensor) *tensor.Tensor {
		return g.words.loss(h, g.WTE, nil, targets)
	})
}

// projectionStd is the deviation of the initial weights of projections into
// the residual stream, which 2·layers of them are added to (Radford et al., 2019).
func projectionStd(layers int) float64 { return 0.02 / math.Sqrt(2*float64(layers)) }
