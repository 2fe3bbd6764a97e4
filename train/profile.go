package train

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/profile"
	"github.com/headroom-go/headroom/tensor"
)

// The files of a profiled step in a run's folder: its tables, for programs and
// for people, and the picture of its memory over time.
const (
	ProfileFile = "profile.json"
	TablesFile  = "profile.txt"
	PictureFile = "memory.svg"
)

// modules is told which module runs.
type modules interface {
	Enter(module string)
	Leave()
}

// annotated runs a step as a range, with the name that PyTorch's profiler
// gives to steps, and tells of its modules.
func (r *Run) annotated(step func() (Result, error), to modules) (result Result, err error) {
	if hooks := nn.HooksOf(r.Trainer.stages[0].Module); hooks != nil {
		defer func(before nn.Hooks) { *hooks = before }(*hooks)
		hooks.Before = func(name string, _ nn.Module, _ *tensor.Tensor) { to.Enter(name) }
		hooks.After = func(string, nn.Module, *tensor.Tensor, *tensor.Tensor) { to.Leave() }
	}
	r.Trainer.rt.Range(fmt.Sprintf("ProfilerStep#%d", r.Trainer.Steps()+1), func() { result, err = step() })
	return result, err
}

// profiled runs one step, profiles it and writes the files.
func (r *Run) profiled(step func() (Result, error)) (Result, error) {
	p := profile.Start(r.Trainer.rt)
	result, err := r.annotated(step, p)
	out := p.Stop()
	if err != nil {
		return result, err
	}
	file := func(name string, write func(io.Writer) error) error {
		return atomicfile.Write(filepath.Join(r.Dir, name), write)
	}
	return result, errors.Join(
		writeJSON(filepath.Join(r.Dir, ProfileFile), out),
		file(TablesFile, func(w io.Writer) error { return out.WriteText(w, profile.Table{}) }),
		file(PictureFile, func(w io.Writer) error { return inspect.WriteSVG(w, p.Snapshot(), 0) }))
}
