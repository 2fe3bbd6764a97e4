package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// BenchmarkBERTBaseStep is a step of BERT-base on masked words: 4 texts of 128
// tokens, with dropout and AdamW, in float32.
func BenchmarkBERTBaseStep(b *testing.B) { benchmarkModel(b, "bert") }

// BenchmarkResNet18Step is a step of ResNet-18 on 16 images of 64×64.
func BenchmarkResNet18Step(b *testing.B) { benchmarkModel(b, "resnet") }

func benchmarkModel(b *testing.B, name string) {
	python, err := pythonWithTorch()
	b.Run("headroom", func(b *testing.B) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+name)
		measure(b, cmd)
	})
	b.Run("pytorch", func(b *testing.B) {
		if err != nil {
			b.Skip(err)
		}
		cmd := exec.Command(python, "models_step.py", name, fmt.Sprint(steps), fmt.Sprint(runtime.NumCPU()))
		cmd.Env = peerEnv()
		measure(b, cmd)
	})
}

// job is a model with random data for it.
type job struct {
	model nn.Module
	loss  func() *tensor.Tensor // on new data
}

// randomInts is a tensor of n numbers below most.
func randomInts(rt *tensor.Runtime, most int32, shape ...int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	list := make([]int32, n)
	for i := range list {
		list[i] = rand.Int32N(most)
	}
	return rt.FromInt32s(trace.Input, list, shape...)
}

func bertJob(rt *tensor.Runtime) (job, error) {
	c, err := nn.LookupBERT("bert-base")
	if err != nil {
		return job{}, err
	}
	m := nn.NewMaskedLM(rt, c, 1)
	return job{m, func() *tensor.Tensor {
		x, y := randomInts(rt, int32(c.Vocab), 4, 128), randomInts(rt, int32(c.Vocab), 4, 128)
		defer x.Release()
		defer y.Release()
		return m.Loss(nn.BERTInput{Tokens: x}, y)
	}}, nil
}

func resnetJob(rt *tensor.Runtime) (job, error) {
	c, err := nn.LookupResNet("resnet18")
	if err != nil {
		return job{}, err
	}
	m := nn.NewResNet(rt, c, 1)
	return job{m, func() *tensor.Tensor {
		pixels := make([]float32, 16*3*64*64)
		for i := range pixels {
			pixels[i] = rand.Float32()
		}
		x, y := rt.FromFloat32s(trace.Input, pixels, 16, 3, 64, 64), randomInts(rt, 1000, 16)
		defer x.Release()
		defer y.Release()
		return m.Loss(x, y)
	}}, nil
}

// trainModel prints what models_step.py prints.
func trainModel(open func(rt *tensor.Runtime) (job, error)) error {
	dev, err := device.Open("host:6GiB")
	if err != nil {
		return err
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	rt := tensor.New(mem, stream)
	j, err := open(rt)
	if err != nil {
		return err
	}
	opt := nn.NewOptimizer(j.model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
	for range steps {
		start := time.Now()
		err := rt.Try(func() {
			l := j.loss()
			l.Backward(1)
			l.Release()
			opt.Step(1e-4, nil)
			nn.ZeroGrad(j.model)
		})
		if err == nil {
			err = rt.Sync()
		}
		if err != nil {
			return err
		}
		fmt.Println(time.Since(start).Seconds())
	}
	return printMaxRSS()
}
