package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
)

// CheckpointFile is the name of the checkpoint in a run's folder: one
// safetensors file with the weights under their usual names, the optimizer's
// moments, and a State in its metadata. Being one file, it is replaced whole
// or not at all.
const CheckpointFile = "checkpoint.safetensors"

// stateKey is where the metadata keeps the State.
const stateKey = "headroom.state"

// State is what a checkpoint holds beside the arrays.
type State struct {
	Version int             `json:"version"`
	Step    int             `json:"step"`
	Config  Config          `json:"config"`
	Data    json.RawMessage `json:"data"`       // the feed's
	First   float64         `json:"first_loss"` // of step 1
	Last    float64         `json:"last_loss"`  // of Step

	Precision nn.Precision  `json:"precision"`         // of the next step
	Lengths   []LengthState `json:"lengths,omitempty"` // of Run.Shapes
}

const stateVersion = 2

// Save writes the trainer's state and s to a checkpoint in dir. On an error
// the checkpoint of before is still there. Of several ranks all call it, and the
// first writes.
func (t *Trainer) Save(dir string, s State) error {
	s.Version, s.Step, s.Config, s.Precision = stateVersion, t.opt.Steps, t.Job(), t.precision
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, CheckpointFile)
	if err := t.saveState(path, map[string]string{"format": "pt", stateKey: string(text)}); err != nil {
		err = fmt.Errorf("the checkpoint of step %d could not be saved (an older one, if there was one, is still whole): %w", s.Step, err)
		return t.par.failure(err)
	}
	return t.par.agree(dist.Max, 0) // that it is there, on all ranks
}

// saveState writes all arrays, on the rank that writes.
func (t *Trainer) saveState(path string, metadata map[string]string) error {
	switch {
	case t.par.sharded():
		return t.saveParts(path, metadata)
	case t.par.writes():
		return nn.SaveState(path, metadata, t.arrays())
	}
	return nil
}

// arrays is all that a checkpoint keeps.
func (t *Trainer) arrays() []*nn.Parameter {
	return append(nn.State(t.model.Module), t.opt.State()...)
}

// Export writes the model alone, for other programs: model.safetensors and
// config.json as Hugging Face lays them out, or, of a ResNet, with torchvision's
// names.
func (t *Trainer) Export(dir string) error {
	if err := nn.Export(filepath.Join(dir, "model.safetensors"), t.model.Module, t.opt.Steps); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "config.json"), t.job.architecture())
}

// Checkpoint is an opened checkpoint.
type Checkpoint struct {
	State State
	file  *safetensors.File
}

// OpenCheckpoint reads the State of the checkpoint in dir. The caller closes it.
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	path := filepath.Join(dir, CheckpointFile)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("no checkpoint to go on from: %w", err)
	}
	c := &Checkpoint{file: f}
	text, ok := f.Metadata()[stateKey]
	if !ok {
		err = errors.New("it holds no state of a training run, only arrays")
	} else if err = json.Unmarshal([]byte(text), &c.State); err == nil {
		err = c.check()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return c, nil
}

// check says what in the state cannot be, before anything is made from it.
func (c *Checkpoint) check() error {
	s := c.State
	if s.Version != stateVersion {
		return fmt.Errorf("its version is %d, this program knows %d", s.Version, stateVersion)
	}
	if err := s.Config.Validate(); err != nil {
		return err
	}
	if err := s.Precision.Validate(); err != nil {
		return err
	}
	if s.Step < 1 || s.Step > s.Config.Schedule.Steps {
		return fmt.Errorf("it is of step %d of %d", s.Step, s.Config.Schedule.Steps)
	}
	have := 0
	for _, t := range c.file.Tensors() {
		have += t.Elements()
	}
	j, err := s.Config.job()
	if err != nil {
		return err
	}
	if n := len(c.file.Tensors()); n < j.arrays() { // before a model of any size is laid out
		return fmt.Errorf("it has %d arrays, its configuration needs %d and more", n, j.arrays())
	}
	want, err := s.Config.elements()
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("its arrays have %d elements, its configuration needs %d", have, want)
	}
	return nil
}

// elements counts those of a checkpoint of c, by laying out the model where
// nothing is stored.
func (c Config) elements() (int, error) {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 46, Virtual: true})
	if err != nil {
		return 0, err
	}
	t, err := New(dev, c, c.Plain())
	if err != nil {
		return 0, errors.Join(err, dev.Close())
	}
	n := 0
	for _, p := range t.arrays() {
		n += p.Len()
	}
	return n, errors.Join(t.Close(), dev.Close())
}

// Extend makes the checkpoint one of a run of so many steps: from here on, the
// learning rate is that of the longer schedule.
func (c *Checkpoint) Extend(steps int) error {
	if steps < c.State.Step {
		return fmt.Errorf("the checkpoint is of step %d: it cannot go on to step %d", c.State.Step, steps)
	}
	c.State.Config.Schedule.Steps = steps
	c.State.Config.Schedule.Warmup = min(c.State.Config.Schedule.Warmup, steps)
	return nil
}

// Close closes the file.
func (c *Checkpoint) Close() error { return c.file.Close() }

// Differences lists the fields of the checkpoint's configuration that differ
// from want, as in "batch: 8 in the checkpoint, 16 asked".
func (c *Checkpoint) Differences(want Config) []string {
	return differences("", reflect.ValueOf(c.State.Config), reflect.ValueOf(want))
}

func differences(prefix string, have, want reflect.Value) []string {
	var out []string
	for i := range have.NumField() {
		name, _, _ := strings.Cut(have.Type().Field(i).Tag.Get("json"), ",")
		h, w := have.Field(i), want.Field(i)
		switch {
		case h.Kind() == reflect.Struct:
			out = append(out, differences(prefix+name+".", h, w)...)
		case !h.Equal(w):
			out = append(out, fmt.Sprintf("%s%s: %v in the checkpoint, %v asked", prefix, name, h, w))
		}
	}
	return out
}

// Restore brings the trainer, made with the checkpoint's configuration, to
// the checkpoint's step.
func (t *Trainer) Restore(c *Checkpoint) error {
	if d := c.Differences(t.Job()); len(d) > 0 {
		return fmt.Errorf("the checkpoint is of another run: %s", strings.Join(d, "; "))
	}
	if err := t.loadState(c.file); err != nil {
		return fmt.Errorf("checkpoint of step %d: %w", c.State.Step, err)
	}
	t.opt.Steps, t.precision = c.State.Step, c.State.Precision
	t.outside.weightsChanged()
	return nil
}

// loadState reads all arrays that this trainer has.
func (t *Trainer) loadState(f *safetensors.File) error {
	if !t.par.sharded() {
		return nn.LoadState(f, t.arrays())
	}
	return errors.Join(nn.LoadState(f, nn.State(t.model.Module)), t.loadParts(f))
}

// LoadWeights fills the model from a safetensors file with the usual names.
func (t *Trainer) LoadWeights(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := nn.LoadState(f, nn.State(t.model.Module)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t.outside.weightsChanged()
	return nil
}
