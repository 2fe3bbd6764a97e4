package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// languageModel is a model to generate with: its shape, the file of its weights
// (empty for random ones) and, once it is loaded, itself.
type languageModel struct {
	generate.Model
	weights string
	vocab   int
	build   func(rt *tensor.Runtime, seed uint64) (generate.Model, nn.Module, error)
	module  nn.Module
}

// find looks the model up by the flags: a folder, or a name.
func (f *generateFlags) find() (*languageModel, error) {
	if i, err := os.Stat(f.model); err == nil && i.IsDir() {
		m, err := modelOf(filepath.Join(f.model, "config.json"))
		if err != nil {
			return nil, err
		}
		m.weights = filepath.Join(f.model, "model.safetensors")
		if f.weights != "" {
			m.weights = f.weights
		}
		return m, nil
	}
	m, err := namedModel(f.model)
	if err != nil {
		return nil, fmt.Errorf("--model %s is no folder and no name: %w", f.model, err)
	}
	m.weights = f.weights
	return m, nil
}

// namedModel is a model known by name.
func namedModel(name string) (*languageModel, error) {
	c, err := nn.LookupGPT2(name)
	if err == nil {
		return gpt2Model(c), nil
	}
	if c, moeErr := nn.LookupMoE(name); moeErr == nil {
		return moeModel(c), nil
	}
	return nil, err
}

// modelOf reads a config.json.
func modelOf(path string) (*languageModel, error) {
	text, err := readConfig(path)
	if err != nil {
		return nil, fmt.Errorf("the folder of a trained model has a config.json: %w", err)
	}
	var kind struct {
		ModelType string `json:"model_type"`
	}
	var gpt2 nn.GPT2Config
	var moe nn.MoEConfig
	if err := errors.Join(json.Unmarshal(text, &kind), json.Unmarshal(text, &gpt2), json.Unmarshal(text, &moe)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch kind.ModelType {
	case "gpt2":
		err, m := gpt2.Validate(), gpt2Model(gpt2)
		return m, inFile(path, err)
	case "headroom_moe":
		err, m := moe.Validate(), moeModel(moe)
		return m, inFile(path, err)
	}
	return nil, fmt.Errorf("%s: a model of type %q continues no texts: want gpt2 or headroom_moe", path, kind.ModelType)
}

// readConfig reads a file that is not larger than any configuration.
func readConfig(path string) ([]byte, error) {
	const most = 1 << 20
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s has more than %s", path, size.Format(most))
	}
	return text, err
}

// inFile names the file of an error.
func inFile(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

func gpt2Model(c nn.GPT2Config) *languageModel {
	return &languageModel{vocab: c.Vocab, build: func(rt *tensor.Runtime, seed uint64) (generate.Model, nn.Module, error) {
		m := nn.NewGPT2(rt, c, seed)
		return generate.GPT2(m), m, nil
	}}
}

// moeModel is without the capacity of training, so that no token is dropped.
func moeModel(c nn.MoEConfig) *languageModel {
	c.Capacity = 0
	return &languageModel{vocab: c.Vocab, build: func(rt *tensor.Runtime, seed uint64) (generate.Model, nn.Module, error) {
		m := nn.NewMoE(rt, c, seed)
		g, err := generate.MoE(m)
		return g, m, err
	}}
}

// tokenizer is the one that the model's vocabulary belongs to.
func (m *languageModel) tokenizer() (data.Tokenizer, error) {
	if m.vocab == 256 {
		return data.NewTokenizer("bytes")
	}
	return data.NewTokenizer("gpt2")
}

// load makes the model on a device and reads its weights.
func (m *languageModel) load(rt *tensor.Runtime, seed uint64) error {
	var err error
	if failed := rt.Try(func() { m.Model, m.module, err = m.build(rt, seed) }); failed != nil {
		return fmt.Errorf("the model does not fit: %w", failed)
	}
	if err == nil && m.weights != "" {
		err = m.read()
	}
	if err != nil {
		m.release()
		return usageError{err}
	}
	return nil
}

func (m *languageModel) read() error {
	f, err := safetensors.Open(m.weights)
	if err != nil {
		return err
	}
	defer f.Close()
	return inFile(m.weights, nn.LoadState(f, m.module.Parameters()))
}

func (m *languageModel) release() { nn.Release(m.module) }
