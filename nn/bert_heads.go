package nn

import "github.com/headroom-go/headroom/tensor"

// MaskedLM is BERT with a head that names the tokens that were hidden from it;
// its output layer is tied to the token embedding.
type MaskedLM struct {
	*BERT
	Transform *Linear
	Norm      *LayerNorm
	Bias      *Parameter // [vocabulary]; of ranks along tensor each has some of it
}

// NewMaskedLM makes a model with initial weights drawn from the seed, in
// training mode.
func NewMaskedLM(rt *tensor.Runtime, c BERTConfig, seed uint64) *MaskedLM {
	return NewBuilder(rt, seed).MaskedLM(c)
}

// MaskedLM makes a model.
func (b *Builder) MaskedLM(c BERTConfig) *MaskedLM {
	const at = "cls.predictions."
	s := b.stage(c.Layers, c.block(), c.embeddings(), (c.Vocab+c.Width)*c.Width)
	m := &MaskedLM{BERT: newBERT(b, c, s, true)}
	if !s.last {
		return m
	}
	m.Transform = b.Linear(at+"transform.dense", c.Width, c.Width, 0.02)
	m.Norm = b.LayerNorm(at+"transform.LayerNorm", c.Width, float32(c.Eps))
	m.Bias = b.constant(at+"bias", 0, share{0, 1}, c.Vocab)
	return m
}

// Parameters gives the model's parameters.
func (m *MaskedLM) Parameters() []*Parameter {
	if m.Bias == nil {
		return m.BERT.Parameters()
	}
	return append(parameters(m.BERT, m.Transform, m.Norm), m.Bias)
}

// Forward gives the logits, [B, T, vocabulary]; on ranks along tensor those of the
// rank's words.
func (m *MaskedLM) Forward(in BERTInput) *tensor.Tensor {
	return then(then(m.BERT.Forward(in), m.hidden), func(h *tensor.Tensor) *tensor.Tensor {
		return m.words.logits(h, m.Words, m.Bias)
	})
}

// hidden is what the output layer reads, made of h, [..., width].
func (m *MaskedLM) hidden(h *tensor.Tensor) *tensor.Tensor {
	return then(then(then(m.Transform.Forward(h), tensor.GeluErf), m.Norm.Low), m.words.line.parts)
}

// loss is that of the tokens that h, [..., width], stands for.
func (m *MaskedLM) loss(h, labels *tensor.Tensor) *tensor.Tensor {
	return then(m.hidden(h), func(h *tensor.Tensor) *tensor.Tensor {
		return m.words.loss(h, m.Words, m.Bias, labels)
	})
}

// Loss is the mean cross-entropy of the labels, int32 [B, T]; IgnoreTarget is
// left out of it.
func (m *MaskedLM) Loss(in BERTInput, labels *tensor.Tensor) *tensor.Tensor {
	return then(m.BERT.Forward(in), func(h *tensor.Tensor) *tensor.Tensor { return m.loss(h, labels) })
}

// LossAt is Loss for those who know where the labels are: it makes logits for
// these places alone, which is most of the head's memory and time. places,
// int32 [M], count through the tokens of the batch, 0 … B·T−1; labels is [M].
func (m *MaskedLM) LossAt(in BERTInput, places, labels *tensor.Tensor) *tensor.Tensor {
	h := then(m.BERT.Forward(in), func(h *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(h, -1, m.Config.Width) })
	chosen := then(h, func(h *tensor.Tensor) *tensor.Tensor { return tensor.Embedding(h, places) })
	return then(chosen, func(h *tensor.Tensor) *tensor.Tensor { return m.loss(h, labels) })
}

// Classifier is BERT with a head that sorts whole sequences into classes, by
// their first token.
type Classifier struct {
	*BERT
	Pooler, Output *Linear
	Drop           *Dropout
}

// NewClassifier makes a model for so many classes with initial weights drawn
// from the seed, in training mode.
func NewClassifier(rt *tensor.Runtime, c BERTConfig, classes int, seed uint64) *Classifier {
	return NewBuilder(rt, seed).Classifier(c, classes)
}

// Classifier makes a model for so many classes.
func (b *Builder) Classifier(c BERTConfig, classes int) *Classifier {
	m := &Classifier{BERT: NewBERT(b, c)}
	if m.stage.last {
		m.Pooler = b.Linear("bert.pooler.dense", c.Width, c.Width, 0.02)
		m.Drop = b.Dropout("dropout", c.Dropout)
		m.Output = b.Linear("classifier", c.Width, classes, 0.02)
	}
	return m
}

// Parameters gives the model's parameters.
func (m *Classifier) Parameters() []*Parameter {
	if m.Output == nil {
		return m.BERT.Parameters()
	}
	return parameters(m.BERT, m.Pooler, m.Output)
}

// Forward gives the logits, [B, classes].
func (m *Classifier) Forward(in BERTInput) *tensor.Tensor {
	first := then(m.BERT.Forward(in), func(h *tensor.Tensor) *tensor.Tensor { return tensor.Slice(h, 1, 0, 1, 1) })
	flat := then(first, func(h *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(h, -1, m.Config.Width) })
	pooled := then(then(flat, m.Pooler.Forward), tensor.Tanh)
	return then(then(pooled, m.Drop.Forward), m.Output.Forward)
}

// Loss is the mean cross-entropy of the labels, int32 [B].
func (m *Classifier) Loss(in BERTInput, labels *tensor.Tensor) *tensor.Tensor {
	return then(m.Forward(in), func(logits *tensor.Tensor) *tensor.Tensor {
		return tensor.CrossEntropy(logits, labels, IgnoreTarget)
	})
}
