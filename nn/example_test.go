package nn_test

import (
	"fmt"
	"log"
	"math"

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

// open16MiB gives a runtime on a host device.
func open16MiB() *tensor.Runtime {
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
	return tensor.New(mem, stream)
}

// A model of one's own learns exclusive or.
func Example() {
	rt := open16MiB()
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

// A loop of one's own in mixed precision: the loss is computed under autocast
// and scaled, a step whose gradients overflowed is left out, and precision goes
// up where that does not help.
func ExamplePrecision() {
	rt := open16MiB()
	model := newPerceptron(nn.NewBuilder(rt, 1), 2, 8, 2)
	opt := nn.NewOptimizer(model.Parameters(), nn.SGDOptions{Momentum: 0.9})
	x := rt.FromFloat32s(trace.Input, []float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := rt.FromInt32s(trace.Input, []int32{0, 1, 1, 0}, 4)
	precision := nn.NewPrecision(tensor.Float16)
	precision.Scaler.Scale = 1 << 22 // far too high
	var loss *tensor.Tensor
	for range 100 {
		rt.Autocast(precision.Type, func() {
			logits := model.Forward(x)
			loss = tensor.CrossEntropy(logits, y, nn.IgnoreTarget)
			logits.Release()
		})
		loss.Backward(precision.Seed())
		scale, norm := precision.ClipGradNorm(model.Parameters(), 1)
		n := float64(norm.Float32s()[0])
		overflow := math.IsInf(n, 0) || math.IsNaN(n)
		if !overflow {
			opt.Step(0.1, scale)
		}
		var change nn.PrecisionChange
		if precision, change = precision.Update(overflow); change.Changed() {
			fmt.Println("precision goes up to", change.To, "since", change.Reason)
		}
		nn.ZeroGrad(model)
		scale.Release()
		norm.Release()
		loss.Release()
	}
	fmt.Println(100-opt.Steps, "steps left out; the scale is", precision.Scaler.Scale)
	fmt.Println("computes in", precision.Type)
	// Output:
	// 4 steps left out; the scale is 262144
	// computes in float16
}
