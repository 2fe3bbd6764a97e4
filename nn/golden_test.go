package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// runtime gives a runtime on a host device for the duration of the test, at
// whose end every handle must be released and every byte given back.
// onHost skips a test of ranks in one process, which exchange what hosts hold.
func onHost(t *testing.T) {
	if devicetest.Chosen() != "" {
		t.Skip("SKIPPED: ranks of one process are on the host")
	}
}

func runtime(t testing.TB) *tensor.Runtime { return on(t, devicetest.Open(t, "host:64MiB")) }

// nullRuntime gives a runtime on a device that computes nothing.
func nullRuntime(t testing.TB) *tensor.Runtime { return open(t, "null:16GiB") }

// like is on a device that computes nothing and is as the one described.
func like(t testing.TB, info device.Info) *tensor.Runtime {
	t.Helper()
	dev, err := device.OpenNullLike(info, 16<<30, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return on(t, dev)
}

func open(t testing.TB, name string) *tensor.Runtime {
	t.Helper()
	dev, err := device.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return on(t, dev)
}

func on(t testing.TB, dev device.Device) *tensor.Runtime {
	t.Helper()
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	t.Cleanup(func() {
		if n := rt.Live(); n != 0 {
			t.Errorf("%d handles were not released", n)
		}
		for _, close := range []func() error{rt.Sync, mem.Close, stream.Close, dev.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return rt
}

// tiny is the configuration of the reference model.
var tiny = nn.GPT2Config{Vocab: 503, Context: 64, Width: 64, Layers: 3, Heads: 4}

// TestGoldenGPT2 trains the reference model for 12 steps as PyTorch did:
// first gradients, losses and gradient norms agree.
func TestGoldenGPT2(t *testing.T) {
	values := golden.Open(t, "testdata/gpt2_tiny.safetensors")
	rt := runtime(t)
	model := nn.NewGPT2(rt, tiny, 1)
	defer nn.Release(model)
	opt := nn.NewAdamW(model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1})
	defer opt.Release()
	train(t, values, reference(t, "gpt2_tiny"), model, opt, 1e-3, func(step int) *tensor.Tensor {
		x, y := nextTokens(rt, values.Int32s(fmt.Sprintf("input.%d.0", step%3)), 4, 48)
		defer x.Release()
		defer y.Release()
		return model.Loss(x, y)
	})
}

// TestGoldenMoE trains the reference mixture of experts, without balancing
// loss and with no token dropped: once as it is, once with room for all tokens
// at every expert, once with the experts run again in backward.
func TestGoldenMoE(t *testing.T) {
	for _, c := range []struct {
		capacity float64
		around   nn.Around
	}{{}, {capacity: 4}, {around: recompute}} {
		values := golden.Open(t, "testdata/moe_tiny.safetensors")
		rt := runtime(t)
		model := nn.NewMoE(rt, nn.MoEConfig{Vocab: 101, Width: 32, Layers: 2, Experts: 4, TopK: 2, Hidden: 128, Capacity: c.capacity}, 1)
		defer nn.Release(model)
		model.Around = c.around
		opt := nn.NewAdamW(model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
		defer opt.Release()
		train(t, values, reference(t, "moe_tiny"), model, opt, 3e-3, func(step int) *tensor.Tensor {
			x := rt.FromInt32s(trace.Input, values.Int32s(fmt.Sprintf("input.%d.0", step%2)), 4, 24)
			y := rt.FromInt32s(trace.Input, values.Int32s(fmt.Sprintf("input.%d.1", step%2)), 4, 24)
			defer x.Release()
			defer y.Release()
			return model.Loss(x, y)
		})
	}
}

// steps is what PyTorch's steps gave.
type steps struct {
	losses, norms []float64
	grads         string  // what the names of the first gradients begin with
	loose         float64 // tolerance of the norms, if greater than 1e-4
}

// reference gives the 12 steps of a model in testdata/models.json.
func reference(t *testing.T, name string) steps {
	t.Helper()
	var want map[string]struct {
		FP32 struct {
			Losses    []float64 `json:"losses"`
			GradNorms []float64 `json:"grad_norms"`
		} `json:"fp32"`
	}
	text, err := os.ReadFile("testdata/models.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if len(want[name].FP32.Losses) != 12 {
		t.Fatalf("%d steps of %s, want 12", len(want[name].FP32.Losses), name)
	}
	return steps{losses: want[name].FP32.Losses, norms: want[name].FP32.GradNorms, grads: "grad."}
}

// train trains a model from the reference's weights and compares every step.
func train(t *testing.T, values golden.Values, want steps, model nn.Module, opt *nn.Optimizer, lr float64, loss func(step int) *tensor.Tensor) {
	t.Helper()
	if err := nn.LoadState(values.File(), nn.State(model)); err != nil {
		t.Fatal(err)
	}
	if len(want.losses) == 0 || len(want.losses) != len(want.norms) {
		t.Fatalf("%d losses and %d norms", len(want.losses), len(want.norms))
	}
	for step := range want.losses {
		l := loss(step)
		got := float64(l.Float32s()[0])
		l.Backward(1)
		if step == 0 {
			checkGradients(t, values, want.grads, model.Parameters())
		}
		scale, norm := nn.ClipGradNorm(model.Parameters(), 0)
		near(t, fmt.Sprintf("loss of step %d", step), got, want.losses[step], 1e-4)
		near(t, fmt.Sprintf("gradient norm of step %d", step), float64(norm.Float32s()[0]), want.norms[step], max(want.loose, 1e-4))
		opt.Step(lr, scale)
		nn.ZeroGrad(model)
		for _, r := range []*tensor.Tensor{l, scale, norm} {
			r.Release()
		}
	}
}

// nextTokens gives a batch and its targets: each row shifted by one, its last
// place left out of the loss.
func nextTokens(rt *tensor.Runtime, tokens []int32, batch, seq int) (x, y *tensor.Tensor) {
	targets := make([]int32, len(tokens))
	for i := range targets {
		targets[i] = nn.IgnoreTarget
		if (i+1)%seq != 0 {
			targets[i] = tokens[i+1]
		}
	}
	return rt.FromInt32s(trace.Input, tokens, batch, seq), rt.FromInt32s(trace.Input, targets, batch, seq)
}

func checkGradients(t *testing.T, values golden.Values, prefix string, params []*nn.Parameter) {
	t.Helper()
	checked := 0
	for _, p := range params {
		if name := prefix + p.Name; values.Has(name) {
			golden.Near(t, name, p.Grad().Float32s(), values.Float32s(name), 1e-4)
			checked++
		}
	}
	if checked < 30 {
		t.Errorf("only %d gradients have reference values", checked)
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
		t.Errorf("%s is %v, want %v within %v", what, got, want, tolerance)
	}
}
