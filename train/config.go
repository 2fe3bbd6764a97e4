package train

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// Config is everything that decides the numbers of a run: two runs of the
// same configuration on the same data give the same losses, whatever their
// strategy, but for Tune. It is kept in checkpoints. Exactly one of GPT2, BERT, ResNet and
// MoE is set.
type Config struct {
	Model  string          `json:"model"` // the name it was chosen by, for people
	GPT2   nn.GPT2Config   `json:"gpt2,omitzero"`
	BERT   nn.BERTConfig   `json:"bert,omitzero"`
	ResNet nn.ResNetConfig `json:"resnet,omitzero"`
	MoE    nn.MoEConfig    `json:"moe,omitzero"` // with a capacity
	Task   Task            `json:"task,omitempty"`
	Labels int             `json:"classes,omitempty"` // of BERT's task Classes: how many there are
	Image  [2]int          `json:"image,omitzero"`    // height and width, of ResNet

	Batch    int             `json:"batch"`             // sequences or images a step
	Seq      int             `json:"seq,omitempty"`     // tokens a sequence
	Lengths  int             `json:"lengths,omitempty"` // batches are of texts alike in length, padded to one of so many lengths of at most Seq; 0: all have Seq
	Seed     uint64          `json:"seed"`              // of initial weights, order of data and dropout
	Schedule nn.Cosine       `json:"schedule"`
	AdamW    nn.AdamWOptions `json:"adamw,omitzero"`
	SGD      nn.SGDOptions   `json:"sgd,omitzero"` // in place of AdamW, where that is zero
	Clip     float32         `json:"clip"`         // greatest norm of the gradients; 0: no limit
	// Precision is what a step computes in; weights, their gradients and the
	// optimizer's state are float32 throughout.
	Precision tensor.DType `json:"precision,omitzero"`
	Test      bool         `json:"test,omitempty"` // the model is evaluated between steps (Trainer.Evaluate): plans leave room
	// Tune has products of matrices on a GPU take the algorithms that are found
	// to be the fastest (device.Tuner). Two runs may find others, and then differ
	// in last bits; from a checkpoint on, which keeps them, they don't. Ranks
	// take those of the first one after the first step, but don't tune along tensor
	// and pipeline.
	Tune bool `json:"tune,omitempty"`
}

// mostLengths bounds Config.Lengths: each has a plan.
const mostLengths = 16

// Task is what a model learns.
type Task string

// The tasks. A model of a family that has but one may leave it out.
const (
	NextToken Task = "text"    // of GPT-2 and the mixture of experts
	Hidden    Task = "masked"  // of BERT: name hidden words
	Classes   Task = "classes" // of BERT and ResNet: sort into classes
)

// Validate says what is wrong with c, if anything.
func (c Config) Validate() error {
	j, err := c.job()
	if err == nil {
		err = j.check()
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", c.Model, err)
	}
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"batch", c.Batch, 1, 1 << 20},
		{"sequence length", c.Seq, min(1, j.context()), j.context()},
		{"number of lengths", c.Lengths, 0, mostLengths},
		{"steps", c.Schedule.Steps, 1, 1 << 40},
		{"warm-up steps", c.Schedule.Warmup, 0, 1 << 40},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("%s is %d: for model %s it must be from %d to %d", f.name, f.value, c.Model, f.least, f.most)
		}
	}
	if c.Lengths > 0 && c.GPT2 == (nn.GPT2Config{}) && (c.BERT == (nn.BERTConfig{}) || c.Task != Classes) {
		return fmt.Errorf("batches by length: model %s can't leave padding out of its task; GPT-2 and BERT's task %s can", c.Model, Classes)
	}
	if !c.Precision.Float() {
		return fmt.Errorf("precision %v: want float32, bfloat16 or float16", c.Precision)
	}
	return c.checkRates()
}

func (c Config) checkRates() error {
	const most = 1e6
	if s := c.Schedule; !(s.Peak > 0 && s.Peak <= most) || !(s.Floor >= 0 && s.Floor <= s.Peak) || !(c.Clip >= 0) {
		return fmt.Errorf("learning rate %g (floor %g) and clip %g: a rate must be over 0 and at most %g, its floor not above it, clip not under 0", s.Peak, s.Floor, c.Clip, most)
	}
	if a := c.AdamW; a != (nn.AdamWOptions{}) {
		if !(a.Beta1 >= 0 && a.Beta1 < 1) || !(a.Beta2 >= 0 && a.Beta2 < 1) || !(a.Eps > 0) || !(a.WeightDecay >= 0 && a.WeightDecay <= 1) {
			return fmt.Errorf("AdamW with beta1 %g, beta2 %g, eps %g, weight decay %g: betas must be from 0 to under 1, eps over 0, decay from 0 to 1", a.Beta1, a.Beta2, a.Eps, a.WeightDecay)
		}
		if c.SGD != (nn.SGDOptions{}) {
			return fmt.Errorf("both AdamW and SGD are set: a run has one optimizer")
		}
	}
	if s := c.SGD; !(s.Momentum >= 0 && s.Momentum < 1) || !(s.WeightDecay >= 0 && s.WeightDecay <= 1) {
		return fmt.Errorf("SGD with momentum %g, weight decay %g: momentum must be from 0 to under 1, decay from 0 to 1", s.Momentum, s.WeightDecay)
	}
	return nil
}

// rule is the optimizer's.
func (c Config) rule() nn.Rule {
	if c.AdamW != (nn.AdamWOptions{}) {
		return c.AdamW
	}
	return c.SGD
}

// Strategy is how a step is made to fit. It changes memory and time, and no
// result: the losses are the same bit for bit under recompute and, on the host, with
// logits in parts, and up to the order of additions under micro-batches (and, where
// there is dropout, to which values it drops). Values.AwayAs alone, off by default, changes gradients by what
// its form leaves out.
type Strategy struct {
	MicroBatch int `json:"micro_batch"` // sequences computed at once; divides the batch
	Recompute  int `json:"recompute"`   // the first so many blocks, of a pipeline those of each stage, keep only their input for backward

	// Values says how single values wait for backward: which are made again, which
	// wait outside the device. It is of a micro-batch; nil: all are kept.
	Values *tensor.Schedule `json:"values,omitempty"`

	// LogitRows is how many rows of logits, each of a token, are made at a time: a
	// multiple of tensor.LogitRows; 0: as many as take 512 MiB.
	LogitRows int `json:"logit_rows,omitempty"`

	// StateAway keeps the optimizer's state outside the device, where the weights
	// are updated; each gradient goes there when the last micro-batch has
	// completed it. GradientsAway, which needs StateAway, lets gradients wait
	// there between micro-batches, too (outside.go).
	StateAway     bool `json:"state_away,omitempty"`
	GradientsAway bool `json:"gradients_away,omitempty"`
}

// Away says whether anything waits outside the device, for which the trainer
// needs UseStore.
func (s Strategy) Away() bool {
	_, away, _ := s.Values.Count()
	return away > 0 || s.StateAway
}

// Plain is the strategy of a step that does nothing to save memory.
func (c Config) Plain() Strategy { return Strategy{MicroBatch: c.Batch} }

// Blocks is the number of blocks that may be recomputed. Of a mixture of
// experts these are the experts of a layer.
func (c Config) Blocks() int {
	if j, err := c.job(); err == nil {
		return j.blocks()
	}
	return 0
}

// Logits is how many rows of logits, each of a token, the loss of a sample makes in
// parts (Strategy.LogitRows); 0 where it makes none, or all at once.
func (c Config) Logits() int {
	if j, err := c.job(); err == nil {
		return j.logits()
	}
	return 0
}

// logits are those of a family of models that makes none in parts.
func (c Config) logits() int { return 0 }

// Context is the longest sequence that the model takes; 0 where it takes none.
func (c Config) Context() int {
	if j, err := c.job(); err == nil {
		return j.context()
	}
	return 0
}

// Divisible says whether a batch may be computed in micro-batches. It may not
// where the model normalises over the batch: other parts give other results.
func (c Config) Divisible() bool { return c.ResNet == (nn.ResNetConfig{}) }

// Describe says what s does to a step of c.
func (c Config) Describe(s Strategy) string {
	text := "whole batch"
	if s.MicroBatch < c.Batch {
		text = fmt.Sprintf("micro-batches of %d", s.MicroBatch)
	}
	if s.Recompute > 0 {
		text += fmt.Sprintf(", recompute %d of %d blocks", s.Recompute, c.Blocks())
	}
	again, away, held := s.Values.Count()
	if again > 0 {
		text += fmt.Sprintf(", %d values made again", again)
	}
	if away > 0 {
		text += fmt.Sprintf(", %d values moved away", away)
		if as := s.Values.AwayAs; as != tensor.AwayExact {
			text += fmt.Sprintf(" as %s", as)
		}
	}
	if held > 0 {
		text += fmt.Sprintf(", %d values held", held)
	}
	if s.LogitRows > 0 {
		text += fmt.Sprintf(", logits of %d tokens at a time", s.LogitRows)
	}
	switch {
	case s.GradientsAway:
		text += ", optimizer and gradients outside the device"
	case s.StateAway:
		text += ", optimizer outside the device"
	}
	if s.Values != nil && s.Values.Online {
		text += ", values let go as memory runs out"
	}
	if s == c.Plain() {
		text = "plain"
	}
	return text
}

// Fingerprint names what decides the memory of a step: the model, the task and
// the sizes of the batch.
func (c Config) Fingerprint() string {
	c.Schedule, c.Seed, c.Tune = nn.Cosine{}, 0, false
	text, err := json.Marshal(c)
	if err != nil {
		panic("train: " + err.Error()) // numbers and names alone
	}
	sum := sha256.Sum256(text)
	batch := strconv.Itoa(c.Batch)
	if c.Seq > 0 {
		batch += fmt.Sprintf(" × %d", c.Seq)
	}
	return fmt.Sprintf("%s, batch %s, %x", c.Model, batch, sum[:6])
}

// Allows says what in a strategy c does not allow, if anything.
func (c Config) Allows(s Strategy) error {
	if s.MicroBatch < 1 || c.Batch%s.MicroBatch != 0 || s.Recompute < 0 || s.Recompute > c.Blocks() {
		return fmt.Errorf("strategy %+v does not fit a batch of %d and %d blocks", s, c.Batch, c.Blocks())
	}
	if err := s.Values.Validate(); err != nil {
		return fmt.Errorf("strategy: %w", err)
	}
	if s.LogitRows < 0 || s.LogitRows%tensor.LogitRows != 0 || s.LogitRows > 0 && c.Logits() == 0 {
		return fmt.Errorf("strategy: logits of %d tokens at a time: want a multiple of %d, of a model that names tokens", s.LogitRows, tensor.LogitRows)
	}
	if s.GradientsAway && !s.StateAway {
		return fmt.Errorf("strategy %+v: gradients wait outside the device only where the optimizer's state does", s)
	}
	if s.MicroBatch < c.Batch && !c.Divisible() {
		return fmt.Errorf("micro-batches of %d: model %s normalises over the whole batch of %d", s.MicroBatch, c.Model, c.Batch)
	}
	return nil
}
