package nn_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// TestLoadPublishedNames loads a model from a file that has other names for
// its tensors, as published files do.
func TestLoadPublishedNames(t *testing.T) {
	rt := runtime(t)
	c := nn.BERTConfig{Vocab: 9, Width: 4, Layers: 1, Heads: 2, Hidden: 8, Context: 6, Types: 2, Eps: 1e-12}
	model, loaded := nn.NewMaskedLM(rt, c, 1), nn.NewMaskedLM(rt, c, 2)
	defer nn.Release(model)
	defer nn.Release(loaded)
	rename := strings.NewReplacer("bert.", "", "LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta",
		"predictions.bias", "predictions.decoder.bias")
	var old []*nn.Parameter
	for i, p := range model.Parameters() {
		fill(p, func(j int) float32 { return float32(100*i + j) })
		old = append(old, &nn.Parameter{Name: rename.Replace(p.Name), Tensor: p.Tensor})
	}
	f := saved(t, old)
	if err := nn.LoadState(f, loaded.Parameters()); err != nil {
		t.Fatal(err)
	}
	for i, p := range loaded.Parameters() {
		if want := model.Parameters()[i].Float32s(); !slices.Equal(p.Float32s(), want) {
			t.Errorf("%s is not what was saved", p.Name)
		}
	}
}

// TestLoadStateRejects checks that a file of another model changes nothing and
// is named as such.
func TestLoadStateRejects(t *testing.T) {
	rt := runtime(t)
	a, b := parameter(rt, "a", 1, 2), parameter(rt, "b", 3, 4)
	f := saved(t, []*nn.Parameter{a})
	a.Set([]float32{5, 6})
	wide := parameter(rt, "a", 1, 2, 3)
	for text, params := range map[string][]*nn.Parameter{
		"no tensor b":          {a, b},
		"shape [2], the model": {wide},
	} {
		err := nn.LoadState(f, params)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one with %q", err, text)
		}
	}
	if got := a.Float32s(); !slices.Equal(got, []float32{5, 6}) {
		t.Errorf("a is %v after failed loads", got)
	}
	for _, p := range []*nn.Parameter{a, b, wide} {
		p.Release()
	}
}

// TestSaveStateKeepsOld checks that a failed save leaves the file of before.
func TestSaveStateKeepsOld(t *testing.T) {
	rt := runtime(t)
	a := parameter(rt, "a", 1)
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := nn.SaveState(path, nil, []*nn.Parameter{a}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	if err := nn.SaveState(path, nil, []*nn.Parameter{a}); err == nil {
		t.Error("no error for a parameter that is gone")
	}
	if after, err := os.ReadFile(path); err != nil || !slices.Equal(after, before) {
		t.Errorf("the file changed (%v)", err)
	}
}

func parameter(rt *tensor.Runtime, name string, values ...float32) *nn.Parameter {
	p := &nn.Parameter{Name: name, Tensor: rt.Parameter(len(values))}
	p.Set(values)
	return p
}

// saved writes parameters to a file and opens it.
func saved(t *testing.T, params []*nn.Parameter) *safetensors.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := nn.SaveState(path, nil, params); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
