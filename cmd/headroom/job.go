package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// jobFlags are what train and plan have in common: the step and its device.
type jobFlags struct {
	device string
	model  string
	batch  batchFlag
	seq    int
	json   bool
}

func (j *jobFlags) add(f *pflag.FlagSet) {
	f.StringVar(&j.device, "device", "host:256MiB", "`DEVICE` to run on, with the memory that there is: host:SIZE, cuda:N or cuda:N,SIZE, or null:SIZE for plans")
	f.StringVar(&j.model, "model", "gpt2-mini", "`NAME` of the model: "+strings.Join(nn.GPT2Names(), ", "))
	j.batch = batchFlag{n: 32}
	f.Var(&j.batch, "batch", "sequences in a step, or auto: the most that fit in one piece")
	f.IntVar(&j.seq, "seq", 256, "tokens in a sequence")
	f.BoolVar(&j.json, "json", false, "print the result as JSON")
}

// config is the training step that the flags describe.
func (j *jobFlags) config() (train.Config, error) {
	m, err := nn.LookupGPT2(j.model)
	if err != nil {
		return train.Config{}, usageError{err}
	}
	return train.Config{Model: j.model, GPT2: m, Batch: j.batch.n, Seq: j.seq,
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, Clip: 1}, nil
}

// batchFlag is a number of sequences, or "auto".
type batchFlag struct {
	n    int // with auto 1, until it is found
	auto bool
}

func (b *batchFlag) String() string {
	if b.auto {
		return "auto"
	}
	return strconv.Itoa(b.n)
}

func (b *batchFlag) Set(text string) error {
	if text == "auto" {
		*b = batchFlag{n: 1, auto: true}
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is neither a number nor auto", text)
	}
	*b = batchFlag{n: n}
	return nil
}

func (b *batchFlag) Type() string { return "N" }

// findBatch sets an automatic batch to the largest that fits, and says so.
func (j *jobFlags) findBatch(ctx context.Context, info device.Info, c *train.Config, stderr io.Writer) error {
	if !j.batch.auto {
		return nil
	}
	m, err := plan.LargestBatch(ctx, info, *c, 0)
	if err != nil {
		return planError(err)
	}
	c.Batch = m.Batch
	_, err = fmt.Fprintf(stderr, "batch   %d sequences are the most that fit in one piece: they reserve %s, which leaves %s (%d trials)\n",
		m.Batch, size.Format(m.Fits.ReservedBytes), size.Format(m.MarginBytes), m.Trials)
	return err
}

// open opens the device.
func (j *jobFlags) open() (device.Device, error) {
	dev, err := openDevice(j.device)
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
