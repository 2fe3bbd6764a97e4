package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// tinyResNet is the configuration of the reference model.
var tinyResNet = nn.ResNetConfig{Bottleneck: true, Layers: [4]int{1, 2, 1, 1}, Width: 8, Channels: 3, Classes: 10}

// recompute runs parts again in backward.
func recompute(_ int, x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	return tensor.Checkpoint(x, f)
}

// TestGoldenResNet trains the reference model as far as that says anything: at
// the reference's learning rate a change of the weights by rounding grows up to
// a hundredfold a step (testdata/resnet.py), so that PyTorch agrees with itself
// to 1e-4 for three steps only.
func TestGoldenResNet(t *testing.T) {
	want := reference(t, "resnet_tiny")
	want.losses, want.norms, want.loose = want.losses[:3], want.norms[:3], 1e-3
	followResNet(t, runtime(t), nil, want, 0.05)
}

// TestSlowResNet trains it for 12 steps at a rate at which rounding decides
// nothing, and then evaluates it by its running statistics.
func TestSlowResNet(t *testing.T) {
	var want struct {
		Losses, Logits []float64
		GradNorms      []float64 `json:"grad_norms"`
	}
	text, err := os.ReadFile("testdata/resnet_slow.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Losses) != 12 || len(want.Logits) != 40 {
		t.Fatalf("%d losses and %d logits, want 12 and 40", len(want.Losses), len(want.Logits))
	}
	logits := make([]float32, len(want.Logits))
	for i, x := range want.Logits {
		logits[i] = float32(x)
	}
	for name, rt := range map[string]*tensor.Runtime{"device's order": runtime(t), "channels last": on(t, channelsLast{devicetest.Open(t, "host:64MiB")})} {
		t.Run(name, func(t *testing.T) {
			got := followResNet(t, rt, nil, steps{losses: want.Losses, norms: want.GradNorms, grads: "grad.", loose: 2e-3}, 5e-5)
			golden.Near(t, "logits of evaluation", got, logits, 1e-3)
		})
	}
}

// channelsLast is a device that prefers images so.
type channelsLast struct{ device.Device }

func (d channelsLast) Info() device.Info {
	info := d.Device.Info()
	info.ChannelsLast = true
	return info
}

// TestResNetRecompute checks that recompute changes no bit, running statistics
// included, which see each batch once.
func TestResNetRecompute(t *testing.T) {
	want := reference(t, "resnet_tiny")
	want.losses, want.norms, want.loose = want.losses[:2], want.norms[:2], 1e-3
	if plain, again := followResNet(t, runtime(t), nil, want, 0.05), followResNet(t, runtime(t), recompute, want, 0.05); !slices.Equal(plain, again) {
		t.Errorf("logits %v with recompute, %v without", again, plain)
	}
}

// followResNet gives the logits of evaluation after the steps.
func followResNet(t *testing.T, rt *tensor.Runtime, around nn.Around, want steps, lr float64) []float32 {
	t.Helper()
	values := golden.Open(t, "testdata/resnet_tiny.safetensors")
	model := nn.NewResNet(rt, tinyResNet, 1)
	defer nn.Release(model)
	model.Around = around
	opt := nn.NewOptimizer(model.Parameters(), nn.SGDOptions{Momentum: 0.9, WeightDecay: 1e-4})
	defer opt.Release()
	images := func(i int) *tensor.Tensor {
		return rt.FromFloat32s(trace.Input, values.Float32s(fmt.Sprintf("input.%d.0", i)), 4, 3, 64, 64)
	}
	train(t, values, want, model, opt, lr, func(step int) *tensor.Tensor {
		x := images(step % 2)
		y := rt.FromInt32s(trace.Input, values.Int32s(fmt.Sprintf("input.%d.1", step%2)), 4)
		defer x.Release()
		defer y.Release()
		return model.Loss(x, y)
	})
	model.Mode.Training = false
	x := images(0)
	defer x.Release()
	return logits(rt, model, x)
}

// TestResNetParameters compares with the counts that He et al.'s networks are
// known to have.
func TestResNetParameters(t *testing.T) {
	for name, want := range map[string]int{
		"resnet18": 11689512, "resnet34": 21797672, "resnet50": 25557032, "resnet101": 44549160, "resnet152": 60192808,
	} {
		c, err := nn.LookupResNet(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		model := nn.NewResNet(nullRuntime(t), c, 1)
		if got := nn.Count(model); got != want {
			t.Errorf("%s has %d parameters, want %d", name, got, want)
		}
		nn.Release(model)
	}
	if _, err := nn.LookupResNet("resnet19"); err == nil {
		t.Error("no error for resnet19")
	}
}

// TestResNetRunning trains on one batch, saves and loads the state, and checks
// that evaluation goes by the running statistics and leaves them alone.
func TestResNetRunning(t *testing.T) {
	rt := runtime(t)
	c := nn.ResNetConfig{Layers: [4]int{1, 1, 1, 1}, Width: 4, Channels: 3, Classes: 3}
	model := nn.NewResNet(rt, c, 1)
	defer nn.Release(model)
	pixels := make([]float32, 2*3*32*32)
	for i := range pixels {
		pixels[i] = float32(math.Sin(float64(i * i)))
	}
	x := rt.FromFloat32s(trace.Input, pixels, 2, 3, 32, 32)
	defer x.Release()
	inTraining := logits(rt, model, x)
	if mean := model.Stem.Norm.RunningMean.Float32s(); slices.Max(mean) == 0 {
		t.Error("training left the running mean at 0")
	}
	model.Mode.Training = false
	inEvaluation := logits(rt, model, x)
	if slices.Equal(inTraining, inEvaluation) {
		t.Error("evaluation gives what training gave")
	}
	if again := logits(rt, model, x); !slices.Equal(again, inEvaluation) {
		t.Error("evaluation changes what it gives")
	}
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := nn.SaveState(path, nil, nn.State(model)); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := nn.NewResNet(rt, c, 2)
	defer nn.Release(other)
	if err := nn.LoadState(f, nn.State(other)); err != nil {
		t.Fatal(err)
	}
	other.Mode.Training = false
	if loaded := logits(rt, other, x); !slices.Equal(loaded, inEvaluation) {
		t.Error("the loaded model gives something else")
	}
}

func logits(rt *tensor.Runtime, m *nn.ResNet, x *tensor.Tensor) (out []float32) {
	rt.NoGrad(func() {
		l := m.Forward(x)
		defer l.Release()
		out = l.Float32s()
	})
	return out
}

// TestResNetBasicGradients checks the network of plain blocks numerically.
func TestResNetBasicGradients(t *testing.T) {
	rt := runtime(t)
	model := nn.NewResNet(rt, nn.ResNetConfig{Layers: [4]int{1, 1, 1, 1}, Width: 4, Channels: 3, Classes: 3}, 3)
	defer nn.Release(model)
	pixels := make([]float32, 4*3*32*32)
	for i := range pixels {
		pixels[i] = float32(math.Sin(float64(i) * float64(i%97)))
	}
	x := rt.FromFloat32s(trace.Input, pixels, 4, 3, 32, 32)
	y := rt.FromInt32s(trace.Input, []int32{0, 2, 1, 1}, 4)
	defer x.Release()
	defer y.Release()
	checkNumerically(t, model, func() *tensor.Tensor { return model.Loss(x, y) })
}
