package plan_test

import (
	"context"
	"fmt"
	"log"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// Plan a step for the memory that there is, and run it there.
func Example() {
	dev, err := device.Open("host:10MiB") // the budget
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	config := train.Config{
		Model: "tiny", GPT2: nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4},
		Batch: 16, Seq: 64, Seed: 1, Clip: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 10},
		AdamW:    nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8},
	}
	p, err := plan.Search(context.Background(), dev.Info(), config, plan.Options{Work: 300_000})
	if err != nil {
		log.Fatal(err)
	}
	t, err := train.New(dev, config, p.Chosen.Strategy)
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	tokens := make([]int32, config.Batch*config.Seq)
	for range 3 {
		if _, err := t.Step(tokens, tokens); err != nil { // the result holds the loss
			log.Fatal(err)
		}
	}
	fmt.Println("a plain step fits:", p.Plain.ReservedBytes <= dev.Info().Capacity)
	fmt.Println("chosen:", p.Chosen.Description)
	fmt.Println("the measured peak is the predicted one:", t.Memory().Stats().PeakLive == p.Chosen.PeakBytes)
	// Output:
	// a plain step fits: false
	// chosen: whole batch, 6 values made again
	// the measured peak is the predicted one: true
}
