package nn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/tensor"
)

// MoEConfig is the shape of a mixture of experts; the JSON names are those of
// Hugging Face's Mixtral where it has them.
type MoEConfig struct {
	Vocab   int `json:"vocab_size"`
	Width   int `json:"hidden_size"`
	Layers  int `json:"num_hidden_layers"`
	Experts int `json:"num_local_experts"`
	TopK    int `json:"num_experts_per_tok"`
	Hidden  int `json:"intermediate_size"` // of an expert

	// Heads of the attention before each mixture, and the longest sequence,
	// whose positions are learned; both 0 for a model without attention, which
	// sees one token at a time.
	Heads   int `json:"num_attention_heads"`
	Context int `json:"max_position_embeddings"`

	// Balance is the weight of the load-balancing loss in the loss.
	Balance float64 `json:"router_aux_loss_coef"`
	// Capacity times the mean number of tokens of an expert is how many it
	// takes at most; 0 stands for no limit, where nothing is dropped. With a
	// limit every sequence is routed by itself, and so is its balance, so that
	// results do not depend on what else is in the batch (GShard's groups).
	Capacity float64 `json:"expert_capacity_factor"`
}

// moeConfigs are the models known by name; they read bytes.
var moeConfigs = map[string]MoEConfig{
	"moe-nano": {Vocab: 256, Width: 128, Layers: 4, Experts: 4, TopK: 2, Hidden: 256, Heads: 4, Context: 128, Balance: 0.01, Capacity: 1.25},
	"moe-mini": {Vocab: 256, Width: 256, Layers: 6, Experts: 8, TopK: 2, Hidden: 512, Heads: 8, Context: 256, Balance: 0.01, Capacity: 1.25},
}

// LookupMoE gives the configuration of a model known by name.
func LookupMoE(name string) (MoEConfig, error) {
	if c, ok := moeConfigs[name]; ok {
		return c, nil
	}
	return MoEConfig{}, fmt.Errorf("unknown model %q: the models are %s", name, strings.Join(MoENames(), ", "))
}

// MoENames lists the models known by name, the smallest first.
func MoENames() []string {
	return slices.SortedFunc(maps.Keys(moeConfigs), func(a, b string) int { return moeConfigs[a].Width - moeConfigs[b].Width })
}

// Validate says what is wrong with c, if anything.
func (c MoEConfig) Validate() error {
	if err := sizes(size{"vocab_size", c.Vocab}, size{"hidden_size", c.Width}, size{"num_hidden_layers", c.Layers},
		size{"num_local_experts", c.Experts}, size{"num_experts_per_tok", c.TopK}, size{"intermediate_size", c.Hidden}); err != nil {
		return err
	}
	if c.TopK > c.Experts {
		return fmt.Errorf("num_experts_per_tok is %d: there are %d experts", c.TopK, c.Experts)
	}
	if attends := c.Heads != 0; attends != (c.Context != 0) || attends && (c.Heads < 0 || c.Width%c.Heads != 0 || sizes(size{"", c.Context}) != nil) {
		return fmt.Errorf("num_attention_heads %d and max_position_embeddings %d: both must be 0, or the heads divide hidden_size %d", c.Heads, c.Context, c.Width)
	}
	if !(c.Balance >= 0) || !(c.Capacity >= 0 && c.Capacity <= float64(c.Experts)) {
		return fmt.Errorf("router_aux_loss_coef %g and expert_capacity_factor %g: both must be at least 0, the factor at most the %d experts", c.Balance, c.Capacity, c.Experts)
	}
	return nil
}

// MoE is a language model of layers x + experts(norm(x)), with causal attention
// before each if the configuration has it. Each token is computed by the TopK
// experts that a router finds most probable, weighted by their
// probabilities (Shazeer et al., "Outrageously Large Neural Networks", 2017).
// A stage of a pipeline lacks what the others have; where tokens are asked for, one
// behind the first takes what Through of the one before gave.
type MoE struct {
	Config     MoEConfig
	Embed      *Parameter // [vocabulary, width]
	Position   *Parameter // [context, width], nil without attention
	Attentions []*CausalAttention
	Norms      []*LayerNorm
	Blocks     []*MoELayer
	Head       *Linear
	Hooks      *Hooks

	// Around, if set, runs the experts of each layer, from their input to all
	// their results side by side.
	Around Around

	line line // ranks that have other tokens between attention and experts
}

// NewMoE makes a model with initial weights drawn from the seed.
func NewMoE(rt *tensor.Runtime, c MoEConfig, seed uint64) *MoE { return NewBuilder(rt, seed).MoE(c) }

// MoE makes a model.
func (b *Builder) MoE(c MoEConfig) *MoE {
	s := b.stage(c.Layers, c.block(), (c.Vocab+c.Context)*c.Width, c.Vocab*c.Width)
	m := &MoE{Config: c, Hooks: b.Hooks, line: b.line()}
	if s.first {
		m.Embed = b.Normal("embed.weight", 0.02, c.Vocab, c.Width)
	}
	if s.first && c.Heads > 0 {
		m.Position = b.Normal("positions.weight", 0.02, c.Context, c.Width)
	}
	for i := s.from; i < s.to; i++ {
		if c.Heads > 0 {
			m.Attentions = append(m.Attentions, b.CausalAttention(fmt.Sprintf("attentions.%d", i), c.Width, c.Heads, c.Layers))
		}
		m.Norms = append(m.Norms, b.tokenNorm(fmt.Sprintf("norms.%d", i), c.Width))
		m.Blocks = append(m.Blocks, b.MoELayer(fmt.Sprintf("blocks.%d", i), c))
	}
	if s.last {
		m.Head = b.Linear("head", c.Width, c.Vocab, 0.02)
	}
	return m
}

// tokenNorm is LayerNorm of a rank's tokens along tensor.
func (b *Builder) tokenNorm(name string, width int) *LayerNorm {
	defer b.byTokens()()
	return b.LayerNorm(name, width, 1e-5)
}

// block is about the number of a layer's parameters.
func (c MoEConfig) block() int { return c.Width * (4*c.Width + 2*c.Experts*c.Hidden) }

// Parameters gives the model's parameters.
func (m *MoE) Parameters() []*Parameter {
	ps := present(m.Embed, m.Position)
	for _, a := range m.Attentions {
		ps = append(ps, a.Parameters()...)
	}
	for i, b := range m.Blocks {
		ps = append(ps, parameters(m.Norms[i], b)...)
	}
	if m.Head != nil {
		ps = append(ps, m.Head.Parameters()...)
	}
	return ps
}

// Forward gives the logits, [B, T, vocabulary], for tokens, int32 [B, T], and
// the load-balancing loss, a single element: the mean over the layers of
// experts · Σ f·P, with f an expert's share of the places per token and P its
// mean probability (Fedus et al., "Switch Transformers", 2021). Of a stage of a
// pipeline it is the stage's part of that mean.
func (m *MoE) Forward(tokens *tensor.Tensor) (logits, balance *tensor.Tensor) {
	x, balance := m.layers(tokens)
	return then(then(x, m.line.whole), m.Head.Forward), balance
}

// Through gives what the stage after this one reads, [B, T, width], of which ranks
// along tensor have each its part of the T tokens, and what this one adds to the loss:
// nil, or a single element.
func (m *MoE) Through(tokens *tensor.Tensor) (hidden, loss *tensor.Tensor) {
	hidden, balance := m.layers(tokens)
	defer balance.Release()
	if m.Config.Balance > 0 {
		loss = tensor.Scale(balance, float32(m.Config.Balance))
	}
	return hidden, loss
}

// layers gives the last layer's result, and the balancing loss.
func (m *MoE) layers(tokens *tensor.Tensor) (x, balance *tensor.Tensor) {
	x = m.embed(tokens)
	for i, b := range m.Blocks {
		if m.Attentions != nil {
			x = then(x, m.Attentions[i].Forward)
		}
		y, part := b.after(m.Norms[i], x, i, m.Around)
		x.Release()
		x, balance = y, add(balance, part)
	}
	defer balance.Release()
	return x, tensor.Scale(balance, 1/float32(m.Config.Layers))
}

func (m *MoE) embed(tokens *tensor.Tensor) *tensor.Tensor {
	if m.Embed == nil { // the stage before did
		return tokens.Retain()
	}
	x := tensor.Embedding(m.Embed.Tensor, tokens)
	if m.Position != nil {
		x = add(x, tensor.Slice(m.Position.Tensor, 0, 0, tokens.Dim(1), 1))
	}
	return then(then(x, m.line.own), tensor.Low)
}

// Loss is the mean cross-entropy of the targets, int32 [B, T], after tokens,
// plus the balancing loss by its weight.
func (m *MoE) Loss(tokens, targets *tensor.Tensor) *tensor.Tensor {
	logits, balance := m.Forward(tokens)
	defer balance.Release()
	loss := tensor.CrossEntropy(logits, targets, IgnoreTarget)
	logits.Release()
	if m.Config.Balance == 0 {
		return loss
	}
	return add(loss, tensor.Scale(balance, float32(m.Config.Balance)))
}
