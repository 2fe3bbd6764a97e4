package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// jobFlags are what train and plan have in common: the step and its device.
type jobFlags struct {
	device    string
	model     string
	task      string
	optimizer string
	batch     batchFlag
	seq       int
	precision precisionFlag
	away      awayFlag
	rates     string
	json      bool
	changed   func(flag string) bool
}

func (j *jobFlags) add(f *pflag.FlagSet) {
	j.changed = f.Changed
	var models []string
	for _, family := range families() {
		if len(models) == 0 || !strings.Contains(models[len(models)-1], family.models[0]) {
			models = append(models, strings.Join(family.models, ", "))
		}
	}
	f.StringVar(&j.device, "device", "host:256MiB", "`DEVICE` to run on, with the memory that there is: host:SIZE, cuda:N or cuda:N,SIZE, or null:SIZE for plans")
	f.StringVar(&j.model, "model", "gpt2-mini", "`NAME` of the model: "+strings.Join(models, "; "))
	f.StringVar(&j.task, "task", "", "what BERT learns: masked (words hidden from it), or classes (of texts) (default masked)")
	f.StringVar(&j.optimizer, "optimizer", "", "adamw, or sgd with momentum (default by model: "+defaults(func(f family) string { return f.optimizer })+")")
	f.Var(&j.batch, "batch", "sequences or images in a step, or auto: the most that fit in one piece (default by model: "+defaults(func(f family) string { return strconv.Itoa(f.batch) })+")")
	f.IntVar(&j.seq, "seq", 0, "tokens in a sequence (default by model: "+defaults(func(f family) string { return strconv.Itoa(f.seq) })+", or the most it takes)")
	f.Var(&j.precision, "precision", "float32, bfloat16 or float16: what a step computes in; weights stay float32; or auto: of float32 and bfloat16 the faster that fits")
	f.Var(&j.away, "away", "memory outside the device where values and the optimizer's state may wait: SIZE of the host's memory, SIZE,DIR of a file, and for values also SIZE,cuda:N of another GPU, SIZE,tcp://HOST:PORT of a lender's or SIZE,mpi of ranks of the same MPI job that lend; may be given again (default none)")
	f.StringVar(&j.away.as, "away-as", "", "`FORM` in which values wait there: bfloat16 or int8, which change gradients a little; the optimizer's state keeps all bits (default: all bits)")
	f.StringVar(&j.rates, "rates", "", "`FILE` with what operations took on the device, to estimate from: plan --calibrate writes it, and train corrects it by what its steps take")
	f.BoolVar(&j.json, "json", false, "print the result as JSON")
}

// defaults lists a default of each family, as in "gpt2 40, bert 200".
func defaults(value func(family) string) string {
	var list []string
	for _, f := range families() {
		name, _, _ := strings.Cut(f.models[0], "-")
		if name == "bert" {
			name += " " + string(f.task)
		}
		if v := value(f); v != "0" {
			list = append(list, name+" "+v)
		}
	}
	return strings.Join(list, ", ")
}

// config is the training step that the flags describe, with the defaults of
// the model's family.
func (j *jobFlags) config() (train.Config, family, error) {
	f, err := findFamily(j.model, j.task)
	if err == nil {
		err = j.away.check()
	}
	if err == nil && j.precision.auto && j.batch.auto {
		err = usagef("--batch auto and --precision auto: give one of them, since each is chosen for the other")
	}
	if err != nil {
		return train.Config{}, f, err
	}
	c := train.Config{Model: j.model, Task: f.task, Batch: j.batch.n, Seq: j.seq, Clip: 1, Precision: j.precision.DType}
	if err := f.set(&c, j.model); err != nil {
		return c, f, usageError{err}
	}
	if !j.changed("batch") {
		c.Batch = f.batch
	}
	if !j.changed("seq") {
		c.Seq = min(f.seq, longest(c))
	}
	name := f.optimizer
	if j.changed("optimizer") {
		name = j.optimizer
	}
	return c, f, setOptimizer(&c, name)
}

// precisionFlag is the name of an element type, or "auto".
type precisionFlag struct {
	tensor.DType
	auto bool
}

func (p *precisionFlag) Set(name string) error {
	if p.auto = name == "auto"; p.auto {
		return nil
	}
	return p.UnmarshalText([]byte(name))
}

func (p *precisionFlag) String() string {
	if p.auto {
		return "auto"
	}
	return p.DType.String()
}

func (p *precisionFlag) Type() string { return "TYPE" }

// search finds the fastest strategy and, with --precision auto, its precision.
func (j *jobFlags) search(ctx context.Context, info device.Info, c train.Config, o plan.Options) (*plan.Plan, error) {
	if j.precision.auto {
		return plan.SearchPrecision(ctx, info, c, o)
	}
	return plan.Search(ctx, info, c, o)
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
	if b.n == 0 { // by the model
		return ""
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
	show, tell := planning(stderr)
	m, err := plan.LargestBatch(ctx, info, *c, false, plan.Options{OnTrial: tell})
	show.end()
	if err != nil {
		return err
	}
	c.Batch = m.Size
	return fact(stderr, "batch", "%d samples are the most that fit in one piece: they reserve %s, which leaves %s (%d trials)",
		m.Size, size.Format(m.Fits.ReservedBytes), size.Format(m.MarginBytes), m.Trials)
}

// open opens the device.
func (j *jobFlags) open() (device.Device, error) {
	dev, err := openDevice(j.device, 1)
	if err != nil {
		return nil, usageError{err}
	}
	return dev, nil
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
