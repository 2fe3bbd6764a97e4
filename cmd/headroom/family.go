package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// family is models of one kind with one task, and what a run of them is by
// default.
type family struct {
	models []string
	task   train.Task
	set    func(c *train.Config, name string) error

	batch, seq    int // a sequence no longer than the model's context
	steps, warmup int
	rate          float64
	optimizer     string
}

// families lists all; of those with the same models the first is the default.
func families() []family {
	return []family{
		{nn.GPT2Names(), train.NextToken, setGPT2, 32, 256, 20, 5, 1e-3, "adamw"},
		{nn.BERTNames(), train.Hidden, setBERT, 32, 128, 200, 20, 1e-3, "adamw"},
		{nn.BERTNames(), train.Classes, setBERT, 16, 256, 100, 10, 1e-4, "adamw"},
		{nn.ResNetNames(), train.Classes, setResNet, 128, 0, 469, 50, 0.1, "sgd"},
		{nn.MoENames(), train.NextToken, setMoE, 8, 256, 100, 10, 1e-3, "adamw"},
	}
}

// findFamily finds a model with a task, "" for its default.
func findFamily(model, task string) (family, error) {
	var names, tasks []string
	for _, f := range families() {
		if slices.Contains(f.models, model) {
			if task == "" || task == string(f.task) {
				return f, nil
			}
			tasks = append(tasks, string(f.task))
		}
		if !slices.Contains(names, f.models[0]) {
			names = append(names, f.models...)
		}
	}
	if len(tasks) > 0 {
		return family{}, usagef("task %q: model %s has %s", task, model, strings.Join(tasks, " and "))
	}
	return family{}, usagef("unknown model %q: the models are %s", model, strings.Join(names, ", "))
}

func setGPT2(c *train.Config, name string) (err error) {
	c.GPT2, err = nn.LookupGPT2(name)
	return err
}

func setBERT(c *train.Config, name string) (err error) {
	c.BERT, err = nn.LookupBERT(name)
	return err
}

func setMoE(c *train.Config, name string) (err error) {
	c.MoE, err = nn.LookupMoE(name)
	return err
}

func setResNet(c *train.Config, name string) (err error) {
	c.ResNet, err = nn.LookupResNet(name)
	return err
}

func setOptimizer(c *train.Config, name string) error {
	switch name {
	case "adamw":
		c.AdamW = nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}
	case "sgd":
		c.SGD = nn.SGDOptions{Momentum: 0.9, WeightDecay: 5e-4}
	default:
		return usagef("unknown optimizer %q: there are adamw and sgd", name)
	}
	return nil
}

// longest is the longest sequence of c's model.
func longest(c train.Config) int {
	return c.GPT2.Context + c.BERT.Context + c.MoE.Context // of which one is set
}

// sizes adds what plans need and runs take from their data: --image and
// --classes.
type sizes struct{ image, classes int }

func (s sizes) set(c *train.Config) error {
	if s.image < 0 || s.classes < 0 {
		return usagef("--image %d, --classes %d: sizes are positive", s.image, s.classes)
	}
	switch {
	case c.ResNet != (nn.ResNetConfig{}):
		side := s.image
		if side == 0 && c.ResNet.SmallImages {
			side = 28
		} else if side == 0 {
			side = 224
		}
		c.Image = [2]int{side, side}
		if s.classes > 0 {
			c.ResNet.Classes = s.classes
		}
	case c.Task == train.Classes:
		c.Labels = max(s.classes, 2)
	case s.image > 0 || s.classes > 0:
		return usagef("--image %d, --classes %d: model %s and its task have neither images nor classes", s.image, s.classes, c.Model)
	}
	return nil
}

// per is a value with its unit, as in "6235 tokens/s".
func per(samples, tokens float64) string {
	if tokens > 0 {
		return fmt.Sprintf("%.0f tokens/s", tokens)
	}
	return fmt.Sprintf("%.0f images/s", samples)
}
