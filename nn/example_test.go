package nn_test

import (
	"fmt"
	"log"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// perceptron is a model of one's own: two layers with a non-linearity between.
type perceptron struct{ up, down *nn.Linear }

func newPerceptron(b *nn.Builder, in, hidden, out int) *perceptron {
	return &perceptron{b.Linear("up", in, hidden, 0.5), b.Linear("down", hidden, out, 0.5)}
}

func (p *perceptron) Parameters() []*nn.Parameter {
	return append(p.up.Parameters(), p.down.Parameters()...)
}

func (p *perceptron) Forward(x *tensor.Tensor) *tensor.Tensor {
	h := p.up.Forward(x)
	defer h.Release()
	a := tensor.Tanh(h)
	defer a.Release()
	return p.down.Forward(a)
}

// A model of one's own learns exclusive or.
func Example() {
	dev, err := device.Open("host:16MiB")
	if err != nil {
		log.Fatal(err)
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		log.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	model := newPerceptron(nn.NewBuilder(rt, 1), 2, 8, 2)
	opt := nn.NewOptimizer(model.Parameters(), nn.SGDOptions{Momentum: 0.9})
	x := rt.FromFloat32s(trace.Input, []float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := rt.FromInt32s(trace.Input, []int32{0, 1, 1, 0}, 4)
	for range 200 {
		logits := model.Forward(x)
		loss := tensor.CrossEntropy(logits, y, nn.IgnoreTarget)
		logits.Release()
		loss.Backward(1)
		opt.Step(0.1, nil)
		nn.ZeroGrad(model)
		if l := loss.Float32s()[0]; l < 0.05 {
			fmt.Println("learned")
			loss.Release()
			break
		}
		loss.Release()
	}
	fmt.Println(nn.Count(model), "parameters")
	// Output:
	// learned
	// 42 parameters
}
