package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// CheckpointFile is the name of the checkpoint in a run's folder: a safetensors
// file with the weights under their usual names, the optimizer's moments, and a
// State in its metadata. Of a run on several ranks it lists further files
// (checkpoint_files.go). It is replaced whole or not at all.
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

	Tuning *device.Tuning `json:"tuning,omitempty"` // with Config.Tune, of a device that can
}

const stateVersion = 3

// Save writes the trainer's state and s to a checkpoint in dir. On an error
// the checkpoint of before is still there. Of several ranks all call it, with
// folders that are the same one.
func (t *Trainer) Save(dir string, s State) error {
	s.Version, s.Step, s.Config, s.Precision = stateVersion, t.opt.Steps, t.Job(), t.precision
	s.Tuning = t.tuned()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := t.saveFiles(dir, string(text)); err != nil {
		err = fmt.Errorf("the checkpoint of step %d could not be saved (an older one, if there was one, is still whole): %w", s.Step, err)
		return t.par.failure(err)
	}
	return nil
}

// array is this rank's piece of an array of a checkpoint.
type array struct {
	name string
	*tensor.Tensor
	safetensors.Piece
	first bool // no rank before this one has the same piece
}

// arrays is all that a checkpoint keeps of this rank.
func (t *Trainer) arrays() []array {
	var list []array
	for _, p := range nn.Unique(nn.State(t.model.Module)) {
		list = append(list, t.par.array(p))
	}
	kept := map[string]*tensor.Tensor{}
	for _, s := range t.opt.State() {
		kept[s.Name] = s.Tensor
	}
	for _, p := range nn.Unique(t.model.Parameters()) {
		piece, first := t.par.updates(p)
		for _, name := range t.opt.StateNames(p) {
			if s := kept[name]; s != nil {
				list = append(list, array{name, s, piece, first})
			}
		}
	}
	return slices.DeleteFunc(list, func(a array) bool { return a.Piece.Len() == 0 })
}

// array is what this rank has of a parameter.
func (l *parallel) array(p *nn.Parameter) array {
	if l != nil && l.lender != nil {
		if c := l.cuts[p.Tensor]; c != nil {
			piece, first := l.updates(p)
			return array{p.Name, c.part.Tensor, piece, first}
		}
	}
	return array{p.Name, p.Tensor, p.Piece(), l.first(p)}
}

// updates is the piece of a parameter's array that this rank updates, and whether
// it is the first that does.
func (l *parallel) updates(p *nn.Parameter) (piece safetensors.Piece, first bool) {
	piece = p.Piece()
	if l == nil || l.Shard == ShardNothing {
		return piece, l.first(p)
	}
	g := l.replicas(p)
	piece.From, piece.To = dist.Part(p.Len(), g.Size(), g.Rank())
	return piece, l.once(p)
}

// Export writes the model of the checkpoint in dir there, for other programs:
// model.safetensors and config.json as Hugging Face lays them out, or, of a
// ResNet, with torchvision's names.
func Export(dir string) error {
	c, err := OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.State.Config.outline(func(t *Trainer) error {
		err := nn.Export(filepath.Join(dir, "model.safetensors"), t.model.Module, c.State.Step, func(p *nn.Parameter) ([]float32, error) {
			return c.read(p.Name, p.Piece())
		})
		return errors.Join(err, writeJSON(filepath.Join(dir, "config.json"), t.job.architecture()))
	})
}

// Checkpoint is an opened checkpoint. Several trainers may be restored from one at
// the same time.
type Checkpoint struct {
	State  State
	files  []checkpointFile
	arrays map[string][]stored
}

// OpenCheckpoint reads the State of the checkpoint in dir, and what there is in its
// files. The caller closes it.
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	path := filepath.Join(dir, CheckpointFile)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("no checkpoint to go on from: %w", err)
	}
	c := &Checkpoint{files: []checkpointFile{{path, f}}}
	if err := c.open(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint %s: %w", path, err), c.Close())
	}
	return c, nil
}

// open reads the state and opens the other files.
func (c *Checkpoint) open(dir string) error {
	text, ok := c.files[0].Metadata()[stateKey]
	if !ok {
		return errors.New("it holds no state of a training run, only arrays")
	}
	if err := json.Unmarshal([]byte(text), &c.State); err != nil {
		return err
	}
	if v := c.State.Version; v != stateVersion {
		return fmt.Errorf("its version is %d, this program knows %d", v, stateVersion)
	}
	if err := c.openParts(dir); err != nil {
		return err
	}
	if err := c.index(); err != nil {
		return err
	}
	return c.check()
}

// check says what in the state cannot be, before anything is made from it.
func (c *Checkpoint) check() error {
	s := c.State
	if err := s.Config.Validate(); err != nil {
		return err
	}
	if err := errors.Join(s.Precision.Validate(), s.Tuning.Validate()); err != nil {
		return err
	}
	if s.Step < 0 || s.Step > s.Config.Schedule.Steps {
		return fmt.Errorf("it is of step %d of %d", s.Step, s.Config.Schedule.Steps)
	}
	have := 0
	for _, list := range c.arrays {
		for _, a := range list {
			have += a.Len()
		}
	}
	j, err := s.Config.job()
	if err != nil {
		return err
	}
	if n := len(c.arrays); n < j.arrays() { // before a model of any size is laid out
		return fmt.Errorf("it has %d arrays, its configuration needs %d and more", n, j.arrays())
	}
	want := 0
	err = s.Config.outline(func(t *Trainer) error {
		for _, a := range t.arrays() {
			want += a.Piece.Len()
		}
		return nil
	})
	if err == nil && have != want {
		err = fmt.Errorf("its arrays have %d elements, its configuration needs %d", have, want)
	}
	return err
}

// outline calls f with a trainer of c whose model is laid out where nothing is
// stored.
func (c Config) outline(f func(*Trainer) error) error {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 46, Virtual: true})
	if err != nil {
		return err
	}
	t, err := New(dev, c, c.Plain())
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	return errors.Join(f(t), t.Close(), dev.Close())
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

// Close closes the files.
func (c *Checkpoint) Close() (err error) {
	for _, f := range c.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

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
// the checkpoint's step, after comparing its files with their checksums. Of
// several ranks all call it.
func (t *Trainer) Restore(c *Checkpoint) error {
	if d := c.Differences(t.Job()); len(d) > 0 {
		return fmt.Errorf("the checkpoint is of another run: %s", strings.Join(d, "; "))
	}
	err := t.par.verify(c)
	if err == nil {
		err = errors.Join(t.load(c), t.tune(c.State.Tuning))
	}
	if err != nil {
		return t.par.failure(fmt.Errorf("checkpoint of step %d: %w", c.State.Step, err))
	}
	t.opt.Steps, t.precision = c.State.Step, c.State.Precision
	t.outside.weightsChanged()
	return t.par.meet() // no rank goes on with a file that another found damaged
}

// load reads all that this trainer has.
func (t *Trainer) load(c *Checkpoint) error {
	arrays := t.arrays()
	for _, a := range arrays {
		if err := c.has(a.name, a.Piece); err != nil {
			return err
		}
	}
	for _, a := range arrays {
		data, err := c.read(a.name, a.Piece)
		if err != nil {
			return err
		}
		a.Set(data)
	}
	return nil
}

// LoadWeights fills the model from a safetensors file with the usual names.
func (t *Trainer) LoadWeights(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t.par.reading("weights", func() { err = nn.LoadState(f, nn.State(t.model.Module)) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t.outside.weightsChanged()
	return nil
}
