package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// jobFlags are what train and plan have in common: the step and its device.
type jobFlags struct {
	device string
	model  string
	batch  int
	seq    int
	json   bool
}

func (j *jobFlags) add(f *pflag.FlagSet) {
	f.StringVar(&j.device, "device", "host:256MiB", "`DEVICE` to run on, with the memory that there is: host:SIZE, or null:SIZE for plans")
	f.StringVar(&j.model, "model", "gpt2-mini", "`NAME` of the model: "+strings.Join(nn.GPT2Names(), ", "))
	f.IntVar(&j.batch, "batch", 32, "sequences in a step")
	f.IntVar(&j.seq, "seq", 256, "tokens in a sequence")
	f.BoolVar(&j.json, "json", false, "print the result as JSON")
}

// config is the training step that the flags describe.
func (j *jobFlags) config() (train.Config, error) {
	m, err := nn.LookupGPT2(j.model)
	if err != nil {
		return train.Config{}, usageError{err}
	}
	return train.Config{Model: j.model, GPT2: m, Batch: j.batch, Seq: j.seq,
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, Clip: 1}, nil
}

// open opens the device.
func (j *jobFlags) open() (device.Device, error) {
	dev, err := device.Open(j.device)
	if err != nil {
		return nil, usageError{err}
	}
	return dev, nil
}

// planError marks a budget that is too small as wrong use.
func planError(err error) error {
	if errors.As(err, new(*plan.TooSmallError)) {
		return usageError{err}
	}
	return err
}

// tokenizerFor is the tokenizer that a model's vocabulary belongs to.
func tokenizerFor(c nn.GPT2Config) (data.Tokenizer, error) {
	if c.Vocab == 256 {
		return data.NewTokenizer("bytes")
	}
	return data.NewTokenizer("gpt2")
}

// defaultText is a book that comes with every Go installation.
func defaultText() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	path := filepath.Join(strings.TrimSpace(string(root)), "src", "testdata", "Isaac.Newton-Opticks.txt")
	if err != nil {
		return "", fmt.Errorf("no --data was given, and the Go installation with the default text was not found: give --data FILE (%w)", err)
	}
	return path, nil
}
