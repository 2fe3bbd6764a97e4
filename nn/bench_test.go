package nn_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// BenchmarkBERTBaseStep is a step on masked tokens, 4 sequences of 128.
func BenchmarkBERTBaseStep(b *testing.B) {
	rt := open(b, "host:6GiB")
	c, _ := nn.LookupBERT("bert-base")
	model := nn.NewMaskedLM(rt, c, 1)
	x, mask, y := rt.FromInt32s(trace.Input, ramp(512, 30000), 4, 128), rt.FromInt32s(trace.Input, ones(512), 4, 128), rt.FromInt32s(trace.Input, ramp(512, 20000), 4, 128)
	benchmark(b, model, []*tensor.Tensor{x, mask, y}, func() *tensor.Tensor {
		return model.Loss(nn.BERTInput{Tokens: x, Mask: mask}, y)
	})
}

// BenchmarkGPT2Step is a step in each precision: of 2 sequences of 64 on the
// host, or of 16 sequences of 1024 on the device that the flag -device names.
func BenchmarkGPT2Step(b *testing.B) {
	batch, seq := 2, 64
	if devicetest.Chosen() != "" {
		batch, seq = 16, 1024
	}
	c, _ := nn.LookupGPT2("gpt2")
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		b.Run(d.String(), func(b *testing.B) {
			rt := on(b, devicetest.Open(b, "host:6GiB"))
			model := nn.NewGPT2(rt, c, 1)
			x, y := rt.FromInt32s(trace.Input, ramp(batch*seq, 50000), batch, seq), rt.FromInt32s(trace.Input, ramp(batch*seq, 49999), batch, seq)
			var maps uint64 // by the end of the first step
			benchmark(b, model, []*tensor.Tensor{x, y}, func() (loss *tensor.Tensor) {
				rt.Autocast(d, func() { loss = model.Loss(x, y) })
				if st := rt.Allocator().Stats(); maps == 0 {
					maps = st.Maps + st.ViewMaps
				}
				return loss
			})
			b.ReportMetric(float64(batch*seq*b.N)/b.Elapsed().Seconds(), "tokens/s")
			st := rt.Allocator().Stats()
			b.ReportMetric(float64(st.PeakReserved)/(1<<20), "MiB")
			b.ReportMetric(float64(st.Maps+st.ViewMaps-maps)/float64(b.N), "maps/op")
		})
	}
}

// BenchmarkGPT2Kernels is the time that each kernel takes in a step of
// BenchmarkGPT2Step in bfloat16, one launch at a time.
func BenchmarkGPT2Kernels(b *testing.B) {
	if devicetest.Chosen() == "" {
		b.Skip("the flag -device names no device")
	}
	const batch, seq = 16, 1024
	dev := devicetest.Open(b, "")
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		b.Fatal(err)
	}
	clock := &stopwatch{Stream: stream, spent: map[string]time.Duration{}, launches: map[string]int{}}
	rt := tensor.New(mem, clock)
	c, _ := nn.LookupGPT2("gpt2")
	model := nn.NewGPT2(rt, c, 1)
	x, y := rt.FromInt32s(trace.Input, ramp(batch*seq, 50000), batch, seq), rt.FromInt32s(trace.Input, ramp(batch*seq, 49999), batch, seq)
	benchmark(b, model, []*tensor.Tensor{x, y}, func() (loss *tensor.Tensor) {
		clear(clock.spent)
		clear(clock.launches)
		rt.Autocast(tensor.BFloat16, func() { loss = model.Loss(x, y) })
		return loss
	})
	for name, t := range clock.spent {
		b.ReportMetric(t.Seconds()*1e3, name+"-ms")
		b.ReportMetric(float64(clock.launches[name]), name+"-launches")
	}
}

// stopwatch is a stream that waits for each launch.
type stopwatch struct {
	device.Stream
	spent    map[string]time.Duration
	launches map[string]int
}

func (s *stopwatch) Launch(l *device.Launch) {
	_ = s.Stream.Sync()
	begin := time.Now()
	s.Stream.Launch(l)
	_ = s.Stream.Sync()
	name := l.Kernel.Name
	if name == "matmul" || name == "copy" || name == "sum" || name == "binary" {
		name += fmt.Sprintf("/%v%v%v", l.Int[0], l.Type[0], l.Type[2])
	}
	s.spent[name] += time.Since(begin)
	s.launches[name]++
}

// BenchmarkResNet18Step is a step on 16 images of 64×64.
func BenchmarkResNet18Step(b *testing.B) {
	rt := open(b, "host:2GiB")
	c, _ := nn.LookupResNet("resnet18")
	model := nn.NewResNet(rt, c, 1)
	pixels := make([]float32, 16*3*64*64)
	for i := range pixels {
		pixels[i] = float32(i%255)/255 - 0.5
	}
	x, y := rt.FromFloat32s(trace.Input, pixels, 16, 3, 64, 64), rt.FromInt32s(trace.Input, ramp(16, 1000), 16)
	benchmark(b, model, []*tensor.Tensor{x, y}, func() *tensor.Tensor { return model.Loss(x, y) })
}

func benchmark(b *testing.B, m nn.Module, inputs []*tensor.Tensor, loss func() *tensor.Tensor) {
	opt := nn.NewOptimizer(m.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8})
	var queued time.Duration
	defer func() { b.ReportMetric(queued.Seconds()*1e3/float64(b.N), "queueing-ms/op") }()
	for b.Loop() {
		begin := time.Now()
		l := loss()
		l.Backward(1)
		l.Release()
		opt.Step(1e-4, nil)
		nn.ZeroGrad(m)
		queued += time.Since(begin)
		if err := m.Parameters()[0].Runtime().Sync(); err != nil {
			b.Fatal(err)
		}
	}
	opt.Release()
	nn.Release(m)
	for _, t := range inputs {
		t.Release()
	}
}

// ramp gives n numbers below limit.
func ramp(n, limit int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(i * 7919 % limit)
	}
	return v
}

func ones(n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = 1
	}
	return v
}
