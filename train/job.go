package train

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// job is a family of models with its task, as a configuration describes it.
type job interface {
	check() error     // what is wrong with the model and the task
	context() int     // the longest sequence; 0 where there are none
	blocks() int      // that may be recomputed
	arrays() int      // a checkpoint holds at least so many
	fields() []Field  // of a batch
	logits() int      // rows of them that a sample's loss makes in parts; 0: none
	splits() []string // the axes of a Mesh that build knows of
	build(b *nn.Builder, around nn.Around) model
	architecture() any // config.json, for other programs
}

// model is a job on a device.
type model struct {
	nn.Module
	mode *nn.Mode                                 // nil: it computes always alike
	loss func(in []*tensor.Tensor) *tensor.Tensor // the mean over a micro-batch; in as the fields
	rate func(in []*tensor.Tensor) *tensor.Tensor // the loss to judge by, or, where it sorts into classes, their logits

	// Of a stage of a pipeline, for which the first of in is what the stage before
	// gave: the result, [samples, Seq, width], and what it adds to the loss, or nil.
	through func(in []*tensor.Tensor) (y, loss *tensor.Tensor)
	width   int
}

// Field is one array of a batch, of float32 or, with a limit, of int32.
type Field struct {
	Name  string
	Shape []int // of a sample
	Below int   // its numbers are from 0 to Below−1; 0: it is of float32

	target bool // may be nn.IgnoreTarget
	stride int  // what is added to the numbers of a micro-batch's samples, from one to the next
}

func (f Field) len() int {
	n := 1
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// Fields are the arrays of a batch, in the order that Trainer.Step takes them:
//
//	text            tokens [Seq], targets [Seq]
//	masked          tokens [Seq], places [P], labels [P] with P = data.Places(Seq)
//	texts' classes  tokens [Seq], mask [Seq] (1 where there is text), labels []
//	images' classes images [channels, height, width], labels []
//
// Targets and labels may be nn.IgnoreTarget.
func (c Config) Fields() []Field {
	j, err := c.job()
	if err != nil {
		panic("train: " + err.Error())
	}
	return j.fields()
}

// NewBatch makes the arrays of a batch: []float32 and []int32, as Fields says,
// each with Batch samples.
func (c Config) NewBatch() []any { return newArrays(c.Fields(), c.Batch) }

func newArrays(fields []Field, samples int) []any {
	var arrays []any
	for _, f := range fields {
		if f.Below == 0 {
			arrays = append(arrays, make([]float32, samples*f.len()))
		} else {
			arrays = append(arrays, make([]int32, samples*f.len()))
		}
	}
	return arrays
}

// job is the one that is set.
func (c Config) job() (job, error) {
	var found []job
	if c.GPT2 != (nn.GPT2Config{}) {
		found = append(found, gpt2{c})
	}
	if c.BERT != (nn.BERTConfig{}) && c.Task == Hidden {
		found = append(found, masked{c})
	}
	if c.BERT != (nn.BERTConfig{}) && c.Task != Hidden {
		found = append(found, classifier{c})
	}
	if c.ResNet != (nn.ResNetConfig{}) {
		found = append(found, resnet{c})
	}
	if c.MoE != (nn.MoEConfig{}) {
		found = append(found, moe{c})
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d models are configured: want one", len(found))
	}
	return found[0], nil
}

// learns checks the task of a family that has but one.
func (c Config) learns(only Task) error {
	if c.Task != "" && c.Task != only {
		return fmt.Errorf("task %q: it has %q alone", c.Task, only)
	}
	return nil
}

// textFields are those of next-token training.
func (c Config) textFields(vocab int) []Field {
	return []Field{{Name: "tokens", Shape: []int{c.Seq}, Below: vocab}, {Name: "targets", Shape: []int{c.Seq}, Below: vocab, target: true}}
}

type gpt2 struct{ Config }

func (j gpt2) check() error    { return errors.Join(j.learns(NextToken), j.GPT2.Validate()) }
func (j gpt2) context() int    { return j.GPT2.Context }
func (j gpt2) blocks() int     { return j.GPT2.Layers }
func (j gpt2) arrays() int     { return j.GPT2.Layers }
func (j gpt2) fields() []Field { return j.textFields(j.GPT2.Vocab) }
func (j gpt2) logits() int     { return j.Seq }

func (j gpt2) build(b *nn.Builder, around nn.Around) model {
	m := b.GPT2(j.GPT2)
	m.Around = around
	loss := func(in []*tensor.Tensor) *tensor.Tensor { return m.Loss(in[0], in[1]) }
	through := func(in []*tensor.Tensor) (y, loss *tensor.Tensor) { return m.Through(in[0]), nil }
	return model{Module: m, loss: loss, rate: loss, through: through, width: j.GPT2.Width}
}

func (j gpt2) splits() []string { return []string{axisPipeline, axisTensor} }

func (j gpt2) architecture() any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		Activation    string   `json:"activation_function"`
		Epsilon       float64  `json:"layer_norm_epsilon"`
		nn.GPT2Config
	}{[]string{"GPT2LMHeadModel"}, "gpt2", "gelu_new", 1e-5, j.GPT2}
}

type moe struct{ Config }

// check wants a capacity: without it, memory would depend on the data, and no
// plan could be kept.
func (j moe) check() error {
	if j.MoE.Capacity == 0 || j.MoE.Context == 0 {
		return fmt.Errorf("expert_capacity_factor %g and max_position_embeddings %d: training needs a limit of both", j.MoE.Capacity, j.MoE.Context)
	}
	return errors.Join(j.learns(NextToken), j.MoE.Validate())
}

func (j moe) context() int    { return j.MoE.Context }
func (j moe) blocks() int     { return j.MoE.Layers }
func (j moe) arrays() int     { return j.MoE.Layers * j.MoE.Experts }
func (j moe) fields() []Field { return j.textFields(j.MoE.Vocab) }
func (j moe) logits() int     { return j.Seq }

func (j moe) build(b *nn.Builder, around nn.Around) model {
	m := b.MoE(j.MoE)
	m.Around = around
	return model{Module: m, width: j.MoE.Width,
		through: func(in []*tensor.Tensor) (y, loss *tensor.Tensor) { return m.Through(in[0]) },
		loss:    func(in []*tensor.Tensor) *tensor.Tensor { return m.Loss(in[0], in[1]) },
		rate: func(in []*tensor.Tensor) *tensor.Tensor { // without the part for balance
			logits, balance := m.Forward(in[0])
			defer logits.Release()
			defer balance.Release()
			return tensor.CrossEntropy(logits, in[1], nn.IgnoreTarget)
		}}
}

func (j moe) splits() []string { return []string{axisPipeline, axisExpert, axisTensor} }

func (j moe) architecture() any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		nn.MoEConfig
	}{[]string{"MoE"}, "headroom_moe", j.MoE}
}

type masked struct{ Config }

func (j masked) check() error { return j.BERT.Validate() }
func (j masked) context() int { return j.BERT.Context }
func (j masked) blocks() int  { return j.BERT.Layers }
func (j masked) arrays() int  { return j.BERT.Layers }
func (j masked) logits() int  { return data.Places(j.Seq) }

func (j masked) fields() []Field {
	p := data.Places(j.Seq)
	return []Field{
		{Name: "tokens", Shape: []int{j.Seq}, Below: j.BERT.Vocab},
		{Name: "places", Shape: []int{p}, Below: j.Seq, stride: j.Seq},
		{Name: "labels", Shape: []int{p}, Below: j.BERT.Vocab, target: true},
	}
}

func (j masked) build(b *nn.Builder, around nn.Around) model {
	m := b.MaskedLM(j.BERT)
	m.Around = around
	loss := func(in []*tensor.Tensor) *tensor.Tensor {
		places := tensor.Reshape(in[1], -1)
		defer places.Release()
		labels := tensor.Reshape(in[2], -1)
		defer labels.Release()
		return m.LossAt(nn.BERTInput{Tokens: in[0]}, places, labels)
	}
	through := func(in []*tensor.Tensor) (y, loss *tensor.Tensor) {
		return m.BERT.Forward(nn.BERTInput{Tokens: in[0]}), nil
	}
	return model{Module: m, mode: m.Mode, loss: loss, rate: loss, through: through, width: j.BERT.Width}
}

func (j masked) splits() []string { return []string{axisPipeline, axisTensor} }

func (j masked) architecture() any { return j.bert("BertForMaskedLM") }

// bert is Hugging Face's config.json.
func (c Config) bert(architecture string) any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		Activation    string   `json:"hidden_act"`
		Classes       int      `json:"num_labels,omitempty"`
		nn.BERTConfig
	}{[]string{architecture}, "bert", "gelu", c.Labels, c.BERT}
}

type classifier struct{ Config }

func (j classifier) check() error {
	if j.Task != Classes {
		return fmt.Errorf("task %q: it has %q and %q", j.Task, Hidden, Classes)
	}
	const most = 1 << 16
	if j.Labels < 2 || j.Labels > most {
		return fmt.Errorf("%d classes: there must be from 2 to %d", j.Labels, most)
	}
	return j.BERT.Validate()
}

func (j classifier) context() int { return j.BERT.Context }
func (j classifier) blocks() int  { return j.BERT.Layers }
func (j classifier) arrays() int  { return j.BERT.Layers }

func (j classifier) fields() []Field {
	return []Field{
		{Name: "tokens", Shape: []int{j.Seq}, Below: j.BERT.Vocab},
		{Name: "mask", Shape: []int{j.Seq}, Below: 2},
		{Name: "labels", Below: j.Labels, target: true},
	}
}

func (j classifier) build(b *nn.Builder, around nn.Around) model {
	m := b.Classifier(j.BERT, j.Labels)
	m.Around = around
	input := func(in []*tensor.Tensor) nn.BERTInput { return nn.BERTInput{Tokens: in[0], Mask: in[1]} }
	return model{Module: m, mode: m.Mode, width: j.BERT.Width,
		through: func(in []*tensor.Tensor) (y, loss *tensor.Tensor) { return m.BERT.Forward(input(in)), nil },
		loss:    func(in []*tensor.Tensor) *tensor.Tensor { return m.Loss(input(in), in[2]) },
		rate:    func(in []*tensor.Tensor) *tensor.Tensor { return m.Forward(input(in)) }}
}

func (j classifier) splits() []string { return []string{axisPipeline, axisTensor} }

func (j classifier) architecture() any { return j.bert("BertForSequenceClassification") }

type resnet struct{ Config }

func (j resnet) check() error {
	const least, most = 8, 1 << 13
	for _, n := range j.Image {
		if n < least || n > most {
			return fmt.Errorf("images of %d×%d: heights and widths must be from %d to %d", j.Image[0], j.Image[1], least, most)
		}
	}
	return errors.Join(j.learns(Classes), j.ResNet.Validate())
}

func (j resnet) context() int { return 0 }
func (j resnet) blocks() int  { return j.ResNet.Blocks() }
func (j resnet) arrays() int  { return j.ResNet.Blocks() }

func (j resnet) fields() []Field {
	return []Field{
		{Name: "images", Shape: []int{j.ResNet.Channels, j.Image[0], j.Image[1]}},
		{Name: "labels", Below: j.ResNet.Classes, target: true},
	}
}

func (j resnet) build(b *nn.Builder, around nn.Around) model {
	m := b.ResNet(j.ResNet)
	m.Around = around
	return model{Module: m, mode: m.Mode,
		loss: func(in []*tensor.Tensor) *tensor.Tensor { return m.Loss(in[0], in[1]) },
		rate: func(in []*tensor.Tensor) *tensor.Tensor { return m.Forward(in[0]) }}
}

func (j resnet) architecture() any {
	return struct {
		Architecture string `json:"architecture"`
		Image        [2]int `json:"image_size"`
		nn.ResNetConfig
	}{j.Model, j.Image, j.ResNet}
}
