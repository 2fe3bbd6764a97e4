package generate_test

import (
	"context"
	"fmt"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// Two texts that begin alike are continued one after the other; the second
// finds the beginning.
func Example() {
	dev, _ := device.Open("host:32MiB") // errors are left out for brevity
	mem, _ := alloc.New(dev, alloc.Options{})
	stream, _ := dev.NewStream()
	rt := tensor.New(mem, stream)
	model := nn.NewGPT2(rt, nn.GPT2Config{Vocab: 256, Context: 64, Width: 32, Layers: 2, Heads: 4}, 1)

	e, _ := generate.New(rt, generate.GPT2(model), generate.Options{})
	for _, prompt := range []string{"Once upon a time there was a king", "Once upon a time there was a queen"} {
		tokens := make([]int32, len(prompt))
		for i := range tokens {
			tokens[i] = int32(prompt[i])
		}
		e.Add(generate.Request{Prompt: tokens, MaxTokens: 10})
		n := 0
		e.Run(context.Background(), func(t generate.Token) { n++ })
		fmt.Println(n, "tokens came,", e.Stats().HitTokens, "were found")
	}
	e.Close()
	nn.Release(model)
	fmt.Println(mem.Close(), stream.Close(), dev.Close())
	// Output:
	// 10 tokens came, 0 were found
	// 10 tokens came, 29 were found
	// <nil> <nil> <nil>
}
