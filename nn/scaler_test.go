package nn_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/headroom-go/headroom/nn"
)

// TestGoldenLossScaler follows PyTorch's scale through a pattern of overflows,
// saving and loading the state after every step, and a weight of 1 that moves
// by 0.1 in the steps that are not left out.
func TestGoldenLossScaler(t *testing.T) {
	text, err := os.ReadFile("testdata/gradscaler.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		InitScale     float64 `json:"init_scale"`
		GrowthFactor  float64 `json:"growth_factor"`
		BackoffFactor float64 `json:"backoff_factor"`
		Interval      int     `json:"growth_interval"`
		Steps         [][3]float64
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	s := nn.LossScaler{Scale: want.InitScale, Growth: want.GrowthFactor, Backoff: want.BackoffFactor, Interval: want.Interval}
	weight := float32(1)
	for i, step := range want.Steps {
		overflow := step[0] != 0
		if !overflow {
			weight -= 0.1
		}
		s = reloaded(t, s.Update(overflow))
		if s.Scale != step[1] {
			t.Errorf("step %d: scale %v, want %v", i, s.Scale, step[1])
		}
		if math.Abs(float64(weight)-step[2]) > 1e-6 {
			t.Errorf("step %d: weight %v, want %v", i, weight, step[2])
		}
	}
	if len(want.Steps) < 10 {
		t.Errorf("only %d steps", len(want.Steps))
	}
}

func reloaded(t *testing.T, s nn.LossScaler) nn.LossScaler {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var r nn.LossScaler
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
	return r
}

func TestLossScalerStaysFinite(t *testing.T) {
	s := nn.NewLossScaler()
	s.Interval = 1
	for range 200 {
		s = s.Update(false)
	}
	if s.Scale != 1<<127 {
		t.Errorf("the scale grew to %v, want 2^127", s.Scale)
	}
}

func TestLossScalerValidate(t *testing.T) {
	for name, change := range map[string]func(s *nn.LossScaler){
		"scale 0":      func(s *nn.LossScaler) { s.Scale = 0 },
		"scale NaN":    func(s *nn.LossScaler) { s.Scale = math.NaN() },
		"backoff 1":    func(s *nn.LossScaler) { s.Backoff = 1 },
		"growth 0":     func(s *nn.LossScaler) { s.Growth = 0 },
		"interval 0":   func(s *nn.LossScaler) { s.Interval = 0 },
		"counted past": func(s *nn.LossScaler) { s.Good = s.Interval },
	} {
		s := nn.NewLossScaler()
		change(&s)
		if s.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestLossScalerClip checks that gradients of a scaled loss give the norm and
// the update of the plain ones, and that an overflow is seen in the norm.
func TestLossScalerClip(t *testing.T) {
	rt := runtime(t)
	p := parameter(rt, "w", 0, 0)
	defer p.Release()
	s := nn.LossScaler{Scale: 1024}
	for _, c := range []struct{ limit, norm, factor float32 }{{0, 5, 1}, {10, 5, 1}, {2.5, 5, 0.5}} {
		setGrad(rt, p, []float32{3 * 1024, 4 * 1024})
		scale, norm := s.ClipGradNorm([]*nn.Parameter{p}, c.limit)
		near(t, "norm", float64(norm.Float32s()[0]), float64(c.norm), 1e-6)
		near(t, "factor", float64(scale.Float32s()[0])*1024, float64(c.factor), 1e-6)
		scale.Release()
		norm.Release()
	}
	setGrad(rt, p, []float32{1, float32(math.Inf(-1))})
	scale, norm := s.ClipGradNorm([]*nn.Parameter{p}, 1)
	if got := float64(norm.Float32s()[0]); !math.IsInf(got, 1) && !math.IsNaN(got) {
		t.Errorf("norm of an infinite gradient is %v", got)
	}
	scale.Release()
	norm.Release()
}
