// Package train runs the training step inside the memory that there is, with
// the strategies that make it fit, and keeps runs that can be stopped and
// resumed.
package train

import (
	"fmt"

	"github.com/headroom-go/headroom/nn"
)

// Config is everything that decides the numbers of a run: two runs of the
// same configuration on the same data give the same losses, whatever their
// strategy. It is kept in checkpoints.
type Config struct {
	Model    string          `json:"model"` // the name it was chosen by, for people
	GPT2     nn.GPT2Config   `json:"gpt2"`
	Batch    int             `json:"batch"` // sequences a step
	Seq      int             `json:"seq"`   // tokens a sequence
	Seed     uint64          `json:"seed"`  // of initial weights and order of data
	Schedule nn.Cosine       `json:"schedule"`
	AdamW    nn.AdamWOptions `json:"adamw"`
	Clip     float32         `json:"clip"` // greatest norm of the gradients; 0: no limit
}

// Validate says what is wrong with c, if anything.
func (c Config) Validate() error {
	if err := c.GPT2.Validate(); err != nil {
		return fmt.Errorf("model %s: %w", c.Model, err)
	}
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"batch", c.Batch, 1, 1 << 20},
		{"sequence length", c.Seq, 1, c.GPT2.Context},
		{"steps", c.Schedule.Steps, 1, 1 << 40},
		{"warm-up steps", c.Schedule.Warmup, 0, 1 << 40},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("%s is %d: for model %s it must be from %d to %d", f.name, f.value, c.Model, f.least, f.most)
		}
	}
	const most = 1e6
	if s := c.Schedule; !(s.Peak > 0 && s.Peak <= most) || !(s.Floor >= 0 && s.Floor <= s.Peak) || !(c.Clip >= 0) {
		return fmt.Errorf("learning rate %g (floor %g) and clip %g: a rate must be over 0 and at most %g, its floor not above it, clip not under 0", s.Peak, s.Floor, c.Clip, most)
	}
	if a := c.AdamW; !(a.Beta1 >= 0 && a.Beta1 < 1) || !(a.Beta2 >= 0 && a.Beta2 < 1) || !(a.Eps > 0) || !(a.WeightDecay >= 0 && a.WeightDecay <= 1) {
		return fmt.Errorf("AdamW with beta1 %g, beta2 %g, eps %g, weight decay %g: betas must be from 0 to under 1, eps over 0, decay from 0 to 1", a.Beta1, a.Beta2, a.Eps, a.WeightDecay)
	}
	return nil
}

// Strategy is how a step is made to fit. It changes memory and time, and no
// result: the losses are the same bit for bit under recompute, and up to the
// order of additions under micro-batches.
type Strategy struct {
	MicroBatch int `json:"micro_batch"` // sequences computed at once; divides the batch
	Recompute  int `json:"recompute"`   // the first so many blocks keep only their input for backward
}

// Plain is the strategy of a step that does nothing to save memory.
func (c Config) Plain() Strategy { return Strategy{MicroBatch: c.Batch} }

// Describe says what s does to a step of c.
func (c Config) Describe(s Strategy) string {
	text := "whole batch"
	if s.MicroBatch < c.Batch {
		text = fmt.Sprintf("micro-batches of %d", s.MicroBatch)
	}
	if s.Recompute > 0 {
		text += fmt.Sprintf(", recompute %d of %d blocks", s.Recompute, c.GPT2.Layers)
	}
	if s == c.Plain() {
		text = "plain"
	}
	return text
}
