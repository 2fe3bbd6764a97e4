package nn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/tensor"
)

// BERTConfig is the shape of a BERT model; the JSON names are those of Hugging
// Face's config.json.
type BERTConfig struct {
	Vocab            int     `json:"vocab_size"`
	Width            int     `json:"hidden_size"`
	Layers           int     `json:"num_hidden_layers"`
	Heads            int     `json:"num_attention_heads"`
	Hidden           int     `json:"intermediate_size"`
	Context          int     `json:"max_position_embeddings"`
	Types            int     `json:"type_vocab_size"`
	Dropout          float64 `json:"hidden_dropout_prob"`
	AttentionDropout float64 `json:"attention_probs_dropout_prob"`
	Eps              float64 `json:"layer_norm_eps"`
}

// bertConfigs are the models known by name. bert-mini reads bytes; its tokens
// 256 and 257 are for a hidden byte and the beginning of a text.
var bertConfigs = map[string]BERTConfig{
	"bert-mini":  {258, 256, 4, 8, 1024, 256, 2, 0.1, 0.1, 1e-12},
	"bert-base":  {30522, 768, 12, 12, 3072, 512, 2, 0.1, 0.1, 1e-12},
	"bert-large": {30522, 1024, 24, 16, 4096, 512, 2, 0.1, 0.1, 1e-12},
}

// LookupBERT gives the configuration of a model known by name.
func LookupBERT(name string) (BERTConfig, error) {
	if c, ok := bertConfigs[name]; ok {
		return c, nil
	}
	return BERTConfig{}, fmt.Errorf("unknown model %q: the models are %s", name, strings.Join(BERTNames(), ", "))
}

// BERTNames lists the models known by name, the smallest first.
func BERTNames() []string {
	return slices.SortedFunc(maps.Keys(bertConfigs), func(a, b string) int { return bertConfigs[a].Width - bertConfigs[b].Width })
}

// Validate says what is wrong with c, if anything.
func (c BERTConfig) Validate() error {
	if err := sizes(size{"vocab_size", c.Vocab}, size{"hidden_size", c.Width}, size{"num_hidden_layers", c.Layers},
		size{"num_attention_heads", c.Heads}, size{"intermediate_size", c.Hidden},
		size{"max_position_embeddings", c.Context}, size{"type_vocab_size", c.Types}); err != nil {
		return err
	}
	if c.Width%c.Heads != 0 {
		return fmt.Errorf("hidden_size %d is no multiple of num_attention_heads %d", c.Width, c.Heads)
	}
	if !(c.Dropout >= 0 && c.Dropout < 1) || !(c.AttentionDropout >= 0 && c.AttentionDropout < 1) || !(c.Eps > 0) {
		return fmt.Errorf("hidden_dropout_prob %g, attention_probs_dropout_prob %g, layer_norm_eps %g: probabilities must be from 0 to under 1, eps over 0",
			c.Dropout, c.AttentionDropout, c.Eps)
	}
	return nil
}

// BERT is the encoder of Devlin et al., "BERT: Pre-training of Deep
// Bidirectional Transformers" (2019): learned positions and token types, layer
// normalisation after each part, GELU. Its heads are MaskedLM and Classifier.
type BERT struct {
	Config                BERTConfig
	Words, Position, Type *Parameter // [vocabulary | context | types, width]; of ranks along tensor each has some of the words
	Norm                  *LayerNorm // of the embeddings
	Drop                  *Dropout
	Blocks                []*BERTBlock
	Hooks                 *Hooks
	Mode                  *Mode

	// Around, if set, runs each block. What it runs again in backward needs
	// BERTInput.Mask again, which the caller then holds until that is done.
	Around Around

	words vocabulary
	stage stage
}

// BERTInput is a batch, each of int32 [B, T].
type BERTInput struct {
	Tokens *tensor.Tensor // of a later stage of a pipeline what Forward of the one before gave
	Types  *tensor.Tensor // of tokens; nil: all of type 0
	Mask   *tensor.Tensor // 0 for tokens that nobody attends to; nil: none
}

// BERTBlock is one transformer block.
type BERTBlock struct {
	Query, Key, Value, Out *Linear
	Norm1                  *LayerNorm
	Up, Down               *Linear
	Norm2                  *LayerNorm
	Drop1, Drop2           *Dropout

	attention   *Dropout // of probabilities
	heads, part int      // that this rank has, and which of the ranks' parts that is
	line        line     // the ranks that have the others, and other tokens
	place
}

// NewBERT makes an encoder with initial weights from b.
func NewBERT(b *Builder, c BERTConfig) *BERT {
	return newBERT(b, c, b.stage(c.Layers, c.block(), c.embeddings(), 0), false)
}

// newBERT makes a stage of an encoder, to whose head words may be tied.
func newBERT(b *Builder, c BERTConfig, s stage, tied bool) *BERT {
	defer b.byTokens()()
	const std, at = 0.02, "bert.embeddings."
	m := &BERT{Config: c, Hooks: b.Hooks, Mode: b.Mode, stage: s, words: b.vocabulary(c.Vocab)}
	words := func() *Parameter {
		return b.normal(at+"word_embeddings.weight", std, share{0, 1}, c.Vocab, c.Width)
	}
	if tied {
		m.Words = s.tied(words)
	} else if s.first {
		m.Words = words()
	}
	if s.first {
		m.Position = b.Normal(at+"position_embeddings.weight", std, c.Context, c.Width)
		m.Type = b.Normal(at+"token_type_embeddings.weight", std, c.Types, c.Width)
		m.Norm = b.LayerNorm(at+"LayerNorm", c.Width, float32(c.Eps))
		m.Drop = b.Dropout(at+"dropout", c.Dropout)
	}
	for i := s.from; i < s.to; i++ {
		m.Blocks = append(m.Blocks, b.bertBlock(fmt.Sprintf("bert.encoder.layer.%d", i), c))
	}
	return m
}

// embeddings is the number of their parameters.
func (c BERTConfig) embeddings() int { return (c.Vocab + c.Context + c.Types) * c.Width }

// block is the number of a block's parameters.
func (c BERTConfig) block() int { return c.Width*(4*c.Width+2*c.Hidden+9) + c.Hidden }

func (b *Builder) bertBlock(name string, c BERTConfig) *BERTBlock {
	const std = 0.02
	w, self, eps := c.Width, name+".attention.self", float32(c.Eps)
	heads, part := b.heads(c.Heads)
	return &BERTBlock{heads: heads, part: part, line: b.line(), place: b.place(name),
		Query:     b.linear(self+".query", w, w, std, byOutputs),
		Key:       b.linear(self+".key", w, w, std, byOutputs),
		Value:     b.linear(self+".value", w, w, std, byOutputs),
		attention: b.Dropout(self+".dropout", c.AttentionDropout),
		Out:       b.linear(name+".attention.output.dense", w, w, std, byInputs),
		Drop1:     b.Dropout(name+".attention.output.dropout", c.Dropout),
		Norm1:     b.LayerNorm(name+".attention.output.LayerNorm", w, eps),
		Up:        b.linear(name+".intermediate.dense", w, c.Hidden, std, byOutputs),
		Down:      b.linear(name+".output.dense", c.Hidden, w, std, byInputs),
		Drop2:     b.Dropout(name+".output.dropout", c.Dropout),
		Norm2:     b.LayerNorm(name+".output.LayerNorm", w, eps),
	}
}

// Parameters gives the encoder's parameters.
func (m *BERT) Parameters() []*Parameter {
	ps := present(m.Words, m.Position, m.Type)
	if m.Norm != nil {
		ps = append(ps, m.Norm.Parameters()...)
	}
	for _, b := range m.Blocks {
		ps = append(ps, b.Parameters()...)
	}
	return ps
}

// Parameters gives the block's parameters.
func (b *BERTBlock) Parameters() []*Parameter {
	return parameters(b.Query, b.Key, b.Value, b.Out, b.Norm1, b.Up, b.Down, b.Norm2)
}

// Forward gives the last block's result, [B, T, width]. Of a stage that is not the last
// it is what the next one reads; of ranks along tensor each has its part of the T
// tokens then.
func (m *BERT) Forward(in BERTInput) *tensor.Tensor {
	x := m.embed(in)
	for i, b := range m.Blocks {
		y := m.Around.run(i, x, func(x *tensor.Tensor) *tensor.Tensor { return b.Forward(x, in.Mask) })
		x.Release()
		x = y
	}
	if m.stage.last {
		x = then(x, m.words.line.whole)
	}
	return x
}

func (m *BERT) embed(in BERTInput) *tensor.Tensor {
	if !m.stage.first {
		return in.Tokens.Retain()
	}
	words := m.words.embed(m.Words, in.Tokens)
	lo, hi := m.words.line.tokens(in.Tokens.Dim(1))
	sum := add(words, tensor.Slice(m.Position.Tensor, 0, lo, hi, 1))
	sum = add(sum, m.types(in.Types, lo, hi))
	return then(then(sum, m.Norm.Low), m.Drop.Forward)
}

// types are those of tokens from lo up to but not including hi.
func (m *BERT) types(of *tensor.Tensor, lo, hi int) *tensor.Tensor {
	if of == nil {
		return tensor.Slice(m.Type.Tensor, 0, 0, 1, 1)
	}
	own := then(tensor.Slice(of, 1, lo, hi, 1), func(t *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(t, t.Shape()...) })
	return then(own, func(own *tensor.Tensor) *tensor.Tensor { return tensor.Embedding(m.Type.Tensor, own) })
}

// Forward runs attention and the feed-forward part on x, [B, T, width], of the tokens
// that this rank along tensor has; mask, of all, is that of BERTInput.
func (b *BERTBlock) Forward(x, mask *tensor.Tensor) *tensor.Tensor {
	return b.call(b, x, func(x *tensor.Tensor) *tensor.Tensor {
		mid := b.Norm1.added(x, then(b.attend(x, mask), b.Out.Forward), b.Drop1)
		defer mid.Release()
		up := then(then(b.line.gather(mid), b.Up.Forward), tensor.GeluErf)
		return b.Norm2.added(mid, then(up, b.Down.Forward), b.Drop2)
	})
}

// attend computes queries, keys and values side by side, where attention reads them.
func (b *BERTBlock) attend(x, mask *tensor.Tensor) *tensor.Tensor {
	qkv := then(b.line.gather(x), func(x *tensor.Tensor) *tensor.Tensor { return sideBySide(x, b.Query, b.Key, b.Value) })
	defer qkv.Release()
	return tensor.SelfAttentionWith(qkv, b.heads, tensor.AttentionOptions{KeyMask: mask, Dropout: b.attention.now(), Part: b.part})
}
