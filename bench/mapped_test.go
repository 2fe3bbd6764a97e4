package bench

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	sizes "github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

var mappedSteps = flag.Int("mapped", 0, "steps of each job that TestMapped plays")

// mappedJob is a step and the budget of a GPU that it is planned for.
type mappedJob struct {
	config train.Config
	budget uint64
}

func mappedJobs() ([]mappedJob, error) {
	adamW := nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}
	jobs := []mappedJob{
		{train.Config{Model: "resnet152", Task: train.Classes, Batch: 128, Image: [2]int{224, 224}, SGD: nn.SGDOptions{Momentum: 0.9, WeightDecay: 5e-4}}, 4 << 30},
		{train.Config{Model: "gpt2", Task: train.NextToken, Batch: 16, Seq: 1024, AdamW: adamW}, 4 << 30},
		{train.Config{Model: "bert-large", Task: train.Hidden, Batch: 16, Seq: 512, AdamW: adamW}, 6656 << 20},
	}
	var err error
	for i := range jobs {
		c := &jobs[i].config
		c.Clip, c.Precision, c.Schedule = 1, tensor.BFloat16, nn.Cosine{Peak: 1e-3, Steps: 1000}
		switch c.Task {
		case train.Classes:
			c.ResNet, err = nn.LookupResNet(c.Model)
		case train.NextToken:
			c.GPT2, err = nn.LookupGPT2(c.Model)
		case train.Hidden:
			c.BERT, err = nn.LookupBERT(c.Model)
		}
		if err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// TestMapped plans steps for budgets of a GPU near the least that they fit in, plays
// them on a null device like it, and prints how many pages each step mapped. It fails
// where the last of them mapped any, or a peak is not the one foretold.
func TestMapped(t *testing.T) {
	if *mappedSteps == 0 {
		t.Skip("SKIPPED: -mapped is not given")
	}
	jobs, err := mappedJobs()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if err := j.play(t, *mappedSteps); err != nil {
			t.Fatal(err)
		}
	}
}

func (j *mappedJob) play(t *testing.T, steps int) error {
	info := device.Info{Kind: device.CUDA, Name: "GPU", Granularity: 2 << 20, Virtual: true, Alias: true, ChannelsLast: true,
		Capacity: j.budget - min(j.budget/32, 256<<20)} // without the workspace
	p, err := plan.Search(t.Context(), info, j.config, plan.Options{})
	if err != nil {
		return err
	}
	dev, err := device.OpenNullLike(info, info.Capacity, nil, nil)
	if err != nil {
		return err
	}
	tr, err := train.New(dev, j.config, p.Chosen.Strategy)
	if err != nil {
		return err
	}
	mapped := make([]string, steps)
	for i := range mapped {
		before := tr.Memory().Stats()
		if _, err := tr.Step(j.config.NewBatch()...); err != nil {
			return err
		}
		after := tr.Memory().Stats()
		mapped[i] = fmt.Sprint(after.Maps + after.ViewMaps - before.Maps - before.ViewMaps)
	}
	s := tr.Memory().Stats()
	fmt.Printf("%s in %s, %s: peak %s, foretold %s; reserved %s; pages mapped in each step: %s\n", j.config.Model, sizes.Format(j.budget), p.Chosen.Description,
		sizes.Exact(s.PeakLive), sizes.Exact(p.Chosen.PeakBytes), sizes.Exact(s.PeakReserved), strings.Join(mapped, " "))
	if mapped[steps-1] != "0" || s.PeakLive != p.Chosen.PeakBytes {
		t.Errorf("%s maps %s pages in step %d; peak %d, foretold %d", j.config.Model, mapped[steps-1], steps, s.PeakLive, p.Chosen.PeakBytes)
	}
	return tr.Close()
}
